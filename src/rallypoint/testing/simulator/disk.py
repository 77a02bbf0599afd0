"""A simulated disk, the journal on it, and a writer with delays.

A commit is written to the disk's cache and then synced, each after a delay; the group commit is
notified after the sync. A killed process leaves what it has written, a machine that loses power
what it has synced. A process can also die between the sync and the notification: then data is
stored that nobody was notified of.

A journal leads until another one is opened, as with several servers on one state. It notices
that when it commits and when it renews its lease. Its own clock tells it until when no other
journal can have been opened.
"""

from collections.abc import Callable

from rallypoint.deadline import Deadline
from rallypoint.errors import JournalFullError, JournalLostError
from rallypoint.server.journal.contract import Journal, Opened
from rallypoint.server.journal.group_commit import Changes, Done
from rallypoint.testing.simulator.context import Simulation
from rallypoint.testing.simulator.virtual_clock import Process

LEASE_SECONDS = 2.0  # of a journal; then another server may open one
Call = Callable[[], None]


class Disk:
    """Entries: those in the cache, and those that are synced.

    Args:
        sync_at_once: False keeps writes in the cache until `sync`.
    """

    def __init__(self, sync_at_once: bool = True) -> None:
        self.sync_at_once = sync_at_once
        self.epoch = 0
        self.full = False
        self._synced: dict[str, bytes] = {}
        self._cache: list[tuple[Changes, Call]] = []

    def write(self, changes: Changes, durable: Call = lambda: None) -> None:
        """Write entries to the cache; `durable` is called once they are synced."""
        self._cache.append((changes, durable))

    def sync(self) -> None:
        """Make the cached entries survive a power loss."""
        cache, self._cache = self._cache, []
        for changes, durable in cache:
            for name, value in changes.items():
                if value is None:
                    self._synced.pop(name, None)
                else:
                    self._synced[name] = value
            durable()

    def lose_power(self) -> None:
        """Drop the cached entries."""
        self._cache = []

    def wipe(self) -> None:
        """Drop all entries; epochs keep growing."""
        self._cache, self._synced = [], {}

    def read(self) -> dict[str, bytes]:
        """Return the entries after a process has ended; the cache survives it."""
        self.sync()
        return dict(self._synced)


class SimulatedJournal(Journal):
    """A journal on a simulated disk.

    Args:
        disk: where it keeps entries.
        process: its owner, whose clock measures the lease.
    """

    def __init__(self, disk: Disk, process: Process) -> None:
        self.where = "a simulated disk"
        self._disk, self._process = disk, process
        self._epoch = 0
        self._safe_until = float("-inf")

    def open(self, deadline: Deadline) -> Opened:
        self._disk.epoch = self._epoch = self._disk.epoch + 1
        self._renew()
        return Opened(self._epoch, self._disk.read())

    def _renew(self) -> None:
        if not self.leads:
            if self.on_lost is not None:
                self.on_lost(JournalLostError("another journal holds the lease"))
            return
        self._safe_until = self._process.time() + LEASE_SECONDS
        self._process.call_later(LEASE_SECONDS / 3, self._renew)

    @property
    def leads(self) -> bool:
        """Whether no other journal has been opened since."""
        return self._epoch == self._disk.epoch

    def may_answer(self) -> bool:
        return self._process.time() < self._safe_until

    def commit(self, changes: Changes, deadline: Deadline, durable: Call = lambda: None) -> None:
        """Here it writes, and the writer syncs."""
        if not self.leads:
            raise JournalLostError(f"epoch {self._epoch} is over: {self._disk.epoch} leads")
        if self._disk.full and changes:
            raise JournalFullError("the simulated disk is full")
        self._disk.write(changes, durable)

    def close(self) -> None:
        self._epoch = 0


class SimulatedWriter:
    """Commits after the delays of the plan's disk.

    Args:
        simulation: its plan says how fast the disk is.
        process: the server.
        journal: an open one.
        disk: of the journal.
        noted: returns the function to call once everything so far is durable.
    """

    def __init__(
        self,
        simulation: Simulation,
        process: Process,
        journal: SimulatedJournal,
        disk: Disk,
        noted: Callable[[], Call],
    ) -> None:
        self._simulation = simulation
        self._process = process
        self._journal = journal
        self._disk = disk
        self._noted = noted
        self._batch: tuple[Changes, Call] | None = None

    def write(self, changes: Changes, done: Done) -> None:
        if self._batch is None or self._batch[0] is not changes:  # else this is a retry
            self._batch = (changes, self._noted())
        self._delayed(self._write, *self._batch, done)

    def _delayed(self, call: Callable[..., None], *args: object) -> None:
        least, most = self._simulation.plan.disk_seconds
        clock = self._simulation.clock
        seconds = least + (most - least) * clock.random.random()
        clock.add(self._process, seconds, False, call, *args)

    def _write(self, changes: Changes, durable: Call, done: Done) -> None:
        try:
            self._journal.commit(changes, Deadline(0.0), durable)
        except (JournalFullError, JournalLostError) as error:
            done(error)
            return
        self._delayed(self._sync, done)

    def _sync(self, done: Done) -> None:
        if self._disk.sync_at_once:
            self._disk.sync()
        self._process.soon(done, None)

    def stop(self) -> None:
        self._journal.close()


__all__ = ["LEASE_SECONDS", "Disk", "SimulatedJournal", "SimulatedWriter"]
