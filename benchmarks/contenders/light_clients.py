"""Light clients: N nodes in one asyncio process that speak the real protocol.

They use no handler, only the messages of `rallypoint.net.protocol` and
`rallypoint.rendezvous.wire`, and count what is sent and received.
"""

import asyncio
import resource
import secrets
import socket
import ssl
import time
from typing import Any

import commands
import msgspec
import uvloop

from rallypoint.core.events import Join, Leave
from rallypoint.core.state import Node, Settings
from rallypoint.net import protocol as p
from rallypoint.net.tls_socket import binding
from rallypoint.net.tokens import key_id
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.view import Seated

_decoder = msgspec.msgpack.Decoder(wire.ServerBody)
WINDOW = 1000  # connections being made at a time: a listening socket queues 4096 at most
BEAT = p.frame(wire.Beat())


class LightNode(asyncio.Protocol):
    """One node: handshake, join, seat."""

    def __init__(self, swarm: "Swarm", index: int) -> None:
        self.swarm, self.index = swarm, index
        self.seat: Any = None
        self.buffer = b""

    def connection_made(self, transport: Any) -> None:
        """Say hello."""
        self.transport = transport
        nonce, token = secrets.token_bytes(p.NONCE_BYTES), self.swarm.token
        key = key_id(token) if token else b""
        self.hello = p.Hello(1, self.swarm.run, secrets.token_bytes(16), nonce, "light", key)
        secured = transport.get_extra_info("ssl_object")
        self.binding = binding(secured.getpeercert(binary_form=True)) if secured else b""
        self.write(p.frame(self.hello))

    def write(self, data: bytes) -> None:
        """Send one frame and count it."""
        self.swarm.frames_out += 1
        self.swarm.bytes_out += len(data)
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Handle whole frames."""
        self.swarm.bytes_in += len(data)
        if self.buffer:
            data = self.buffer + data
        start, size = 0, len(data)
        while size - start >= 4:
            end = start + 4 + int.from_bytes(data[start : start + 4], "big")
            if end > size:
                break
            self.swarm.frames_in += 1
            self.body(_decoder.decode(data[start + 4 : end]))
            start = end
        self.buffer = data[start:]

    def body(self, body: Any) -> None:
        """Act on one message of the server."""
        kind = type(body)
        if kind is wire.Push:
            if type(body.message) is Seated:
                self.seat = body.message.seat
                self.swarm.seated()
        elif kind is p.Challenge:
            assert body.proof == self.proof(b"server", body.nonce)
            self.write(p.frame(p.Proof(self.proof(b"client", body.nonce))))
        elif kind is p.Welcome:
            self.swarm.connected()
            if self.swarm.join_at_once:
                self.join()
        elif kind is p.Goodbye:
            self.swarm.fail(body.reason)

    def proof(self, role: bytes, nonce: bytes) -> bytes:
        """Return one side's proof, empty without a token."""
        token = self.swarm.token
        return p.proof(token, role, self.hello, nonce, self.binding) if token else b""

    def join(self) -> None:
        """Ask for the next round."""
        self.write(p.frame(wire.Ask(0, self.swarm.join_of(self))))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail: the server must not close a connection."""
        if not self.swarm.closing:
            self.swarm.fail(f"connection lost: {exc}")


class Swarm:
    """All nodes of one process."""

    def __init__(self) -> None:
        self.nodes: list[LightNode] = []
        self.token, self.run, self.closing = b"", "", False
        self.join_at_once = True
        self.ready = 0
        self.reset()

    def reset(self) -> None:
        """Reset the counters."""
        self.frames_out = self.frames_in = self.bytes_out = self.bytes_in = 0
        self.in_seat = 0
        self.done: asyncio.Future[None] = asyncio.get_event_loop().create_future()

    def join_of(self, node: LightNode) -> Join:
        """Return the join of a node, as its handler would send it."""
        known = (node.seat.incarnation, node.seat.round) if node.seat else (0, 0)
        who = Node(f"{node.index:032x}", "127.0.0.1", 20000 + node.index, 4711, host="host")
        return Join(who, self.settings, *known)

    def connected(self) -> None:
        """One more handshake is done."""
        self.ready += 1
        self.window.release()
        if not self.join_at_once and self.ready == self.size and not self.done.done():
            self.done.set_result(None)

    def seated(self) -> None:
        """One more node has its seat."""
        self.in_seat += 1
        if self.in_seat == self.size and not self.done.done():
            self.done.set_result(None)

    def fail(self, why: str) -> None:
        """End the round with an error."""
        if not self.done.done():
            self.done.set_exception(RuntimeError(why))

    async def connect(
        self, host: str, port: int, run: str, token: str, n: int, join: bool = True, ca: str = ""
    ) -> dict[str, Any]:
        """Connect n nodes (with `ca`: by TLS), authenticate, join if `join`; wait for all."""
        tls = {"ssl": ssl.create_default_context(cafile=ca), "server_hostname": host} if ca else {}
        self.token, self.run, self.size, self.join_at_once = token.encode(), run, n, join
        self.settings = Settings(n, n, lease_seconds=15.0)
        self.window = asyncio.Semaphore(WINDOW)
        self.nodes = [LightNode(self, i) for i in range(n)]
        loop = asyncio.get_running_loop()
        begun, cpu = time.monotonic(), time.process_time()
        opening = []
        for node in self.nodes:
            await self.window.acquire()
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex((host, port))  # on loopback it is done when the call returns
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opening.append(
                loop.create_task(loop.create_connection(lambda node=node: node, sock=sock, **tls))
            )
        await asyncio.gather(*opening)
        await self.done
        return self.figures(begun, cpu)

    async def again(self) -> dict[str, Any]:
        """Make all nodes, which are connected, join the next round."""
        begun, cpu = time.monotonic(), time.process_time()
        self.reset()
        for node in self.nodes:
            node.join()
        await self.done
        return self.figures(begun, cpu)

    async def beat(self, seconds: float, interval: float) -> dict[str, Any]:
        """Send heartbeats only, one per node and `interval` seconds, spread evenly."""
        begun, cpu = time.monotonic(), time.process_time()
        self.reset()
        step = interval / len(self.nodes)
        sent = 0
        while (now := time.monotonic() - begun) < seconds:
            while sent * step < now:
                self.nodes[sent % len(self.nodes)].write(BEAT)
                sent += 1
            await asyncio.sleep(0.01)
        self.done.cancel()
        return self.figures(begun, cpu)

    def figures(self, begun: float, cpu: float) -> dict[str, Any]:
        """Return the figures, and check that all nodes agree."""
        took = time.monotonic() - begun
        seats = [node.seat for node in self.nodes if node.seat]
        if seats:
            assert sorted(s.rank for s in seats) == list(range(self.size))
            assert len({(s.round, s.size, s.master_addr, s.master_port) for s in seats}) == 1
        return {
            "seconds": took,
            "client_cpu": time.process_time() - cpu,
            "requests": self.frames_out / self.size,
            "answers": self.frames_in / self.size,
            "bytes_out": self.bytes_out / self.size,
            "bytes_in": self.bytes_in / self.size,
        }

    async def close(self) -> None:
        """Leave and close all connections."""
        self.closing = True
        for node in self.nodes:
            node.transport.write(p.frame(wire.Ask(0, Leave(f"{node.index:032x}"))))
            node.transport.close()
        self.nodes = []
        await asyncio.sleep(0.05)


def main() -> None:
    """Answer commands."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    current: list[Swarm] = []

    def form(limit: float, **options: Any) -> dict[str, Any]:
        current[:] = [Swarm()]
        return loop.run_until_complete(asyncio.wait_for(current[0].connect(**options), limit))

    def again(limit: float) -> dict[str, Any]:
        return loop.run_until_complete(asyncio.wait_for(current[0].again(), limit))

    def beat(seconds: float, interval: float) -> dict[str, Any]:
        return loop.run_until_complete(current[0].beat(seconds, interval))

    def close() -> None:
        loop.run_until_complete(current.pop().close())

    commands.serve({"form": form, "again": again, "beat": beat, "close": close})


main()
