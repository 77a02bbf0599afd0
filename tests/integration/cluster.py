"""Real handlers on one server in this process, for cases with many nodes or many runs.

`Cluster` has the server. A `Mini` does the least that an agent does: it joins, records its seat,
and joins again when a round opens or a node waits.
"""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from tests.integration.harness import LIMIT_SECONDS, LOOPBACK

from rallypoint.core.events import Assignment
from rallypoint.deadline import Deadline
from rallypoint.errors import RallypointError
from rallypoint.rendezvous.api import RendezvousInfo, RendezvousParameters
from rallypoint.rendezvous.client.coordinator import create_handler
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.view import View
from rallypoint.server.embedded import EmbeddedServer, start

_run_ids = itertools.count()


class Cluster:
    """A server and the handlers made for it; all end with the context."""

    def __init__(self) -> None:
        self.server: EmbeddedServer = start(LOOPBACK, 0, b"", False)
        self.run_id = self.new_run_id()
        self._threads = ThreadPoolExecutor(400)
        self._handlers: list[DynamicRendezvousHandler] = []

    @staticmethod
    def new_run_id() -> str:
        """Return a run id that no other test uses."""
        return f"run-{next(_run_ids)}"

    def handler(
        self, least: int = 1, most: int = 3, run_id: str = "", endpoint: str = "", **more: Any
    ) -> DynamicRendezvousHandler:
        """Make a handler. `more`: fields of the parameters, or their config."""
        fields = ("local_addr", "node_rank", "local_world_size")
        given = {name: more.pop(name) for name in fields if name in more}
        config = {"last_call": 30, "join": LIMIT_SECONDS, "close": 5, "is_host": False} | more
        params = RendezvousParameters(
            "core",
            endpoint or f"{LOOPBACK}:{self.server.port}",
            run_id or self.run_id,
            least,
            most,
            config=config,
            **given,
        )
        handler = create_handler(params)
        self._handlers.append(handler)
        return handler

    def join(self, handler: DynamicRendezvousHandler) -> "Future[RendezvousInfo]":
        """Join in a new thread."""
        return self._threads.submit(handler.next_rendezvous)

    def join_all(self, *handlers: DynamicRendezvousHandler) -> list[RendezvousInfo]:
        """Join with all handlers; return the results."""
        asked = [self.join(handler) for handler in handlers]
        return [future.result(LIMIT_SECONDS) for future in asked]

    def until(self, handler: DynamicRendezvousHandler, ready: Callable[[View], bool]) -> View:
        """Wait until `ready` accepts what a handler sees."""
        deadline, view = Deadline(LIMIT_SECONDS), handler.view()
        while not ready(view):
            assert not deadline.expired(), f"not told in {LIMIT_SECONDS:g} s; told: {view}"
            view = handler.wait_for_change(deadline.remaining(), view)
        return view

    def in_place(self, place: str, run_id: str = "") -> int:
        """Return how many nodes of the run are in a place."""
        deadline = Deadline(LIMIT_SECONDS)
        run = run_id or self.run_id
        report = self.server.call(lambda server: server.run(run).report(), deadline)
        return sum(member.place == place for member in report.members)

    def wait_for(self, place: str, count: int) -> None:
        """Wait until `count` nodes of the run are in a place."""
        deadline = Deadline(LIMIT_SECONDS)
        while (found := self.in_place(place)) != count:
            assert not deadline.expired(), f"{found} nodes are in {place!r}, not {count}"
            threading.Event().wait(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        list(self._threads.map(lambda handler: handler.shutdown(), self._handlers))
        self._threads.shutdown()
        self.server.stop()


class Mini(threading.Thread):
    """A node that takes part until `stop`; `seats` are all its seats, in order."""

    def __init__(self, handler: DynamicRendezvousHandler) -> None:
        super().__init__(daemon=True)
        self.handler = handler
        self.seats: list[Assignment] = []
        self.error: RallypointError | None = None
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._wake = threading.Event()
        self._unwatch = handler.on_change(self._wake.set)
        self.start()

    def run(self) -> None:
        """Take part."""
        try:
            while not self._over.is_set():
                info = self.handler.next_rendezvous()
                assert info.assignment is not None
                with self._changed:
                    self.seats.append(info.assignment)
                    self._changed.notify_all()
                while not self._over.is_set() and not self.handler.num_nodes_waiting():
                    self._wake.wait(LIMIT_SECONDS)
                    self._wake.clear()
        except RallypointError as error:
            self.error = error
            with self._changed:
                self._changed.notify_all()

    def wait_for(
        self, ready: Callable[[Assignment], bool], limit: float = LIMIT_SECONDS
    ) -> Assignment:
        """Wait for a seat that `ready` accepts."""

        def look() -> bool:
            return self.error is not None or any(ready(seat) for seat in self.seats)

        with self._changed:
            came = self._changed.wait_for(look, limit)
        assert came, f"no such seat in {limit:g} s; seats: {self.seats}"
        assert self.error is None, f"{self.error}; seats: {self.seats}"
        return next(seat for seat in self.seats if ready(seat))

    def sized(self, size: int, limit: float = LIMIT_SECONDS) -> Assignment:
        """Wait for a seat in a round of `size` nodes."""
        return self.wait_for(lambda seat: seat.size == size, limit)

    def stop(self) -> None:
        """Stop taking part, without leaving."""
        self._over.set()
        self._wake.set()
        self.join(LIMIT_SECONDS)
        assert not self.is_alive(), f"still joining; seats: {self.seats}"
        self._unwatch()


def end(*nodes: Mini) -> None:
    """Make nodes leave; all stop first, so that no leave makes another node join again."""
    for node in nodes:
        node.stop()
    for node in nodes:
        node.handler.leave("the test says so")
