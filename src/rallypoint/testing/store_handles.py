"""What all parts of the store suite stand on: handles, threads, bounded waits."""

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from rallypoint.store.api import Store

PATIENCE_SECONDS = 20.0  # a bound for what should take milliseconds
SHORT_SECONDS = 0.05  # a timeout that is meant to be reached


def in_thread(function: Callable[..., Any], *args: Any, **options: Any) -> "Future[Any]":
    """Run a call in a thread of its own; `result(timeout)` returns or raises what it did."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args, **options))
        except Exception as error:  # handed to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def after_a_moment(future: "Future[Any]") -> "Future[Any]":
    """Give a waiting call the time to begin its wait, and see that it does wait."""
    with pytest.raises(TimeoutError):
        future.result(0.02)
    return future


class StoreHandles:
    """Gives the tests of a suite their handles, and closes them."""

    def make_store(self) -> Store:
        """Return a new handle; within one test all handles are on the same, fresh data."""
        raise NotImplementedError("a subclass of StoreSuite gives make_store()")

    @pytest.fixture(autouse=True)
    def _handles(self) -> Iterator[None]:
        self._open: list[Store] = []
        yield
        for store in self._open:
            store.close()

    def handle(self) -> Store:
        """Return a new handle that is closed after the test."""
        store = self.make_store()
        self._open.append(store)
        return store

    def start(self, method: str, *args: Any, **options: Any) -> "Future[Any]":
        """Start a call on a handle of its own, in a thread of its own."""
        return in_thread(functools.partial(getattr(self.handle(), method), *args, **options))
