"""Who may connect, and how many: what a stranger can cost is bounded here.

* All connections, and those of one address, have a limit; who comes above it is told that
  the server is busy, and may try again. Where the system allows fewer open files, the limit is
  theirs: a connection that cannot be accepted could not be told anything.
* Those that have proved nothing yet have a limit of their own. Above it the one that has
  waited longest goes: a client of ours needs milliseconds, so a flood of strangers pushes out
  strangers.
* A connection joins at most so often (`Allowance`); one that does more is closed.
"""

import logging
import resource
import sys
from collections import Counter
from typing import TYPE_CHECKING

from rallypoint.net import protocol as p

if TYPE_CHECKING:
    from rallypoint.server.connection import Connection
    from rallypoint.server.options import Options

_log = logging.getLogger(__name__)
OWN_FILES = 32  # open files of a server beside its connections, and those being refused
_HTTP_STARTS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"CONN", b"PATC", b"DELE")
_HTTP_ANSWER = (
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This port speaks the Rallypoint protocol, not HTTP.\n"
)
_TLS_HELLO = b"\x16\x03"
TLS_SHARE = 4  # a pending TLS handshake takes 48 KiB, a plain one 2 (measured)


def stranger(head: bytes) -> tuple[str, bytes] | None:
    """Return what speaks another protocol, and the last words to it; None: nothing known.

    Args:
        head: the first 4 bytes of what should be a frame.
    """
    if head in _HTTP_STARTS:
        return "an HTTP request was sent to a Rallypoint port", _HTTP_ANSWER
    if head.startswith(_TLS_HELLO):
        reason = "a TLS handshake was sent to a port without TLS"
        return reason, p.frame(p.Goodbye(p.GOODBYE_PROTOCOL, reason))
    return None


class Gate:
    """The connections of one server.

    Args:
        options: its limits.
    """

    def __init__(self, options: "Options") -> None:
        self._options = options
        self._of_address: Counter[str] = Counter()
        self._pending: dict[Connection, None] = {}
        share = TLS_SHARE if options.tls.for_servers else 1
        self._most_pending = max(1, options.handshakes_limit // share)
        self._most = options.connections_limit
        self._setting = "connections_limit"
        self.refused = 0

    def fit(self, open_files: int) -> None:
        """Let in no more than the system allows open files."""
        if open_files - OWN_FILES < self._most:
            self._most = max(1, open_files - OWN_FILES)
            self._setting = f"ulimit -n {open_files}"

    def enter(self, connection: "Connection", others: int) -> None:
        """Count a new connection; say goodbye to it, or to another one, at a limit."""
        options, address = self._options, connection.address
        self._of_address[address] += 1
        if others >= self._most:
            most = f"{self._most} connections ({self._setting})"
            self._refuse(connection, f"it has its limit of {most}")
        elif self._of_address[address] > options.address_limit:
            self._refuse(connection, f"{address} has {options.address_limit} connections already")
        else:
            self._pending[connection] = None
            if len(self._pending) > self._most_pending:
                oldest, limit = next(iter(self._pending)), self._most_pending
                self._refuse(oldest, f"more than {limit} connections have proved nothing yet")

    def _refuse(self, connection: "Connection", why: str) -> None:
        self.refused += 1
        self._pending.pop(connection, None)
        connection.goodbye(p.GOODBYE_BUSY, f"this server is busy: {why}; try again")

    def proved(self, connection: "Connection") -> None:
        """Its handshake is done."""
        self._pending.pop(connection, None)

    def leave(self, connection: "Connection") -> None:
        """It is gone."""
        self._pending.pop(connection, None)
        self._of_address[connection.address] -= 1
        if self._of_address[connection.address] <= 0:
            del self._of_address[connection.address]

    def overdue(self, before: float) -> "list[Connection]":
        """Return those that came before that loop time and have not proved themselves."""
        found = []
        for connection in self._pending:  # in order of arrival
            if connection.opened_at >= before:
                break
            found.append(connection)
        return found


class Allowance:
    """So many at once, and so many a second.

    Args:
        rate: regained each second.
        burst: most at once.
        now: loop time.
    """

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst, self._left, self._at = rate, burst, burst, now

    def take(self, now: float) -> bool:
        """Use one up; return False if there is none."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def raise_file_limit() -> int:
    """Allow as many open files as the system lets this process have; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:  # macOS names a hard limit that it refuses
            _log.info("file limit stays at %d: %s", soft, error)
            hard = soft
    return hard if hard != resource.RLIM_INFINITY else sys.maxsize
