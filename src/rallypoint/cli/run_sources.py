"""Where commands find a run: on a server, or in a database or file without a server.

Reading is free of side effects: it creates no run and no file, and joins nothing.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from rallypoint.core.advance import timers
from rallypoint.core.state import PLACES, NodeId, RunState, decode_state
from rallypoint.deadline import Deadline
from rallypoint.engines.url import engine_url, is_engine, open_engine, redacted
from rallypoint.errors import ParameterError, RendezvousConnectionError, StoreError
from rallypoint.net.connection import ConnectionConfig
from rallypoint.net.endpoints import parse_endpoints
from rallypoint.net.tls import read_tls
from rallypoint.rendezvous import defaults
from rallypoint.rendezvous.client.coordinator import HostedCoordinator
from rallypoint.rendezvous.coordinator import Order
from rallypoint.rendezvous.reports.history import History
from rallypoint.rendezvous.reports.report import report_of
from rallypoint.rendezvous.reports.status import SCHEMA, ServerStatus, Status, run_status
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend
from rallypoint.rendezvous.serverless.cas_loop import CasLoop

SERVER_BACKENDS = ("core", "c10d")
RUNS_IN_FULL = 20  # shown without --run-id


class Source(ABC):
    """A place to read runs from, repeatedly, and to send orders to."""

    @abstractmethod
    def read(self, run_id: str | None, deadline: Deadline) -> Status:
        """Return the current status. Raises RendezvousError if the source is unreachable."""

    @abstractmethod
    def order(self, run_id: str, event: Order, deadline: Deadline) -> None:
        """Carry out an order on a run. Raises RendezvousError."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""


class ServerSource(Source):
    """A Rallypoint server.

    Args:
        endpoint: HOST:PORT, or several with commas; the leader is asked.
        token: shared token, b"" for none.
    """

    def __init__(self, endpoint: str, token: bytes) -> None:
        self._places = parse_endpoints(endpoint)
        self._token = token
        self._links: dict[str, HostedCoordinator] = {}

    def read(self, run_id: str | None, deadline: Deadline) -> Status:
        link = self._link(run_id or "")
        try:
            server = link.server_status(deadline)
        except RendezvousConnectionError as error:
            text = (
                str(error).removeprefix("run '': ").removesuffix(f" (join={deadline.timeout:g} s)")
            )
            raise RendezvousConnectionError(text) from error
        names = [run_id] if run_id else self._shown(server)
        runs = [run_status(self._link(name).report(deadline)) for name in names]
        for name in set(self._links) - {"", *names}:
            self._links.pop(name).shutdown(Deadline(0))
        return Status(SCHEMA, f"the server at {link.target.where}", server, tuple(runs))

    def order(self, run_id: str, event: Order, deadline: Deadline) -> None:
        self._link(run_id).order(event, deadline)

    @staticmethod
    def _shown(server: ServerStatus) -> list[str]:
        return [run.run_id for run in server.runs[:RUNS_IN_FULL]]

    def _link(self, run_id: str) -> HostedCoordinator:
        link = self._links.get(run_id)
        if link is None:
            target = ConnectionConfig.at(self._places, run_id, self._token, read_tls())
            link = HostedCoordinator(target, defaults.value("lease"))
            self._links[run_id] = link
        return link

    def close(self) -> None:
        for link in self._links.values():
            link.shutdown(Deadline(0))


class ServerlessSource(Source):
    """The state of one run in a database or file, without a server.

    The first read knows no durations; later reads measure them.

    Args:
        backend: where the state is.
        where: the place, for people.
        close: closes the client of the backend.
    """

    def __init__(
        self, backend: RendezvousBackend, where: str, close: Callable[[], None] = lambda: None
    ) -> None:
        self._backend = backend
        self._close = close
        self._where = where
        self._history = History()
        self._state: RunState | None = None
        self._heartbeats: dict[NodeId, tuple[int, float]] = {}
        self._looks = 0

    def read(self, run_id: str | None, deadline: Deadline) -> Status:
        found = self._backend.get_state()
        state = RunState(run_id or "") if found is None else decode_state(found[0])
        now = time.monotonic()
        before = self._state or RunState(state.run_id)
        if before != state or self._looks == 0:
            self._history.note(before, (), state, now)
        self._state = state
        self._looks += 1
        self._see(state, now)
        seen = self._history if self._looks > 1 else None
        running = [(timer, None) for timer in timers(state)]
        report = report_of(state, self._where, seen, now, self._heard, running)
        return Status(SCHEMA, self._where, None, (run_status(report),))

    def order(self, run_id: str, event: Order, deadline: Deadline) -> None:
        CasLoop(self._backend, run_id).run(lambda _: [event], deadline)

    def _see(self, state: RunState, now: float) -> None:
        heartbeats: dict[NodeId, tuple[int, float]] = {}
        for place in PLACES:
            for node, member in getattr(state, place).items():
                known = self._heartbeats.get(node)
                same = known is not None and known[0] == member.beats
                heartbeats[node] = known if known and same else (member.beats, now)
        self._heartbeats = heartbeats

    def _heard(self, node: NodeId) -> float | None:
        return self._heartbeats[node][1] if self._looks > 1 and node in self._heartbeats else None

    def close(self) -> None:
        self._close()


def open_source(backend: str, endpoint: str, run_id: str | None, token: bytes) -> Source:
    """Return the source of a backend and endpoint. Raises ParameterError."""
    if backend in SERVER_BACKENDS:
        return ServerSource(endpoint, token)
    if not run_id:
        raise ParameterError(f"--backend {backend} needs --run-id")
    if backend == "file":
        return _file(endpoint, run_id)
    if not is_engine(backend):
        raise ParameterError(f"--backend {backend}: give core, file, etcd or redis")
    from rallypoint.rendezvous.serverless.backends.engine import EngineRendezvousBackend

    url = engine_url(backend, endpoint)
    engine = open_engine(url)
    return ServerlessSource(EngineRendezvousBackend(engine, run_id), redacted(url), engine.close)


def _file(endpoint: str, run_id: str) -> ServerlessSource:
    from rallypoint.rendezvous.serverless.backends.store import FileRendezvousBackend

    path = Path(endpoint.removeprefix("file://"))
    if not path.is_file():
        raise ParameterError(
            f"--endpoint {endpoint}: there is no such file; give the path that the nodes share, "
            "as this machine sees it (the first node creates the file)"
        )
    try:
        backend = FileRendezvousBackend(str(path), run_id)
    except StoreError as error:
        raise ParameterError(
            f"--endpoint {error}; give the path that the nodes share (rallypoint run --endpoint)"
        ) from error
    return ServerlessSource(backend, f"the file {path}")
