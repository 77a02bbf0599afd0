"""Threads that start a piece of work at once.

Each thread waits for its own lock, and only the last one reports that it is done. With one
condition for all, each thread would wake, wait for the shared lock and wake again, and the
benchmark would measure that (`store.py --parts groups` shows what remains of it).
"""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any


class Crowd:
    """Threads; `run` makes each call a function with its index, and waits for all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._work: Callable[[int], Any] = lambda i: None
        self._errors: list[BaseException] = []
        self._done = threading.Lock()
        self._done.acquire()
        self._count = itertools.count(1)
        self._gates = [threading.Lock() for _ in range(size)]
        self.ends = [0.0] * size
        for index, gate in enumerate(self._gates):
            gate.acquire()
            threading.Thread(target=self._serve, args=(index, gate), daemon=True).start()

    def run(self, work: Callable[[int], Any]) -> float:
        """Run `work(i)` in each thread; return when the last was done (monotonic seconds)."""
        self._work, self._errors, self._count = work, [], itertools.count(1)
        for gate in self._gates:
            gate.release()
        self._done.acquire()
        if self._errors:
            raise self._errors[0]
        return max(self.ends)

    def _serve(self, index: int, gate: threading.Lock) -> None:
        while True:
            gate.acquire()
            try:
                self._work(index)
            except BaseException as error:
                self._errors.append(error)
            self.ends[index] = time.monotonic()
            if next(self._count) == self.size:
                self._done.release()
