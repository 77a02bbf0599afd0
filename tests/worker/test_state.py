from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.worker.group import Group

from rallypoint import worker
from rallypoint.errors import ParameterError
from rallypoint.store.memory import MemoryStore
from rallypoint.worker import ChangeKind, PendingChange, State, Worker, checkpoint_storage
from rallypoint.worker.saving import SAVED, release_key


class Run:
    """Rounds of one run, each with workers of its own; a rank is a node."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.rounds = 0

    def round(self, size: int, call: Any) -> list[Any]:
        self.rounds += 1

        def one(member: Worker) -> Any:
            where = {"round_number": self.rounds, "local_rank": 0}
            worker.use(self.store, member.rank, size, **where)  # type: ignore[arg-type]
            return call(member.rank)

        results = Group(size).run(one)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, ParameterError):
                raise result
        return results


def save(step: int, **options: Any) -> Any:
    def call(rank: int) -> None:
        state = State({"weights": np.full(3, float(step)), "of": step}, **options)
        state.step = step
        state.save()
        worker.barrier()

    return call


def restore(**options: Any) -> Any:
    def call(rank: int) -> tuple[bool, int, int]:
        state = State({"of": -1}, **options)
        found = state.restore()
        return found, state.step, state.values["of"]

    return call


def test_shared_folder(tmp_path: Path) -> None:
    run = Run()
    assert run.round(2, restore(folder=tmp_path)) == [(False, 0, -1)] * 2
    run.round(3, save(5, folder=tmp_path))
    assert len(list(tmp_path.iterdir())) == 1  # rank 0 alone
    assert run.round(4, restore(folder=tmp_path)) == [(True, 5, 5)] * 4


def test_state_is_in_the_store_without_a_folder() -> None:
    run = Run()
    run.round(2, save(5))
    run.round(1, save(6))
    assert run.round(3, restore()) == [(True, 6, 6)] * 3
    assert run.round(3, restore(name="another")) == [(False, 0, -1)] * 3


def test_newcomer_gets_missing_checkpoints(tmp_path: Path) -> None:
    run = Run()
    here = {"folder": tmp_path / "0", "shared": False}
    run.round(1, save(5, **here))

    def mixed(rank: int) -> Any:
        return restore(folder=tmp_path / str(rank), shared=False)(rank)

    assert run.round(3, mixed) == [(True, 5, 5)] * 3
    assert not [key for key in run.store.list() if "exchange" in key]  # nothing is left behind


def test_newest_checkpoint_of_any_rank_is_used(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(checkpoint_storage, "PART_BYTES", 10)
    run = Run()
    for node, step in enumerate((3, 8, 5)):
        run.round(1, save(step, folder=tmp_path / str(node)))

    def mixed(rank: int) -> Any:
        return restore(folder=tmp_path / str(rank))(rank)

    assert run.round(4, mixed) == [(True, 8, 8)] * 4


def test_each_node_saves_if_folders_are_not_shared(tmp_path: Path) -> None:
    def call(rank: int) -> None:
        save(4, folder=tmp_path / str(rank), shared=False)(rank)

    Run().round(3, call)
    assert len(list(tmp_path.glob("*/step-*.state"))) == 3


def test_files_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    left = tmp_path / ".step-7.1234.tmp"
    left.write_bytes(b"half")
    Run().round(2, restore(folder=tmp_path))
    assert not left.exists()


def test_partial_file_costs_one_save(tmp_path: Path) -> None:
    run = Run()
    run.round(1, save(5, folder=tmp_path))
    run.round(1, save(6, folder=tmp_path))
    newest = tmp_path / "step-0000000006.state"
    newest.write_bytes(newest.read_bytes()[:-3])
    assert run.round(2, restore(folder=tmp_path)) == [(True, 5, 5)] * 2


def test_state_too_large_to_send_is_refused_on_all_ranks(tmp_path: Path) -> None:
    run = Run()
    run.round(1, save(5, folder=tmp_path / "0"))

    def mixed(rank: int) -> Any:
        return restore(folder=tmp_path / str(rank), limit_bytes=50)(rank)

    errors = run.round(3, mixed)
    assert all("folder that all nodes share" in str(error) for error in errors)
    same = restore(folder=tmp_path / "0", limit_bytes=50)
    assert run.round(3, same) == [(True, 5, 5)] * 3  # nothing has to be sent


def test_functions_instead_of_a_dict(tmp_path: Path) -> None:
    kept: dict[str, Any] = {}
    worker.use(MemoryStore(), 0, 1)
    state = State(dump=lambda: {"a": 1}, load=kept.update, folder=tmp_path)
    state.step = 3
    state.save()
    assert State(dump=dict, load=kept.update, folder=tmp_path).restore()
    assert kept == {"a": 1}


def test_saving_works_outside_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RALLYPOINT_STORE", raising=False)
    values = {"a": 1}
    state = State(values, folder=tmp_path)
    state.step = 2
    state.save()
    values["a"] = 0
    assert state.restore()
    assert values == {"a": 1}


@pytest.mark.parametrize(
    "arguments",
    [{}, {"values": {}, "dump": dict, "load": print}, {"dump": dict}, {"values": {}, "keep": 0}],
)
def test_invalid_arguments_are_refused(arguments: Any) -> None:
    with pytest.raises(ParameterError, match="State: "):
        State(**arguments)


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
