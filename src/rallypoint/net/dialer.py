"""Reaching a server: resolve its name, then try all addresses side by side.

Names are resolved in threads, since a resolver may hang for longer than the caller has time. The
addresses of one attempt, of one server or of several, are tried in the order of RFC 8305:
families alternate, the next address starts a quarter of a second after the one before, and the
first of each server precedes the second of any. The first connection wins. A name that resolves
late joins then. The caller retries with pauses (`wait_before_next`): the server, or its DNS
entry, may come up later than we do.
"""

import contextlib
import errno
import os
import random
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence

import psutil

from rallypoint.deadline import Deadline
from rallypoint.errors import StoreConnectionError
from rallypoint.net.endpoints import Endpoint, join_endpoint

STAGGER_SECONDS = 0.25  # RFC 8305, section 5: Connection Attempt Delay
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
NOTICE_SECONDS = 2.0
ATTEMPT_SECONDS = 4.0  # then resolve again: the address may have changed
LOOKUP_SECONDS = 20.0  # glibc's own limit for one or two name servers
LOOK_SECONDS = 0.25  # how soon a cancelled deadline ends an attempt
SEND_SECONDS = 10.0  # without progress, until a connection counts as broken
_TIMEVAL = struct.Struct("ll")
AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]


def kernel_limit(seconds: float) -> bytes:
    """Return seconds as the value of SO_RCVTIMEO and SO_SNDTIMEO (0: no limit)."""
    whole = int(seconds)
    return _TIMEVAL.pack(whole, int((seconds - whole) * 1_000_000))


_TUNING: list[tuple[int, int, int | bytes]] = [
    (socket.SOL_SOCKET, socket.SO_SNDTIMEO, kernel_limit(SEND_SECONDS)),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
]
_TUNING += [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)  # macOS has another name for the first one
]


class CancellableDeadline(Deadline):
    """A deadline that can be cancelled: a connection attempt under it ends soon after."""

    __slots__ = ()

    def cancel(self) -> None:
        """Expire now."""
        now, begun = self._clock(), self._at - self.timeout
        self.timeout, self._at = now - begun, now


class UnreachedError(StoreConnectionError):
    """An attempt reached no server.

    Args:
        errors: for each server the last error and the addresses of its name.
    """

    def __init__(self, errors: dict[Endpoint, tuple[OSError, list[AddressInfo]]]) -> None:
        super().__init__("; ".join(f"{join_endpoint(*at)}: {e}" for at, (e, _) in errors.items()))
        self.errors = errors


def connect(endpoints: Sequence[Endpoint], deadline: Deadline) -> tuple[socket.socket, Endpoint]:
    """Return a connected socket and the endpoint of its server.

    This is one attempt: all addresses of all servers, each once.

    Args:
        endpoints: servers in the order of preference; names are resolved each time.
        deadline: until when to try.

    Raises UnreachedError.
    """
    if len(endpoints) == 1 and (sock := _at_once(endpoints[0], deadline)) is not None:
        return sock, endpoints[0]
    race = _Race(deadline)
    try:
        return race.run(endpoints)
    finally:
        race.close()


def _at_once(endpoint: Endpoint, deadline: Deadline) -> socket.socket | None:
    """Connect to a plain address with a third of the race's system calls; None: try the race.

    There is no other server, so the call may block for as long as the race would wait before its
    next address. Linux only: its kernel ends a blocking connect after SO_SNDTIMEO.
    """
    if sys.platform != "linux" or not _is_ipv4(endpoint[0]):
        return None
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sock.gettimeout() is not None:  # the program has called socket.setdefaulttimeout
        sock.setblocking(True)
    seconds = max(0.001, deadline.capped(STAGGER_SECONDS))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, kernel_limit(seconds))
    with contextlib.suppress(OSError):  # reset already
        if sock.connect_ex(endpoint) == 0 and sock.getsockname()[1] != endpoint[1]:  # see `_end`
            _tune(sock)
            return sock
    sock.close()
    return None


def _is_ipv4(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET, host)
    except OSError:
        return False
    return True


