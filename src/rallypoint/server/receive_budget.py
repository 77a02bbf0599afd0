"""Long messages that are still arriving: together they may take only so much memory.

A message is kept until it is whole, and each client may send one of `frame_limit` bytes: many
that begin one and never end it would take all memory there is. So room is given for each long
message as a whole, in order of arrival. While there is none, the connection is not read, and TCP
holds the sender up. Whoever has room and hardly sends, while others wait for room, is cut off;
it may come again, and loses nothing by it, since its call had not begun.
"""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.server.connection import Connection

LONG_BYTES = 1 << 20  # shorter ones are not counted
STALLED_SECONDS = 5.0
SLOWEST_BYTES_A_SECOND = 64 << 10
STALLED = "a long message hardly came on while others waited for room (arriving_limit); try again"


class _Arrival:
    """One message that has room: its length; how much was there at the last look, and when."""

    __slots__ = ("length", "looked_at", "there")

    def __init__(self, length: int, now: float) -> None:
        self.length, self.there, self.looked_at = length, 0, now


class Arrivals:
    """The long messages that are arriving at one server.

    Args:
        limit: most bytes of them together; one that is longer comes when it is alone.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._arriving: dict[Connection, _Arrival] = {}
        self._waiting: deque[tuple[Connection, int]] = deque()

    def begin(self, connection: "Connection", length: int, now: float) -> bool:
        """Give room for a message of `length` bytes; False: it waits for `end` of others."""
        if self._waiting or not self._fits(length):
            self._waiting.append((connection, length))
            return False
        self._take(connection, length, now)
        return True

    def _fits(self, length: int) -> bool:
        return not self._arriving or self._taken + length <= self._limit

    def _take(self, connection: "Connection", length: int, now: float) -> None:
        self._arriving[connection] = _Arrival(length, now)
        self._taken += length

    def end(self, connection: "Connection", now: float) -> "list[Connection]":
        """A message is whole, or its connection is gone; return whose turn has come."""
        arrival = self._arriving.pop(connection, None)
        if arrival is None:
            self._waiting = deque(each for each in self._waiting if each[0] is not connection)
        else:
            self._taken -= arrival.length
        turn = []
        while self._waiting and self._fits(self._waiting[0][1]):
            following, length = self._waiting.popleft()
            self._take(following, length, now)
            turn.append(following)
        return turn

    def stalled(self, now: float) -> "list[Connection]":
        """Return who holds room that others wait for, and hardly sends."""
        found = []
        for connection, arrival in self._arriving.items():
            seconds = now - arrival.looked_at
            if seconds < STALLED_SECONDS:
                continue
            came = connection.buffered - arrival.there
            arrival.there, arrival.looked_at = connection.buffered, now
            if self._waiting and came < seconds * SLOWEST_BYTES_A_SECOND:
                found.append(connection)
        return found
