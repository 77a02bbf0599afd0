"""Clients of a store: one that is timed call by call, or many that call at once.

python store_clients.py rallypoint|torch|redis|etcd|bare|messages HOST PORT
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import commands
from at_once import Crowd

VALUE = b"v" * 32
MANY = 16
PIPED = 100
KIND, HOST, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
Call = Callable[[], Any]
KEYS = [f"key/{i}" for i in range(MANY)]
PIPED_KEYS = [f"pipe/{i}" for i in range(PIPED)]


class Rallypoint:
    """Our TCPStore."""

    def __init__(self) -> None:
        from rallypoint import TCPStore

        self.store = store = TCPStore(HOST, PORT, timeout=120)
        values = [VALUE] * MANY
        self.calls: dict[str, Call] = {
            "set": lambda: store.set("key/0", VALUE),
            "get": lambda: store.get("key/0"),
            "add": lambda: store.add("count", 1),
            "compare_set": lambda: store.compare_set("swap", VALUE, VALUE),
            "check": lambda: store.check(["key/0"]),
            "wait": lambda: store.wait(["key/0"]),
            f"multi_set {MANY}": lambda: store.multi_set(KEYS, values),
            f"multi_get {MANY}": lambda: store.multi_get(KEYS),
            f"pipeline {PIPED} set": self.pipeline,
        }

    def prepare(self) -> None:
        """Write the values to read."""
        self.store.multi_set([*KEYS, "swap"], [VALUE] * (MANY + 1))

    def pipeline(self) -> None:
        """Write many keys in one round trip."""
        with self.store.pipeline() as pipe:
            for key in PIPED_KEYS:
                pipe.set(key, VALUE)

    def barrier(self, name: str, rank: int, size: int) -> None:
        """Wait for all members."""
        self.store.barrier(name, size, rank=rank)

    def all_gather(self, name: str, rank: int, size: int) -> list[bytes]:
        """Give a value and get all values."""
        return self.store.all_gather(name, VALUE, rank, size)


class Torch:
    """torch's TCPStore; groups are built from its calls, as torch.distributed.elastic does."""

    def __init__(self) -> None:
        from datetime import timedelta

        from torch.distributed import TCPStore

        self.store = store = TCPStore(
            HOST, PORT, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=120)
        )
        text, values = VALUE.decode(), [VALUE.decode()] * MANY
        self.calls: dict[str, Call] = {
            "set": lambda: store.set("key/0", text),
            "get": lambda: store.get("key/0"),
            "add": lambda: store.add("count", 1),
            "compare_set": lambda: store.compare_set("swap", text, text),
            "check": lambda: store.check(["key/0"]),
            "wait": lambda: store.wait(["key/0"]),
            f"multi_set {MANY}": lambda: store.multi_set(KEYS, values),
            f"multi_get {MANY}": lambda: store.multi_get(KEYS),
            f"pipeline {PIPED} set": self.pipeline,
        }

    def prepare(self) -> None:
        """Write the values to read."""
        for key in [*KEYS, "swap"]:
            self.store.set(key, VALUE.decode())

    def pipeline(self) -> None:
        """Its `set` does not wait for an answer; one `check` at the end does."""
        for key in PIPED_KEYS:
            self.store.set(key, VALUE.decode())
        self.store.check([PIPED_KEYS[-1]])

    def barrier(self, name: str, rank: int, size: int) -> None:
        """Count, the last one opens (torch.distributed.elastic.utils.store.barrier)."""
        if self.store.add(f"{name}/count", 1) == size:
            self.store.set(f"{name}/last", "1")
        self.store.wait([f"{name}/last"])

    def all_gather(self, name: str, rank: int, size: int) -> list[bytes]:
        """Write one's own key, read all (elastic.utils.store.get_all, with multi_get)."""
        self.store.set(f"{name}/{rank}", VALUE.decode())
        found: list[bytes] = self.store.multi_get([f"{name}/{i}" for i in range(size)])
        return found


class Redis:
    """redis-py with hiredis."""

    SWAP = (
        "local v = redis.call('GET', KEYS[1]) or '' "
        "if v == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) return ARGV[2] end return v"
    )

    def __init__(self) -> None:
        import redis

        self.store = store = redis.Redis(HOST, PORT, protocol=3)
        swap = store.register_script(self.SWAP)
        pairs = dict.fromkeys(KEYS, VALUE)
        self.calls: dict[str, Call] = {
            "set": lambda: store.set("key/0", VALUE),
            "get": lambda: store.get("key/0"),
            "add": lambda: store.incrby("count", 1),
            "compare_set": lambda: swap(["swap"], [VALUE, VALUE]),
            "check": lambda: store.exists("key/0"),
            f"multi_set {MANY}": lambda: store.mset(pairs),
            f"multi_get {MANY}": lambda: store.mget(KEYS),
            f"pipeline {PIPED} set": self.pipeline,
        }

    def prepare(self) -> None:
        """Write the values to read."""
        self.store.mset(dict.fromkeys([*KEYS, "swap"], VALUE))

    def pipeline(self) -> None:
        """Write many keys in one round trip."""
        pipe = self.store.pipeline(transaction=False)
        for key in PIPED_KEYS:
            pipe.set(key, VALUE)
        pipe.execute()


