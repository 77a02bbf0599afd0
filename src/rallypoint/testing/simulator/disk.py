"""A simulated disk, the journal on it, and the writer that takes its time.

A commit is written to the disk's cache and then synced, each after a while; only then is the
scribe told. A process that is killed leaves what it has written, a machine without power what
it has synced. Between the sync and the telling there is a moment, too: whatever dies then has
stored what nobody was told.

A journal leads until another one is opened, as where several servers stand by. It finds that
out when it commits and when it renews its lease, and by its own clock it knows for how long
nobody else can have been let in.
"""

from collections.abc import Callable

from rallypoint.deadline import Deadline
from rallypoint.errors import JournalFullError, JournalLostError
from rallypoint.server.journal.contract import Journal, Opened
from rallypoint.server.journal.group_commit import Changes, Done
from rallypoint.testing.simulator.context import Simulation
from rallypoint.testing.simulator.virtual_clock import Process

LEASE_SECONDS = 2.0  # of the journal: after that another server may open it
Call = Callable[[], None]


class Disk:
    """Entries: what was written, and what of it was synced.

    Args:
        sync_at_once: False keeps what is written in the cache until `sync`.
    """

    def __init__(self, sync_at_once: bool = True) -> None:
        self.sync_at_once = sync_at_once
        self.epoch = 0
        self.full = False
        self._synced: dict[str, bytes] = {}
        self._cache: list[tuple[Changes, Call]] = []

    def write(self, changes: Changes, durable: Call = lambda: None) -> None:
        """Write entries; `durable` is called once they can be lost no more."""
        self._cache.append((changes, durable))

    def sync(self) -> None:
        """Let what was written survive a power loss."""
        cache, self._cache = self._cache, []
        for changes, durable in cache:
            for name, value in changes.items():
                if value is None:
                    self._synced.pop(name, None)
                else:
                    self._synced[name] = value
            durable()

    def lose_power(self) -> None:
        """Forget what was not synced."""
        self._cache = []

    def wipe(self) -> None:
        """Forget everything; epochs go on."""
        self._cache, self._synced = [], {}

    def read(self) -> dict[str, bytes]:
        """Return what is there after a process has ended: its cache outlives it."""
        self.sync()
        return dict(self._synced)


class SimulatedJournal(Journal):
    """A journal on a simulated disk.

    Args:
        disk: what it is on.
        process: whose it is; its clock judges the lease.
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
                self.on_lost(JournalLostError("the lease is another's"))
            return
        self._safe_until = self._process.time() + LEASE_SECONDS
        self._process.call_later(LEASE_SECONDS / 3, self._renew)

    @property
    def leads(self) -> bool:
        """Whether no other one was opened."""
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
    """Commits after a while.

    Args:
        simulation: its plan says how fast the disk is.
        process: the server.
        journal: opened.
        disk: what it is on.
        noted: returns what is to be called when what the server has done by now is durable.
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
        if self._batch is None or self._batch[0] is not changes:  # else: it is tried again
            self._batch = (changes, self._noted())
        self._after_a_while(self._write, *self._batch, done)

    def _after_a_while(self, call: Callable[..., None], *args: object) -> None:
        least, most = self._simulation.plan.disk_seconds
        clockwork = self._simulation.clockwork
        seconds = least + (most - least) * clockwork.random.random()
        clockwork.add(self._process, seconds, False, call, *args)

    def _write(self, changes: Changes, durable: Call, done: Done) -> None:
        try:
            self._journal.commit(changes, Deadline(0.0), durable)
        except (JournalFullError, JournalLostError) as error:
            done(error)
            return
        self._after_a_while(self._sync, done)

    def _sync(self, done: Done) -> None:
        if self._disk.sync_at_once:
            self._disk.sync()
        self._process.soon(done, None)

    def stop(self) -> None:
        self._journal.close()


__all__ = ["LEASE_SECONDS", "Disk", "SimulatedJournal", "SimulatedWriter"]
