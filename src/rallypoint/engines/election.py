"""Leader election on any engine: an entry that expires, and the fence that it makes.

A candidate writes the entry if there is none. The entry's version is the *epoch*: it grows with
each change of leader, over all restarts, because versions do. The leader renews the entry in
time. A leader that stops (killed, paused, disconnected) does not; the entry expires, and another
candidate writes the next one.

The lease alone is no proof: a paused leader may wake up after its end without noticing. So a
leader writes everything by `commit`, which also expects its own entry: the engine refuses the
writes of a former leader. Many changes may go into one commit.

`is_safe` is the cheap half: by this process's own clock, counted from before the last renewal was
sent, the lease cannot have ended yet. Answers that write nothing may rely on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rallypoint.deadline import Clock, Deadline
from rallypoint.engines.contract import Commit, Engine, Entry
from rallypoint.errors import StoreError


class NotLeadingError(StoreError):
    """This process no longer leads: its writes are refused."""


class Leader(msgspec.Struct, frozen=True, array_like=True):
    """The leader, as stored in the entry.

    Args:
        name: of the process, unique.
        where: address at which clients find it.
    """

    name: str
    where: str


@dataclass(frozen=True, slots=True)
class Term:
    """A term of leadership.

    Args:
        epoch: grows with each change of leader.
        leader: who leads.
        entry: what each write of the leader expects.
    """

    epoch: int
    leader: Leader
    entry: Entry


_decoder = msgspec.msgpack.Decoder(Leader)
_encode = msgspec.msgpack.Encoder().encode


class Election:
    """The election of a leader, as one candidate sees it.

    Any thread may call it, one at a time; but `commit` may run beside `renew`, and `is_safe`
    beside every call.

    Args:
        engine: where the entry is.
        name: of the election; an engine can have several.
        lease: seconds after which a silent leader is replaced.
        clock: monotonic clock in seconds.
    """

    def __init__(self, engine: Engine, name: str, lease: float, clock: Clock) -> None:
        self._engine = engine
        self._key = f"leader/{name}"
        self._lease = lease
        self._clock = clock
        self._safe_until = float("-inf")

    def present(self, deadline: Deadline) -> Term | None:
        """Return the present term, None without a leader. Raises StoreError as `Engine.read`."""
        entry = self._engine.read([self._key], deadline).get(self._key)
        return None if entry is None else _term(entry)

    def wait(self, seen: Term | None, deadline: Deadline) -> bool:
        """Wait for a change of leader; see `Engine.wait` for the result and StoreError."""
        return self._engine.wait(self._key, None if seen is None else seen.entry, deadline)

    def try_to_lead(self, candidate: Leader, deadline: Deadline) -> Term | None:
        """Become leader if there is none; return the term, None if another process leads.

        Raises:
            StoreError: the engine cannot be reached, or does not tell whether it wrote.
        """
        began, value = self._clock(), _encode(candidate)
        commit = self._engine.commit(
            {self._key: None}, {self._key: value}, deadline, {self._key: self._lease}
        )
        if not commit.done:
            return None
        self._safe_until = began + self._lease
        detail: Any = commit.details.get(self._key)
        return Term(commit.version, candidate, Entry(commit.version, value, detail))

    def renew(self, term: Term, deadline: Deadline) -> bool:
        """Extend the term by a lease (due each third of it); False: the term is over.

        Raises:
            StoreError: the engine cannot be reached; the term may still hold.
        """
        began = self._clock()
        still = self._engine.renew(self._key, term.entry, self._lease, deadline)
        self._safe_until = began + self._lease if still else float("-inf")
        return still

    def is_safe(self) -> bool:
        """Return whether no other process can lead yet, by this process's own clock."""
        return self._clock() < self._safe_until

    def commit(
        self,
        term: Term,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
        by: Engine | None = None,
    ) -> Commit:
        """Write as the leader; refused once another process leads.

        Args:
            term: of this leader.
            expected: see `Engine.commit`.
            changes: see `Engine.commit`.
            deadline: see `Engine.commit`.
            by: another client of the same engine, for example with longer timeouts.

        Raises:
            NotLeadingError: the term is over; nothing was written.
        """
        engine = by or self._engine
        commit = engine.commit({**expected, self._key: term.entry}, changes, deadline)
        if commit.done:
            return commit
        now = commit.present.get(self._key)
        if now is None or now.version != term.epoch:
            self._safe_until = float("-inf")
            what = "nobody leads" if now is None else f"{_term(now).leader.where} leads"
            epoch = "" if now is None else f" in epoch {now.version}"
            raise NotLeadingError(
                f"{self._engine.where}: a write of epoch {term.epoch} was refused: {what}{epoch}"
            )
        return commit

    def resign(self, term: Term, deadline: Deadline) -> None:
        """End the term at once.

        Raises:
            StoreError: the engine cannot be reached; the term ends with its lease.
        """
        self._safe_until = float("-inf")
        self._engine.commit({self._key: term.entry}, {self._key: None}, deadline)


def _term(entry: Entry) -> Term:
    return Term(entry.version, _decoder.decode(entry.value), entry)
