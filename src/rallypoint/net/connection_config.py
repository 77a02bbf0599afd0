"""The configuration of a client's connection: which servers, which run, which secrets."""

import secrets
from dataclasses import dataclass, field, replace

from rallypoint.net.endpoints import Endpoint, ServerList, join_endpoint
from rallypoint.net.tls import NO_TLS, TLS


@dataclass(frozen=True)
class ConnectionConfig:
    """The configuration of a client's connection.

    Args:
        host: name or address of the server, the first one of several.
        port: its TCP port.
        run: run id; it names the store and the run that this client can reach.
        token: secrets, one a line (see tokens.py), b"" for none; never shown.
        client: random identity of the client object, kept when it reconnects.
        tls: files for TLS; none: plain TCP.
        servers: all servers, and the last leader; shared with the clients that `another` makes.
    """

    host: str
    port: int
    run: str
    token: bytes = field(default=b"", repr=False)
    client: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    tls: TLS = NO_TLS
    servers: ServerList = field(default_factory=lambda: ServerList(()), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.servers.endpoints:
            object.__setattr__(self, "servers", ServerList(((self.host, self.port),)))

    @classmethod
    def at(
        cls, endpoints: tuple[Endpoint, ...], run: str, token: bytes = b"", tls: TLS = NO_TLS
    ) -> "ConnectionConfig":
        """Return the configuration for one server, or for several of which one leads."""
        host, port = endpoints[0]
        return cls(host, port, run, token, tls=tls, servers=ServerList(endpoints))

    @property
    def where(self) -> str:
        """HOST:PORT, or several with commas, for people."""
        return ",".join(join_endpoint(*endpoint) for endpoint in self.servers.endpoints)

    def another(self) -> "ConnectionConfig":
        """Return the same for another client object."""
        return replace(self, client=secrets.token_bytes(16))
