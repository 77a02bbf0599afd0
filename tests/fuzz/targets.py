"""The targets of fuzzing: the decoders, and a whole server without sockets.

They may raise only documented errors, and their memory may not grow. The server is the real one
with a transport that keeps nothing, and a permanent member must get replies after every attack. The
question who owns a socket is answered at random: yes or no, at once, later, or after the connection
has ended.
"""

import asyncio
import gc
import os
import random
import socket
from typing import Any, cast

import msgspec
import psutil
from tests.fuzz.frames import HANDSHAKE_BODIES, Maker

from rallypoint.net import protocol as p
from rallypoint.rendezvous import wire
from rallypoint.server.connection import Connection
from rallypoint.server.options import Options
from rallypoint.server.peer_credentials import OnUid, PeerCredentials
from rallypoint.server.server import Server

LIMITS = {
    "runs_limit": 20, "store_limit": 1 << 18, "keys_limit": 200, "waiters_limit": 200,
    "results_limit": 1 << 18, "frame_limit": 1 << 16, "event_limit": 1 << 14,
    "joins_at_once": 50, "buffer_limit": 1 << 20,
}  # fmt: skip
RUNS = ("run", "other", "", "a b", "\u00e9")
SWEEP_EVERY = 500
_decoders = [msgspec.msgpack.Decoder(kind) for kind in (wire.ClientBody, wire.HandshakeBody)]
_server_decoder = msgspec.msgpack.Decoder(wire.ServerBody)


def decode(data: bytes) -> int:
    """Decode bytes with every decoder; return how many succeeded."""
    worked = 0
    for decoder in (*_decoders, _server_decoder):
        try:
            body = decoder.decode(data)
        except msgspec.DecodeError:
            continue
        worked += 1
        if isinstance(body, wire.Ask) and not wire.problem(body.event):
            wire.cleaned(body.event)
    return worked


class NullTransport(asyncio.Transport):
    """Keeps only the last bytes that are written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.9", 9)})
        self.last, self.ended = b"", False

    def write(self, data: Any) -> None:
        self.last = data

    def write_eof(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.ended

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class ChanceOwners:
    """Replaces the question to the kernel, which does not know these connections.

    Args:
        rng: where chance comes from.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._later: list[OnUid] = []

    def ask(self, _peer: Any, _own: Any, told: OnUid) -> None:
        if self._rng.random() < 0.9:
            told(os.geteuid())
        else:
            self._later.append(told)

    def tell(self) -> None:
        """Answer the open questions."""
        later, self._later = self._later, []
        for told in later:
            told(self._rng.choice((os.geteuid(), None)))


class ServerTarget:
    """A server and a member, attacked in one conversation after the other.

    Args:
        rng: where chance comes from.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._maker = rng, Maker(rng)
        self._loop = asyncio.get_running_loop()
        self._sock = socket.create_server(("127.0.0.1", 0))
        options = Options(insecure=True, resume_seconds=0.0, **LIMITS)  # type: ignore[arg-type]
        self.server = Server(options, [self._sock])
        self.failures: list[dict[str, Any]] = []
        self._loop.set_exception_handler(lambda _loop, context: self.failures.append(context))
        self._member, self._transport = self._proved("member", b"member")
        self._owners = ChanceOwners(rng)
        self.server.peer_credentials = cast(PeerCredentials, self._owners)
        self.executions = 0

    def _connection(self) -> tuple[Connection, NullTransport]:
        connection, transport = Connection(self.server), NullTransport()
        connection.connection_made(transport)
        return connection, transport

    def _proved(self, run: str, client: bytes) -> tuple[Connection, NullTransport]:
        connection, transport = self._connection()
        hello = p.Hello(p.PROTOCOL_VERSION, run, client, b"n" * p.NONCE_BYTES, "fuzz")
        connection.data_received(p.frame(hello) + p.frame(p.Proof(b"")))
        return connection, transport

    async def attack(self) -> list[bytes]:
        """Hold one conversation; return the frames that were sent."""
        rng, said = self._rng, []
        if rng.random() < 0.15:
            connection, _transport = self._connection()
            said += [self._maker.frame(HANDSHAKE_BODIES) for _ in range(rng.randrange(4))]
        else:
            client = rng.choice((b"c1", b"c2", rng.randbytes(4)))
            connection, _transport = self._proved(rng.choice(RUNS), client)
        for _ in range(rng.randrange(1, 12)):
            said.append(self._maker.frame())
        await self.say(connection, said)
        self.executions += len(said)
        if self.executions % SWEEP_EVERY < len(said):
            self.server._sweep()
            cast(asyncio.TimerHandle, self.server._sweeper).cancel()
        return said

    async def say(self, connection: Connection, said: list[bytes]) -> None:
        """Send frames in pieces of any size, disconnect, and check that the member gets replies."""
        data, start = b"".join(said), 0
        while start < len(data):
            size = self._rng.choice((1, 3, 100, len(data)))
            connection.data_received(data[start : start + size])
            start += size
            if self._rng.random() < 0.2:
                await asyncio.sleep(0)
                self._owners.tell()
        await asyncio.sleep(0)
        connection.connection_lost(None)
        self._owners.tell()
        await asyncio.sleep(0)
        self.check()

    def check(self) -> None:
        """Raise AssertionError if the server is in a wrong state."""
        for context in self.failures:
            error = context.get("exception")
            raise AssertionError(str(context["message"])) from error
        assert self.server.faults.count == 0, "a fault was contained; it is in the log"
        self._transport.last = b""
        self._member.data_received(p.frame(wire.Beat()))
        assert self._transport.last == p.frame(wire.Beat()), "the member was not answered"
        assert len(self.server.connections) == 1
        assert len(self.server.stores) <= LIMITS["runs_limit"]
        for store in self.server.stores.values():
            peers = {client.connection for client in store.clients.values()} - {None}
            assert peers <= self.server.connections, "one that is gone has entered"
            assert store.keys.stored_bytes <= LIMITS["store_limit"] + (1 << 16)
            assert store.keys.parked <= LIMITS["waiters_limit"]

    def end(self) -> None:
        """Free everything."""
        for run in self.server.runs.values():
            run.stop()
        self._sock.close()


def resident_bytes() -> int:
    """Return this process's memory after garbage collection."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)
