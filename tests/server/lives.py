"""One server, crashed at a chosen moment and started again from the same journal."""

import asyncio
from typing import Any, cast

import msgspec
from tests.server.fakes import FakeConnection, FakeLoop

from rallypoint.deadline import Deadline
from rallypoint.net import protocol as p
from rallypoint.server.journal.group_commit import Changes, Done
from rallypoint.server.journal.persistence import Persistence
from rallypoint.server.options import Options
from rallypoint.server.server import Server
from rallypoint.testing.fakes import MemoryJournal, Shelf

_decoder = msgspec.msgpack.Decoder(p.Reply | p.Failure)


class FakeSocket:
    """As much of a listening socket as the server looks at."""

    def getsockname(self) -> tuple[str, int]:
        return ("10.9.9.9", 29400)


class Pen:
    """A writer that commits when it is told to."""

    def __init__(self, journal: MemoryJournal) -> None:
        self.journal = journal
        self.order: tuple[Changes, Done] | None = None

    def write(self, changes: Changes, done: Done) -> None:
        assert self.order is None, "two commits at once"
        self.order = (changes, done)

    def stop(self) -> None:
        self.journal.close()

    def store(self) -> Done | None:
        """Commit; return what is to be called then, None if nothing is under way."""
        if self.order is None:
            return None
        (changes, done), self.order = self.order, None
        self.journal.commit(changes, Deadline(1))
        return done


class Life:
    """One life of the server.

    Args:
        shelf: what outlives it.
    """

    def __init__(self, shelf: Shelf) -> None:
        self.loop = FakeLoop()
        journal = MemoryJournal(shelf)
        opened = journal.open(Deadline(1))
        asyncio._set_running_loop(cast(asyncio.AbstractEventLoop, self.loop))
        try:
            self.server = Server(Options(insecure=True), [cast(Any, FakeSocket())])
        finally:
            asyncio._set_running_loop(None)
        self.pen = Pen(journal)
        self.persistence = Persistence(self.server, journal, opened, self.pen)

    def settle(self) -> None:
        """Let everything be stored and told."""
        self.loop.turn()
        while done := self.pen.store():
            done(None)
            self.loop.turn()


class HeldConnection(FakeConnection):
    """A node's connection whose frames are held by the group_commit."""

    def __init__(self, life: Life) -> None:
        super().__init__(life.loop.now)
        self._life = life

    def send(self, data: bytes) -> None:
        self._life.persistence.group_commit.hold(self, data)

    def release(self, data: bytes) -> None:
        super().send(data)


class HeldPeer:
    """A store client's connection whose frames are held by the group_commit."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.got: dict[int, p.Reply | p.Failure] = {}
        self.at_once: list[p.Reply | p.Failure] = []

    def send(self, data: bytes) -> None:
        self._life.persistence.group_commit.hold(self, data)

    def release(self, data: bytes) -> None:
        body = _decoder.decode(data[4:])
        self.got[body.id] = body

    def send_at_once(self, data: bytes) -> None:
        self.at_once.append(_decoder.decode(data[4:]))
