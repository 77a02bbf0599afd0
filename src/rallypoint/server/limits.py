"""What clients can cost a server, bounded: connections, joins, memory of long messages. PURE.

Each rule takes what happened and returns what to do about it: admit a connection or close one
with a goodbye, pause reading, resume others. `Server` and `Connection` carry it out. A
connection is a mere key here.
"""

from collections import Counter, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from rallypoint.net import protocol as p
from rallypoint.server.options import Options

OWN_FILES = 32  # open files of a server beside its connections, and those being refused
TLS_SHARE = 4  # a pending TLS handshake takes 48 KiB, a plain one 2 (measured)
LONG_BYTES = 1 << 20  # shorter messages are not counted
STALLED_SECONDS = 5.0
SLOWEST_BYTES_A_SECOND = 64 << 10
STALLED = p.Goodbye(
    p.GOODBYE_BUSY,
    "a large message arrived too slowly while others waited for buffer space (arriving_limit); try "
    "again",
)
_HTTP_STARTS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"CONN", b"PATC", b"DELE")
_HTTP_ANSWER = (
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This port speaks the Rallypoint protocol, not HTTP.\n"
)
_TLS_HELLO = b"\x16\x03"
C = TypeVar("C", bound=Hashable)


def too_long(length: int, limit: int) -> p.Goodbye:
    """Return the goodbye for a frame above its limit."""
    return p.Goodbye(p.GOODBYE_LIMIT, f"a frame of {length} bytes is above the limit of {limit}")


def early_frame_refusal(head: bytes, limit: int) -> tuple[str, bytes]:
    """Return why a frame above the limit before the handshake is refused, and the last words.

    Args:
        head: its first 4 bytes: a length, or the beginning of another protocol.
        limit: longest frame.
    """
    if head in _HTTP_STARTS:
        return "an HTTP request was sent to a Rallypoint port", _HTTP_ANSWER
    goodbye = too_long(int.from_bytes(head, "big"), limit)
    if head.startswith(_TLS_HELLO):
        reason = "a TLS handshake was sent to a port without TLS"
        goodbye = p.Goodbye(p.GOODBYE_PROTOCOL, reason)
    return goodbye.reason, p.frame(goodbye)


@dataclass(frozen=True, slots=True)
class Refusal(Generic[C]):
    """Close this connection.

    Args:
        connection: which one; for a new connection's sake it may be an older one.
        goodbye: what to say.
    """

    connection: C
    goodbye: p.Goodbye


