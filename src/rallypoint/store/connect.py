"""Reaching a server: resolve afresh, try all addresses side by side, again until the deadline.

Names are resolved in a thread of their own, since a resolver may hang for longer than the
caller has time. The addresses of one attempt are tried in the order of RFC 8305 (families
alternate, the next one starts a quarter of a second after the one before); the first that
connects wins. A refused connection or an unknown name is tried again with jitter: the server,
or its DNS entry, may come up later than we do.
"""

import errno
import logging
import os
import random
import selectors
import socket
import threading

import psutil

from rallypoint.deadline import Deadline
from rallypoint.errors import StoreConnectionError

logger = logging.getLogger("rallypoint")

STAGGER_SECONDS = 0.25  # RFC 8305, section 5: Connection Attempt Delay
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
NOTICE_SECONDS = 2.0
ATTEMPT_SECONDS = 4.0  # then resolve afresh: the address may be another one by now
LOOKUP_SECONDS = 20.0  # glibc's own limit for one name server or two
LOOK_SECONDS = 0.25  # how soon a deadline that is cancelled ends an attempt
AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]


class Attempt(Deadline):
    """A deadline that can be called off: whoever connects by it gives up at the next look."""

    __slots__ = ()

    def cancel(self) -> None:
        """Let it be over now."""
        self._at = float("-inf")


def connect(host: str, port: int, deadline: Deadline, *, once: bool = False) -> socket.socket:
    """Return a connected socket.

    Args:
        host: name or IP address, resolved on each attempt.
        port: TCP port.
        deadline: until when to try.
        once: give up after the first failed attempt instead.

    Raises StoreConnectionError: what was tried, against which addresses, for how long, what
    was seen last, and what to do.
    """
    pause = FIRST_PAUSE_SECONDS
    noticed = False
    addresses: list[AddressInfo] = []
    while True:
        try:
            addresses = []
            addresses = resolve(host, port, deadline)
            return _race(addresses, deadline)
        except OSError as error:
            failure: OSError = error
        if once or deadline.expired():
            raise StoreConnectionError(
                explain_failure(host, port, addresses, failure, deadline)
            ) from failure
        if not noticed and deadline.elapsed() > NOTICE_SECONDS:
            noticed = True
            logger.warning("%s", explain_failure(host, port, addresses, failure, deadline))
        pause = wait_before_next(pause, deadline)


def wait_before_next(pause: float, deadline: Deadline) -> float:
    """Wait with jitter before another attempt; return the pause before the one after it."""
    threading.Event().wait(deadline.capped(pause * (0.5 + random.random())))  # noqa: S311 - jitter
    return min(pause * 2, LONGEST_PAUSE_SECONDS)


def explain_failure(
    host: str, port: int, addresses: list[AddressInfo], error: OSError, deadline: Deadline
) -> str:
    """Return what a user needs to know about a server that cannot be reached."""
    where = sorted({str(info[4][0]) for info in addresses})
    resolved = f"resolved to {', '.join(where)}" if where else "which does not resolve"
    if error.errno == errno.ECONNREFUSED:
        seen = "nobody listens there (connection refused)"
    elif isinstance(error, TimeoutError) and where:
        seen = "no answer (host down, or a firewall drops the packets)"
    else:
        seen = error.strerror or str(error)
    left = deadline.remaining()
    more = f"; trying for {left:.0f} s more" if left > 0 else ""
    return (
        f"cannot reach {host}:{port} ({resolved}) after {deadline.elapsed():.1f} s: {seen}{more}. "
        f"This machine's addresses are {', '.join(own_addresses())}. If the server belongs on "
        f"this machine, start `rallypoint serve --bind ADDRESS:{port}` or pass is_host=true "
        "here; otherwise check the endpoint and start it there"
    )


def own_addresses() -> list[str]:
    """Return this machine's IP addresses, without asking any name service."""
    found = {
        entry.address.split("%")[0]
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    }
    return sorted(found)


def resolve(host: str, port: int, deadline: Deadline) -> list[AddressInfo]:
    """Return the addresses of a host, families alternating; OSError when there are none."""
    answer: list[AddressInfo] = []
    failure: list[OSError] = []

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answer.extend(found)  # type: ignore[arg-type] # typeshed allows non-IP families
        except OSError as error:
            failure.append(error)

    if _is_ip(host):
        ask()
    else:
        asker = threading.Thread(target=ask, name="rallypoint-resolve", daemon=True)
        asker.start()
        asker.join(max(0.01, deadline.capped(LOOKUP_SECONDS)))
        if asker.is_alive():
            raise TimeoutError(errno.ETIMEDOUT, f"the name {host!r} was not resolved in time")
    if failure:
        error = failure[0]
        raise type(error)(error.errno, f"the name {host!r}: {error.strerror or error}")
    if not answer:
        raise OSError(errno.EADDRNOTAVAIL, f"the name {host!r} has no address")
    six = [info for info in answer if info[0] == socket.AF_INET6]
    four = [info for info in answer if info[0] == socket.AF_INET]
    first, second = (six, four) if answer[0][0] == socket.AF_INET6 else (four, six)
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


def _race(addresses: list[AddressInfo], deadline: Deadline) -> socket.socket:
    waiting = list(addresses)
    last: OSError = TimeoutError(errno.ETIMEDOUT, "no address answered in time")
    attempt = Deadline(deadline.capped(ATTEMPT_SECONDS))
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or selector.get_map():
                if waiting:
                    failed = _begin(waiting.pop(0), selector)
                    if failed is not None:
                        last = failed
                        continue
                limit = STAGGER_SECONDS if waiting else LOOK_SECONDS
                for key, _events in selector.select(attempt.capped(limit)):
                    sock: socket.socket = key.data
                    selector.unregister(sock)
                    failed = _end(sock)
                    if failed is None:
                        return sock
                    last = failed
                if attempt.expired() or deadline.expired():
                    break
        finally:
            for key in list(selector.get_map().values()):
                key.data.close()
    raise last


def _begin(info: AddressInfo, selector: selectors.BaseSelector) -> OSError | None:
    family, kind, proto, _name, address = info
    try:
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        return error
    sock.setblocking(False)
    code = sock.connect_ex(address)
    if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
        sock.close()
        return OSError(code, os.strerror(code))
    selector.register(sock, selectors.EVENT_WRITE, sock)
    return None


def _end(sock: socket.socket) -> OSError | None:
    """Make a connected socket ready; or close it and return why it is not connected."""
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    try:
        # A connect to a free ephemeral port of one's own may meet itself (simultaneous open).
        if code == 0 and sock.getsockname() != sock.getpeername():
            _tune(sock)
            return None
    except OSError as error:  # reset already
        code = error.errno or errno.ECONNRESET
    sock.close()
    code = code or errno.ECONNREFUSED
    return OSError(code, os.strerror(code))


def _tune(sock: socket.socket) -> None:
    sock.setblocking(True)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # macOS names the first one otherwise
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
