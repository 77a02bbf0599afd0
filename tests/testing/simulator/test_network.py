from typing import Any

from rallypoint.testing.simulator.network import End, Network
from rallypoint.testing.simulator.virtual_clock import Process, VirtualClock


class Peer:
    """Whoever owns an end: remembers what it hears."""

    def __init__(self) -> None:
        self.heard = b""
        self.lost = 0
        self.end: Any = None

    def connection_made(self, end: End) -> None:
        self.end = end

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


class Pair:
    """A client and a server, connected."""

    def __init__(self) -> None:
        self.clock = VirtualClock(3)
        self.network = Network(self.clock, (0.001, 0.01))
        self.client, self.server = Process(self.clock, "c", 0), Process(self.clock, "s", 0)
        self.mine, self.theirs = Peer(), Peer()
        self.server.factory = lambda: self.theirs
        self.opened: list[End | None] = []

    def connect(self) -> "Pair":
        self.network.connect(self.client, self.server, self.mine, self.opened.append)
        self.run(0.1)
        self.mine.end = self.opened[-1]
        return self

    def run(self, seconds: float) -> None:
        self.clock.run_until(self.clock.now + seconds)


def test_bytes_come_in_order() -> None:
    pair = Pair().connect()
    for i in range(50):
        pair.mine.end.write(bytes([i]))
    pair.run(1)
    assert pair.theirs.heard == bytes(range(50))


def test_no_listener_or_no_answer() -> None:
    pair = Pair()
    pair.network.connect(pair.client, None, pair.mine, pair.opened.append)
    pair.network.block("s", "c")
    pair.network.connect(pair.client, pair.server, pair.mine, pair.opened.append)
    pair.run(1)
    assert pair.opened == [None], "refused at once; the other one is still trying"
    pair.run(10)
    assert pair.opened == [None, None]


def test_blocked_data_arrives_later_in_order() -> None:
    pair = Pair().connect()
    pair.mine.end.write(b"a")  # under way when the block begins
    pair.network.block("c", "s")
    pair.mine.end.write(b"b")
    assert pair.mine.end.get_write_buffer_size() == 1
    pair.theirs.end.write(b"back")
    pair.run(1)
    assert (pair.theirs.heard, pair.mine.heard) == (b"", b"back")
    pair.network.unblock("c", "s")
    pair.mine.end.write(b"c")
    pair.run(5)
    assert pair.theirs.heard == b"abc"


def test_close_arrives_after_sent_data() -> None:
    pair = Pair().connect()
    pair.mine.end.write(b"last words")
    pair.mine.end.close()
    pair.run(1)
    assert (pair.theirs.heard, pair.theirs.lost, pair.mine.lost) == (b"last words", 1, 1)


def test_unnoticed_disconnect_is_noticed_on_send() -> None:
    pair = Pair().connect()
    pair.network.cut(pair.client, "near")
    pair.run(1)
    assert (pair.mine.lost, pair.theirs.lost) == (1, 0)
    pair.theirs.end.write(b"hello?")
    pair.run(1)
    assert pair.theirs.lost == 1


def test_killed_process_is_noticed_but_a_lost_machine_is_not() -> None:
    pair = Pair().connect()
    pair.client.kill()
    pair.run(1)
    assert pair.theirs.lost == 1
    pair = Pair().connect()
    pair.network.vanish(pair.client)
    pair.run(1)
    assert pair.theirs.lost == 0
    pair.theirs.end.write(b"hello?")
    pair.run(1)
    assert pair.theirs.lost == 0
    pair.network.power_on(pair.client)
    pair.theirs.end.write(b"hello?")
    pair.run(1)
    assert pair.theirs.lost == 1, "the machine is back and knows nothing of it"
