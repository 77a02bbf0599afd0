"""Barriers and gathers on an engine, by the rules of `store.groups`.

A group is one entry `g/NAME` with its members and their values. A member adds itself by a
commit. The member that completes the group deletes the entry and, in the same commit, writes the
answer `r/NAME/TURN`, for which all others wait: so each wakes up once. The first member chooses
`TURN`, so the name can be used again at once. Answers expire; a member that sleeps for longer
than `ANSWER_SECONDS` finds neither group nor answer and gets an error.

A member that dies while it waits must not count forever. Each member keeps an entry `p/MEMBER`
alive, which expires otherwise; a joining member removes those whose entry is gone.
"""

import random
import threading
import uuid
from typing import Any

import msgspec

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Engine, Entry
from rallypoint.errors import StoreError, StoreTimeoutError
from rallypoint.net import protocol as p
from rallypoint.store.groups import group_title
from rallypoint.store.keyspace import PARKED, Keyspace

ANSWER_SECONDS = 3600.0
PRESENCE_SECONDS = 15.0
BEAT_SECONDS = 5.0
GIVE_UP_SECONDS = 5.0  # longest time to remove a member that times out
_ROOM_SECONDS = 0.005


class _Group(msgspec.Struct, array_like=True):
    """An open group as it is stored."""

    turn: str
    members: list[tuple[str, p.Gather]]
    departed: dict[str, dict[int, str]]


_decoder = msgspec.msgpack.Decoder(_Group)
_encode = msgspec.msgpack.Encoder().encode


class _ReadGroup:
    """A group as it was read, applied to a keyspace of its own."""

    def __init__(self, engine: Engine, name: str, deadline: Deadline) -> None:
        self.key = f"g/{name}"
        self.entry = engine.read([self.key], deadline).get(self.key)
        self.space = Keyspace()
        self.turn = uuid.uuid4().hex[:12]
        self.members: dict[str, p.Gather] = {}
        if self.entry is not None:
            stored = _decoder.decode(self.entry.value)
            self.turn = stored.turn
            self.members = dict(stored.members)
            for token, request in stored.members:
                self.space.execute(request, token)
            self.space.groups.restore_departed(stored.departed)

    def remove_dead(self, engine: Engine, deadline: Deadline) -> None:
        """Remove the members whose presence entry has expired."""
        keys = [_presence(token) for token in self.members]
        alive = engine.read(keys, deadline) if keys else {}
        for token in list(self.members):
            if _presence(token) not in alive:
                self.space.cancel(token)
                del self.members[token]

    def stored(self) -> bytes | None:
        """Return the group for storing, None if it has no member."""
        if not self.members:
            return None
        return _encode(_Group(self.turn, list(self.members.items()), self.space.groups.departed()))


def _presence(token: str) -> str:
    return f"p/{token}"


def _values(members: list[p.Gather]) -> list[bytes]:
    ranked = [member for member in members if member.rank is not None]
    return [member.value for member in sorted(ranked, key=lambda member: member.rank or 0)]


def _fetched(entry: Entry) -> list[bytes]:
    return msgspec.msgpack.decode(entry.value, type=list[bytes])


def _own(request: p.Gather, values: list[bytes]) -> list[bytes] | None:
    if not request.collect:
        return None
    return values[:1] if request.only_first else values


