from collections.abc import Callable

import pytest
from tensorplay import distributed as dist
from tests.integrations.rounds import make_round

from rallypoint.integrations.tensorplay.handler import KEYS
from rallypoint.integrations.tensorplay.store import RoundStore


def our_store() -> dist.Store:
    return RoundStore(make_round(KEYS)[0])


@pytest.mark.parametrize("make", [our_store, dist.HashStore], ids=["ours", "theirs"])
def test_store_behaves_like_tensorplays_stores(make: Callable[[], dist.Store]) -> None:
    store = make()
    store.set("key", "value")
    assert store.get("key") == store.get("key", timeout=1) == b"value"
    assert [store.add("count", 2), store.add("count", 3)] == [2, 5]
    assert store.compare_set("key", "value", "other") == b"other"
    assert store.compare_set("key", "value", "third") == b"other"
    assert store.compare_and_swap("new", b"", b"1") == (True, b"")
    assert store.compare_and_swap("new", b"1", b"2") == (True, b"1")
    assert store.compare_and_swap("key", b"nothing", b"1") == (False, b"other")
    assert (store.has("key"), store.has("none")) == (True, False)
    assert store.wait(["key", "count"], timeout=1) in (True, None)
    store.delete_key("key")
    assert not store.has("key")


def test_expired_wait_raises_the_launchers_timeout_error() -> None:
    store = our_store()
    with pytest.raises(dist.StoreTimeoutError):
        store.get("none", timeout=0.1)
    with pytest.raises(dist.StoreTimeoutError):
        store.wait(["none"], timeout=0.1)
