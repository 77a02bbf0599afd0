"""The part of the store suite about queues, pipelines and groups."""

import pytest

from rallypoint.errors import ParameterError, StoreTimeoutError, StoreValueError
from rallypoint.testing.store_handles import (
    PATIENCE_SECONDS,
    SHORT_SECONDS,
    StoreHandles,
    after_a_moment,
)


class GroupCases(StoreHandles):
    """Cases of the calls that concern queues, pipelines and groups."""

    # -- queues ---------------------------------------------------------------------------

    def test_queue_is_first_in_first_out(self) -> None:
        """Values come out in the order they went in; an empty queue is no key."""
        store = self.handle()
        assert store.queue_len("q") == 0
        for value in (b"1", b"", b"3"):
            store.queue_push("q", value)
        assert self.handle().queue_len("q") == 3
        assert [store.queue_pop("q") for _ in range(3)] == [b"1", b"", b"3"]
        assert store.queue_len("q") == 0
        assert not store.check(["q"])

    def test_queue_pop_times_out(self) -> None:
        """An empty queue is a timeout: at its limit, or at once if told not to block."""
        store = self.handle()
        with pytest.raises(StoreTimeoutError, match="q"):
            store.queue_pop("q", block=False)
        with pytest.raises(StoreTimeoutError, match="q"):
            store.queue_pop("q", timeout=SHORT_SECONDS)
        store.queue_push("q", b"kept")
        assert store.queue_pop("q", block=False) == b"kept"

    def test_each_value_goes_to_one_waiter(self) -> None:
        """Of several that wait, each gets one value, and none is lost or doubled."""
        waiting = [self.start("queue_pop", "q", True, PATIENCE_SECONDS) for _ in range(5)]
        for each in waiting:
            after_a_moment(each)
        store = self.handle()
        for number in range(5):
            store.queue_push("q", str(number))
        values = [each.result(PATIENCE_SECONDS) for each in waiting]
        assert sorted(values) == [b"0", b"1", b"2", b"3", b"4"]
        assert store.queue_len("q") == 0

    def test_a_key_is_a_value_or_a_queue(self) -> None:
        """The other kind of call is refused, naming the key, and changes nothing."""
        store = self.handle()
        store.set("value", b"v")
        store.queue_push("queue", b"q")
        for call in (
            lambda: store.queue_push("value", b""),
            lambda: store.queue_pop("value", block=False),
            lambda: store.queue_len("value"),
        ):
            with pytest.raises(StoreValueError, match="value"):
                call()
        for call in (
            lambda: store.set("queue", b""),
            lambda: store.get("queue"),
            lambda: store.add("queue", 1),
            lambda: store.multi_set(["fresh", "queue"], [b"", b""]),
        ):
            with pytest.raises(StoreValueError, match="queue"):
                call()
        assert store.list() == ["queue", "value"]
        assert store.delete_key("queue")
        store.set("queue", b"now a value")

    # -- pipelines ------------------------------------------------------------------------

    def test_pipeline(self) -> None:
        """Calls in order, one result each."""
        store = self.handle()
        with store.pipeline() as pipe:
            pipe.set("a", b"1").add("a", 1).get_nowait("a").get_nowait("missing")
            pipe.append("a", "x").check(["a"]).compare_and_swap("a", b"2x", b"y")
            pipe.delete_key("a").queue_push("q", b"z")
        assert pipe.results == [None, 2, b"2", None, None, True, (True, b"y"), True, None]
        assert store.queue_pop("q") == b"z"
        assert store.pipeline().execute() == []

    def test_a_pipeline_that_fails_has_no_effect(self) -> None:
        """All or nothing; the error says which call it was."""
        store = self.handle()
        store.multi_set(["word", "n"], [b"x", b"1"])
        store.queue_push("q", b"kept")
        pipe = store.pipeline().add("n", 1).set("new", b"").queue_push("q", b"not")
        with pytest.raises(StoreValueError, match="call 4 of 4"):
            pipe.add("word", 1).execute()
        assert (store.get("n"), store.list()) == (b"1", ["n", "q", "word"])
        assert store.queue_len("q") == 1

    # -- groups ---------------------------------------------------------------------------

    def test_barrier_and_its_reuse(self) -> None:
        """All are released when the last one comes, time after time."""
        for turn in range(3):
            ranked = turn % 2 == 0
            waiting = [
                self.start("barrier", "b", 3, PATIENCE_SECONDS, rank if ranked else None)
                for rank in range(2)
            ]
            for each in waiting:
                after_a_moment(each)
            self.handle().barrier("b", 3, PATIENCE_SECONDS, 2 if ranked else None)
            for each in waiting:
                each.result(PATIENCE_SECONDS)
        self.handle().barrier("alone", 1, 0)

    def test_barrier_names_the_missing_ranks(self) -> None:
        """A timeout says how many are here and which ranks are not; then it can be tried again."""
        waiting = self.start("barrier", "b", 4, 1.0, 2)
        after_a_moment(waiting)
        with pytest.raises(StoreTimeoutError, match=r"2 of 4 .*missing ranks: 1, 3"):
            self.handle().barrier("b", 4, SHORT_SECONDS, 0)
        with pytest.raises(StoreTimeoutError, match=r"missing ranks: 1, 3.*timed out: 0"):
            waiting.result(PATIENCE_SECONDS)
        again = [self.start("barrier", "b", 2, PATIENCE_SECONDS, rank) for rank in range(2)]
        for each in again:
            each.result(PATIENCE_SECONDS)

    def test_who_timed_out_is_not_counted(self) -> None:
        """A barrier whose member gave up is not complete without it."""
        waiting = after_a_moment(self.start("barrier", "b", 2, PATIENCE_SECONDS, 0))
        with pytest.raises(StoreTimeoutError):
            self.handle().barrier("other", 2, 0, 1)
        with pytest.raises(StoreTimeoutError):
            self.handle().barrier("other", 2, 0, 0)
        self.handle().barrier("b", 2, PATIENCE_SECONDS, 1)
        waiting.result(PATIENCE_SECONDS)

    def test_group_refuses_what_does_not_fit(self) -> None:
        """A second caller with the same rank, a rank out of range, another size."""
        waiting = after_a_moment(self.start("barrier", "b", 2, PATIENCE_SECONDS, 0))
        store = self.handle()
        for n, rank, text in ((2, 0, "rank 0"), (2, 2, "rank 2"), (2, -1, "rank"), (3, 1, "2")):
            with pytest.raises(StoreValueError, match=text):
                store.barrier("b", n, PATIENCE_SECONDS, rank)
        with pytest.raises(StoreValueError, match="0"):
            store.barrier("none", 0)
        store.barrier("b", 2, PATIENCE_SECONDS, 1)
        waiting.result(PATIENCE_SECONDS)

    def test_all_gather(self) -> None:
        """Everybody gets all values in rank order, whatever order they came in."""
        for turn in range(2):
            waiting = [
                self.start("all_gather", "g", f"{turn}.{rank}", rank, 3, PATIENCE_SECONDS)
                for rank in (2, 0, 1)
            ]
            values = [f"{turn}.{rank}".encode() for rank in range(3)]
            for each in waiting:
                assert each.result(PATIENCE_SECONDS) == values

    def test_broadcast(self) -> None:
        """Everybody gets rank 0's value."""
        waiting = [
            self.start("broadcast", "c", value, rank, 3, PATIENCE_SECONDS)
            for rank, value in ((1, None), (2, b"ignored"), (0, b"news"))
        ]
        for each in waiting:
            assert each.result(PATIENCE_SECONDS) == b"news"
        with pytest.raises(ParameterError):
            self.handle().broadcast("c", None, 0, 1)