def wait_before_next(pause: float, deadline: Deadline) -> float:
    """Wait `pause` seconds, with jitter; return the seconds to pause the next time."""
    threading.Event().wait(deadline.capped(pause * (0.5 + random.random())))  # noqa: S311 - jitter
    return min(pause * 2, LONGEST_PAUSE_SECONDS)


def explain_failure(
    endpoint: Endpoint, error: OSError, addresses: list[AddressInfo], deadline: Deadline
) -> str:
    """Return a message for the user about a server that cannot be reached."""
    return (
        f"cannot reach {join_endpoint(*endpoint)} ({resolved_to(addresses)}) after "
        f"{deadline.elapsed():.1f} s: {what_was_seen(error, addresses)}. This machine's "
        f"addresses are {', '.join(own_addresses())}. If the server belongs on this machine, "
        f"start `rallypoint serve --bind ADDRESS:{endpoint[1]}` (in the API: is_host=true) "
        "here; otherwise check the endpoint and start it there"
    )


def resolved_to(addresses: list[AddressInfo]) -> str:
    """Return the addresses of a server's name, in words."""
    where = sorted({str(info[4][0]) for info in addresses})
    return f"resolved to {', '.join(where)}" if where else "which does not resolve"


def what_was_seen(error: OSError, addresses: list[AddressInfo]) -> str:
    """Return why there is no connection, in words."""
    if error.errno == errno.ECONNREFUSED:
        return "no process is listening there (connection refused)"
    if isinstance(error, TimeoutError) and addresses:
        return "no answer (host down, or a firewall drops the packets)"
    return error.strerror or str(error)


def own_addresses() -> list[str]:
    """Return this machine's IP addresses, without a name service."""
    found = {
        entry.address.split("%")[0]
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    }
    return sorted(found)


def resolve(host: str, port: int, deadline: Deadline) -> list[AddressInfo]:
    """Return the addresses of a host, families alternating; OSError when there are none."""
    if _is_ip(host):
        return _look_up(host, port)
    lookup = _Lookup((host, port))
    with lookup.done:
        lookup.done.settimeout(max(0.01, deadline.capped(LOOKUP_SECONDS)))
        with contextlib.suppress(TimeoutError):
            lookup.done.recv(1)
    return lookup.result()


