"""Threads that stand ready and all begin at once."""

import threading
import time
from collections.abc import Callable
from typing import Any


class Crowd:
    """k threads; `run` lets each call a function with its index, and waits for all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._round = 0
        self._work: Callable[[int], Any] = lambda i: None
        self._left = 0
        self._errors: list[BaseException] = []
        self._gate = threading.Condition()
        self._all_done = threading.Condition()
        self.ends = [0.0] * size
        for i in range(size):
            threading.Thread(target=self._serve, args=(i,), daemon=True).start()

    def run(self, work: Callable[[int], Any]) -> float:
        """Run `work(i)` in each thread; return when the last was done (monotonic seconds)."""
        self._work, self._left, self._errors = work, self.size, []
        with self._gate:
            self._round += 1
            self._gate.notify_all()
        with self._all_done:
            self._all_done.wait_for(lambda: self._left == 0)
        if self._errors:
            raise self._errors[0]
        return max(self.ends)

    def _serve(self, index: int) -> None:
        seen = 0
        while True:
            with self._gate:
                self._gate.wait_for(lambda: self._round != seen)  # noqa: B023 - called at once
                seen = self._round
            try:
                self._work(index)
            except BaseException as error:
                self._errors.append(error)
            self.ends[index] = time.monotonic()
            with self._all_done:
                self._left -= 1
                if self._left == 0:
                    self._all_done.notify_all()
