"""The coordinator over a server: a join is one request, everything else is told."""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import msgspec

from rallypoint.core.events import (
    Assignment,
    Close,
    Fail,
    Finish,
    Join,
    Leave,
    Notify,
    Refusal,
    Refused,
    RunClosed,
)
from rallypoint.core.state import Failure, Node, Settings, Verdict
from rallypoint.deadline import Deadline
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.hosting.host import HostingRetry, host_if_ours
from rallypoint.hosting.in_process import HostedServer, start_server
from rallypoint.net.connection import Target
from rallypoint.net.endpoints import parse_places
from rallypoint.net.tls import read_tls
from rallypoint.net.token_sources import read_token
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.client import dialogue
from rallypoint.rendezvous.client.session import Session
from rallypoint.rendezvous.coordinator import Coordinator, Order, Report, View, Watcher
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.join_timeout import wait_for_seat
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.rendezvous.reports.status import ServerStatus
from rallypoint.rendezvous.settings import RendezvousSettings
from rallypoint.store.api import Store
from rallypoint.store.lazy import LazyStore
from rallypoint.store.tcp import TCPStore
from rallypoint.wallclock import now_text

logger = logging.getLogger("rallypoint")

WITHDRAW_SECONDS = 2.0
GOODBYE_SECONDS = 1.0  # of a shutdown, for a server that may be gone without a trace


