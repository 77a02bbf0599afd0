"""Where a client connects, and as whom."""

import secrets
from dataclasses import dataclass, field, replace

from rallypoint.net.endpoints import Place, Route, join_place
from rallypoint.net.tls import NO_TLS, TLS


@dataclass(frozen=True)
class Target:
    """Where a client connects, and as whom.

    Args:
        host: name or address of the server, the first one of several.
        port: its TCP port.
        run: run id; it names the store and the run that this client can reach.
        token: secrets, one a line (see keyring.py), b"" for none; never shown.
        client: random identity of the client object, kept when it reconnects.
        tls: files for TLS; none: plain TCP.
        route: all servers, and which of them led last; shared with clients made by `another`.
    """

    host: str
    port: int
    run: str
    token: bytes = field(default=b"", repr=False)
    client: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    tls: TLS = NO_TLS
    route: Route = field(default_factory=lambda: Route(()), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.route.places:
            object.__setattr__(self, "route", Route(((self.host, self.port),)))

    @classmethod
    def at(
        cls, places: tuple[Place, ...], run: str, token: bytes = b"", tls: TLS = NO_TLS
    ) -> "Target":
        """Return the target of one server, or of several of which one leads."""
        host, port = places[0]
        return cls(host, port, run, token, tls=tls, route=Route(places))

    @property
    def where(self) -> str:
        """HOST:PORT, or several with commas, for people."""
        return ",".join(join_place(*place) for place in self.route.places)

    def another(self) -> "Target":
        """Return the same for another client object."""
        return replace(self, client=secrets.token_bytes(16))
