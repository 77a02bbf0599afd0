"""What the tests of all backends on engines have in common: whole handlers, and outages."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from rallypoint.errors import RendezvousConnectionError, RendezvousStateError
from rallypoint.rendezvous.api import RendezvousHandler, RendezvousInfo
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.rendezvous.registry import get_rendezvous_handler
from rallypoint.testing.store_handles import in_thread

JOIN_SECONDS = 30.0


def parameters(backend: str, endpoint: str, **config: Any) -> RendezvousParameters:
    options: dict[str, Any] = {"last_call": 0.2, "join": JOIN_SECONDS, "lease": 6} | config
    return RendezvousParameters(backend, endpoint, "run", 2, 2, local_addr="127.0.0.1", **options)


def make(backend: str, endpoint: str, **config: Any) -> RendezvousHandler:
    return get_rendezvous_handler(parameters(backend, endpoint, **config))


def meet(handlers: list[RendezvousHandler]) -> list[RendezvousInfo]:
    running = [in_thread(handler.next_rendezvous) for handler in handlers]
    return sorted((each.result(JOIN_SECONDS) for each in running), key=lambda info: info.rank)


def nodes_meet_share_a_store_and_meet_again(backend: str, endpoint: str) -> None:
    handlers = [make(backend, endpoint) for _ in range(2)]
    try:
        for turn in range(2):
            infos = meet(handlers)
            assert [info.rank for info in infos] == [0, 1]
            assert {info.world_size for info in infos} == {2}
            infos[0].store.set("word", f"{turn}")
            assert infos[1].store.get("word", 10) == b"%d" % turn
            waiting = in_thread(infos[0].store.barrier, "done", 2, 10, 0)
            infos[1].store.barrier("done", 2, 10, 1)
            waiting.result(10)
        assert handlers[0].get_backend() == backend
        handlers[0].set_closed()
        end = time.monotonic() + 5
        while not handlers[1].is_closed():  # it hears of it from its thread
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        for handler in handlers:
            handler.shutdown()


def an_outage_leaves_a_round_alone(
    backend: str, endpoint: str, stop: Callable[[], object], start: Callable[[], object]
) -> None:
    """Away or full, nobody can beat for longer than the lease: nobody is lost."""
    handlers = [make(backend, endpoint, lease=3) for _ in range(2)]
    try:
        meet(handlers)
        stop()
        time.sleep(5.0)
        start()
        time.sleep(2.0)
        assert handlers[0].num_nodes_waiting() == 0
        assert [info.rank for info in meet(handlers)] == [0, 1]
    finally:
        for handler in handlers:
            handler.shutdown()


def a_wrong_password_is_told_at_once(backend: str, endpoint: str) -> None:
    began = time.monotonic()
    handler = make(backend, endpoint)
    with pytest.raises(
        RendezvousStateError, match=r"failed: .*\(user .*password from the URL"
    ) as caught:
        handler.next_rendezvous()
    assert time.monotonic() - began < 5
    assert "wr0ng" not in str(caught.value)
    handler.shutdown()


def an_engine_that_is_away_is_told(backend: str, endpoint: str) -> None:
    """Joining fails within its limit, naming the address and no password."""
    began = time.monotonic()
    handler = make(backend, endpoint, join=1.0)
    with pytest.raises(RendezvousConnectionError, match="cannot be reached") as caught:
        handler.next_rendezvous()
    assert time.monotonic() - began < 15
    assert "hidden" not in str(caught.value)
    handler.shutdown()