class _Lookup:
    """A name that a thread resolves; `done` becomes readable at the end."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._answer: list[AddressInfo] | OSError | None = None
        self.done, finished = socket.socketpair()
        name = "rallypoint-resolve"
        threading.Thread(target=self._ask, args=(finished,), name=name, daemon=True).start()

    def _ask(self, finished: socket.socket) -> None:
        with finished:  # `done` reads its end
            try:
                self._answer = _look_up(*self.endpoint)
            except OSError as error:
                self._answer = error

    def result(self) -> list[AddressInfo]:
        """Return the addresses (OSError; TimeoutError if they are not known yet)."""
        if self._answer is None:
            what = f"the name {self.endpoint[0]!r} was not resolved in time"
            raise TimeoutError(errno.ETIMEDOUT, what)
        if isinstance(self._answer, OSError):
            raise self._answer
        return self._answer


def _look_up(host: str, port: int) -> list[AddressInfo]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise type(error)(error.errno, f"the name {host!r}: {error.strerror or error}") from error
    except UnicodeError as error:  # the IDNA codec rejects invalid names
        raise OSError(errno.EINVAL, f"the name {host!r}: {error}") from error
    addresses = _alternating(found)  # type: ignore[arg-type] # typeshed allows non-IP families
    if not addresses:
        raise OSError(errno.EADDRNOTAVAIL, f"the name {host!r} has no address")
    return addresses


def _alternating(found: list[AddressInfo]) -> list[AddressInfo]:
    six = [info for info in found if info[0] == socket.AF_INET6]
    four = [info for info in found if info[0] == socket.AF_INET]
    first, second = (six, four) if found and found[0][0] == socket.AF_INET6 else (four, six)
    mixed: list[AddressInfo] = []
    for i in range(max(len(first), len(second))):
        mixed += first[i : i + 1] + second[i : i + 1]
    return mixed


def _is_ip(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.split("%")[0])
        except OSError:
            continue
        return True
    return False


class _Race:
    """One attempt at several servers: lookups and connections under one selector."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._limit = Deadline(deadline.capped(LOOKUP_SECONDS))
        self._selector = selectors.DefaultSelector()
        self._waiting: list[tuple[int, Endpoint, AddressInfo]] = []
        self._found: dict[Endpoint, list[AddressInfo]] = {}
        self._last: dict[Endpoint, OSError] = {}
        self._begun = False

    def close(self) -> None:
        """Close every socket that was not returned."""
        for key in list(self._selector.get_map().values()):
            sock = key.fileobj
            if isinstance(sock, socket.socket):
                sock.close()
        self._selector.close()

    def run(self, endpoints: Sequence[Endpoint]) -> tuple[socket.socket, Endpoint]:
        """Return the first connected socket and its server (UnreachedError)."""
        for endpoint in endpoints:
            self._look_up(endpoint)
        while self._waiting or self._selector.get_map():
            if self._waiting and not self._begin(*self._waiting.pop(0)[1:]):
                continue
            pause = STAGGER_SECONDS if self._waiting else LOOK_SECONDS
            for key, _events in self._selector.select(self._limit.capped(pause)):
                if isinstance(key.data, _Lookup):
                    self._looked_up(key.data)
                elif (sock := self._ended(key)) is not None:
                    return sock, key.data
            if self._limit.expired() or self._deadline.expired():
                break
        raise UnreachedError({endpoint: self._seen(endpoint) for endpoint in endpoints})

    def _seen(self, endpoint: Endpoint) -> tuple[OSError, list[AddressInfo]]:
        addresses = self._found.get(endpoint, [])
        what = "no address answered in time"
        if not addresses:
            what = f"the name {endpoint[0]!r} was not resolved in time"
        return self._last.get(endpoint) or TimeoutError(errno.ETIMEDOUT, what), addresses

    def _look_up(self, endpoint: Endpoint) -> None:
        if _is_ip(endpoint[0]):
            self._resolved(endpoint, lambda: _look_up(*endpoint))
        else:
            lookup = _Lookup(endpoint)
            self._selector.register(lookup.done, selectors.EVENT_READ, lookup)

    def _looked_up(self, lookup: _Lookup) -> None:
        self._selector.unregister(lookup.done)
        lookup.done.close()
        self._resolved(lookup.endpoint, lookup.result)

    def _resolved(self, endpoint: Endpoint, answer: Callable[[], list[AddressInfo]]) -> None:
        try:
            addresses = self._found[endpoint] = answer()
        except OSError as error:
            self._last[endpoint] = error
            return
        self._waiting += [(i, endpoint, info) for i, info in enumerate(addresses)]
        self._waiting.sort(key=lambda entry: entry[0])  # stable: servers stay in order

    def _begin(self, endpoint: Endpoint, info: AddressInfo) -> bool:
        """Start to connect; False if that failed at once."""
        if not self._begun:
            self._begun, self._limit = True, Deadline(self._deadline.capped(ATTEMPT_SECONDS))
        family, kind, proto, _name, address = info
        try:
            sock = socket.socket(family, kind, proto)
        except OSError as error:
            self._last[endpoint] = error
            return False
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            sock.close()
            self._last[endpoint] = OSError(code, os.strerror(code))
            return False
        self._selector.register(sock, selectors.EVENT_WRITE, endpoint)
        return True

    def _ended(self, key: selectors.SelectorKey) -> socket.socket | None:
        """Return the socket if it is connected."""
        sock = key.fileobj
        assert isinstance(sock, socket.socket)  # noqa: S101 - as it was registered
        self._selector.unregister(sock)
        failed = _end(sock)
        if failed is None:
            return sock
        self._last[key.data] = failed
        return None


def _end(sock: socket.socket) -> OSError | None:
    """Prepare a connected socket; or close it and return the error."""
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    try:
        # A connect to a free local port may connect to itself (TCP simultaneous open).
        if code == 0 and sock.getsockname() != sock.getpeername():
            sock.setblocking(True)
            _tune(sock)
            return None
    except OSError as error:  # reset already
        code = error.errno or errno.ECONNRESET
    sock.close()
    code = code or errno.ECONNREFUSED
    return OSError(code, os.strerror(code))


def _tune(sock: socket.socket) -> None:
    for level, option, value in _TUNING:
        sock.setsockopt(level, option, value)
