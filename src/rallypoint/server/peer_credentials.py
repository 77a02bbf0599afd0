"""Whose process is at the other end of a loopback connection.

A server on loopback without a token answers the processes of its own user and of root (who
could do anything to it anyway), and refuses those of other users. TCP does not say who
connects, but the kernel knows the owner of each socket, and both ends of a loopback connection
are sockets of this machine:

* Linux answers a query for one socket over netlink (sock_diag(7)) as fast as a hash look-up,
  however many connections there are.
* Where netlink is not allowed (some sandboxes), /proc/net/tcp and tcp6 say the same, but only
  as whole files. Queries are collected and answered by one reading, and the next reading waits
  several times as long as the last one took: many connections cost a share of a core, and not
  the square of their number.
* Elsewhere (macOS) nothing answers: such a server is open to every process of the machine, and
  says so.

A socket that its process has closed has no owner: the kernel then names root, and inode 0. Such
a peer is unknown, so closing early gains nothing. The same holds for a socket that was reset
before it was accepted.
"""

import asyncio
import contextlib
import functools
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

logger = logging.getLogger("rallypoint.server")

SocketAddress = tuple[Any, ...]  # as sockets name it: (address, port, ...)
OnUid = Callable[[int | None], None]

ROOT = 0
READ_SHARE = 4  # readings of /proc take at most a fifth of a core
READ_SECONDS = 0.02  # to collect queries before a reading
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_MAPPED = struct.pack("=III", 0, 0, socket.htonl(0xFFFF))  # ::ffff:0:0/96
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 1  # NLM_F_REQUEST: one answer
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_QUERY = struct.Struct("=IHHIIBBBxI")  # the same, then family, protocol, extensions, states
_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface
_ID = struct.Struct("!HH16s16s")  # ports and addresses of an inet_diag_sockid
_QUERY_BYTES = _QUERY.size + _ID.size + len(_NO_COOKIE)
_ANSWER = struct.Struct("=4x4s44xIIIII")  # ports; after the id: expires, queues, uid, inode
_ANY_STATE = 0xFFFFFFFF


class PeerCredentials:
    """Finds the owners of sockets.

    Args:
        loop: its timers.
        netlink: ask there; None: read /proc.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, netlink: "Netlink | None") -> None:
        self._loop = loop
        self._netlink = netlink
        self._asked: list[tuple[SocketAddress, SocketAddress, OnUid]] = []
        self._rest_seconds = READ_SECONDS

    def ask(self, peer: SocketAddress | None, own: SocketAddress | None, on_uid: OnUid) -> None:
        """Find the user who owns a socket; call `on_uid` with the uid, now or from the loop.

        Args:
            peer: the socket's address, None if it is closed.
            own: the address that it is connected to.
            on_uid: gets None if the socket is closed, or has no owner.
        """
        if peer is None or own is None:
            on_uid(None)
            return
        if self._netlink is not None:
            on_uid(self._netlink.uid(peer, own))
            return
        self._asked.append((peer, own, on_uid))
        if len(self._asked) == 1:
            self._loop.call_later(self._rest_seconds, self._read)

    def _read(self) -> None:
        asked, self._asked = self._asked, []
        begun = self._loop.time()
        found = read_tables((peer, own) for peer, own, _ in asked)
        for (_, _, on_uid), uid in zip(asked, found, strict=True):
            on_uid(uid)
        self._rest_seconds = READ_SECONDS + READ_SHARE * (self._loop.time() - begun)

    def close(self) -> None:
        """Close the netlink socket."""
        if self._netlink is not None:
            self._netlink.close()


class Netlink:
    """The kernel's answers about single sockets. Raises OSError where it gives none."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
        self._number = 0

    def uid(self, peer: SocketAddress, own: SocketAddress) -> int | None:
        """Return who owns the socket at `peer` that is connected to `own`, None if unknown."""
        try:
            found = self.look(peer, own)
        except OSError as error:
            logger.warning("the kernel did not say who owns the socket at %s: %s", peer, error)
            return None
        if found is None:
            return None
        ports, _expires, _in, _out, uid, inode = found
        return uid if inode and ports == struct.pack("!HH", peer[1], own[1]) else None

    def look(self, peer: SocketAddress, own: SocketAddress) -> tuple[Any, ...] | None:
        """Return the kernel's answer, None if there is no such socket."""
        self._number = (self._number + 1) & 0xFFFFFFFF
        family, here = _packed(str(peer[0]))
        _, there = _packed(str(own[0]))
        kind, tcp = _SOCK_DIAG_BY_FAMILY, socket.IPPROTO_TCP
        head = _QUERY.pack(
            _QUERY_BYTES, kind, _REQUEST, self._number, 0, family, tcp, 0, _ANY_STATE
        )
        asked = _ID.pack(peer[1], own[1], here, there)
        self._sock.sendto(head + asked + _NO_COOKIE, (0, 0))
        while True:
            answer = self._sock.recv(4096, socket.MSG_DONTWAIT)  # it is there already
            _, answered, _, number, _ = _HEADER.unpack_from(answer)
            if number == self._number:
                break
        if answered != kind:
            return None
        return _ANSWER.unpack_from(answer, _HEADER.size)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def find_peer_credentials(
    loop: asyncio.AbstractEventLoop, listening: socket.socket
) -> PeerCredentials | None:
    """Return what finds owners on this machine, None where nothing can.

    Args:
        loop: the server's.
        listening: a socket of this process, to test whether the kernel answers.
    """
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError):
        netlink = Netlink()
        if _knows(netlink, listening):
            return PeerCredentials(loop, netlink)
        netlink.close()
    return PeerCredentials(loop, None) if Path(_TABLES[0]).exists() else None


