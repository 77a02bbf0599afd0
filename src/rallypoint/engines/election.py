"""Who leads: an entry that expires, on any engine, and the fence that it makes.

A candidate writes the entry where there is none; its version is the *epoch*, which grows with
each change of leader, over all restarts, because versions do. The leader renews it in time.
Whoever stops (killed, paused, cut off) does not, the entry goes away, and another one writes
the next.

The lease alone is no proof: a leader that is paused may wake up after its end and not know.
So whatever a leader writes, it writes by `commit`, which expects its own entry, too: the
engine refuses a write of a leader that is one no more. Many changes may go into one commit.

`is_safe` is the cheap half: by this process's own clock, counted from before the last renewal
was sent, the lease cannot have ended yet. Answers that are not written may rest on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rallypoint.deadline import Clock, Deadline
from rallypoint.engines.contract import Commit, Engine, Entry
from rallypoint.errors import StoreError


class NotLeadingError(StoreError):
    """The entry of this leader is gone, or another's: its writes are refused."""


class Leader(msgspec.Struct, frozen=True, array_like=True):
    """Who leads, as all read it.

    Args:
        name: of the process, unique.
        where: address at which clients find it.
    """

    name: str
    where: str


@dataclass(frozen=True, slots=True)
class Term:
    """A time of leading.

    Args:
        epoch: grows with each change of leader.
        leader: who leads.
        entry: what is expected by each write.
    """

    epoch: int
    leader: Leader
    entry: Entry


_decoder = msgspec.msgpack.Decoder(Leader)
_encode = msgspec.msgpack.Encoder().encode


class Election:
    """A candidate's way to lead. Calls may come from any thread, one at a time.

    But `commit` may run beside `renew`, and `is_safe` beside everything.

    Args:
        engine: where the entry is.
        name: of the office; several may be on one engine.
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
        """Return who leads now, None if nobody does."""
        entry = self._engine.read([self._key], deadline).get(self._key)
        return None if entry is None else _term(entry)

    def wait(self, seen: Term | None, deadline: Deadline) -> bool:
        """Wait for a change of leader; returns as `Engine.wait`."""
        return self._engine.wait(self._key, None if seen is None else seen.entry, deadline)

    def try_to_lead(self, candidate: Leader, deadline: Deadline) -> Term | None:
        """Lead if nobody does; return the term that is ours, None if another one leads."""
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
        """Lead for another lease; False once that is over. Due each third of the lease."""
        began = self._clock()
        still = self._engine.renew(self._key, term.entry, self._lease, deadline)
        self._safe_until = began + self._lease if still else float("-inf")
        return still

    def is_safe(self) -> bool:
        """Return whether nobody else can lead yet, by this process's own clock."""
        return self._clock() < self._safe_until

    def commit(
        self,
        term: Term,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
        by: Engine | None = None,
    ) -> Commit:
        """Write as the leader: `Engine.commit`, refused once another one leads.

        `by`: another client of the same engine, such as one with longer limits.

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
        """Make room for another one at once."""
        self._safe_until = float("-inf")
        self._engine.commit({self._key: term.entry}, {self._key: None}, deadline)


def _term(entry: Entry) -> Term:
    return Term(entry.version, _decoder.decode(entry.value), entry)
