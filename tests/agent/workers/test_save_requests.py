"""The way to the workers and back, with a store in memory."""

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.agent.policy import events as e
from rallypoint.agent.workers.save_requests import Changes
from rallypoint.errors import StoreConnectionError
from rallypoint.store.api import Store
from rallypoint.store.memory import MemoryStore
from rallypoint.store.prefix import PrefixStore
from rallypoint.worker.change import CHANGE_FILE, ChangeKind, ChangeReader
from rallypoint.worker.saving import SAVED, go_on

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
def changes(agent: Agent) -> Iterator[Changes]:
    with Changes(agent.open, agent.told.put, agent.call) as made:
        yield made


def ask(watch: bool, seconds: float = LIMIT) -> e.AskToSave:
    return e.AskToSave(1, 4, ChangeKind.JOINING, "1 node", "1 node waits", seconds, watch)


def read(changes: Changes) -> ChangeReader:
    return ChangeReader(changes.environment()[CHANGE_FILE])


def test_workers_find_the_announcement_in_a_file(agent: Agent, changes: Changes) -> None:
    look = read(changes)
    assert look() is None
    changes.ask(ask(watch=False))
    agent.announced()
    change = look()
    assert change is not None
    assert (change.kind, change.who, change.why) == (ChangeKind.JOINING, "1 node", "1 node waits")
    changes.take_back()
    assert look() is None


def test_the_word_that_all_have_saved_comes_back(agent: Agent, changes: Changes) -> None:
    changes.ask(ask(watch=True))
    agent.announced()
    agent.round.set(SAVED, b"70")
    assert agent.told.get(timeout=LIMIT) == e.WorkersSaved(4, 70)


def test_a_save_for_an_earlier_change_is_none_for_this(agent: Agent, changes: Changes) -> None:
    agent.round.set(SAVED, b"12")
    changes.ask(ask(watch=True))
    agent.announced()
    assert agent.told.empty()
    agent.round.set(SAVED, b"70")
    assert agent.told.get(timeout=LIMIT) == e.WorkersSaved(4, 70)


def test_a_save_of_another_round_is_none(agent: Agent, changes: Changes) -> None:
    changes.ask(ask(watch=True, seconds=0.2))
    agent.announced()
    PrefixStore("worker/1.3", agent.store).set(SAVED, b"70")
    with pytest.raises(queue.Empty):
        agent.told.get(timeout=0.4)


def test_what_was_taken_back_is_not_announced(agent: Agent) -> None:
    opened: queue.Queue[int] = queue.Queue()

    def slow() -> Store:
        opened.get(timeout=LIMIT)
        return agent.open()

    with Changes(slow, agent.told.put, agent.call) as changes:
        changes.ask(ask(watch=True))
        changes.take_back()
        opened.put(1)
        agent.round.set(SAVED, b"70")
        with pytest.raises(queue.Empty):
            agent.called.get(timeout=0.3)
        assert read(changes)() is None


def test_workers_that_wait_for_nothing_are_let_go_on(agent: Agent, changes: Changes) -> None:
    changes.let_go_on(e.LetGoOn(1, 4, 70))
    assert agent.round.get(go_on(70), LIMIT) == b""


def test_without_a_store_there_is_the_file(agent: Agent) -> None:
    with Changes(None, agent.told.put) as changes:
        changes.ask(ask(watch=True))
        assert read(changes)() is not None
        changes.let_go_on(e.LetGoOn(1, 4, 70))


def test_a_store_that_cannot_be_reached_is_said(
    agent: Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone() -> Store:
        raise StoreConnectionError("nobody listens")

    others = set(threading.enumerate())
    with Changes(gone, agent.told.put, agent.call) as changes:
        changes.ask(ask(watch=True))
        agent.announced()
        assert read(changes)() is not None  # the workers can save all the same
    for thread in set(threading.enumerate()) - others:
        thread.join(LIMIT)
    assert "no word of the workers' saving: nobody listens" in capsys.readouterr().out


def test_a_fault_of_ours_ends_the_agent(agent: Agent) -> None:
    def broken() -> Store:
        raise ValueError("oh")

    with Changes(broken, agent.told.put) as changes:
        changes.ask(ask(watch=True))
        told = agent.told.get(timeout=LIMIT)
    assert isinstance(told, e.AgentFailed)
    assert "oh" in told.text


def test_nothing_is_left_behind(agent: Agent) -> None:
    with Changes(agent.open, agent.told.put) as changes:
        path = Path(changes.environment()[CHANGE_FILE])
        changes.ask(ask(watch=False))
        assert path.exists()
    assert not list(path.parent.glob(f"{path.stem}*"))
