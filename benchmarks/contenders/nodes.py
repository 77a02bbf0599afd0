"""Nodes of one contender in one process, one thread each: prepare, join at once, end.

python nodes.py CONTENDER, or python nodes.py CONTENDER server: its server.
"""

import logging
import os
import socket
import sys
import time
from datetime import timedelta
from typing import Any

import commands
from at_once import Crowd

JOIN_SECONDS = 120


class Rallypoint:
    """Our DynamicRendezvousHandler, as `get_rendezvous_handler` makes it."""

    def __init__(
        self, where: str, run: str, rank: int, size: int, most: int, **config: Any
    ) -> None:
        from rallypoint import RendezvousParameters, get_rendezvous_handler

        self.handler = get_rendezvous_handler(
            RendezvousParameters("core", where, run, size, most, is_host=False, **config)
        )

    def join(self) -> tuple[int, int]:
        """Return rank and size."""
        info = self.handler.next_rendezvous()
        return info.rank, info.world_size

    def watch(self, limit: float) -> float | None:
        """Wait for the notification to join again; return its time (monotonic)."""
        until = time.monotonic() + limit
        while time.monotonic() < until:
            view = self.handler.view()
            if self.handler.num_nodes_waiting():
                return time.monotonic()
            self.handler.wait_for_change(until - time.monotonic(), view)
        return None

    def end(self) -> None:
        """Leave."""
        self.handler.shutdown()


class RallypointServer:
    """Our server, with its counters."""

    def __init__(self, size: int) -> None:
        from rallypoint.server.embedded import EmbeddedServer
        from rallypoint.server.options import Options

        self.server = EmbeddedServer("127.0.0.1", 0, Options())
        self.where = f"127.0.0.1:{self.server.port}"

    def stats(self) -> dict[str, float]:
        """Return requests and bytes that came in."""
        from rallypoint.deadline import Deadline

        requests, received = self.server.call(lambda s: (s.requests, s.bytes_in), Deadline(10))
        return {"requests": requests, "bytes": received}


def torch_store(where: str, rank: int) -> Any:
    """Return a node's connected TCPStore, kept from trial to trial.

    Connecting is not measured for contenders that use it: sometimes it takes torch 10 s.
    """
    from torch.distributed import TCPStore

    if (where, rank) not in torch_stores:
        host, port = where.split(":")
        limit = timedelta(seconds=60)
        torch_stores[where, rank] = TCPStore(
            host, int(port), is_master=False, wait_for_workers=False, timeout=limit
        )
    return torch_stores[where, rank]


torch_stores: dict[tuple[str, int], Any] = {}


class C10d:
    """torch's DynamicRendezvousHandler over its TCPStore, as shipped."""

    def __init__(
        self, where: str, run: str, rank: int, size: int, most: int, **config: Any
    ) -> None:
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (
            C10dRendezvousBackend,
        )
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

        params = RendezvousParameters(
            "c10d", where, run, size, most, local_addr="127.0.0.1", is_host="false", **config
        )
        if config:  # elastic: with a shared store rank 0 publishes its address only once, and
            # a node that comes later waits for it in vain
            os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        store = torch_store(where, rank)
        backend = C10dRendezvousBackend(store, run)
        self.handler = create_handler(store, backend, params)

    def join(self) -> tuple[int, int]:
        """Return rank and size."""
        info = self.handler.next_rendezvous()
        return info.rank, info.world_size

    def watch(self, limit: float) -> float | None:
        """Poll for waiting nodes every 0.1 s, as torch's agent does."""
        until = time.monotonic() + limit
        while time.monotonic() < until:
            if self.handler.num_nodes_waiting():
                return time.monotonic()
            time.sleep(0.1)  # monitor_interval
        return None

    def end(self) -> None:
        """Leave: stop the heartbeat only, since closing is not measured."""
        self.handler._stop_heartbeats()


class C10dQuiet(C10d):
    """The same without its event log, whose records walk the stack with `inspect`."""

    def __init__(self, *arguments: Any, **config: Any) -> None:
        from torch.distributed.elastic.rendezvous import (
            c10d_rendezvous_backend,
            dynamic_rendezvous,
        )

        for module in (c10d_rendezvous_backend, dynamic_rendezvous):
            module.construct_and_record_rdzv_event = lambda *a, **k: None
        dynamic_rendezvous.get_method_name = lambda depth=2: "method"
        super().__init__(*arguments, **config)


class TorchServer:
    """torch's TCPStore."""

    def __init__(self, size: int) -> None:
        from torch.distributed import TCPStore

        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.where = f"127.0.0.1:{self.store.port}"


class TensorPlay:
    """tensorplay's handler of backend "core"."""

    def __init__(
        self, where: str, run: str, rank: int, size: int, most: int, **config: Any
    ) -> None:
        from tensorplay.distributed.elastic.rendezvous import RendezvousParameters
        from tensorplay.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

        params = RendezvousParameters(
            "core", where, run, size, most, local_addr="127.0.0.1", start_daemon=False
        )
        self.handler = create_handler(params)

    def join(self) -> tuple[int, int]:
        """Return rank and size."""
        info = self.handler.next_rendezvous()
        return info.rank, info.world_size

    def end(self) -> None:
        """Leave."""
        self.handler.shutdown()


class TensorPlayServer:
    """tensorplay's TCPStore."""

    def __init__(self, size: int) -> None:
        from tensorplay.distributed import TCPStore

        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.store = TCPStore("127.0.0.1", port, 1, True, timeout=60.0, wait_for_workers=False)
        self.where = f"127.0.0.1:{port}"


