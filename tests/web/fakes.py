"""A server without sockets, whose runs are on the fake loop of `tests.server.fakes`."""

from types import SimpleNamespace
from typing import Any, cast

from tests.server.fakes import Bench, FakeLoop

from rallypoint.net.tokens import Keyring
from rallypoint.rendezvous.reports.status import ServerStatus
from rallypoint.server.runs import RunHost
from rallypoint.server.server import Server
from rallypoint.server.status import Counters, newest_runs, run_line


class FakeServer:
    """What the web part asks of a server."""

    def __init__(self, bench: Bench | None = None) -> None:
        self.bench = bench or Bench()
        self.loop: FakeLoop = self.bench.loop
        self.runs: dict[str, RunHost] = {"run": self.bench.host}
        self.counters = Counters()
        self.watchers: set[Any] = set()
        self.keyring = Keyring(b"secret")
        self.persistence: Any = None
        self.leads = True
        self.role = ""
        self.stores: dict[str, Any] = {"run": SimpleNamespace(clients={b"c": None})}
        self.bench.host.observe = self._observed

    def _observed(self, noted: Any) -> None:
        self.counters.note(noted)
        for watcher in self.watchers:
            watcher("run")

    def status(self) -> ServerStatus:
        """Return figures that do not change."""
        lines = [run_line(run, self.loop.now) for run in newest_runs(self.server.runs.values(), 9)]
        return ServerStatus(
            "127.0.0.1:1", "9.9", 1, 7, 1.0, 2.0, 3, 4, 5, 0.25, 0.5, 6, 7, len(lines), tuple(lines)
        )

    @property
    def server(self) -> Server:
        """This, as the web part's types want it."""
        return cast(Server, self)
