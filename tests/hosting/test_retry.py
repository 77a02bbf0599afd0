"""Hosting later: when attempts are made, and what ends them."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from rallypoint.core.events import Assignment, Refusal, Refused, RunClosed
from rallypoint.core.state import Verdict
from rallypoint.errors import RendezvousConnectionError, RendezvousStateError
from rallypoint.hosting import retry
from rallypoint.hosting.retry import Hosting
from rallypoint.rendezvous.api import RendezvousTimeout
from rallypoint.rendezvous.coordinator import View
from rallypoint.rendezvous.handler import DynamicRendezvousHandler

LIMIT_SECONDS = 10
SEAT = cast("Assignment", SimpleNamespace())
FENCED = Refused(Refusal.FENCED, "it was lost")
CLOSED = RunClosed(1, 1, "somebody", "", "enough", Verdict.CLOSED)


class Handler:
    """As much of a handler as hosting looks at."""

    def __init__(self, join_seconds: float = 600) -> None:
        self.settings = SimpleNamespace(timeout=RendezvousTimeout(join=join_seconds))
        self.told = View(connected=False)
        self.error: Exception | None = None
        self.unwatched = threading.Event()
        self._callback: Callable[[], None] = lambda: None

    def view(self) -> View:
        if self.error is not None:
            raise self.error
        return self.told

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callback = callback
        return self.unwatched.set

    def tell(self, **changes: Any) -> None:
        self.told = msgspec.structs.replace(self.told, **changes)
        self._callback()

    def fail(self) -> None:
        self.error = RendezvousStateError("its thread has failed")
        self._callback()


class Attempts:
    """Counts them; the third one may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.count = 0
        self._made = threading.Condition()

    def __call__(self) -> None:
        with self._made:
            self.count += 1
            self._made.notify_all()
            if self.count == 3 and self.error is not None:
                raise self.error

    def await_more(self, number: int) -> None:
        with self._made:
            goal = self.count + number
            assert self._made.wait_for(lambda: self.count >= goal, LIMIT_SECONDS)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_SECONDS", 0.001)
    monkeypatch.setattr(retry, "LONGEST_SECONDS", 0.002)


def joining(
    attempts: Attempts, handler: Handler, tell: Callable[[str], object] = pytest.fail
) -> Hosting:
    return Hosting(attempts, cast("DynamicRendezvousHandler", handler), tell)


def test_a_seat_is_the_end_and_a_connection_is_not() -> None:
    attempts, handler = Attempts(), Handler()
    with joining(attempts, handler):
        attempts.await_more(3)
        handler.tell(connected=True)
        handler.tell(connected=False)  # it was the server of an earlier run, which has ended
        attempts.await_more(3)
        handler.tell(connected=True)
        handler.tell(assignment=SEAT)
        assert handler.unwatched.wait(LIMIT_SECONDS)


def test_while_it_is_connected_no_attempt_is_made() -> None:
    attempts, handler = Attempts(), Handler(join_seconds=0.05)
    handler.tell(connected=True)
    with joining(attempts, handler):
        assert handler.unwatched.wait(LIMIT_SECONDS)
    assert attempts.count == 0


@pytest.mark.parametrize("change", [{"closed": CLOSED}, {"fenced": FENCED}])
def test_a_run_without_it_is_the_end(change: dict[str, Any]) -> None:
    attempts, handler = Attempts(), Handler()
    with joining(attempts, handler):
        attempts.await_more(1)
        handler.tell(**change)
        assert handler.unwatched.wait(LIMIT_SECONDS)


def test_a_session_that_has_failed_is_the_end() -> None:
    attempts, handler = Attempts(), Handler()
    with joining(attempts, handler):
        attempts.await_more(1)
        handler.fail()
        assert handler.unwatched.wait(LIMIT_SECONDS)


def test_it_ends_with_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_SECONDS", 600.0)
    monkeypatch.setattr(retry, "LONGEST_SECONDS", 600.0)
    attempts, handler = Attempts(), Handler()
    with joining(attempts, handler):
        assert not handler.unwatched.is_set()
    assert handler.unwatched.wait(LIMIT_SECONDS)
    assert attempts.count == 0


def test_it_ends_when_a_join_would_have() -> None:
    attempts, handler = Attempts(), Handler(join_seconds=0.05)
    with joining(attempts, handler):
        assert handler.unwatched.wait(LIMIT_SECONDS)
    assert attempts.count > 0


@pytest.mark.parametrize(
    "error", [RendezvousConnectionError("no permission"), OSError("too many open files")]
)
def test_what_goes_wrong_is_told_and_is_the_end(error: Exception) -> None:
    attempts, handler, lines = Attempts(error), Handler(), list[str]()
    with joining(attempts, handler, lines.append):
        assert handler.unwatched.wait(LIMIT_SECONDS)
    assert lines == [f"cannot host the server of this run: {error}"]
    assert attempts.count == 3


def test_pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_SECONDS", 1.0)
    monkeypatch.setattr(retry, "LONGEST_SECONDS", 4.0)
    attempts, handler, asked = Attempts(OSError("enough")), Handler(), list[float]()
    later = joining(attempts, handler, lambda _: None)

    def is_due(pause: float) -> bool:
        asked.append(pause)
        return True

    monkeypatch.setattr(later, "_is_due", is_due)
    with later:
        assert handler.unwatched.wait(LIMIT_SECONDS)
    assert asked == [1.0, 2.0, 4.0]
