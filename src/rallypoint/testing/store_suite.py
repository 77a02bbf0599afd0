"""The conformance suite of the store contract (`rallypoint.store.api`), as a pytest class.

Write a store in a page. Subclass `Store`, carry out requests in `_call` (the easiest way is
to hand them to a `rallypoint.store.keyspace.Keyspace`), and prove it:

    class TestMyStore(StoreSuite):
        @pytest.fixture(autouse=True)
        def data(self, tmp_path):
            self.address = start_something(tmp_path)   # fresh data for each test

        def make_store(self):
            return MyStore(self.address)               # a new handle on that same data

Handles are closed after each test. Waits are bounded: a store that hangs fails, it does not
block the run. Needs pytest and hypothesis.
"""

from rallypoint.testing.store_groups import GroupCases
from rallypoint.testing.store_handles import (
    PATIENCE_SECONDS,
    SHORT_SECONDS,
    after_a_moment,
    in_thread,
)
from rallypoint.testing.store_keys import KeyCases


class StoreSuite(KeyCases, GroupCases):
    """Every case; subclass it and give `make_store`. See the module."""

    # -- handles and threads --------------------------------------------------------------

    def test_a_blocked_thread_holds_up_nobody(self) -> None:
        """case-B3: one thread waits in get(60), another makes 1,000 calls on the same handle."""
        store = self.handle()
        waiting = after_a_moment(in_thread(store.get, "late", 60.0))
        counting = in_thread(lambda: [store.add("beat", 1) for _ in range(1000)])
        assert counting.result(PATIENCE_SECONDS) == list(range(1, 1001))
        store.set("late", b"own answer")
        assert waiting.result(PATIENCE_SECONDS) == b"own answer"

    def test_clone(self) -> None:
        """A clone sees the same data, and has its own timeout and its own end."""
        store = self.handle()
        other = store.clone()
        other.set_timeout(SHORT_SECONDS)
        assert store.timeout != other.timeout
        other.set("key", b"x")
        assert store.get("key") == b"x"
        other.close()
        store.set("key", b"y")
        assert store.get("key") == b"y"

    def test_context_manager(self) -> None:
        """Leaving the block closes the handle and keeps the data."""
        with self.make_store() as store:
            store.set("key", b"x")
        assert self.handle().get("key", PATIENCE_SECONDS) == b"x"


__all__ = ["StoreSuite"]
