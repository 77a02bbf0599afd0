"""The API's values: store info and its agreement, info, and a handler's callbacks."""

import threading
from typing import Any

import pytest

from rallypoint.errors import (
    ParameterError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
    StoreConnectionError,
)
from rallypoint.rendezvous import api
from rallypoint.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    store_endpoint,
)
from rallypoint.store.memory import MemoryStore


class Listening(MemoryStore):
    """A store that says where its server listens."""

    master_addr_port: Any = ("10.0.0.1", 4000)


class Broken(MemoryStore):
    """A store that cannot be reached."""

    def _call(self, request: Any, timeout: float) -> Any:
        raise StoreConnectionError("nobody answers at h:1")


class Handler(RendezvousHandler):
    """The least that a handler is."""

    def get_backend(self) -> str:
        return "x"

    def get_run_id(self) -> str:
        return "run"

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(MemoryStore(), 0, 1)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        self._notify()

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True


def test_store_info_names() -> None:
    info = RendezvousStoreInfo("a", 1)
    assert (info.master_addr, info.master_port, info.addr, info.port) == ("a", 1, "a", 1)
    assert info == RendezvousStoreInfo(master_addr="a", master_port=1)


def test_rank_0_publishes_and_the_others_read() -> None:
    store = MemoryStore()
    found: list[RendezvousStoreInfo] = []
    reader = threading.Thread(
        target=lambda: found.append(RendezvousStoreInfo.build(1, store, timeout=10))
    )
    reader.start()
    own = RendezvousStoreInfo.build(0, store, "127.0.0.1")
    reader.join(10)
    assert found == [own]
    assert own.master_addr == "127.0.0.1"
    assert own.master_port > 0
    assert store.num_keys() == 1  # one record: no reader sees a half of it


def test_endpoint_of_the_store_is_used() -> None:
    assert RendezvousStoreInfo.build(0, Listening()) == RendezvousStoreInfo("10.0.0.1", 4000)
    assert RendezvousStoreInfo.build(0, Listening(), "b").addr == "b"
    given = RendezvousStoreInfo.build(0, Listening(), "b", 5)
    assert given == RendezvousStoreInfo("b", 5)


def test_store_endpoints() -> None:
    store = Listening()
    store.master_addr_port = lambda: ("h", 2)
    assert store_endpoint(store) == ("h", 2)
    assert store_endpoint(MemoryStore()) is None

    class Plain:
        host, port = "h", 3

    assert store_endpoint(Plain()) == ("h", 3)


@pytest.mark.cases("case-A2")
def test_default_address_is_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda *_: "nope.invalid")
    monkeypatch.setattr(api, "local_address", lambda: "127.0.0.1")
    assert RendezvousStoreInfo.build(0, MemoryStore()).addr == "127.0.0.1"


def test_missing_rank_0_is_named() -> None:
    with pytest.raises(RendezvousTimeoutError, match=r"rank 2 waited 0.05 s for rank 0"):
        RendezvousStoreInfo.build(2, MemoryStore(), timeout=0.05)


def test_unreachable_store() -> None:
    for rank in (0, 1):
        with pytest.raises(RendezvousConnectionError, match="nobody answers"):
            RendezvousStoreInfo.build(rank, Broken(), "127.0.0.1")


def test_a_foreign_record() -> None:
    store = MemoryStore()
    store.set(api.BOOTSTRAP_KEY, b"\xffnonsense")
    with pytest.raises(RendezvousStateError, match=api.BOOTSTRAP_KEY):
        RendezvousStoreInfo.build(1, store)


def test_negative_rank_is_refused() -> None:
    with pytest.raises(ParameterError, match="rank=-1"):
        RendezvousStoreInfo.build(-1, MemoryStore())


def test_info_positional() -> None:
    store, where = MemoryStore(), RendezvousStoreInfo("a", 1)
    info = RendezvousInfo(store, 1, 2, where, ["x", "y"], ["z"])
    assert (info.store, info.rank, info.world_size) == (store, 1, 2)
    assert info.bootstrap_store_info == where
    assert (info.participants, info.wait_list, info.assignment) == (["x", "y"], ["z"], None)
    assert RendezvousInfo(store, 0, 1).participants == []
    assert "rank=1" in repr(info)


def test_participants_are_fetched_once_on_demand() -> None:
    calls: list[str] = []

    def fetch() -> list[str]:
        calls.append("p")
        return ["x"]

    info = RendezvousInfo(MemoryStore(), 0, 1, None, fetch, lambda: ["w"])
    assert calls == []
    assert info.participants == info.participants == ["x"]
    assert calls == ["p"]
    assert info.wait_list == ["w"]


def test_callbacks_until_unsubscribed() -> None:
    handler, calls = Handler(), []
    end = handler.on_change(lambda: calls.append(1))
    handler.on_change(lambda: calls.append(2))
    handler.set_closed()
    assert calls == [1, 2]
    end()
    end()
    handler.set_closed()
    assert calls == [1, 2, 2]


def test_handler_defaults() -> None:
    handler = Handler()
    assert handler.use_agent_store is False
    handler.pre_shutdown()
