"""The way to the workers and back, with a store in memory."""

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.agent.policy import events as e
from rallypoint.agent.workers.save_requests import SaveRequests
from rallypoint.errors import StoreConnectionError
from rallypoint.store.api import Store
from rallypoint.store.memory import MemoryStore
from rallypoint.store.prefix import PrefixStore
from rallypoint.worker.change import CHANGE_FILE, ChangeKind, ChangeReader
from rallypoint.worker.saving import SAVED, release_key

LIMIT = 10.0


class Agent:
    """An agent's inbox and the store of its run."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.round = PrefixStore("worker/1.4", self.store)
        self.told: queue.Queue[e.Event] = queue.Queue()
        self.called: queue.Queue[int] = queue.Queue()

    def open(self) -> Store:
        return self.store.clone()

    def call(self) -> None:
        self.called.put(1)

    def announced(self) -> None:
        """Wait until the workers were called to look at the file."""
        self.called.get(timeout=LIMIT)


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def changes(agent: Agent) -> Iterator[SaveRequests]:
    with SaveRequests(agent.open, agent.told.put, agent.call) as made:
        yield made


def ask(watch: bool, seconds: float = LIMIT) -> e.AskToSave:
    return e.AskToSave(1, 4, ChangeKind.JOINING, "1 node", "1 node waits", seconds, watch)


def read(changes: SaveRequests) -> ChangeReader:
    return ChangeReader(changes.environment()[CHANGE_FILE])


def test_announcement_is_in_the_file(agent: Agent, changes: SaveRequests) -> None:
    look = read(changes)
    assert look() is None
    changes.ask(ask(watch=False))
    agent.announced()
    change = look()
    assert change is not None
    assert (change.kind, change.who, change.why) == (ChangeKind.JOINING, "1 node", "1 node waits")
    changes.cancel()
    assert look() is None


def test_event_follows_when_all_ranks_have_saved(agent: Agent, changes: SaveRequests) -> None:
    changes.ask(ask(watch=True))
    agent.announced()
    agent.round.set(SAVED, b"70")
    assert agent.told.get(timeout=LIMIT) == e.WorkersSaved(4, 70)


def test_save_for_an_earlier_change_does_not_count(agent: Agent, changes: SaveRequests) -> None:
    agent.round.set(SAVED, b"12")
    changes.ask(ask(watch=True))
    agent.announced()
    assert agent.told.empty()
    agent.round.set(SAVED, b"70")
    assert agent.told.get(timeout=LIMIT) == e.WorkersSaved(4, 70)


def test_save_of_another_round_does_not_count(agent: Agent, changes: SaveRequests) -> None:
    changes.ask(ask(watch=True, seconds=0.2))
    agent.announced()
    PrefixStore("worker/1.3", agent.store).set(SAVED, b"70")
    with pytest.raises(queue.Empty):
        agent.told.get(timeout=0.4)


def test_cancelled_change_is_not_announced(agent: Agent) -> None:
    opened: queue.Queue[int] = queue.Queue()

    def slow() -> Store:
        opened.get(timeout=LIMIT)
        return agent.open()

    with SaveRequests(slow, agent.told.put, agent.call) as changes:
        changes.ask(ask(watch=True))
        changes.cancel()
        opened.put(1)
        agent.round.set(SAVED, b"70")
        with pytest.raises(queue.Empty):
            agent.called.get(timeout=0.3)
        assert read(changes)() is None


def test_release_frees_workers_that_wait_for_a_cancelled_change(
    agent: Agent, changes: SaveRequests
) -> None:
    changes.release(e.ReleaseWorkers(1, 4, 70))
    assert agent.round.get(release_key(70), LIMIT) == b""


def test_without_a_store_the_file_is_written(agent: Agent) -> None:
    with SaveRequests(None, agent.told.put) as changes:
        changes.ask(ask(watch=True))
        assert read(changes)() is not None
        changes.release(e.ReleaseWorkers(1, 4, 70))


def test_unreachable_store_is_reported(agent: Agent, capsys: pytest.CaptureFixture[str]) -> None:
    def gone() -> Store:
        raise StoreConnectionError("nobody listens")

    others = set(threading.enumerate())
    with SaveRequests(gone, agent.told.put, agent.call) as changes:
        changes.ask(ask(watch=True))
        agent.announced()
        assert read(changes)() is not None  # the workers can save all the same
    for thread in set(threading.enumerate()) - others:
        thread.join(LIMIT)
    assert "cannot tell whether the workers have saved: nobody listens" in capsys.readouterr().out


def test_internal_error_ends_the_agent(agent: Agent) -> None:
    def broken() -> Store:
        raise ValueError("oh")

    with SaveRequests(broken, agent.told.put) as changes:
        changes.ask(ask(watch=True))
        told = agent.told.get(timeout=LIMIT)
    assert isinstance(told, e.AgentFailed)
    assert "oh" in told.text


def test_file_is_removed_at_the_end(agent: Agent) -> None:
    with SaveRequests(agent.open, agent.told.put) as changes:
        path = Path(changes.environment()[CHANGE_FILE])
        changes.ask(ask(watch=False))
        assert path.exists()
    assert not list(path.parent.glob(f"{path.stem}*"))
