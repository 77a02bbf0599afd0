"""Short words for tests of the core: nodes, events, and a run that checks itself.

`Drive` applies events one batch at a time, runs the invariants after each, and remembers
what each node was told of each round, so that two tellings of one round can be compared.
"""

from collections.abc import Mapping
from typing import Any

from rallypoint.core.advance import Step, advance, timers
from rallypoint.core.events import (
    Cause,
    Close,
    Event,
    Fail,
    Finish,
    Join,
    LastCallOver,
    Leave,
    Lost,
    Message,
    Refused,
    RejoinOver,
    ReplacementWaitOver,
    RoundSealed,
)
from rallypoint.core.invariants import check_state, check_step
from rallypoint.core.state import (
    PLACES,
    Failure,
    Member,
    Node,
    Round,
    RunState,
    Sealed,
    Settings,
    decode_state,
    encode_state,
    round_number,
)


def a_node(name: str, **fields: Any) -> Node:
    """Return a node whose id and address are its name, and whose pid is the number in it."""
    digits = "".join(c for c in name if c.isdigit())
    number = int(digits or 0) % 10_000
    given = {"address": name, "port": 20_000 + number, "pid": number, **fields}
    return Node(id=given.pop("id", name), **given)


def a_settings(least: int = 2, most: int = 4, **fields: Any) -> Settings:
    return Settings(min_nodes=least, max_nodes=most, **fields)


def a_failure(node: str = "node1", code: int = 1, **fields: Any) -> Failure:
    return Failure(node=node, rank=0, local_rank=0, exit_code=code, **fields)


class Drive:
    """A run under test."""

    def __init__(self, least: int = 2, most: int = 4, **settings: Any) -> None:
        self.state = RunState(run_id="demo")
        self.settings = a_settings(least, most, **settings)
        self.nodes: dict[str, Node] = {}
        self.step: Step = Step(self.state, (), (), ())
        self.told: dict[tuple[int, int], Round] = {}

    def do(self, *events: Event) -> Step:
        """Apply a batch of events; every invariant must hold after it."""
        before = self.state
        step = advance(before, *events)
        assert check_state(step.state) == []
        assert check_step(before, step.state, step.messages) == []
        assert decode_state(encode_state(step.state)) == step.state
        assert timers(step.state) == step.timers
        assert step.reason  # of any state there is something to say
        for send in step.messages:
            assert send.to
            assert len(set(send.to)) == len(send.to), "one message twice to one node"
            if isinstance(send.message, RoundSealed):
                record = send.message.record
                first = self.told.setdefault((record.incarnation, record.number), record)
                assert first == record, "two nodes were told of different rounds"
        self.state, self.step = step.state, step
        return step

    def joining(self, name: str, after: int = 0, **fields: Any) -> Join:
        """Return a join; fields named like Join's go there, the others describe the node."""
        mine = {key: fields.pop(key) for key in list(fields) if key in JOIN_FIELDS}
        given = {"settings": self.settings, **mine}
        node = a_node(name, **fields) if fields else self.nodes.get(name, a_node(name))
        self.nodes[node.id] = node
        return Join(node=node, after=after, **given)

    def join(self, *names: str, **fields: Any) -> Step:
        """Let nodes join, one step each."""
        for name in names:
            self.do(self.joining(name, **fields))
        return self.step

    def rejoin(self, *names: str, why: str = "") -> Step:
        """Let participants ask for the round after the one they last took part in."""
        for name in names:
            sealed = isinstance(self.state.phase, Sealed)
            after = self.number if sealed else self.number - 1
            inc = self.state.incarnation
            self.do(self.joining(name, after=after, why=why, incarnation=inc))
        return self.step

    def leave(self, name: str, why: str = "") -> Step:
        return self.do(Leave(name, why))

    def lose(self, name: str, cause: Cause = Cause.LEASE, beats: int = 0) -> Step:
        return self.do(Lost(name, cause, beats))

    def finish(self, *names: str, at: str = "noon") -> Step:
        for name in names:
            self.do(Finish(name, self.state.incarnation, self.number, at))
        return self.step

    def fail(self, name: str, failure: Failure | None = None, number: int | None = None) -> Step:
        number = self.number if number is None else number
        return self.do(Fail(name, self.state.incarnation, number, failure or a_failure(name)))

    def close(self, by: str = "alice", why: str = "enough", at: str = "noon") -> Step:
        return self.do(Close(by, why, at))

    def last_call_over(self) -> Step:
        return self.do(self._timer(LastCallOver))

    def rejoin_over(self) -> Step:
        return self.do(self._timer(RejoinOver))

    def replacement_over(self) -> Step:
        return self.do(self._timer(ReplacementWaitOver))

    def _timer(self, kind: type[Any]) -> Any:
        (timer,) = (t for t in timers(self.state) if isinstance(t, kind))
        return timer

    # -- looking --------------------------------------------------------------------------

    @property
    def number(self) -> int:
        return round_number(self.state.phase)

    @property
    def record(self) -> Round:
        assert isinstance(self.state.phase, Sealed), self.step.reason
        return self.state.phase.record

    @property
    def phase(self) -> str:
        return type(self.state.phase).__name__

    def ranks(self) -> list[str]:
        """Return the node ids of the sealed round in rank order."""
        return [seat.node.id for seat in self.record.seats]

    def places(self) -> dict[str, list[str]]:
        """Return the filled places, with their nodes in order of name."""
        found: Mapping[str, dict[str, Member]] = {p: getattr(self.state, p) for p in PLACES}
        return {place: sorted(members) for place, members in found.items() if members}

    def sent(self, node: str) -> list[Message]:
        """Return what the last step tells a node."""
        return [send.message for send in self.step.messages if node in send.to]

    def kinds(self, node: str) -> list[str]:
        """Return the kinds of messages that the last step has for a node."""
        return [type(message).__name__ for message in self.sent(node)]


JOIN_FIELDS = {"settings", "incarnation", "why", "new_incarnation"}


def sealed(*names: str, least: int = 2, most: int = 4, **settings: Any) -> Drive:
    """Return a run whose first round is sealed with these nodes."""
    run = Drive(least, most, **settings)
    run.join(*names)
    if not isinstance(run.state.phase, Sealed):
        run.last_call_over()
    assert sorted(run.ranks()) == sorted(names)
    return run


def refusal(run: Drive, node: str) -> Refused:
    """Return the one refusal that the last step has for a node."""
    (message,) = (m for m in run.sent(node) if isinstance(m, Refused))
    return message


def unchanged(run: Drive, *events: Event) -> None:
    """Let events happen that must change nothing and tell nobody anything."""
    before = run.state
    step = run.do(*events)
    assert (step.state, step.messages) == (before, ())
