"""How code for TensorPlay's rendezvous API uses it. Runs on either library: see the imports.

`test_init.py` runs this file as it is, and again with two lines changed to rallypoint's.
"""

import threading
from datetime import timedelta

from tensorplay.distributed import HashStore, PrefixStore, TCPStore
from tensorplay.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeout,
    create_handler,
    get_registry,
    parse_rendezvous_endpoint,
)


def use_parameters() -> None:
    params = RendezvousParameters(
        "core", "127.0.0.1:29400", "job", min_nodes=1, max_nodes=4,
        config={"is_host": "Yes", "join_timeout": "90", "retries": "3"},
    )  # fmt: skip
    assert params.get("is_host") == "Yes"
    assert params.get_as_bool("is_host") is True
    assert params.get_as_int("retries") == 3
    assert params.get_as_int("missing", 7) == 7
    assert params.timeout.join == timedelta(seconds=90)
    assert (params.min_nodes, params.max_nodes) == (1, 4)
    assert RendezvousTimeout(join=timedelta(seconds=5)).join == timedelta(seconds=5)
    assert parse_rendezvous_endpoint("node7:1234", default_port=29400) == ("node7", 1234)


def use_stores() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=10)
    client = TCPStore(host_name="127.0.0.1", port=server.port, is_master=False, timeout=10.0)
    for store in (HashStore(), PrefixStore("part", client)):
        store.set("key", "value")
        assert store.get("key", timeout=1) == b"value"
        assert (store.add("n", 2), store.add("n", 3)) == (2, 5)
        assert store.compare_set("key", "value", "other") == b"other"
        assert store.compare_and_swap("key", b"value", b"x") == (False, b"other")
        store.wait(["key", "n"], timeout=1)
        store.delete_key("key")
    assert server.master_addr_port == ("127.0.0.1", server.port)
    info = RendezvousStoreInfo.build(0, server)
    assert (info.master_addr, info.port) == (info.addr, info.master_port) == (
        "127.0.0.1", server.port,
    )  # fmt: skip
    assert RendezvousStoreInfo.build(1, client) == info


def meet(backend: str, port: int, node_rank: int, found: list[RendezvousInfo]) -> None:
    params = RendezvousParameters(
        backend, f"127.0.0.1:{port}", f"meet-{backend}", min_nodes=2, max_nodes=2,
        local_addr="127.0.0.1", node_rank=node_rank, local_world_size=1,
        config={"join_timeout": 60},
    )  # fmt: skip
    handler = create_handler(params)
    assert (handler.get_backend(), handler.get_run_id()) == (backend, f"meet-{backend}")
    info = handler.next_rendezvous()
    assert (handler.is_closed(), handler.num_nodes_waiting()) == (False, 0)
    info.store.set(f"here/{info.rank}", b"yes")
    for rank in range(info.world_size):
        assert info.store.get(f"here/{rank}", timeout=30) == b"yes"
    found.append(info)
    both_there.wait()
    handler.pre_shutdown()
    handler.shutdown()


both_there = threading.Barrier(2, timeout=60)


def use_handlers(backend: str) -> None:
    probe = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = probe.port
    (getattr(probe, "stop", None) or probe.close)()
    del probe
    found: list[RendezvousInfo] = []
    nodes = [
        threading.Thread(target=meet, args=[backend, port, rank, found], daemon=True)
        for rank in (0, 1)
    ]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join(90)
    assert sorted(info.rank for info in found) == [0, 1]
    first, second = found
    assert first.world_size == second.world_size == 2
    assert first.bootstrap_store_info == second.bootstrap_store_info
    print(f"{backend}: two nodes have met at {first.bootstrap_store_info}")


if __name__ == "__main__":
    use_parameters()
    use_stores()
    assert get_registry() is get_registry()
    for name in ("static", "core"):
        use_handlers(name)
    print("all used")
