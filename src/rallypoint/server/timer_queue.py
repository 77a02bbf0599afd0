"""Many deadlines on one timer of the loop.

Of the calls that wait, nearly all are answered long before their time is over. A timer of the
loop for each would be made and cancelled for nothing; here it is an entry of a heap, which is
passed over once its key is gone. There are never more than twice as many entries as keys.
"""

import asyncio
import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

SPARE = 64  # entries of keys that are gone, which it is not worth to clear away
SOONEST_SECONDS = 0.001  # what loops count in
K = TypeVar("K", bound=Hashable)


class TimerQueue(Generic[K]):
    """Calls `over` with each key whose time is over.

    Args:
        loop: its clock, and its timer.
        over: what to do then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, over: Callable[[K], None]) -> None:
        self._loop, self._over = loop, over
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: K, seconds: float) -> None:
        """Set the deadline of a key (which has none) to so many seconds from now."""
        due = self._due[key] = self._loop.time() + seconds
        self._count += 1
        heapq.heappush(self._heap, (due, self._count, key))
        if due < self._timer_at:
            self._set_timer(due, seconds)

    def remove(self, key: K) -> None:
        """Forget the deadline of a key, if it has one."""
        self._due.pop(key, None)
        if not self._due:
            self._heap.clear()
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = None, float("inf")
        elif len(self._heap) > 2 * len(self._due) + SPARE:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def _set_timer(self, due: float, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now, heap = self._loop.time(), self._heap
        while heap and (heap[0][0] <= now or self._due.get(heap[0][2]) != heap[0][0]):
            due, _, key = heapq.heappop(heap)
            if self._due.get(key) == due:
                del self._due[key]
                self._over(key)
                heap = self._heap
        if heap and heap[0][0] < self._timer_at:
            self._set_timer(heap[0][0], max(SOONEST_SECONDS, heap[0][0] - now))