class ConnectionLimits(Generic[C]):
    """Which connections a server has, and which of them are too many.

    All connections together, and those of one address, have a limit. Above it a new one is
    told that the server is busy. Connections that have not finished their handshake have a
    limit of their own. Above it the oldest of them is closed: our clients need milliseconds,
    so a flood of strangers displaces strangers.

    Args:
        options: the server's limits.
        open_files: how many the system allows: a connection that cannot be accepted cannot be
            told why.
    """

    def __init__(self, options: Options, open_files: int) -> None:
        self._address_limit = options.address_limit
        self._handshake_seconds = options.handshake_seconds
        self._of_address: Counter[str] = Counter()
        self._pending: dict[C, float] = {}  # loop time of its arrival, oldest first
        share = TLS_SHARE if options.tls.for_servers else 1
        self._most_pending = max(1, options.handshakes_limit // share)
        self._most = options.connections_limit
        self._setting = "connections_limit"
        if open_files - OWN_FILES < self._most:
            self._most = max(1, open_files - OWN_FILES)
            self._setting = f"ulimit -n {open_files}"

    def enter(self, connection: C, address: str, others: int, now: float) -> Refusal[C] | None:
        """Count a new connection; return which one to close for it, None to admit it.

        Args:
            connection: the new one.
            address: the client's IP address.
            others: how many connections there are beside it.
            now: loop time.
        """
        self._of_address[address] += 1
        if others >= self._most:
            most = f"{self._most} connections ({self._setting})"
            return _busy(connection, f"it has its limit of {most}")
        if self._of_address[address] > self._address_limit:
            return _busy(connection, f"{address} has {self._address_limit} connections already")
        self._pending[connection] = now
        if len(self._pending) <= self._most_pending:
            return None
        oldest = next(iter(self._pending))
        del self._pending[oldest]
        return _busy(oldest, f"more than {self._most_pending} connections have proved nothing yet")

    def proved(self, connection: C) -> None:
        """Its handshake is done."""
        self._pending.pop(connection, None)

    def leave(self, connection: C, address: str) -> None:
        """It is closed."""
        self._pending.pop(connection, None)
        self._of_address[address] -= 1
        if self._of_address[address] <= 0:
            del self._of_address[address]

    def overdue(self, now: float, gap: float) -> list[Refusal[C]]:
        """Return the connections whose handshake takes too long.

        Args:
            now: loop time.
            gap: seconds for which this process did not run.
        """
        reason = f"no handshake within {self._handshake_seconds:g} s"
        goodbye = p.Goodbye(p.GOODBYE_LIMIT, reason)
        found = []
        for connection, came_at in self._pending.items():
            if came_at >= now - self._handshake_seconds - gap:
                break
            found.append(Refusal(connection, goodbye))
        return found


def _busy(connection: C, why: str) -> Refusal[C]:
    return Refusal(connection, p.Goodbye(p.GOODBYE_BUSY, f"this server is busy: {why}; try again"))


class RateLimit:
    """So many at once, and so many a second.

    Args:
        rate: regained each second.
        burst: most at once.
        now: loop time.
    """

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at = now

    def take(self, now: float) -> bool:
        """Use one up; return False if there is none."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass(slots=True, eq=False)
class _Arrival:
    """A message that has room: its length; how much was there at the last look, and when."""

    length: int
    looked_at: float
    there: int = 0


class ReceiveBudget(Generic[C]):
    """The memory that unfinished long messages may take together.

    A message is kept until it is whole, and each may have `frame_limit` bytes: many that begin
    and never end would take all memory. So each long message gets room as a whole, in order of
    arrival. While there is no room its connection is not read, and TCP holds the sender up. A
    connection that has room and hardly sends while others wait is closed; its client loses
    nothing by that, since the call has not begun, and may come again.

    Args:
        limit: most bytes together; a longer message is received alone.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._arriving: dict[C, _Arrival] = {}
        self._waiting: deque[tuple[C, int]] = deque()

    def begin(self, connection: C, length: int, now: float) -> bool:
        """Give room to a message of `length` bytes; False: pause reading until `end` says so."""
        if self._waiting or not self._fits(length):
            self._waiting.append((connection, length))
            return False
        self._take(connection, length, now)
        return True

    def _fits(self, length: int) -> bool:
        return not self._arriving or self._taken + length <= self._limit

    def _take(self, connection: C, length: int, now: float) -> None:
        self._arriving[connection] = _Arrival(length, now)
        self._taken += length

    def end(self, connection: C, now: float) -> list[C]:
        """A message is whole, or its connection is closed; return which others to resume."""
        arrival = self._arriving.pop(connection, None)
        if arrival is None:
            self._waiting = deque(each for each in self._waiting if each[0] != connection)
        else:
            self._taken -= arrival.length
        resumed = []
        while self._waiting and self._fits(self._waiting[0][1]):
            following, length = self._waiting.popleft()
            self._take(following, length, now)
            resumed.append(following)
        return resumed

    def receiving(self) -> list[C]:
        """Return the connections that have room."""
        return list(self._arriving)

    def stalled(self, received: Mapping[C, int], now: float) -> list[C]:
        """Return the connections to close: they have room that others wait for and hardly send.

        Args:
            received: bytes of the message that are there, for each that is `receiving`.
            now: loop time.
        """
        found = []
        for connection, arrival in self._arriving.items():
            seconds = now - arrival.looked_at
            if seconds < STALLED_SECONDS:
                continue
            came = received[connection] - arrival.there
            arrival.there = received[connection]
            arrival.looked_at = now
            if self._waiting and came < seconds * SLOWEST_BYTES_A_SECOND:
                found.append(connection)
        return found
