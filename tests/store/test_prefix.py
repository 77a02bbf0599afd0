"""PrefixStore: the conformance suite, alone and nested, and the mapping of each request."""

from datetime import timedelta
from typing import get_args

import pytest

from rallypoint.errors import StoreTimeoutError
from rallypoint.net import protocol as p
from rallypoint.store import prefix
from rallypoint.store.api import Store
from rallypoint.store.memory import MemoryStore
from rallypoint.store.prefix import PrefixStore
from rallypoint.testing.store_suite import StoreSuite


class TestPrefixStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _data(self) -> None:
        self.below = MemoryStore()
        self.below.set("outer/key", b"another user's")
        self.below.set("outerinner/key", b"another user's")

    def make_store(self) -> Store:
        return PrefixStore("inner", PrefixStore("outer", self.below.clone()))


def test_every_request_has_a_rule() -> None:
    kinds = set(get_args(p.StoreRequest))
    assert kinds == set(prefix._RULES)


def test_keys_below_carry_the_prefix() -> None:
    below = MemoryStore()
    store = PrefixStore(b"run", below)
    with store.pipeline() as pipe:
        pipe.set("a", b"1").queue_push("q", b"2")
    store.multi_set(["b"], [b"3"])
    below.set("other", b"4")
    assert below.list() == ["other", "run/a", "run/b", "run/q"]
    assert store.list() == ["a", "b", "q"]
    assert store.num_keys() == 3
    assert store.underlying_store is below


def test_group_names_carry_the_prefix() -> None:
    below = MemoryStore()
    with pytest.raises(StoreTimeoutError, match="barrier 'run/b'"):
        PrefixStore("run", below).barrier("b", 2, 0)


def test_each_handle_has_its_own_timeout() -> None:
    below = MemoryStore(timeout=7)
    store = PrefixStore("run", below)
    assert store.timeout == timedelta(seconds=7)
    store.set_timeout(1)
    assert below.timeout == timedelta(seconds=7)
    other = store.clone()
    assert isinstance(other.underlying_store, MemoryStore)
    assert other.underlying_store is not below
    assert other.timeout == timedelta(seconds=1)
    other.set("a", b"1")
    assert store.get("a") == b"1"


def test_close_leaves_the_wrapped_store_open() -> None:
    class Closing(MemoryStore):
        closed = False

        def close(self) -> None:
            self.closed = True

    below = Closing()
    with PrefixStore("run", below):
        pass
    assert not below.closed
