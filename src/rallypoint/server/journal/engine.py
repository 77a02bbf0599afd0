"""A journal in a database (etcd, Redis): one write a commit, and only by the leader.

The log of segments (log_compaction.py) is under `server/log/`. A commit is one conditional
write: the next segment does not exist yet, the segments that it removes are unchanged, and the
leader's entry is ours (`engines.election`). So a leader that was paused or cut off, and wakes up
while another one leads, changes nothing, whatever it believes.

Winning the election, and waiting for it, is done elsewhere (ha/leadership.py).
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Engine, Entry
from rallypoint.engines.election import Election, NotLeadingError, Term
from rallypoint.errors import (
    JournalCorruptError,
    JournalError,
    JournalFullError,
    JournalLostError,
    StoreError,
    StoreLimitError,
    StoreValueError,
)
from rallypoint.net.dialer import CancellableDeadline
from rallypoint.server.journal.contract import Journal, Opened
from rallypoint.server.journal.log_compaction import Segments, pack, replayed, unpack

ELECTION = "server"
LOG = "server/log/"
READ_AT_ONCE = 8  # segments; each may be large


class EngineJournal(Journal):
    """The journal of a server that leads.

    Args:
        engine: client of the database.
        election: on this or another client of the same database.
        term: that this process has won.
    """

    def __init__(self, engine: Engine, election: Election, term: Term) -> None:
        self.where = engine.where
        self.writes = 0
        self._engine = engine
        self._election = election
        self._term = term
        self._entries: dict[int, Entry] = {}  # without their values
        self._segments = Segments()
        self._lock = threading.Lock()
        self._attempt: CancellableDeadline | None = None
        self._closed = False

    def may_answer(self) -> bool:
        return self._election.is_safe()

    # -- opening --------------------------------------------------------------------------

    def open(self, deadline: Deadline) -> Opened:
        with self._mapped(deadline) as limit:
            return Opened(self._term.epoch, replayed(list(self._read(limit))))

    def _read(self, deadline: Deadline) -> Iterator[dict[str, bytes | None]]:
        """Read all segments, in their order."""
        names = self._engine.scan(LOG, deadline)
        for at in range(0, len(names), READ_AT_ONCE):
            some = names[at : at + READ_AT_ONCE]
            entries = self._engine.read(some, deadline)
            for name in some:
                if name not in entries:
                    raise JournalLostError(f"{self.where}: {name} went while it was read")
                changes = unpack(f"{self.where}: {name}", entries[name].value)
                self._note(_number(self.where, name), changes, entries[name])
                yield changes

    def _note(self, number: int, changes: Mapping[str, bytes | None], entry: Entry) -> None:
        self._segments.add(number, changes)
        self._entries[number] = Entry(entry.version, b"", entry.detail)

    # -- commits --------------------------------------------------------------------------

    def commit(self, changes: Mapping[str, bytes | None], deadline: Deadline) -> None:
        """Commit in one write, all or nothing."""
        term = self._term
        with self._mapped(deadline) as limit:
            if changes:
                self._write(term, changes, limit)
            elif not self._election.renew(term, limit):
                raise JournalLostError(f"{self.where}: epoch {term.epoch} of this server is over")

    def _write(self, term: Term, changes: Mapping[str, bytes | None], deadline: Deadline) -> None:
        segments = self._segments
        victims, number = segments.victims(), segments.next_number
        merged = self._carried(victims, changes, deadline) | dict(changes)
        names = {victim: _name(victim) for victim in victims}
        expected = {names[victim]: self._entries[victim] for victim in victims}
        name = _name(number)
        commit = self._election.commit(
            term,
            {**expected, name: None},
            {**dict.fromkeys(expected), name: pack(merged)},
            deadline,
            by=self._engine,
        )
        if not commit.done:
            raise JournalLostError(
                f"{self.where}: the log is not as this server left it: others have written to "
                f"{', '.join(sorted(commit.present))} in epoch {term.epoch}"
            )
        self.writes += 1
        self._note(number, merged, Entry(commit.version, b"", commit.details.get(name)))
        segments.remove(victims)
        for victim in victims:
            del self._entries[victim]

    def _carried(
        self, victims: list[int], changes: Mapping[str, bytes | None], deadline: Deadline
    ) -> dict[str, bytes | None]:
        carried: dict[str, bytes | None] = {}
        names = {_name(number): number for number in self._segments.to_read(victims)}
        entries = self._engine.read(list(names), deadline) if names else {}
        for name, number in names.items():
            if name not in entries:
                raise JournalLostError(f"{self.where}: {name} was taken away by another server")
            found = unpack(f"{self.where}: {name}", entries[name].value)
            carried |= self._segments.carried(number, found, changes)
        return carried

    @contextmanager
    def _mapped(self, deadline: Deadline) -> Iterator[Deadline]:
        """Raise the database's errors as ours; yield a deadline that `close` cancels."""
        with self._lock:
            if self._closed:
                raise JournalLostError(f"{self.where} is closed here")
            attempt = self._attempt = CancellableDeadline(deadline.remaining())
        try:
            yield attempt
        except NotLeadingError as error:
            raise JournalLostError(str(error)) from error
        except StoreLimitError as error:
            raise JournalFullError(str(error)) from error
        except StoreValueError as error:
            raise JournalCorruptError(str(error)) from error
        except StoreError as error:
            if self._closed:
                raise JournalLostError(f"{self.where} was closed here meanwhile") from error
            raise JournalError(str(error)) from error

    def close(self) -> None:
        """Close the journal; a call that waits for the database ends."""
        with self._lock:
            self._closed = True
            if self._attempt is not None:
                self._attempt.cancel()


def _name(number: int) -> str:
    return f"{LOG}{number:016d}"


def _number(where: str, name: str) -> int:
    text = name.removeprefix(LOG)
    if not text.isdecimal():
        raise JournalCorruptError(
            f"{where}: {name} is no segment of a server's log: another program has written it; "
            "give --state another prefix, or delete it"
        )
    return int(text)
