import gc
import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from tests.integrations.rounds import FakeHandler, make_round
from torch import distributed as dist

from rallypoint.errors import StoreConnectionError, StoreLimitError
from rallypoint.integrations.torchrun.handler import KEYS
from rallypoint.integrations.torchrun.store import RoundStore, WorkersStore


@pytest.fixture
def made() -> tuple[RoundStore, FakeHandler]:
    agent_round, handler = make_round(KEYS)
    return RoundStore(agent_round), handler


@pytest.fixture(params=["direct", "through C++"])
def store(request: pytest.FixtureRequest) -> Iterator[dist.Store]:
    ours = RoundStore(make_round(KEYS)[0])
    yield ours if request.param == "direct" else dist.PrefixStore("part", ours)
    del ours  # held until here: C++ holds the other half of it alone


def test_every_call_of_a_torch_store(store: dist.Store) -> None:
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert [store.add("count", 2), store.add("count", 3)] == [2, 5]
    assert store.compare_set("key", "value", "other") == b"other"
    assert store.compare_set("key", "value", "third") == b"other"
    assert (store.check(["key"]), store.check(["key", "none"])) == (True, False)
    store.multi_set(["a", "b"], ["1", "2"])
    assert store.multi_get(["a", "b"]) == [b"1", b"2"]
    store.append("a", "1")
    assert store.get("a") == b"11"
    store.wait(["a", "b"])
    store.wait(["a", "b"], timedelta(seconds=1))
    assert store.num_keys() == 4
    assert (store.delete_key("a"), store.delete_key("a")) == (True, False)
    assert store.has_extended_api()


def test_queues_and_lists(made: tuple[RoundStore, FakeHandler]) -> None:
    store, _ = made
    store.queue_push("queue", b"first")
    store.queue_push("queue", "second")
    assert (store.queue_len("queue"), store.queue_pop("queue")) == (2, b"first")
    assert store.queue_pop("queue", block=False) == b"second"
    store.set("key", b"")
    assert store.clone().list_keys() == ["key"]


def test_timeout_of_the_call_overrides_the_stores(made: tuple[RoundStore, FakeHandler]) -> None:
    store, _ = made
    assert store.timeout == timedelta(seconds=300)
    store.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(dist.DistStoreError):
        store.get("none")
    store.set_timeout(timedelta(seconds=300))
    with pytest.raises(dist.DistStoreError):
        store.wait(["none"], timedelta(seconds=0.1))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(StoreConnectionError, dist.DistNetworkError), (StoreLimitError, dist.DistStoreError)],
)
def test_errors_are_those_of_torch(
    made: tuple[RoundStore, FakeHandler],
    monkeypatch: pytest.MonkeyPatch,
    ours: type[Exception],
    theirs: type[Exception],
) -> None:
    def fail(*_args: object) -> None:
        raise ours("what was wrong")

    store, _ = made
    monkeypatch.setattr(store._store, "set", fail)
    with pytest.raises(theirs, match="what was wrong"):
        store.set("key", "value")


def test_torch_barrier_and_shutdown(made: tuple[RoundStore, FakeHandler]) -> None:
    from torch.distributed.elastic.utils.store import barrier

    store, handler = made
    barrier(store, 1, "mine", 5)
    handler.lose("node3")
    barrier(store, 3, KEYS.exit_barrier, 60)  # passed, and this node has finished
    assert handler.finished == 1
    with pytest.raises(dist.DistStoreError, match="node3 was lost"):
        barrier(store, 3, "another", 60)


def test_a_process_group_works_over_it(made: tuple[RoundStore, FakeHandler]) -> None:
    store, _ = made
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    value = torch.ones(1)
    dist.all_reduce(value)
    dist.destroy_process_group()
    assert value.item() == 1


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.cases("case-H1")
def test_worker_store_listens_only_on_its_address() -> None:
    stores = WorkersStore()
    port = stores.propose("127.0.0.1")
    assert listens(port)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.2", port)) != 0
    stores.settle(is_first=False)
    gc.collect()
    assert not listens(port)


@pytest.mark.cases("case-C6")
def test_each_round_has_its_own_worker_store() -> None:
    stores = WorkersStore()
    first = stores.propose("127.0.0.1")
    stores.settle(is_first=True)
    dist.TCPStore("127.0.0.1", first, is_master=False).set("key", "of the first round")
    second = stores.propose("127.0.0.1")
    assert listens(first), "workers of the round before may still use it"
    stores.settle(is_first=True)
    gc.collect()
    assert not listens(first)
    assert not dist.TCPStore("127.0.0.1", second, is_master=False).check(["key"])
    stores.close()


def test_foreign_address_is_served_on_all_interfaces() -> None:
    stores = WorkersStore()
    assert listens(stores.propose("192.0.2.1"))
    stores.close()
