"""A server that stands by: it shakes hands, says who leads, and knows no run.

Clients prove themselves, and are proved to, before they are told: nobody else learns where
the leader is, or sends a client elsewhere.
"""

import socket
from collections.abc import Callable

from rallypoint.net import protocol as p
from rallypoint.net.tokens import Rights
from rallypoint.server.connection import Connection
from rallypoint.server.ha.leadership import View
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
        where: the engine, for people.
        view: returns what is known of who leads.
    """

    def __init__(
        self,
        options: Options,
        sockets: list[socket.socket],
        where: str,
        view: Callable[[], View],
    ) -> None:
        super().__init__(options, sockets)
        self._state, self._view = where, view
        self.leads = False
        self.look()

    def new_connection(self) -> Connection:
        return StandbyConnection(self)

    def look(self) -> None:
        """Take in what is known now."""
        self.role = self.who_leads()[0]

    def who_leads(self) -> tuple[str, str]:
        """Return who leads: in words, and as HOST:PORT ("" if nobody is known to)."""
        view = self._view()
        if view.term is not None:
            return f"takes over, in epoch {view.term.epoch}; it is reading {self._state}", ""
        if view.leader is not None:
            where = view.leader.leader.where
            return f"stands by; {where} leads, in epoch {view.leader.epoch}", where
        trouble = f" ({view.trouble})" if view.trouble else ""
        return f"stands by; nobody is known to lead{trouble}", ""