class GroupCalls:
    """The group calls of one store handle.

    Args:
        engine: the database with the groups.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def gather(self, request: p.Gather, deadline: Deadline) -> Any:
        """Join a group and wait until it is complete (see `protocol.Gather`)."""
        token = uuid.uuid4().hex
        patient = Deadline(max(deadline.timeout, GIVE_UP_SECONDS))
        turn, values = self._join(request, token, patient)
        if values is not None:
            return _own(request, values)
        ended = False
        try:
            answer = self._await(request, token, turn, deadline)
            if answer is None:
                answer = self._leave(request, token, turn, timed_out=True)
            ended = True
            return _own(request, answer)
        except StoreTimeoutError:
            ended = True
            raise
        finally:
            if not ended:  # interrupted, or the engine cannot be reached: best effort
                self._withdraw(request, token, turn)

    def _join(
        self, request: p.Gather, token: str, deadline: Deadline
    ) -> tuple[str, list[bytes] | None]:
        """Add a member; return the group's turn, and its values if that completes it."""
        while True:
            seen = _ReadGroup(self._engine, request.name, deadline)
            seen.remove_dead(self._engine, deadline)
            expected: dict[str, Entry | None] = {seen.key: seen.entry}
            error: StoreTimeoutError | None = None
            values: list[bytes] | None = None
            changes: dict[str, bytes | None]
            expire: dict[str, float] = {}
            try:
                result = seen.space.execute(request, token)
            except StoreTimeoutError as too_late:  # a timeout of 0, which the group records
                error, changes = too_late, {seen.key: seen.stored()}
            else:
                if result is PARKED:
                    seen.members[token] = request
                    changes = {seen.key: seen.stored(), _presence(token): b""}
                    expire = {_presence(token): PRESENCE_SECONDS}
                else:
                    values = _values([*seen.members.values(), request])
                    answer = f"r/{request.name}/{seen.turn}"
                    changes = {seen.key: None, answer: _encode(values)}
                    expire = {answer: ANSWER_SECONDS}
            if seen.entry is None and changes[seen.key] is None:
                changes.pop(seen.key)
            expected |= {key: None for key in changes if key != seen.key}
            done = not changes or self._engine.commit(expected, changes, deadline, expire).done
            if done and error is not None:
                raise error
            if done:
                return seen.turn, values
            _check(request, deadline)

    def _await(
        self, request: p.Gather, token: str, turn: str, deadline: Deadline
    ) -> list[bytes] | None:
        """Return the values once the group is complete, None at the deadline."""
        answer, presence = f"r/{request.name}/{turn}", _presence(token)
        while not deadline.expired():
            beat = Deadline(deadline.capped(BEAT_SECONDS))
            self._engine.wait(answer, None, beat)
            found = self._engine.read([answer, presence], deadline)
            if answer in found:
                return _fetched(found[answer])
            alive = found.get(presence)
            living = alive is not None and self._engine.renew(
                presence, alive, PRESENCE_SECONDS, deadline
            )
            if not living and not self._revive(request, token, deadline):
                return None  # complete, or removed as dead: `_leave` finds out
        return None

    def _revive(self, request: p.Gather, token: str, deadline: Deadline) -> bool:
        """Write our presence entry again, if we still are a member; False if not."""
        seen = _ReadGroup(self._engine, request.name, deadline)
        if token not in seen.members:
            return False
        presence = _presence(token)
        self._engine.commit(
            {seen.key: seen.entry, presence: None},
            {presence: b""},
            deadline,
            {presence: PRESENCE_SECONDS},
        )
        return True

    def _leave(self, request: p.Gather, token: str, turn: str, *, timed_out: bool) -> list[bytes]:
        """Remove our member; return the answer if it came at the last moment."""
        deadline = Deadline(GIVE_UP_SECONDS)
        answer = f"r/{request.name}/{turn}"
        while True:
            seen = _ReadGroup(self._engine, request.name, deadline)
            if token not in seen.members:
                found = self._engine.read([answer], deadline)
                if answer in found:
                    return _fetched(found[answer])
                raise StoreError(
                    f"{self._engine.where}: {group_title(request.name)}: this member was held "
                    f"up for more than {PRESENCE_SECONDS:g} s and was considered dead"
                )
            error = seen.space.expire(token) if timed_out else None
            if not timed_out:
                seen.space.cancel(token)
            del seen.members[token]
            changes = {seen.key: seen.stored()}
            if self._engine.commit({seen.key: seen.entry}, changes, deadline).done:
                raise error or StoreTimeoutError(f"{group_title(request.name)}: withdrawn")
            _check(request, deadline)

    def _withdraw(self, request: p.Gather, token: str, turn: str) -> None:
        try:
            self._leave(request, token, turn, timed_out=False)
        except StoreError:
            return  # withdrawn; or unreachable, and our presence entry expires


def _check(request: p.Gather, deadline: Deadline) -> None:
    """Give up after the deadline, else pause so that others can finish."""
    if deadline.expired():
        raise StoreTimeoutError(
            f"{group_title(request.name)}: other members won every write for {deadline.timeout:g} s"
        )
    threading.Event().wait(random.uniform(0, _ROOM_SECONDS))  # noqa: S311 - jitter
