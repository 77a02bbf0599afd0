from pathlib import Path
from typing import Any

import pytest
from tests.worker.group import Group

from rallypoint import worker
from rallypoint.store.memory import MemoryStore
from rallypoint.worker import ChangeKind, PendingChange, State, Worker
from rallypoint.worker.saving import SAVED, release_key


class Stopped(BaseException):
    """The agent ends the worker."""


def part(state: State, until: int | None = None, every: int = 0, steps: int = 10) -> list[int]:
    """Go through the loop up to a step; return the steps that were computed."""
    done = []
    for step in worker.elastic(state, steps, every):
        state.values["sum"] += step
        done.append(step)
        if step == until:
            break
    return done


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    """Return a function that makes the state of a new round's only worker."""
    store, rounds = MemoryStore(), iter(range(1, 100))

    def make(pending: PendingChange | None = None) -> State:
        worker.use(store, 0, 1, round_number=next(rounds), pending=lambda: pending)
        return State({"sum": 0}, folder=tmp_path)

    return make


def test_loop_yields_all_steps_and_saves_at_the_end(alone: Any) -> None:
    state = alone()
    assert part(state) == list(range(10))
    assert state.values == {"sum": 45}
    again = alone()
    assert part(again) == []
    assert (again.step, again.values) == (10, {"sum": 45})
    assert part(alone(), steps=12) == [10, 11]


def test_loss_costs_the_steps_after_the_last_save(alone: Any) -> None:
    assert part(alone(), until=7, every=3) == list(range(8))
    state = alone()
    assert part(state, every=3) == [6, 7, 8, 9]
    assert state.values == {"sum": 45}


def test_pending_change_costs_no_step(alone: Any) -> None:
    pending = PendingChange(1, ChangeKind.JOINING, "1 node", "1 node waits", 0.0)
    state = alone(pending)
    worker.store().set(release_key(1), b"")
    assert part(state, until=1) == [0, 1]
    assert worker.store().get(SAVED) == b"1"
    assert part(alone())[0] == 1


def test_no_rank_leaves_before_the_last_state_is_saved(tmp_path: Path) -> None:
    store = MemoryStore()

    def one(member: Worker) -> list[int]:
        worker.use(store, member.rank, 3)
        done = part(State({"sum": 0}, folder=tmp_path))
        assert (tmp_path / "step-0000000010.state").exists()
        return done

    assert Group(3).run(one) == [list(range(10))] * 3


def test_loop_outside_a_run_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RALLYPOINT_STORE", raising=False)
    assert part(State({"sum": 0}), every=2) == list(range(10))