def _knows(netlink: Netlink, listening: socket.socket) -> bool:
    place = listening.getsockname()
    anywhere = ("::" if listening.family == socket.AF_INET6 else "0.0.0.0", 0)  # noqa: S104
    try:
        return netlink.look(place, anywhere) is not None
    except OSError:
        return False


def may_talk(uid: int | None) -> bool:
    """Return whether this process answers a user's processes without a token."""
    return uid is not None and uid in (ROOT, os.geteuid())


def refusal(uid: int | None, nobody: str = "a socket that is closed already") -> str:
    """Return why a user's process is refused, and what helps.

    Args:
        uid: the user, None if unknown.
        nobody: what to call an unknown user's socket.
    """
    whose = nobody if uid is None else f"one of uid {uid}"
    return (
        f"without a token it answers processes of uid {os.geteuid()} and of root only, and "
        f"this is {whose}; give both the same token (RALLYPOINT_TOKEN, --token-file), or start "
        "the server with --insecure"
    )


def read_tables(asked: Iterable[tuple[SocketAddress, SocketAddress]]) -> list[int | None]:
    """Return the owners of sockets (address, and what it is connected to) from /proc."""
    names = [_names(peer, own) for peer, own in asked]
    wanted = {name for both in names for name in both}
    found: dict[str, int] = {}
    for table in _TABLES:
        with contextlib.suppress(FileNotFoundError), open(table, encoding="ascii") as lines:
            next(lines)
            for line in lines:
                fields = line.split(None, 10)
                name = f"{fields[1]} {fields[2]}"
                if name in wanted and fields[9] != "0":
                    found[name] = int(fields[7])
    return [next((found[n] for n in both if n in found), None) for both in names]


def _names(peer: SocketAddress, own: SocketAddress) -> list[str]:
    """Return how /proc names a socket; one for IPv6 may hold an IPv4 connection."""
    both = (_packed(str(peer[0]))[1], _packed(str(own[0]))[1])
    forms = [both]
    if ":" not in str(peer[0]):
        here, there = both[0][:4], both[1][:4]
        forms = [(here, there), (_MAPPED + here, _MAPPED + there)]
    return [f"{_words(here)}:{peer[1]:04X} {_words(there)}:{own[1]:04X}" for here, there in forms]


def _words(packed: bytes) -> str:
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))


@functools.lru_cache(maxsize=64)  # on this machine there are few
def _packed(host: str) -> tuple[int, bytes]:
    address = host.split("%")[0]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return family, socket.inet_pton(family, address).ljust(16, b"\0")
