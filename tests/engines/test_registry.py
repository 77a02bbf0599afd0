"""Engines by the scheme of their URL, and what is said when an extra is missing."""

import subprocess
import sys

import pytest

from rallypoint.engines import registry
from rallypoint.errors import ParameterError


@pytest.mark.parametrize("scheme", ["etcd", "etcds", "redis", "rediss"])
def test_by_scheme(scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:1/x"
    assert registry.is_engine_url(url)
    with registry.open_engine_store(url, 5) as store:
        assert store.timeout.total_seconds() == 5
        assert repr(store) == f"{scheme.rstrip('s').capitalize()}Store({url!r})".replace(
            "RediStore", "RedisStore"
        )
    engine = registry.open_engine(url)
    assert engine.where == url
    engine.close()


def test_endpoints() -> None:
    assert registry.engine_url("etcd", "h1:1,h2:2") == "etcd://h1:1,h2:2"
    assert registry.engine_url("etcd", "etcds://h") == "etcds://h"
    assert registry.is_engine("redis")
    assert not registry.is_engine("core")
    assert not registry.is_engine_url("etcd")
    with pytest.raises(ParameterError, match=r"'tcp://\*\*\*@h': no engine's URL; known are etcd"):
        registry.open_engine("tcp://u:hidden@h")


@pytest.mark.parametrize(("extra", "library"), [("etcd", "urllib3"), ("redis", "redis")])
def test_missing_extra_is_named(extra: str, library: str) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from rallypoint import RendezvousParameters, create_handler, ParameterError\n"
        f"try: create_handler(RendezvousParameters({extra!r}, 'h:1', 'run'))\n"
        "except ParameterError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert f"pip install 'rallypoint[{extra}]'" in done.stdout
