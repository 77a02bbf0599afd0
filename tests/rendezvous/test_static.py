"""The static rendezvous: ranks known beforehand meet, attempt by attempt."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rallypoint.errors import (
    ParameterError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.net.addresses import free_port
from rallypoint.rendezvous.api import RendezvousInfo
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.rendezvous.registry import get_rendezvous_handler
from rallypoint.rendezvous.static import StaticTCPRendezvous


def params(port: int, rank: int | None, size: int = 2, **more: Any) -> RendezvousParameters:
    more = {"node_rank": rank, "join": 20, **more}
    return RendezvousParameters("static", f"127.0.0.1:{port}", "run", size, size, **more)


class Ranks:
    """Handlers of a size, opened together, as separate machines would."""

    def __init__(self, size: int, **more: Any) -> None:
        self.port, self.size, self.more = free_port("127.0.0.1"), size, more
        self.handlers: dict[int, StaticTCPRendezvous] = {}

    def open(self, *ranks: int) -> None:
        for rank in ranks:
            given = params(self.port, rank, self.size, **self.more)
            self.handlers[rank] = StaticTCPRendezvous(given)

    def meet(self) -> list[RendezvousInfo]:
        found: dict[int, RendezvousInfo] = {}

        def join(rank: int) -> None:
            found[rank] = self.handlers[rank].next_rendezvous()

        threads = [threading.Thread(target=join, args=(rank,)) for rank in self.handlers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return [found[rank] for rank in sorted(found)]


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    made = Ranks(*getattr(request, "param", (3,)))
    yield made
    for rank in sorted(made.handlers, reverse=True):
        made.handlers[rank].shutdown()


def test_all_ranks_meet(ranks: Ranks) -> None:
    ranks.open(0, 1, 2)
    infos = ranks.meet()
    assert [(info.rank, info.world_size) for info in infos] == [(0, 3), (1, 3), (2, 3)]
    pairs = {info.bootstrap_store_info for info in infos}
    assert len(pairs) == 1
    (pair,) = pairs
    assert pair is not None
    assert pair.master_addr == "127.0.0.1"
    assert pair.master_port not in (0, ranks.port)  # free for the workers' own store
    assert [node.id for node in infos[2].participants] == ["rank0", "rank1", "rank2"]
    infos[0].store.set("k", b"v")
    assert infos[1].store.get("k", 5) == b"v"


def test_nodes_meet_again_in_another_round(ranks: Ranks) -> None:
    ranks.open(0, 1, 2)
    ranks.meet()[0].store.set("k", b"v")
    again = ranks.meet()
    assert [handler.round for handler in ranks.handlers.values()] == [2, 2, 2]
    assert again[0].store.get_nowait("k") is None


def test_restarted_rank_meets_the_others(ranks: Ranks) -> None:
    ranks.open(0, 1, 2)
    ranks.meet()
    ranks.handlers[1].shutdown()
    ranks.open(1)
    ranks.meet()
    assert [handler.round for handler in ranks.handlers.values()] == [2, 2, 2]


def test_missing_ranks_are_named() -> None:
    ranks = Ranks(4, join=0.5)
    ranks.open(0, 2)
    with pytest.raises(RendezvousTimeoutError) as caught:
        ranks.handlers[0].next_rendezvous()
    message = str(caught.value)
    assert "missing ranks: 1-3" in message
    assert f"127.0.0.1:{ranks.port}" in message
    assert "0.5 s (join_timeout)" in message
    for rank in (2, 0):
        ranks.handlers[rank].shutdown()


def test_closing_refuses_the_next_attempt(ranks: Ranks) -> None:
    ranks.open(0, 1, 2)
    assert not ranks.handlers[1].is_closed()
    ranks.handlers[0].set_closed()
    assert ranks.handlers[1].is_closed()
    with pytest.raises(RendezvousClosedError, match="'run'"):
        ranks.handlers[2].next_rendezvous()


def test_two_nodes_with_the_same_rank_are_refused(ranks: Ranks) -> None:
    ranks.open(0, 1)
    other = StaticTCPRendezvous(params(ranks.port, 1, 3))
    failed: list[Exception] = []

    def join(handler: StaticTCPRendezvous) -> None:
        try:
            handler.next_rendezvous()
        except (RendezvousStateError, RendezvousConnectionError) as error:
            failed.append(error)

    threads = [
        threading.Thread(target=join, args=(each,), daemon=True)
        for each in (ranks.handlers[1], other)
    ]
    for thread in threads:
        thread.start()
    while not failed:
        threads[0].join(0.05)
    assert "rank 1 is in it already" in str(failed[0])
    other.shutdown()
    ranks.handlers[1].shutdown()
    for thread in threads:
        thread.join(10)


def test_constructor_with_an_address() -> None:
    port = free_port("127.0.0.1")
    handler = StaticTCPRendezvous("127.0.0.1", port, 0, 1, "job", 20)
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert (handler.get_backend(), handler.get_run_id()) == ("static", "job")
    assert handler.num_nodes_waiting() == 0
    assert handler.use_agent_store is False
    assert handler.shutdown()
    assert handler.shutdown()


def test_by_name() -> None:
    where = f"127.0.0.1:{free_port('127.0.0.1')}"
    given = RendezvousParameters("static", where, "run", 1, 1, rank=0)  # torch's spelling
    handler = get_rendezvous_handler(given)
    assert isinstance(handler, StaticTCPRendezvous)
    handler.shutdown()


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"rank": None}, "node_rank=None"),
        ({"rank": 2}, "node_rank=2: allowed is 0 to 1"),
        ({"max_nodes": 3}, "nnodes='2:3'"),
        ({"endpoint": ""}, "endpoint=''"),
    ],
)
def test_wrong_parameters(change: dict[str, Any], names: str) -> None:
    given = params(1, change.pop("rank", 0))
    for name, value in change.items():
        setattr(given, name, value)
    with pytest.raises(ParameterError) as caught:
        StaticTCPRendezvous(given)
    assert names in str(caught.value)


@pytest.mark.cases("case-A9")
def test_used_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RendezvousConnectionError, match=f"127.0.0.1:{port}"):
            StaticTCPRendezvous(params(port, 0))


def test_no_server_is_running() -> None:
    port = free_port("127.0.0.1")
    with pytest.raises(RendezvousConnectionError, match=f"rank 1: connecting to 127.0.0.1:{port}"):
        StaticTCPRendezvous(params(port, 1, join=0.5))
