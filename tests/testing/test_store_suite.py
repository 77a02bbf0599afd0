"""The suite passes a good store and catches a planted fault of each kind."""

import threading
from typing import Any

import pytest

from rallypoint.errors import StoreError, StoreTimeoutError
from rallypoint.net import protocol as p
from rallypoint.store.api import Store
from rallypoint.store.memory import MemoryStore
from rallypoint.testing import store_handles, store_suite
from rallypoint.testing.store_suite import StoreSuite


class Faulty(MemoryStore):
    """A memory store whose clones have the same fault."""

    def clone(self) -> "Faulty":
        other = type(self)(self._timeout_seconds)
        other._shared = self._shared
        return other


class ComparesNumbers(Faulty):
    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        if isinstance(request, p.CompareSet):
            int(request.desired or b"0")
        return super()._call(request, timeout)


class SaysWhatWasExpected(Faulty):
    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        result = super()._call(request, timeout)
        return (False, request.expected) if isinstance(request, p.CompareSwap) else result


class LeaksTimeouts(Faulty):
    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        if isinstance(request, p.Get | p.Wait):
            self._timeout_seconds = timeout or 0.001
        return super()._call(request, timeout)


class RaisesAnotherError(Faulty):
    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        try:
            return super()._call(request, timeout)
        except StoreTimeoutError as error:
            raise StoreError(str(error)) from error


class ForgetsWhatWasThere(Faulty):
    """`wait` waits for every key to be written anew, as if none were there."""

    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        if isinstance(request, p.Wait) and super()._call(p.Check(request.keys[:1]), 1):
            raise StoreTimeoutError("hangs")
        return super()._call(request, timeout)


class OneCallAtATime(Faulty):
    """Holds its lock while it waits."""

    def __init__(self, timeout: float = 300.0) -> None:
        super().__init__(timeout)
        self.busy = threading.Lock()

    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        if not self.busy.acquire(timeout=0.2):
            raise StoreError("busy")
        try:
            return super()._call(request, timeout)
        finally:
            self.busy.release()


class LastInFirstOut(Faulty):
    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        if isinstance(request, p.QueuePush):
            with self._shared.lock:
                queue: Any = self._shared.keyspace._values.get(request.key)
                if queue:
                    queue.appendleft(request.value)
                    return None
        return super()._call(request, timeout)


class LosesWatchedDeletions(Faulty):
    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        if isinstance(request, p.Delete):
            with self._shared.lock:
                space = self._shared.keyspace
                space._versions.pop(request.key, None)
                return space._values.pop(request.key, None) is not None
        return super()._call(request, timeout)


class HalfAPipeline(Faulty):
    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        if isinstance(request, p.Pipeline):
            return [super(HalfAPipeline, self)._call(each, timeout) for each in request.requests]
        return super()._call(request, timeout)


class MissesNobody(Faulty):
    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        try:
            return super()._call(request, timeout)
        except StoreTimeoutError:
            raise StoreTimeoutError("timed out") from None


def run(kind: type[MemoryStore], case: str, *arguments: Any) -> None:
    """Run one case of the suite as pytest would."""
    first = kind()

    class Suite(StoreSuite):
        def make_store(self) -> Store:
            return first.clone()

    suite = Suite()
    suite._open = []
    getattr(suite, "test_" + case)(*arguments)


CAUGHT = (AssertionError, StoreError, TimeoutError, ValueError, pytest.fail.Exception)
FAULTS: list[tuple[type[MemoryStore], str, tuple[Any, ...]]] = [
    (ComparesNumbers, "any_bytes_survive", ()),
    (SaysWhatWasExpected, "compare_and_swap", (None, b"old", None, False, None)),
    (LeaksTimeouts, "a_calls_timeout_does_not_leak", ()),
    (RaisesAnotherError, "get_times_out", ()),
    (ForgetsWhatWasThere, "wait_in_all_orders", (1,)),
    (OneCallAtATime, "a_blocked_thread_holds_up_nobody", ()),
    (LastInFirstOut, "queue_is_first_in_first_out", ()),
    (LosesWatchedDeletions, "watch", ()),
    (HalfAPipeline, "a_pipeline_that_fails_has_no_effect", ()),
    (MissesNobody, "barrier_names_the_missing_ranks", ()),
    (MissesNobody, "wait_names_what_is_missing", ()),
]


@pytest.mark.parametrize(
    ("kind", "case", "arguments"),
    FAULTS,
    ids=[f"{kind.__name__}-{case}" for kind, case, _ in FAULTS],
)
def test_planted_fault_is_detected(
    kind: type[MemoryStore],
    case: str,
    arguments: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (store_handles, store_suite):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 2.0, raising=False)
    run(MemoryStore, case, *arguments)
    with pytest.raises(CAUGHT):
        run(kind, case, *arguments)


def test_suite_without_make_store_error_has_the_fix() -> None:
    with pytest.raises(NotImplementedError, match="make_store"):
        StoreSuite().make_store()


def test_table_of_comparisons_is_complete() -> None:
    shown = {
        (present is None, present == expected, expected == b"")
        for present, expected, *_ in StoreSuite.COMPARE
    }
    assert shown == {
        (True, False, True), (True, False, False), (False, True, False), (False, False, True),
        (False, False, False), (False, True, True),
    }  # fmt: skip
