"""Engines by the scheme of their URL; a client library is imported when it is asked for."""

from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING

from rallypoint.engines.url import redacted
from rallypoint.errors import ParameterError
from rallypoint.store.api import DEFAULT_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from rallypoint.engines.contract import Engine
    from rallypoint.engines.store import EngineStore

ENGINES = {
    "etcd": ("rallypoint.engines.etcd.engine", "EtcdEngine", "EtcdStore"),
    "redis": ("rallypoint.engines.redis.engine", "RedisEngine", "RedisStore"),
}
_SCHEMES = {scheme: name for name in ENGINES for scheme in (name, f"{name}s")}


def is_engine_url(url: str) -> bool:
    """Return whether a URL is that of an engine."""
    return url.partition("://")[0] in _SCHEMES and "://" in url


def engine_url(name: str, endpoint: str) -> str:
    """Return the URL of an endpoint of the engine `name`, which may be one already."""
    return endpoint if "://" in endpoint else f"{name}://{endpoint}"


def is_engine(name: str) -> bool:
    """Return whether there is an engine of that name."""
    return name in ENGINES


def open_engine(url: str) -> "Engine":
    """Return an engine.

    Raises:
        ParameterError: the URL is wrong, or the extra for it is not installed.
    """
    module, name, _ = _of(url)
    make: Callable[[str], Engine] = getattr(import_module(module), name)
    return make(url)


def open_engine_store(
    url: str, timeout: float | timedelta = DEFAULT_TIMEOUT_SECONDS
) -> "EngineStore":
    """Return a store on an engine (ParameterError as `open_engine`)."""
    module, _, name = _of(url)
    make: Callable[[str, float | timedelta], EngineStore] = getattr(import_module(module), name)
    return make(url, timeout)


def _of(url: str) -> tuple[str, str, str]:
    if not is_engine_url(url):
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise ParameterError(f"{redacted(url)!r}: no engine's URL; known are {known}")
    return ENGINES[_SCHEMES[url.partition("://")[0]]]
