"""One exchange: what is written, what is run again, what is refused."""

import pytest

from rallypoint.core.advance import advance
from rallypoint.core.events import Event, Join
from rallypoint.core.state import Node, RunState, Settings, decode_state, encode_state
from rallypoint.deadline import Deadline
from rallypoint.errors import RendezvousStateError, RendezvousTimeoutError
from rallypoint.rendezvous.serverless.backends.contract import MemoryRendezvousBackend, Token
from rallypoint.rendezvous.serverless.cas_loop import CasLoop

SETTINGS = Settings(min_nodes=5, max_nodes=9)


def join(name: str) -> Join:
    return Join(Node(id=name, address="h", port=1), SETTINGS)


class Counting(MemoryRendezvousBackend):
    """Counts writes; lets another writer be faster a few times."""

    def __init__(self, rivals: int = 0) -> None:
        super().__init__()
        self.writes, self.rivals = 0, rivals

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        self.writes += 1
        if self.rivals:
            self.rivals -= 1
            found = self.get_state()
            now = RunState(run_id="run") if found is None else decode_state(found[0])
            rival = advance(now, join(f"rival{self.rivals}")).state
            super().set_state(encode_state(rival), None if found is None else found[1])
        return super().set_state(state, token)


def test_only_changes_are_written() -> None:
    backend = Counting()
    exchange = CasLoop(backend, "run")
    step = exchange.run(lambda _: [join("a")], Deadline(5))
    assert list(step.state.candidates) == ["a"]
    assert backend.writes == 1
    exchange.run(lambda _: [join("a")], Deadline(5))
    exchange.run(lambda _: [], Deadline(5))
    assert backend.writes == 1
    found = backend.get_state()
    assert found is not None
    assert exchange.token == found[1]


def test_lost_race_is_repeated_on_the_new_state() -> None:
    backend = Counting(rivals=3)
    seen: list[int] = []

    def decide(state: RunState) -> list[Event]:
        seen.append(len(state.candidates))
        return [join("a")]

    step = CasLoop(backend, "run").run(decide, Deadline(5))
    assert seen == [0, 1, 2, 3]
    assert set(step.state.candidates) == {"rival0", "rival1", "rival2", "a"}


def test_races_end_with_the_deadline() -> None:
    backend = Counting(rivals=10_000)
    with pytest.raises(RendezvousTimeoutError, match=r"lost their race within 0\.05 s"):
        CasLoop(backend, "run").run(lambda _: [join("a")], Deadline(0.05))


def test_state_of_another_run_is_refused() -> None:
    backend = MemoryRendezvousBackend()
    CasLoop(backend, "other").run(lambda _: [join("a")], Deadline(5))
    with pytest.raises(RendezvousStateError, match="'other'"):
        CasLoop(backend, "run").run(lambda _: [], Deadline(5))


def test_invalid_values_are_refused() -> None:
    backend = MemoryRendezvousBackend()
    backend.set_state(b"nonsense")
    with pytest.raises(RendezvousStateError):
        CasLoop(backend, "run").run(lambda _: [], Deadline(5))
