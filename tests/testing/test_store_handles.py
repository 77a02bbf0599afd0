"""The suite's threads and handles: results and errors arrive, handles are closed."""

import threading

import pytest

from rallypoint.store.memory import MemoryStore
from rallypoint.testing.store_handles import StoreHandles, after_a_moment, in_thread


def test_in_thread_hands_over_result_and_error() -> None:
    assert in_thread(divmod, 7, 2).result(5) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        in_thread(divmod, 7, 0).result(5)


def test_after_a_moment_needs_a_blocked_call() -> None:
    release = threading.Event()
    waiting = after_a_moment(in_thread(release.wait, 5))
    release.set()
    assert waiting.result(5)
    with pytest.raises(pytest.fail.Exception):
        after_a_moment(waiting)


closed: list[MemoryStore] = []


class Closing(MemoryStore):
    def close(self) -> None:
        closed.append(self)


class TestHandles(StoreHandles):
    def make_store(self) -> MemoryStore:
        return Closing()

    def test_handles_are_open_during_the_test(self) -> None:
        self.handle()
        assert self.start("num_keys").result(5) == 0
        assert closed == []

    def test_handles_are_closed_after_the_test(self) -> None:
        assert len(closed) == 2  # those of the test before
