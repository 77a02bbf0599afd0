"""A standby server: it does the handshake, names the leader, and knows no run.

Both sides prove their token before that: nobody else learns where the leader is, or can send a
client elsewhere.
"""

import socket
from collections.abc import Callable

from rallypoint.net import protocol as p
from rallypoint.net.tokens import Rights
from rallypoint.server.connection import Connection
from rallypoint.server.ha.leadership import LeaderStatus
from rallypoint.server.options import Options
from rallypoint.server.server import Server


class StandbyConnection(Connection):
    """A client's connection to a server that stands by."""

    def _enter(self, hello: p.Hello, rights: Rights) -> None:
        server = self.server
        if isinstance(server, StandbyServer):
            reason, leader = server.who_leads()
            self._close(reason, p.frame(p.Goodbye(p.GOODBYE_STANDBY, reason, leader)))


class StandbyServer(Server):
    """Listens where the leader would.

    Args:
        options, sockets: see `Server`.
        where: the database, for people.
        leader_status: returns what is known of the leader.
    """

    def __init__(
        self,
        options: Options,
        sockets: list[socket.socket],
        where: str,
        leader_status: Callable[[], LeaderStatus],
    ) -> None:
        super().__init__(options, sockets)
        self._state = where
        self._leader_status = leader_status
        self.leads = False
        self.look()

    def new_connection(self) -> Connection:
        return StandbyConnection(self)

    def look(self) -> None:
        """Update `role` to what is known now."""
        self.role = self.who_leads()[0]

    def who_leads(self) -> tuple[str, str]:
        """Return who leads: in words, and as HOST:PORT ("" if that is not known)."""
        status = self._leader_status()
        if status.term is not None:
            return f"takes over, in epoch {status.term.epoch}; it is reading {self._state}", ""
        if status.leader is not None:
            where = status.leader.leader.where
            return f"stands by; {where} leads, in epoch {status.leader.epoch}", where
        trouble = f" ({status.trouble})" if status.trouble else ""
        return f"stands by; nobody is known to lead{trouble}", ""
