"""MemoryStore: the conformance suite, and what is its own."""

import pytest

from rallypoint.errors import StoreLimitError, StoreTimeoutError
from rallypoint.store.api import Store
from rallypoint.store.memory import HashStore, MemoryStore
from rallypoint.testing.store_suite import StoreSuite


class TestMemoryStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _data(self) -> None:
        self.store = MemoryStore()

    def make_store(self) -> Store:
        return self.store.clone()


def test_alias() -> None:
    assert HashStore is MemoryStore


def test_two_stores_are_separate() -> None:
    MemoryStore().set("key", b"")
    assert MemoryStore().num_keys() == 0


def test_limit_bytes() -> None:
    store = MemoryStore(limit_bytes=1000)
    store.set("key", b"x" * 500)
    with pytest.raises(StoreLimitError, match=r"1000 .*limit_bytes"):
        store.set("other", b"x" * 500)
    assert store.list() == ["key"]


def test_very_long_timeout_is_allowed() -> None:
    store = MemoryStore(timeout=1e12)
    store.set("key", b"x")
    assert store.get("key") == b"x"
    with pytest.raises(StoreTimeoutError, match=r"timed out after 0\.01 s"):
        store.get("missing", 0.01)


def test_interrupted_wait_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def wait(self, _timeout: float) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("rallypoint.store.memory.threading.Event", Interrupted)
    store = MemoryStore()
    with pytest.raises(KeyboardInterrupt):
        store.queue_pop("q")
    store.queue_push("q", b"kept")
    assert store.queue_len("q") == 1
