"""A simulated network of TCP connections: in order within one, in any order across them.

TCP's guarantee holds: bytes arrive in order or not at all. Faults decide the rest. A direction
can be blocked: bytes wait, as with retransmission, and arrive once it is open again. A connection
can be cut so that both ends notice, or only one; the other end notices when it next sends.
"""

from collections.abc import Callable
from typing import Protocol

from rallypoint.testing.simulator.virtual_clock import Process, VirtualClock

REACH_SECONDS = 5.0  # until an unanswered attempt to connect fails
RETRY_SECONDS = 2.0  # TCP's retransmission timer, once the path is open again
_EOF = b""


class Receiver(Protocol):
    """The owner of one end of a connection."""

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""


class End:
    """One end of a connection, with the methods of an asyncio transport that the server uses."""

    def __init__(self, network: "Network", process: Process, number: int) -> None:
        self.network = network
        self.process = process
        self.number = number
        self.closed = False
        self.peer: End = self
        self.owner: Receiver | None = None
        self.waiting: list[tuple[int, bytes]] = []  # while the direction is blocked
        self.sent = 0
        self.last_arrival = 0.0
        process.on_death.append(self._died)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if not self.closed:
            self.network.carry(self, bytes(data))

    def write_eof(self) -> None:
        """End the stream; here the same as closing."""
        self.close()

    def close(self) -> None:
        """Close; the other end notices after it has received everything."""
        if not self.closed:
            self.closed = True
            self.network.carry(self, _EOF)
            self._tell_owner()

    def abort(self) -> None:
        """Close at once."""
        self.close()

    def is_closing(self) -> bool:
        """Return whether it is closed."""
        return self.closed

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        """Return the peer's name and number as its address."""
        return (self.peer.process.name, self.number) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait to be sent."""
        return sum(len(data) for _, data in self.waiting)

    def pause_reading(self) -> None:
        """Do nothing: simulated buffers never fill up."""

    def resume_reading(self) -> None:
        """Do nothing, like `pause_reading`."""

    def break_off(self) -> None:
        """Let only this end notice that the connection is gone."""
        if not self.closed:
            self.closed = True
            self._tell_owner()

    def _tell_owner(self) -> None:
        if self.owner is not None and self.process.alive:
            self.process.call_soon(self.owner.connection_lost, None)

    def _died(self) -> None:
        if not self.closed:
            self.closed = True
            if self.network.kernel_lives(self.process):
                self.network.carry(self, _EOF)


class Network:
    """All connections, and which directions between processes are blocked.

    Args:
        clock: the world's time.
        latency: least and most seconds of one message.
    """

    def __init__(self, clock: VirtualClock, latency: tuple[float, float]) -> None:
        self._clock = clock
        self.latency = latency
        self.ends: list[End] = []
        self.messages = 0
        self.on_arrival: Callable[[End], None] | None = (
            None  # called at the end that has received bytes
        )
        self._blocked: dict[tuple[str, str], int] = {}
        self._vanished: set[str] = set()

    def connect(
        self,
        client: Process,
        server: Process | None,
        owner: Receiver,
        opened: Callable[[End | None], None],
    ) -> None:
        """Connect; call `opened` with the client's end, or with None on failure."""
        delay = self._delay(client)
        if server is None or not server.alive:
            self._clock.add(client, delay, False, opened, None)  # refused
            return
        both = self.is_blocked(client.name, server.name) or self.is_blocked(
            server.name, client.name
        )
        if both:
            self._clock.add(client, REACH_SECONDS, False, opened, None)
            return
        self._clock.add(client, delay, False, self._open, client, server, owner, opened)

    def _open(
        self,
        client: Process,
        server: Process,
        owner: Receiver,
        opened: Callable[[End | None], None],
    ) -> None:
        if not server.alive:
            opened(None)
            return
        self.ends = [end for end in self.ends if not (end.closed and end.peer.closed)]
        number = len(self.ends)
        here, there = End(self, client, number), End(self, server, number)
        here.peer, there.peer = there, here
        here.owner = owner
        self.ends += [here, there]
        self._clock.add(server, 0.0, False, self._accept, there)
        opened(here)

    def _accept(self, end: End) -> None:
        connection = end.process.factory()
        end.owner = connection
        connection.connection_made(end)
        if end.closed:
            connection.connection_lost(None)

    def carry(self, end: End, data: bytes) -> None:
        """Carry bytes to the other end, in order."""
        end.sent += 1
        if end.waiting or self.is_blocked(end.process.name, end.peer.process.name):
            end.waiting.append((end.sent, data))
            return
        self._start(end, end.sent, data)

    def _start(self, end: End, order: int, data: bytes) -> None:
        self.messages += 1
        if not end.peer.process.alive:
            if data and self.kernel_lives(end.peer.process):  # which answers with a reset
                delay = self._delay(end.process)
                self._clock.add(end.process, delay, False, end.break_off)
            return
        arrival = max(end.last_arrival, self._clock.now + self._delay(end.process))
        end.last_arrival = arrival
        delay = arrival - self._clock.now
        self._clock.add(end.peer.process, delay, False, self._arrive, end, order, data)

    def _arrive(self, sender: End, order: int, data: bytes) -> None:
        if self.is_blocked(sender.process.name, sender.peer.process.name):
            sender.waiting.append((order, data))
            return
        end = sender.peer
        if end.closed:  # the kernel answers with a reset
            if data and not sender.closed:
                self._clock.add(sender.process, self._delay(end.process), False, sender.break_off)
            return
        if data == _EOF:
            end.break_off()
        elif end.owner is not None:
            half = len(data) // 2
            if half and self._clock.random.random() < 0.03:  # a stream has no message boundaries
                end.owner.data_received(data[:half])
                data = data[half:]
            end.owner.data_received(data)
            if self.on_arrival is not None:
                self.on_arrival(end)

    def _delay(self, process: Process) -> float:
        least, most = self.latency
        return (least + (most - least) * self._clock.random.random()) * process.slowness

    # -- faults -----------------------------------------------------------------------------

    def is_blocked(self, source: str, target: str) -> bool:
        """Return whether the direction is blocked."""
        return bool(self._blocked) and self._blocked.get((source, target), 0) > 0

    def block(self, source: str, target: str) -> None:
        """Block a direction; several blocks may overlap."""
        self._blocked[source, target] = self._blocked.get((source, target), 0) + 1

    def unblock(self, source: str, target: str) -> None:
        """Undo one `block`; held bytes arrive now."""
        left = self._blocked.get((source, target), 0) - 1
        if left > 0:
            self._blocked[source, target] = left
            return
        self._blocked.pop((source, target), None)
        for end in self.ends:
            if (end.process.name, end.peer.process.name) == (source, target) and end.waiting:
                pause = self._clock.random.random() * RETRY_SECONDS
                self._clock.add(self._clock.world, pause, False, self._release, end)

    def _release(self, end: End) -> None:
        if not self.is_blocked(end.process.name, end.peer.process.name):
            waiting, end.waiting = sorted(end.waiting), []
            for order, data in waiting:
                self._start(end, order, data)

    def vanish(self, process: Process) -> None:
        """A machine loses power: its process dies and its kernel closes no connection."""
        self._vanished.add(process.name)
        process.kill()

    def power_on(self, process: Process) -> None:
        """A vanished machine runs again; its kernel resets unknown connections."""
        self._vanished.discard(process.name)

    def kernel_lives(self, process: Process) -> bool:
        """Return whether the kernel of a dead process still runs."""
        return process.name not in self._vanished

    def cut(self, process: Process, side: str) -> None:
        """Cut a process's connections; the "near" end, the "far" end or "both" notice."""
        for end in list(self.ends):
            if end.process is process and not end.closed and not end.peer.closed:
                if side in ("both", "near"):
                    end.break_off()
                if side in ("both", "far"):
                    end.peer.break_off()