def _field(number: int, value: bytes | int) -> bytes:
    """Return one field of a protobuf message (values and keys here are below 128 bytes)."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    length = len(value)
    size = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
    return bytes([number << 3 | 2]) + size + value


class Etcd:
    """etcd over grpcio, with messages made by hand (less work than in a client library)."""

    def __init__(self) -> None:
        import grpc

        channel = grpc.insecure_channel(f"{HOST}:{PORT}")
        put = channel.unary_unary("/etcdserverpb.KV/Put")
        get = channel.unary_unary("/etcdserverpb.KV/Range")
        txn = channel.unary_unary("/etcdserverpb.KV/Txn")
        key = _field(1, b"key/0")
        written = key + _field(2, VALUE)
        # Compare: result EQUAL (default 0), target VALUE (3), key, value; success: a put.
        swap = _field(1, _field(2, 3) + _field(3, b"swap") + _field(7, VALUE))
        swap += _field(2, _field(2, _field(1, b"swap") + _field(2, VALUE)))
        self.put = put
        self.calls: dict[str, Call] = {
            "set": lambda: put(written, timeout=30),
            "get": lambda: get(key, timeout=30),
            "compare_set": lambda: txn(swap, timeout=30),
            "check": lambda: get(key + _field(9, 1), timeout=30),  # count_only
        }

    def prepare(self) -> None:
        """Write the values to read."""
        for name in (*KEYS, "swap"):
            self.put(_field(1, name.encode()) + _field(2, VALUE), timeout=30)


class Bare:
    """A socket that sends and receives as many bytes as our `get`, without any meaning."""

    REQUEST = b"r" * 26

    def __init__(self) -> None:
        import socket

        self.sock = sock = socket.create_connection((HOST, PORT))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.calls: dict[str, Call] = {"get": self.exchange, "add": self.exchange}

    def prepare(self) -> None:
        """Nothing to write."""

    def exchange(self) -> None:
        """Send a request and receive its answer."""
        self.sock.sendall(self.REQUEST)
        self.sock.recv(65536)

    def barrier(self, name: str, rank: int, size: int) -> None:
        """Send the number of members, and wait."""
        self.sock.sendall(b"%26d" % size)
        self.sock.recv(65536)


class Messages(Bare):
    """The same with our messages, encoded and decoded with msgspec."""

    def __init__(self) -> None:
        import msgspec

        from rallypoint.net import protocol as p

        super().__init__()
        self.frame, self.call, self.get, self.id = p.frame, p.Call, p.Get, 0
        kinds = p.Reply | p.Failure | p.Goodbye | p.Beat
        self.decode = msgspec.msgpack.Decoder(kinds).decode

    def exchange(self) -> None:
        """Send a call and receive its reply."""
        self.id += 1
        self.sock.sendall(self.frame(self.call(self.id, self.id, self.get("key/0", 120.0))))
        assert len(self.decode(self.sock.recv(65536)[4:]).result) == len(VALUE)


KINDS: dict[str, type[Any]] = {
    "bare": Bare,
    "messages": Messages,
    "rallypoint": Rallypoint,
    "torch": Torch,
    "redis": Redis,
    "etcd": Etcd,
}
clients: list[Any] = []
crowd: list[Crowd] = []


def open_clients(count: int) -> dict[str, Any]:
    """Connect `count` clients, each with a thread of its own when there are several."""
    while len(clients) < count:
        clients.append(KINDS[KIND]())
    clients[0].prepare()
    crowd[:] = [Crowd(count)] if count > 1 else []
    return {"calls": list(clients[0].calls)}


def latency(call: str, count: int) -> dict[str, Any]:
    """Return the mean time of `count` calls of the first client."""
    function = clients[0].calls[call]
    begun = time.monotonic()
    for _ in range(count):
        function()
    return {"seconds": (time.monotonic() - begun) / count}


def throughput(call: str, seconds: float) -> dict[str, Any]:
    """Make all clients call for a time; return the number of replies."""
    counts = [0] * len(clients)
    begun = time.monotonic()
    until = begun + seconds

    def work(index: int) -> None:
        function, done = clients[index].calls[call], 0
        while time.monotonic() < until:
            function()
            done += 1
        if call == "set":
            clients[index].calls["get"]()  # wait until unacknowledged requests have arrived
        counts[index] = done

    end = crowd[0].run(work)
    return {"calls": sum(counts), "begun": begun, "end": end}


def group(kind: str, name: str, first: int, size: int) -> dict[str, Any]:
    """Make all clients take part in a barrier or all_gather; return when the last one returned."""

    def work(index: int) -> None:
        found = getattr(clients[index], kind)(name, first + index, size)
        assert kind == "barrier" or len(found) == size

    return {"end": crowd[0].run(work)}


commands.serve({"open": open_clients, "latency": latency, "throughput": throughput, "group": group})
