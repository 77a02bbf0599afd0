"""One node's judgement of the others, by a clock of its own."""

import pytest

from rallypoint.core.advance import advance
from rallypoint.core.events import (
    Beat,
    Cause,
    Close,
    Event,
    Join,
    LastCallOver,
    Lost,
    RejoinOver,
)
from rallypoint.core.state import Node, RunState, Settings
from rallypoint.rendezvous.serverless.failure_detector import FailureDetector, lease_seconds
from rallypoint.testing.fakes import ManualClock

SETTINGS = Settings(
    min_nodes=2, max_nodes=3, lease_seconds=9, last_call_seconds=4, rejoin_timeout_seconds=6
)


def joins(*names: str) -> list[Event]:
    return [Join(Node(id=name, address="h", port=1), SETTINGS) for name in names]


class Watch:
    """An observer "a" with its clock and its state."""

    def __init__(self, *names: str, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(5)
        self.observer = FailureDetector(self.clock)
        self.state = advance(RunState(run_id="run"), *joins(*names)).state

    def look(self, seconds: float = 0.0, *others: str) -> list[Event]:
        """Let time pass, the others beat, and act on what is due."""
        self.clock.advance(seconds)
        self.state = advance(self.state, *(Beat(name) for name in others)).state
        due = self.observer.look(self.state, "a")
        self.state = advance(self.state, *due).state
        self.observer.settle(due)
        return due


def test_heartbeat_every_third_of_the_lease() -> None:
    watch = Watch("a")
    assert watch.look() == []
    assert watch.observer.pause() == 3.0
    assert watch.look(2.9) == []
    assert watch.observer.pause() == pytest.approx(0.1)
    assert watch.look(0.1) == [Beat("a")]
    assert watch.look(1) == []
    watch.observer.beaten()
    assert watch.look(2.5) == []


def test_silent_node_is_lost_after_a_lease() -> None:
    watch = Watch("a", "b", "c")
    watch.look()
    for _ in range(2):
        assert watch.look(3, "c") == [Beat("a")]
    assert watch.look(2.9, "c") == []
    assert watch.look(0.1, "c") == [Beat("a"), Lost("b", Cause.LEASE, 0)]
    assert "b" in watch.state.fenced
    assert watch.look() == []


def test_heartbeat_counts_from_when_it_was_seen() -> None:
    watch = Watch("a", "b", "c")
    watch.look()
    for _ in range(10):
        assert watch.look(3, "b", "c") == [Beat("a")]


@pytest.mark.cases("case-B5")
def test_paused_failure_detector_reports_nobody() -> None:
    watch = Watch("a", "b", "c")
    watch.look()
    watch.look(3)
    assert watch.look(60) == [Beat("a")]
    watch.look(3)
    watch.look(3)
    lost = watch.look(3)
    assert {each.node for each in lost if isinstance(each, Lost)} == {"b", "c"}


@pytest.mark.cases("case-B2")
def test_clocks_of_other_nodes_do_not_matter() -> None:
    watch = Watch("a", "b", "c", clock=ManualClock(1e6))
    watch.look()
    for _ in range(5):
        assert watch.look(3, "b", "c") == [Beat("a")]


def test_timers_start_when_first_seen() -> None:
    watch = Watch("a", "b")
    watch.look()
    assert watch.look(3, "b") == [Beat("a")]
    assert watch.observer.pause() == pytest.approx(1)
    assert watch.look(1) == [LastCallOver(1, 1, 1)]
    assert watch.look() == []


def test_timer_fires_once() -> None:
    watch = Watch("a", "b")
    watch.look()
    watch.clock.advance(4)
    for expected in ([LastCallOver(1, 1, 1)], []):
        due = [e for e in watch.observer.look(watch.state, "a") if isinstance(e, LastCallOver)]
        assert due == expected
        watch.observer.settle(due)  # without applying them


def test_unstored_event_is_repeated() -> None:
    watch = Watch("a", "b")
    watch.look()
    watch.clock.advance(4)
    for _ in range(2):
        assert LastCallOver(1, 1, 1) in watch.observer.look(watch.state, "a")


def test_notified_node_has_its_rejoin_timeout() -> None:
    watch = Watch("a", "b", "c")
    watch.look()
    watch.state = advance(watch.state, Lost("c", Cause.LEASE)).state
    watch.look()
    watch.look(3, "b")
    assert RejoinOver(1, 2) in watch.look(3, "b")


def test_node_that_could_not_write_detects_no_failures() -> None:
    """All read for longer than the lease, and none can write: nobody is to blame."""
    watch = Watch("a", "b", "c")
    watch.look()
    for _ in range(5):
        watch.look(3)
        watch.observer.interrupted()
    assert not any(isinstance(event, Lost) for event in watch.look(3))
    assert any(isinstance(event, Lost) for _ in range(3) for event in watch.look(3))


def test_non_member_detects_no_failures() -> None:
    watch = Watch("a", "b", "c")
    for who in (None, "stranger"):
        for _ in range(5):
            watch.clock.advance(5)
            assert watch.observer.look(watch.state, who) == []


def test_closed_run_is_not_changed() -> None:
    watch = Watch("a", "b", "c")
    watch.state = advance(watch.state, Close("x", "y")).state
    for _ in range(5):
        assert watch.look(5) == []


def test_lease_of_the_run() -> None:
    assert lease_seconds(RunState(run_id="run")) == 15
    assert lease_seconds(Watch("a").state) == 9
