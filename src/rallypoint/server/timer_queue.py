"""Many deadlines on one timer of the loop.

Nearly all calls that wait are answered long before their time is up. A loop timer for each
would be made and cancelled for nothing; here each is an entry of a heap, which is skipped once
its key is removed. There are never more than twice as many entries as keys.
"""

import asyncio
import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

SPARE = 64  # entries of removed keys that are not worth clearing away
SOONEST_SECONDS = 0.001  # the resolution of event loops
K = TypeVar("K", bound=Hashable)


class TimerQueue(Generic[K]):
    """Calls `on_due` with each key whose time is up.

    Args:
        loop: its clock, and its timer.
        on_due: called from the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[K], None]) -> None:
        self._loop = loop
        self._on_due = on_due
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: K, seconds: float) -> None:
        """Set the deadline of a new key to so many seconds from now."""
        due = self._due[key] = self._loop.time() + seconds
        self._count += 1
        heapq.heappush(self._heap, (due, self._count, key))
        if due < self._timer_at:
            self._set_timer(due, seconds)

    def remove(self, key: K) -> None:
        """Remove a key, if it is there."""
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
                self._on_due(key)
                heap = self._heap
        if heap and heap[0][0] < self._timer_at:
            self._set_timer(heap[0][0], max(SOONEST_SECONDS, heap[0][0] - now))
