"""LazyStore: nothing happens before the first call; after it, it is the store."""

from collections.abc import Iterator

import pytest

from rallypoint.errors import StoreConnectionError
from rallypoint.store.lazy import LazyStore
from rallypoint.store.tcp import TCPStore
from rallypoint.testing import StoreSuite


@pytest.fixture
def master() -> Iterator[TCPStore]:
    store = TCPStore("127.0.0.1", 0, is_master=True)
    yield store
    store.close()


class Opener:
    """Counts how often the store is made."""

    def __init__(self, master: TCPStore) -> None:
        self.master, self.times, self.broken = master, 0, False

    def __call__(self) -> TCPStore:
        self.times += 1
        if self.broken:
            raise StoreConnectionError("not now")
        return self.master.clone()


def test_lazy_store_connects_at_the_first_call(master: TCPStore) -> None:
    opener = Opener(master)
    store = LazyStore(opener, master.master_addr_port)
    assert store.master_addr_port == master.master_addr_port
    assert opener.times == 0
    store.set("a", b"1")
    assert store.get("a") == b"1"
    assert opener.times == 1
    store.close()


def test_failed_first_call_is_raised_and_retried(master: TCPStore) -> None:
    opener = Opener(master)
    store = LazyStore(opener, master.master_addr_port)
    opener.broken = True
    with pytest.raises(StoreConnectionError, match="not now"):
        store.set("a", b"1")
    opener.broken = False
    store.set("a", b"1")
    assert opener.times == 2
    store.close()


def test_closed_lazy_store_never_connects(master: TCPStore) -> None:
    opener = Opener(master)
    store = LazyStore(opener, master.master_addr_port)
    store.close()
    assert opener.times == 0
    with pytest.raises(StoreConnectionError, match="closed"):
        store.set("a", b"1")


class TestSuite(StoreSuite):
    """The whole contract."""

    @pytest.fixture(autouse=True)
    def _server(self, master: TCPStore) -> None:
        self._master = master

    def make_store(self) -> LazyStore:
        """Return a fresh handle on the same fresh data."""
        return LazyStore(self._master.clone, self._master.master_addr_port)