class HostedCoordinator(Coordinator):
    """A node's way to the run on a server.

    Args:
        target: where the server is, which run, and the token.
        lease_seconds: as in the run's settings; the session beats every third of it.
        server: a server that this process hosts; it ends with `shutdown`.
        label: who this is in "closed by", for people.

    The attribute `hosting` makes what goes on during the first join: attempts to host.
    """

    def __init__(
        self,
        target: Target,
        lease_seconds: float,
        server: HostedServer | None = None,
        label: str = "",
    ) -> None:
        self.target = target
        self.server = server
        self.hosting: Callable[[], AbstractContextManager[object]] = nullcontext
        self._session = Session(target, lease_seconds)
        self._label = label
        self._node: Node | None = None
        self._store: LazyStore | None = None
        self._opening = threading.Lock()
        self._handing_over = threading.Lock()
        self._down = False

    def join(
        self, node: Node, settings: Settings, deadline: Deadline, why: str, new_incarnation: bool
    ) -> Assignment:
        with self.hosting():
            seat = self._join(node, settings, deadline, why, new_incarnation)
        self.hosting = nullcontext  # a server that is lost takes its runs along: none is made anew
        return seat

    def _join(
        self, node: Node, settings: Settings, deadline: Deadline, why: str, new_incarnation: bool
    ) -> Assignment:
        session = self._session
        session.start(deadline, reads=True)
        self._node = node
        asked = session.begin(node, settings, why, new_incarnation)
        wait_for_seat(
            session.asking(wire.Ask(0, asked)),
            lambda: session.view,
            lambda: session.join is not asked or self._settled(asked),
            deadline,
        )
        with session.changed:
            view, withdrawn = session.view, session.join is not asked
            refused: Refused | None = session.refused  # set by whoever reads
            refused = refused or view.fenced
        session.raise_failure()
        if refused is not None:
            session.join = None
            if refused.refusal is Refusal.CLOSED:
                session.update(lambda v: msgspec.structs.replace(v, closed=_closed_of(refused)))
            raise self._refused(refused)
        if view.closed is not None:
            session.join = None
            raise self._closed(view.closed)
        if withdrawn or session.stopping:
            raise RendezvousStateError(
                f"run {self.target.run!r}: this node left while it was joining"
            )
        if view.assignment is None or not dialogue.is_settled(asked, view, None):
            raise self._timed_out(deadline)
        return view.assignment

    def _settled(self, asked: Join) -> bool:
        session = self._session
        return session.stopping or dialogue.is_settled(asked, session.view, session.refused)

    def _closed(self, closed: RunClosed) -> RendezvousError:
        when = f" at {closed.at}" if closed.at else ""
        text = f"run {self.target.run!r} was closed by {closed.by}{when}: {closed.why}"
        if closed.finished:
            return RendezvousGracefulExitError(f"{text}; this node is not needed any more")
        return RendezvousClosedError(text)

    def _refused(self, refused: Refused) -> RendezvousError:
        text = f"run {self.target.run!r} on {self.target.where}: {refused.why}"
        if refused.refusal is Refusal.CLOSED:
            return RendezvousClosedError(text)
        return RendezvousStateError(text)

    def _timed_out(self, deadline: Deadline) -> RendezvousError:
        grace = Deadline(WITHDRAW_SECONDS)
        text = ""
        try:
            report = self.brief_report(grace)
            missing = f"; missing: {', '.join(report.missing)}" if report.missing else ""
            text = f"{report.reason}{missing}"
        except RendezvousConnectionError as error:
            text = str(error)
        self.leave("its join timed out", grace)
        error_type = RendezvousTimeoutError
        return error_type(
            f"no round of run {self.target.run!r} was complete within join={deadline.timeout:g} s "
            f"(server {self.target.where}): {text}"
        )

    def leave(self, why: str, deadline: Deadline) -> None:
        """Leave the run.

        Without a connection, it waits a moment for one to come back; after that, the end of
        this node's grace period says the same.
        """
        session = self._session
        join, session.join = session.join, None
        if join is None or session.view.closed is not None or session.view.fenced is not None:
            return
        node = join.node.id
        session.update(lambda v: View(connected=v.connected, error=v.error))
        connected = session.view.connected
        limit = deadline if connected else Deadline(deadline.capped(WITHDRAW_SECONDS))
        try:
            session.call(lambda i: wire.Ask(i, Leave(node, why)), limit)
        except RendezvousConnectionError as error:
            logger.info("leaving run %r was not acknowledged: %s", self.target.run, error)

    def finish(self, deadline: Deadline) -> None:
        session = self._session
        join, seat = session.join, session.view.assignment
        if join is None or seat is None:
            raise RendezvousStateError("finish: this node is in no round; join first")
        event = Finish(join.node.id, seat.incarnation, seat.round, at=now_text())
        session.call(lambda i: wire.Ask(i, event), deadline)

    def fail(self, failure: Failure, deadline: Deadline) -> None:
        session = self._session
        join, seat = session.join, session.view.assignment
        if join is None or seat is None:
            raise RendezvousStateError("fail: this node is in no round; join first")
        event = Fail(join.node.id, seat.incarnation, seat.round, failure)
        session.call(lambda i: wire.Ask(i, event), deadline)

    def close(self, why: str, deadline: Deadline) -> None:
        session = self._session
        session.start(deadline)
        label = self._label if self._node is None else self._node.label
        by = label or f"a client at {session.local_address}"
        incarnation, _round = dialogue.known_of(session.view)  # E1: a late close ends no other
        event = Close(by, why, at=now_text(), incarnation=incarnation)
        session.call(lambda i: wire.Ask(i, event), deadline)
        # The server has told by whom it was closed: somebody else may have been faster.

    def notice(self, why: str, seconds: float | None, deadline: Deadline) -> None:
        session = self._session
        join = session.join
        if join is None:
            raise RendezvousStateError("notice: this node has not joined, or has left")
        event = Notify(join.node.id, why, seconds=seconds)
        session.call(lambda i: wire.Ask(i, event), deadline)

    def order(self, event: Order, deadline: Deadline) -> None:
        self._session.start(deadline)
        self._session.call(lambda i: wire.Ask(i, event), deadline)

    def heartbeat(self) -> None:
        self._session.send(wire.Beat())

    def view(self) -> View:
        return self._session.view

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        return self._session.watch(watcher)

    def report(self, deadline: Deadline) -> Report:
        return self._report(deadline, brief=False)

    def brief_report(self, deadline: Deadline) -> Report:
        return self._report(deadline, brief=True)

    def _report(self, deadline: Deadline, brief: bool) -> Report:
        self._session.start(deadline)
        answer = self._session.call(lambda i: wire.Inquire(i, brief=brief), deadline)
        if answer is None or answer.report is None:
            raise RendezvousConnectionError(f"{self.target.where} gave no report")
        return answer.report

    def server_status(self, deadline: Deadline) -> ServerStatus:
        """Return what the server says of itself and its runs (one request)."""
        self._session.start(deadline)
        answer = self._session.call(lambda i: wire.Inquire(i, server=True), deadline)
        if answer is None or answer.server is None:
            raise RendezvousConnectionError(f"{self.target.where} says nothing of itself")
        return answer.server

    def participants(self, deadline: Deadline) -> tuple[Node, ...]:
        self._session.start(deadline)
        answer = self._session.call(lambda i: wire.Inquire(i, seats=True), deadline)
        return () if answer is None else answer.seats

    def local_address(self, deadline: Deadline) -> str:
        """The local end of the connection."""
        with self.hosting():  # a join asks for it first, and so connects here
            self._session.start(deadline, reads=True)
        return self._session.local_address

    def store(self) -> Store:
        """The run's store on the same server."""
        with self._opening:
            if self._store is None:
                self._store = LazyStore(self._open_store, (self.target.host, self.target.port))
            return self._store

    def _open_store(self) -> TCPStore:
        return TCPStore.at(self.target.another())

    def host(self, server: HostedServer) -> None:
        """Take over a server that this process has come to host later."""
        with self._handing_over:
            if not self._down:
                self.server = server
                return
        server.stop()

    def shutdown(self, deadline: Deadline) -> bool:
        """A hosted server waits for the other members to go."""
        with self._handing_over:
            if self._down:
                return False
            self._down = True
        if self._session.view.connected:
            self.leave("shutdown", Deadline(deadline.capped(GOODBYE_SECONDS)))
        self._session.join = None
        self._session.stop()
        if self._store is not None:
            self._store.close()
        if self.server is None:
            return False
        if not self.server.wait_until_empty(deadline):
            logger.warning(
                "stopping the server at %s while members are still connected (close=%g s)",
                self.target.where,
                deadline.timeout,
            )
        self.server.stop()
        return True


