"""Workers of one round as threads that share a store."""

import threading
from collections.abc import Callable
from typing import Any

from rallypoint.store.memory import MemoryStore
from rallypoint.worker import Worker


class Group:
    """Workers of one round, each called in a thread of its own."""

    def __init__(self, size: int, round_number: int = 1, store: MemoryStore | None = None) -> None:
        self.base = store or MemoryStore()
        self.size = size
        self.workers = [
            Worker(self.base, rank, size, round_number=round_number) for rank in range(size)
        ]

    def run(self, call: Callable[[Worker], Any], ranks: list[int] | None = None) -> list[Any]:
        """Return what `call` returned or raised for each rank."""
        members = self.workers if ranks is None else [self.workers[rank] for rank in ranks]
        results: list[Any] = [None] * len(members)

        def one(index: int) -> None:
            try:
                results[index] = call(members[index])
            except Exception as error:
                results[index] = error

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(members))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results
