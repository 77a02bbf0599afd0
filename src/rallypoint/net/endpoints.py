"""Where servers are: reading `host:port`, alone or in a list, and which of a list to ask.

    a:29400                   one server
    a:29400,b:29400           servers of which one leads and the others stand by

A list has no order but that of trying: whoever stands by says who leads, the client goes there
at once, and `Route` remembers it for all clients of one process that share a target.
"""

import ipaddress
import re
import threading
from dataclasses import dataclass, field

from rallypoint.errors import ParameterError
from rallypoint.net.protocol import DEFAULT_PORT

Place = tuple[str, int]
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


def join_place(host: str, port: int) -> str:
    """Return host and port as one text; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_place(endpoint: str | None, default_port: int = DEFAULT_PORT) -> Place:
    """Return host and port of `host`, `host:port`, `[v6]:port`, `[v6]` or a bare IPv6 address.

    An empty endpoint is localhost with the default port.

    Raises:
        ParameterError: names the endpoint, what is wrong with it and what is allowed.
    """
    if endpoint is not None and not isinstance(endpoint, str):
        raise _wrong(endpoint, "not a text")
    text = (endpoint or "").strip()
    if not text:
        return "localhost", default_port
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


def parse_places(endpoint: str | None, default_port: int = DEFAULT_PORT) -> tuple[Place, ...]:
    """Return the servers of `a:29400` or `a:29400,b:29400`, each once, in their order.

    Raises:
        ParameterError: as `parse_place`, or a list with nothing between two commas.
    """
    if endpoint is None or not is_list(endpoint):
        return (parse_place(endpoint, default_port),)
    parts = [part.strip() for part in endpoint.split(",")]
    if not all(parts):
        raise _wrong(endpoint, "a host is missing between the commas")
    return tuple(dict.fromkeys(parse_place(part, default_port) for part in parts))


def servers(host: str, port: int) -> tuple[Place, ...]:
    """Return the servers of a host and a port, where the host may be a list with ports.

    Raises ParameterError.
    """
    if not isinstance(host, str):
        raise _wrong(host, "not a text; several servers are one text with commas, 'a:1,b:1'")
    return parse_places(host, port) if is_list(host) else ((host, port),)


def one_host(endpoint: str) -> None:
    """Refuse to host at one of a list (ParameterError): who leads is decided elsewhere."""
    if is_list(endpoint):
        raise ParameterError(
            f"endpoint={endpoint!r}: is_host=true with several endpoints: of a list nobody hosts "
            "by itself; start `rallypoint serve --state URL` at each of them, or give one endpoint"
        )


@dataclass
class Route:
    """The servers that a client may ask, and what it knows of them. Thread-safe.

    Args:
        places: as the user gave them.
    """

    places: tuple[Place, ...]
    _leader: Place | None = None
    _failed: Place | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def leader(self) -> Place | None:
        """Who led when last asked, None if that is not known."""
        return self._leader

    @property
    def several(self) -> bool:
        """Whether there is another server to ask: of a list, or one that stood by and said so."""
        return len(self.places) > 1 or self._leader not in (None, *self.places)

    def order(self) -> tuple[Place, ...]:
        """Return the servers to ask: who led last comes first, on the list or not.

        Who failed last comes last: it may be stopped, and take connections nevertheless.
        """
        if not self.several:
            return self.places
        with self._lock:
            first = () if self._leader is None else (self._leader,)
            last = tuple(place for place in self.places if place == self._failed)
        middle = (place for place in self.places if place not in last)
        return tuple(dict.fromkeys((*first, *middle, *last)))

    def found(self, place: Place) -> None:
        """Remember who leads."""
        with self._lock:
            self._leader = place
            if self._failed == place:
                self._failed = None

    def failed(self, place: Place | None) -> None:
        """A server could not be used, or said nothing: it is not known to lead any more."""
        with self._lock:
            self._failed = place
            if self._leader == place:
                self._leader = None