class Torchft:
    """torchft's LighthouseClient: connect, and one quorum of all."""

    def __init__(
        self, where: str, run: str, rank: int, size: int, most: int, **config: Any
    ) -> None:
        from torchft.coordination import LighthouseClient

        self.connect = LighthouseClient
        self.where, self.size, self.name = where, size, f"{run}-{rank:04d}"
        self.client: Any = None

    def join(self) -> tuple[int, int]:
        """Return rank and size."""
        if self.client is None:
            self.client = self.connect(self.where, timedelta(seconds=60))
        found = self.client.quorum(self.name, timedelta(seconds=JOIN_SECONDS))
        names = sorted(member.replica_id for member in found.participants)
        return names.index(self.name), len(names)

    def end(self) -> None:
        """Nothing: it expires with its heartbeats."""


class TorchftServer:
    """torchft's LighthouseServer; it checks every `quorum_tick_ms`, here the least it allows."""

    def __init__(self, size: int) -> None:
        from torchft.coordination import LighthouseServer

        self.server = LighthouseServer(
            "127.0.0.1:0", size, join_timeout_ms=60000, quorum_tick_ms=100
        )
        address = self.server.address()
        self.where = f"http://127.0.0.1:{address.rsplit(':', 1)[1]}"


class Jax:
    """jax's distributed client: connect, and a barrier of all (its size is fixed)."""

    def __init__(
        self, where: str, run: str, rank: int, size: int, most: int, **config: Any
    ) -> None:
        from jaxlib import _jax

        self.rank, self.size, self.round, self.connected = rank, size, 0, False
        self.client = _jax.get_distributed_runtime_client(
            where, rank, init_timeout=60, heartbeat_timeout=100, use_compression=True,
            shutdown_on_destruction=False,
        )  # fmt: skip

    def join(self) -> tuple[int, int]:
        """Return rank and size, which are fixed."""
        if not self.connected:
            self.client.connect()
            self.connected = True
        self.round += 1
        self.client.wait_at_barrier(f"round {self.round}", 60_000)
        return self.rank, self.size

    def end(self) -> None:
        """Nothing: its shutdown is one more barrier."""


class JaxServer:
    """jax's distributed service."""

    def __init__(self, size: int) -> None:
        from jaxlib import _jax

        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.where = f"127.0.0.1:{port}"
        self.service = _jax.get_distributed_runtime_service(
            self.where, size, heartbeat_timeout=100, shutdown_timeout=1
        )


class Nvrx:
    """nvidia-resiliency-ext's barrier rendezvous, without its handler's health checks."""

    def __init__(
        self, where: str, run: str, rank: int, size: int, most: int, **config: Any
    ) -> None:
        from nvidia_resiliency_ext.fault_tolerance import ft_rendezvous_barrier as module

        store = torch_store(where, rank)
        self.state = module._RendezvousBarrierState(store, run, is_store_host=rank == 0)
        self.node = module.FtRendezvousBarrierHandler._node_desc_generator.generate("127.0.0.1")
        self.size, self.most = size, most

    def join(self) -> tuple[int, int]:
        """Return rank and size."""
        rank, total = self.state.perform_rendezvous(self.node, self.size, self.most)
        return rank, total

    def end(self) -> None:
        """Nothing to stop."""


NODES: dict[str, type[Any]] = {
    "rallypoint": Rallypoint,
    "c10d": C10d,
    "c10d-quiet": C10dQuiet,
    "tensorplay": TensorPlay,
    "torchft": Torchft,
    "jax": Jax,
    "nvrx": Nvrx,
}
SERVERS: dict[str, type[Any]] = {
    "rallypoint": RallypointServer,
    "c10d": TorchServer,
    "c10d-quiet": TorchServer,
    "tensorplay": TensorPlayServer,
    "torchft": TorchftServer,
    "jax": JaxServer,
    "nvrx": TorchServer,
}
CONTENDER = sys.argv[1]
nodes: list[Any] = []
crowds: dict[int, Crowd] = {}
servers: list[Any] = []


def prepare(
    where: str,
    run: str,
    first: int,
    count: int,
    size: int,
    most: int = 0,
    config: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Make `count` nodes; only a contender's constructor may connect."""
    make = NODES[CONTENDER]
    nodes[:] = [None] * count

    def build(index: int) -> None:
        nodes[index] = make(where, run, first + index, size, most or size, **(config or {}))

    if count not in crowds:
        crowds[count] = Crowd(count)
    crowds[count].run(build)
    return {}


def join() -> dict[str, Any]:
    """All nodes join at once; return when the last had its result, and all ranks."""
    found: list[Any] = [None] * len(nodes)

    def work(index: int) -> None:
        found[index] = nodes[index].join()

    begun = time.monotonic()
    end = crowds[len(nodes)].run(work)
    return {"begun": begun, "end": end, "ranks": found}


def watch(limit: float) -> dict[str, Any]:
    """Wait until the first node is notified to join again."""
    return {"at": nodes[0].watch(limit)}


def end() -> None:
    """All nodes leave."""
    crowds[len(nodes)].run(lambda index: nodes[index].end())
    nodes.clear()


def start(size: int) -> dict[str, Any]:
    """Start the server."""
    servers[:] = [SERVERS[CONTENDER](size)]
    return {"where": servers[0].where}


def stats() -> dict[str, Any]:
    """Return the server's counters."""
    server = servers[0]
    return server.stats() if hasattr(server, "stats") else {}


logging.disable(logging.WARNING)
commands.serve(
    {
        "prepare": prepare, "join": join, "watch": watch, "end": end, "start": start,
        "stats": stats,
    }
)  # fmt: skip
