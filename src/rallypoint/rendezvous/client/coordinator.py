"""The coordinator over a server: a join is one request, and the server pushes every change.

`session` decides what is said and what it means, `transport` carries it; this module turns
outcomes into errors for the caller.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from rallypoint.core.events import Assignment
from rallypoint.core.state import Failure, Node, Settings
from rallypoint.deadline import Deadline
from rallypoint.errors import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
)
from rallypoint.hosting.host import HostingRetry, host_if_ours
from rallypoint.hosting.in_process import HostedServer, start_server
from rallypoint.net.connection import ConnectionConfig
from rallypoint.net.endpoints import parse_endpoints
from rallypoint.net.tls import read_tls
from rallypoint.net.token_sources import read_token
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.client.session import Request, Session, join_error
from rallypoint.rendezvous.client.transport import Transport
from rallypoint.rendezvous.coordinator import Coordinator, Order, Report, Watcher
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.join_timeout import wait_for_seat
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.rendezvous.reports.status import ServerStatus
from rallypoint.rendezvous.settings import RendezvousSettings
from rallypoint.rendezvous.view import View
from rallypoint.store.api import Store
from rallypoint.store.tcp import LazyStore, TCPStore
from rallypoint.wallclock import now_text

logger = logging.getLogger("rallypoint")

WITHDRAW_SECONDS = 2.0
GOODBYE_SECONDS = 1.0  # of a shutdown, for a server that may be gone without a trace


class HostedCoordinator(Coordinator):
    """A node's access to a run on a server.

    Args:
        target: where the server is, which run, and the token.
        lease_seconds: as in the run's settings; a heartbeat is sent every third of it, and
            every 5 s at least (see `timing`).
        server: a server that this process hosts; it ends with `shutdown`.
        label: who this is in "closed by", for people.

    The attribute `hosting` makes the context of the first join: attempts to host.
    """

    def __init__(
        self,
        target: ConnectionConfig,
        lease_seconds: float,
        server: HostedServer | None = None,
        label: str = "",
    ) -> None:
        self.target = target
        self.server = server
        self.hosting: Callable[[], AbstractContextManager[object]] = nullcontext
        self._session = Session(target.run, target.where, lease_seconds, target.servers.several)
        self._transport = Transport(target, self._session)
        self._label = label
        self._store: LazyStore | None = None
        self._opening = threading.Lock()
        self._handing_over = threading.Lock()
        self._down = False

    def join(
        self, node: Node, settings: Settings, deadline: Deadline, why: str, new_incarnation: bool
    ) -> Assignment:
        session, transport = self._session, self._transport
        with self.hosting():
            transport.start(deadline, reads=True)
            self._label = node.label
            join, frame = transport.update(lambda s: s.join(node, settings, why, new_incarnation))
            frames = iter((frame,))  # goes out with the first wait
            wait_for_seat(
                lambda done, limit: transport.wait_for(done, limit, next(frames, b"")),
                lambda: session.view,
                lambda: session.outcome(join) is not None,
                deadline,
            )
            with transport.changed:
                outcome = session.outcome(join)
            if outcome is None:
                raise self._timed_out(deadline)
            if not isinstance(outcome, Assignment):
                transport.raise_failure()
                session.end_join(join)
                raise join_error(outcome, self.target.run, self.target.where)
        self.hosting = nullcontext  # only the first join hosts: a lost server takes its runs along
        return outcome

    def _timed_out(self, deadline: Deadline) -> RendezvousError:
        grace = Deadline(WITHDRAW_SECONDS)
        try:
            report = self.brief_report(grace)
            missing = f"; missing: {', '.join(report.missing)}" if report.missing else ""
            text = f"{report.reason}{missing}"
        except RendezvousConnectionError as error:
            text = str(error)
        self.leave("its join timed out", grace)
        return RendezvousTimeoutError(
            f"no round of run {self.target.run!r} was complete within join={deadline.timeout:g} s "
            f"(server {self.target.where}): {text}"
        )

    def leave(self, why: str, deadline: Deadline) -> None:
        """Leave in good order.

        Without a connection nobody can be notified: the leave waits a moment for it to come
        back; otherwise the end of this node's grace has the same effect.
        """
        request = self._transport.update(lambda session: session.leave(why))
        if request is None:
            return
        connected = self._session.view.connected
        limit = deadline if connected else Deadline(deadline.capped(WITHDRAW_SECONDS))
        try:
            self._transport.call(request, limit)
        except RendezvousConnectionError as error:
            logger.info("leaving run %r was not acknowledged: %s", self.target.run, error)

    def finish(self, deadline: Deadline) -> None:
        self._call(lambda session: session.finish(now_text()), deadline)

    def fail(self, failure: Failure, deadline: Deadline) -> None:
        self._call(lambda session: session.report_failure(failure), deadline)

    def close(self, why: str, deadline: Deadline) -> None:
        self._transport.start(deadline)
        by = self._label or f"a client at {self._transport.local_address}"
        # The response may name another caller, who was faster.
        self._call(lambda session: session.close(by, why, now_text()), deadline)

    def notice(self, why: str, seconds: float | None, deadline: Deadline) -> None:
        self._call(lambda session: session.notice(why, seconds), deadline)

    def order(self, event: Order, deadline: Deadline) -> None:
        self._transport.start(deadline)
        self._call(lambda session: session.ask(event), deadline)

    def _call(self, make: Callable[[Session], Request], deadline: Deadline) -> wire.Answer | None:
        with self._transport.changed:
            request = make(self._session)
        return self._transport.call(request, deadline)

    def heartbeat(self) -> None:
        frame = self._session.heartbeat(0.0, 0.0)
        if frame is not None:
            self._transport.send(frame)

    def view(self) -> View:
        return self._session.view

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        return self._transport.watch(watcher)

    def report(self, deadline: Deadline) -> Report:
        return self._report(deadline, brief=False)

    def brief_report(self, deadline: Deadline) -> Report:
        return self._report(deadline, brief=True)

    def _report(self, deadline: Deadline, brief: bool) -> Report:
        answer = self._inquire(lambda number: wire.Inquire(number, brief=brief), deadline)
        if answer.report is None:
            raise RendezvousConnectionError(f"{self.target.where} gave no report")
        return answer.report

    def server_status(self, deadline: Deadline) -> ServerStatus:
        """Return the server's status and its list of runs (one request)."""
        answer = self._inquire(lambda number: wire.Inquire(number, server=True), deadline)
        if answer.server is None:
            raise RendezvousConnectionError(f"{self.target.where} gave no status of itself")
        return answer.server

    def participants(self, deadline: Deadline) -> tuple[Node, ...]:
        return self._inquire(lambda number: wire.Inquire(number, seats=True), deadline).seats

    def _inquire(self, make: Callable[[int], wire.Inquire], deadline: Deadline) -> wire.Answer:
        self._transport.start(deadline)
        answer = self._call(lambda session: session.request(make), deadline)
        return wire.Answer(0) if answer is None else answer

    def local_address(self, deadline: Deadline) -> str:
        with self.hosting():  # the first join asks for the address, and so connects here
            self._transport.start(deadline, reads=True)
        return self._transport.local_address

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
        """Leave if joined, and end the session; a hosted server waits for the others to leave."""
        with self._handing_over:
            if self._down:
                return False
            self._down = True
        if self._session.view.connected:
            self.leave("shutdown", Deadline(deadline.capped(GOODBYE_SECONDS)))
        self._transport.stop()
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
    places = parse_endpoints(params.endpoint)
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
    target = ConnectionConfig.at(places, params.run_id, token, tls)
    coordinator = HostedCoordinator(target, settings.lease.total_seconds(), server)
    handler = DynamicRendezvousHandler.from_coordinator(coordinator, settings, params, "core")
    if server is None and is_host is None and len(places) == 1:

        def attempt_again() -> None:
            found = attempt()
            if found is not None:
                coordinator.host(found)

        coordinator.hosting = lambda: retry_hosting(handler, attempt_again, logger.warning)
    return handler
