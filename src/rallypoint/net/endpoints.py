"""Endpoints of servers: parsing `host:port`, alone or in a list, and which server to try first.

    a:29400                   one server
    a:29400,b:29400           servers of which one leads and the others stand by

The order of a list is only the order of the first tries. A standby server names the leader, the
client goes there at once, and `ServerList` remembers it for all clients of a process that share
a configuration.
"""

import ipaddress
import re
import threading
from dataclasses import dataclass, field

from rallypoint.errors import ParameterError
from rallypoint.net.protocol import DEFAULT_PORT

Endpoint = tuple[str, int]
"""Host and port of a server."""

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_ALLOWED = "allowed: HOST, HOST:PORT, [IPV6]:PORT or IPV6, with a port of 0 to 65535"


def _wrong(endpoint: object, what: str) -> ParameterError:
    return ParameterError(f"endpoint={endpoint!r}: {what}; {_ALLOWED}")


def _port(endpoint: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _wrong(endpoint, f"the port {text!r} is not a number")
    port = int(text)
    if port > 65535:
        raise _wrong(endpoint, f"the port {port} is too large")
    return port


def is_ipv6(host: str) -> bool:
    """Return whether `host` is an IPv6 address (a zone such as %eth0 may follow)."""
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def join_endpoint(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int = DEFAULT_PORT) -> Endpoint:
    """Return host and port of one endpoint.

    Args:
        endpoint: `host`, `host:port`, `[v6]:port`, `[v6]` or a bare IPv6 address; None:
            localhost.
        default_port: the port where the endpoint names none.

    Raises:
        ParameterError: names the endpoint, what is wrong with it and what is allowed.
    """
    if endpoint is not None and not isinstance(endpoint, str):
        raise _wrong(endpoint, "not a text")
    if endpoint is None:
        return "localhost", default_port
    text = endpoint.strip()
    if not text:
        raise _wrong(endpoint, "it is empty (perhaps a variable is not set)")
    if "," in text:
        raise _wrong(endpoint, "several endpoints where one is meant")
    if "://" in text:
        raise _wrong(endpoint, f"a URL; leave out {text.partition('://')[0]}://")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _wrong(endpoint, "the brackets of the IPv6 address are not closed or misplaced")
        if not is_ipv6(host):
            raise _wrong(endpoint, f"{host!r} is not an IPv6 address")
        return host, _port(text, rest[1:]) if rest else default_port
    if text.count(":") > 1:
        if is_ipv6(text):
            return text, default_port
        raise _wrong(endpoint, "more than one ':' but no IPv6 address")
    host, colon, rest = text.partition(":")
    if not host:
        raise _wrong(endpoint, "the host is missing")
    if not _NAME.fullmatch(host):
        raise _wrong(endpoint, f"{host!r} is not a host name or address")
    return host, _port(text, rest) if colon else default_port


def is_list(endpoint: object) -> bool:
    """Return whether an endpoint names several servers."""
    return isinstance(endpoint, str) and "," in endpoint


def parse_endpoints(endpoint: str | None, default_port: int = DEFAULT_PORT) -> tuple[Endpoint, ...]:
    """Return the servers of `a:29400` or `a:29400,b:29400`, each once, in their order.

    Raises ParameterError, also for a list with nothing between two commas.
    """
    if endpoint is None or not is_list(endpoint):
        return (parse_rendezvous_endpoint(endpoint, default_port),)
    parts = [part.strip() for part in endpoint.split(",")]
    if not all(parts):
        raise _wrong(endpoint, "a host is missing between the commas")
    return tuple(dict.fromkeys(parse_rendezvous_endpoint(part, default_port) for part in parts))


def server_endpoints(host: str, port: int) -> tuple[Endpoint, ...]:
    """Return the servers of a host and a port; the host may be a list (ParameterError)."""
    if not isinstance(host, str):
        raise _wrong(host, "not a text; several servers are one text with commas, 'a:1,b:1'")
    return parse_endpoints(host, port) if is_list(host) else ((host, port),)


def one_host(endpoint: str) -> None:
    """Raise ParameterError for a list: its servers elect a leader, so no node hosts there."""
    if is_list(endpoint):
        raise ParameterError(
            f"endpoint={endpoint!r}: is_host=true with several endpoints: no node starts a "
            "server of a list itself; start `rallypoint serve --state URL` at each, or give "
            "one endpoint"
        )


@dataclass
class ServerList:
    """The servers that a client may try, and what it knows of them. Thread-safe.

    Args:
        endpoints: as the user gave them.
    """

    endpoints: tuple[Endpoint, ...]
    _leader: Endpoint | None = None
    _failed: Endpoint | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def leader(self) -> Endpoint | None:
        """The last known leader, None if there is none."""
        return self._leader

    @property
    def several(self) -> bool:
        """Whether there is another server to try: of the list, or named by a standby server."""
        return len(self.endpoints) > 1 or self._leader not in (None, *self.endpoints)

    def order(self) -> tuple[Endpoint, ...]:
        """Return the servers in the order to try them: the last leader first, on the list or not.

        The server that failed last comes last: a stopped process may still accept connections.
        """
        if not self.several:
            return self.endpoints
        with self._lock:
            first = () if self._leader is None else (self._leader,)
            last = tuple(endpoint for endpoint in self.endpoints if endpoint == self._failed)
        middle = (endpoint for endpoint in self.endpoints if endpoint not in last)
        return tuple(dict.fromkeys((*first, *middle, *last)))

    def found(self, endpoint: Endpoint) -> None:
        """Remember the leader."""
        with self._lock:
            self._leader = endpoint
            if self._failed == endpoint:
                self._failed = None

    def failed(self, endpoint: Endpoint | None) -> None:
        """Remember a server that was unusable or silent; it no longer counts as the leader."""
        with self._lock:
            self._failed = endpoint
            if self._leader == endpoint:
                self._leader = None
