"""Engines by URL: which kind, where it is, and with which credentials.

    etcds://user:password@h1:2379,h2:2379/prefix?ca=/etc/ssl/etcd-ca.pem
    redis://h1:6379/prefix?db=1

The scheme with an s at its end speaks TLS. User, password and files may come from the
environment instead, which other users of the machine cannot read in a process list:
`RALLYPOINT_ETCD_USER`, `_PASSWORD`, `_PASSWORD_FILE`, `_CA`, `_CERT`, `_KEY` (or
`RALLYPOINT_REDIS_...`); the URL takes precedence. No error text and no `repr`
contains a password.

The client library of an engine is imported when the engine is opened.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlencode

from rallypoint.errors import ParameterError
from rallypoint.net.endpoints import join_endpoint, parse_rendezvous_endpoint
from rallypoint.store.api import DEFAULT_TIMEOUT_SECONDS

if TYPE_CHECKING:
    import ssl

    from rallypoint.engines.contract import Engine
    from rallypoint.engines.store import EngineStore

HIDDEN = "***"
DEFAULT_PREFIX = "rallypoint"
FILES = ("ca", "cert", "key")


def redacted(url: str) -> str:
    """Return a URL without the user and password that it may hold."""
    scheme, mark, rest = url.partition("://")
    if not mark or "@" not in rest:
        return url
    return f"{scheme}://{HIDDEN}@{rest.rpartition('@')[2]}"


def with_timeout(url: str, default: float, most: float) -> str:
    """Return a URL with a limited `timeout`, for a client that must not wait long for one host.

    Args:
        url: of an engine.
        default: seconds, if the URL has none.
        most: the largest allowed number of seconds.
    """
    base, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    try:
        seconds = min(float(options.get("timeout", default)), most)
    except ValueError:
        return url  # opening it raises the error
    return f"{base}?{urlencode(options | {'timeout': f'{seconds:g}'})}"


@dataclass(frozen=True)
class EngineAddress:
    """The parts of an engine's URL.

    Args:
        scheme: of the URL, without the s of TLS.
        tls: whether to speak TLS.
        hosts: (host, port) of each, in the order given.
        prefix: of all keys.
        user: "" for none.
        password: "" for none; shown nowhere.
        options: the query part.
    """

    scheme: str
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    prefix: str
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        hosts = ",".join(join_endpoint(*host) for host in self.hosts)
        return f"{self.scheme}{'s' if self.tls else ''}://{hosts}/{self.prefix}"

    def ssl_context(self) -> "ssl.SSLContext | None":
        """Return the TLS context, None without TLS (ParameterError: an unusable file)."""
        if not self.tls:
            return None
        import ssl  # slow to import, and rarely needed

        try:
            context = ssl.create_default_context(cafile=self.options.get("ca"))
            if "cert" in self.options:
                context.load_cert_chain(self.options["cert"], self.options.get("key"))
        except OSError as error:  # ssl.SSLError is one
            files = ", ".join(f"{n}={self.options[n]}" for n in FILES if n in self.options)
            raise ParameterError(f"{self}: TLS with {files or 'no files'}: {error}") from error
        return context

    def seconds(self, name: str, default: float) -> float:
        """Return an option that is a duration above zero."""
        text = self.options.get(name)
        try:
            value = default if text is None else float(text)
        except ValueError:
            value = 0.0
        if not value > 0:
            raise ParameterError(f"{self}: {name}={text!r}: allowed are seconds above 0")
        return value


def parse_engine_url(
    url: str,
    scheme: str,
    default_port: int,
    allowed: frozenset[str],
    environ: Mapping[str, str] | None = None,
) -> EngineAddress:
    """Parse an engine's URL and add the settings of the environment.

    Args:
        url: with or without "scheme://".
        scheme: without the s of TLS.
        default_port: of hosts without a port.
        allowed: names of options, besides `ca`, `cert` and `key`.
        environ: by default that of the process.

    Raises:
        ParameterError: names the URL without its secrets, what is wrong and what is allowed.
    """
    env = os.environ if environ is None else environ
    given, mark, rest = url.partition("://")
    if not mark:
        given, rest = scheme, url
    if given not in (scheme, f"{scheme}s"):
        raise _wrong(url, scheme, f"the scheme is {given!r}")
    rest, _, query = rest.partition("?")
    credentials, at, location = rest.rpartition("@")
    netloc, _, path = (location if at else rest).partition("/")
    user, _, password = credentials.partition(":")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(options) - allowed - set(FILES))
    if unknown:
        names = ", ".join(sorted(allowed | set(FILES)))
        raise _wrong(url, scheme, f"unknown options {unknown}; known are {names}")
    names = f"RALLYPOINT_{scheme.upper()}_"
    for file in FILES:
        if file not in options and env.get(names + file.upper()):
            options[file] = env[names + file.upper()]
    return EngineAddress(
        scheme,
        given.endswith("s") and given != scheme,
        tuple(_host(url, scheme, text, default_port) for text in netloc.split(",")),
        unquote(path).strip("/") or DEFAULT_PREFIX,
        unquote(user) or env.get(f"{names}USER", ""),
        unquote(password) or _password(names, env),
        options,
    )


def _password(names: str, env: Mapping[str, str]) -> str:
    path = env.get(f"{names}PASSWORD_FILE")
    if not path:
        return env.get(f"{names}PASSWORD", "")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError as error:
        raise ParameterError(f"{names}PASSWORD_FILE={path!r}: {error.strerror}") from error


def _host(url: str, scheme: str, text: str, default_port: int) -> tuple[str, int]:
    if not text.strip():
        raise _wrong(url, scheme, "a host is missing")
    try:
        host, port = parse_rendezvous_endpoint(text, default_port)
    except ParameterError as error:
        raise _wrong(url, scheme, str(error)) from error
    if not port:
        raise _wrong(url, scheme, f"the port of {text!r} is not 1 to 65535")
    return host, port


def _wrong(url: str, scheme: str, what: str) -> ParameterError:
    return ParameterError(
        f"{redacted(url)!r}: {what}; allowed is "
        f"{scheme}[s]://[user:password@]HOST[:PORT][,HOST...][/PREFIX][?OPTION=VALUE&...]"
    )


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
    """Return the engine of a URL (ParameterError: a wrong URL, or its extra is not installed)."""
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