def _closed_of(refused: Refused) -> RunClosed:
    """Return the run's end as one hears of it who comes after it; who and when is in `why`."""
    verdict = refused.verdict or Verdict.CLOSED
    known = (refused.incarnation, refused.round)
    return RunClosed(*known, "", "", refused.why, verdict, refused.failures)


def retry_hosting(
    handler: DynamicRendezvousHandler,
    attempt: Callable[[], object],
    report: Callable[[str], object],
) -> HostingRetry:
    """Return what repeats an attempt to host while this handler joins (see `HostingRetry`)."""

    def is_over() -> bool:
        try:
            view = handler.view()
        except RendezvousError:  # its session has failed: the join raises that
            return True
        return (view.assignment or view.closed or view.fenced) is not None

    def is_connected() -> bool:
        return handler.view().connected

    limit = Deadline(handler.settings.timeout.join)
    return HostingRetry(attempt, limit, is_over, is_connected, handler.on_change, report)


def create_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """Make the handler of backend "core" (see `RendezvousParameters`).

    Config: `token` or `token_file` (else RALLYPOINT_TOKEN), `is_host` (true, false; found out
    when not given), `insecure`, `tls_ca`, `tls_cert`, `tls_key`, `tls_verify_client`, `tls` (else
    RALLYPOINT_TLS_CA and so on), and the settings of `RendezvousSettings`.
    """
    settings = RendezvousSettings.from_params(params)
    places = parse_places(params.endpoint)
    token = read_token(params.get("token"), params.get("token_file"))
    insecure = bool(params.get_as_bool("insecure", False))
    tls, is_host = read_tls(params.config), params.get_as_bool("is_host")

    def attempt() -> HostedServer | None:
        return host_if_ours(
            params.endpoint,
            is_host,
            lambda host, port: start_server(host, port, token, insecure, tls),
        )

    server = attempt()
    if server is not None:
        places = ((places[0][0], server.port),)
    target = Target.at(places, params.run_id, token, tls)
    coordinator = HostedCoordinator(target, settings.lease.total_seconds(), server)
    handler = DynamicRendezvousHandler.from_coordinator(coordinator, settings, params, "core")
    if server is None and is_host is None and len(places) == 1:

        def attempt_again() -> None:
            found = attempt()
            if found is not None:
                coordinator.host(found)

        coordinator.hosting = lambda: retry_hosting(handler, attempt_again, logger.warning)
    return handler
