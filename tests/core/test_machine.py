"""Any order of events: a hypothesis state machine over `advance`.

`promises` compares each state with what the nodes were told to get there, and with the rules
that speak of two states at once; `lives` shows that from any state that was reached the run
can go on. Hypothesis prints the seed and the shortest failing story.
"""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.core.builders import Drive, a_failure, a_node, a_settings

from rallypoint.core.advance import advance, timers
from rallypoint.core.events import (
    Admit,
    Beat,
    Cause,
    Close,
    Disconnected,
    Event,
    Exclude,
    ExclusionOver,
    Fail,
    Finish,
    Join,
    LastCallOver,
    Leave,
    Lost,
    NoticeGiven,
    Notify,
    Parked,
    Reconnected,
    Refusal,
    Refused,
    RejoinOver,
    ReplacementWaitOver,
    RoundOpened,
    RoundSealed,
    RunClosed,
    Send,
    Timer,
    WaitingChanged,
)
from rallypoint.core.exclusion import covers
from rallypoint.core.explain import goal_of
from rallypoint.core.notices import standing
from rallypoint.core.state import (
    PLACES,
    Aspect,
    Closed,
    Gathering,
    LastCall,
    RunState,
    Sealed,
    Settings,
    Standing,
    decode_state,
    encode_state,
    find,
    round_number,
)

SHUT_OUT = (Refusal.FENCED, Refusal.REPLACED, Refusal.EXCLUDED)
HOSTS = st.integers(0, 7)
HINTS = st.none() | st.none() | st.integers(0, 4)
KINDS = st.sampled_from(
    ["join", "rejoin", "leave", "lost", "gone", "finish", "fail", "cut", "cut", "beat", "notify"]
)


def budget_of(state: RunState) -> float:
    """Return how many failing rounds are followed by another one."""
    allowed = state.settings.max_restarts if state.settings else None
    return float("inf") if allowed is None else allowed


class Told:
    """What one node has been told last."""

    def __init__(self) -> None:
        self.last: Any = None
        self.count = 0
        self.notices: set[str] = set()

    def hear(self, message: Any) -> None:
        if isinstance(message, WaitingChanged):
            self.count = message.count
        elif isinstance(message, NoticeGiven):
            self.notices.add(message.node)
        elif not isinstance(message, Refused) or message.refusal in SHUT_OUT:
            self.last = message
            self.count = 0
            self.notices = set()


class CoreMachine(RuleBasedStateMachine):
    """Hosts 0 to 7, on each of which one agent process runs after another."""

    @initialize(
        least=st.integers(1, 3),
        room=st.integers(0, 3),
        wanted=st.none() | st.integers(1, 6),
        restarts=st.none() | st.integers(0, 2),
        replacement=st.sampled_from([0.0, 5.0]),
        quarantine=st.sampled_from([0, 0, 1, 2]),
    )
    def open(
        self,
        least: int,
        room: int,
        wanted: int | None,
        restarts: int | None,
        replacement: float,
        quarantine: int,
    ) -> None:
        self.run = Drive(
            least,
            least + room,
            target_nodes=wanted,
            max_restarts=restarts,
            replacement_wait_seconds=replacement,
            quarantine_failures=quarantine,
        )
        self.process = dict.fromkeys(range(8), 0)
        self.told: dict[str, Told] = {}
        self.seen_timers: list[Timer] = []
        self.fenced: set[str] = set()
        self.last_join: Join | None = None

    @property
    def state(self) -> RunState:
        return self.run.state

    def name(self, host: int) -> str:
        return f"n{host}.{self.process[host]}"

    # -- making events ------------------------------------------------------------------

    def a_join(self, host: int, **fields: Any) -> Join:
        name = self.name(host)
        known = self.run.nodes.get(name)
        keep = {key: fields.pop(key) for key in list(fields) if key not in NODE_FIELDS}
        node = known or a_node(name, address=f"n{host}", **fields)
        self.run.nodes[name] = node
        return Join(node=node, **{"settings": self.run.settings, **keep})

    def an_event(self, kind: str, host: int, stale: bool) -> Event:
        name, incarnation, number = self.name(host), self.state.incarnation, self.run.number
        off = 1 if stale else 0
        match kind:
            case "join":
                return self.a_join(host, after=off)
            case "rejoin":
                due = number if isinstance(self.state.phase, Sealed) else number - 1
                return self.a_join(host, after=max(0, due - off), incarnation=incarnation)
            case "leave":
                return Leave(name, "had enough")
            case "lost":
                member = find(self.state, name)
                return Lost(name, Cause.LEASE, (member.beats if member else 0) + off)
            case "gone":
                member = find(self.state, name)
                return Lost(name, Cause.DISCONNECT, member.beats if member else 0)
            case "finish":
                return Finish(name, incarnation, number - off, "noon")
            case "fail":
                return Fail(name, incarnation, number - off, a_failure(name))
            case "cut":
                return Reconnected(name) if stale else Disconnected(name)
            case "notify":
                return Notify(name, "spot machine", seconds=None if stale else 25.0)
            case _:
                return Beat(name)

    # -- applying them ------------------------------------------------------------------

    def apply(self, *events: Event) -> None:
        before = self.state
        self.as_one_and_one_by_one(*events)
        step = self.run.do(*events)
        for send in step.messages:
            for node in send.to:
                self.told.setdefault(node, Told()).hear(send.message)
        self.seen_timers += [t for t in step.timers if t not in self.seen_timers]
        self.fenced |= set(step.state.fenced)
        self.two_states(before, step.state, events)
        self.promises()
        self.lives(rejoining=True)
        self.lives(rejoining=False)

    def as_one_and_one_by_one(self, *events: Event) -> None:
        whole = advance(self.state, *events)
        state = decode_state(encode_state(self.state))
        messages: list[Send] = []
        single = self.state
        for event in events:
            step = advance(single, event)
            single = step.state
            messages += step.messages
            state = advance(state, event).state
        assert whole.state == single
        assert list(whole.messages) == messages
        assert encode_state(state) == encode_state(single), "a stored state goes another way"

    # -- rules ----------------------------------------------------------------------------

    @rule(
        host=HOSTS,
        slot=st.none() | st.integers(0, 3),
        hint=HINTS,
        label=st.sampled_from([None, "r1", "r2"]),
        workers=st.integers(1, 3),
    )
    def join(
        self, host: int, slot: int | None, hint: int | None, label: str | None, workers: int
    ) -> None:
        self.last_join = self.a_join(
            host,
            slot=None if slot is None else f"s{slot}",
            node_rank=hint,
            topology=label,
            local_world_size=workers,
        )
        self.apply(self.last_join)

    @rule(host=HOSTS, after=st.integers(0, 3), incarnation=st.integers(0, 3), new=st.booleans())
    def join_knowing_something(self, host: int, after: int, incarnation: int, new: bool) -> None:
        self.apply(self.a_join(host, after=after, incarnation=incarnation, new_incarnation=new))

    @rule(host=HOSTS)
    def join_with_other_bounds(self, host: int) -> None:
        other = a_settings(self.run.settings.min_nodes, self.run.settings.max_nodes + 1)
        live = any(getattr(self.state, place) for place in PLACES)
        if live:  # else it would open the run anew
            self.apply(self.a_join(host, settings=other))

    @precondition(lambda self: self.last_join is not None)
    @rule()
    def the_same_join_again(self) -> None:
        assert self.last_join is not None
        self.apply(self.last_join)

    @rule(host=HOSTS)
    def another_process(self, host: int) -> None:
        self.process[host] += 1

    @rule(kind=KINDS, host=HOSTS, stale=st.booleans())
    def something(self, kind: str, host: int, stale: bool) -> None:
        self.apply(self.an_event(kind, host, stale))

    @rule(kind=KINDS, index=st.integers(0, 5), stale=st.just(False) | st.booleans())
    def something_to_a_participant(self, kind: str, index: int, stale: bool) -> None:
        working = sorted(self.state.participants)
        hosts = [h for h in self.process if self.name(h) in working]
        if hosts:
            self.apply(self.an_event(kind, hosts[index % len(hosts)], stale))

    @rule(things=st.lists(st.tuples(KINDS, HOSTS, st.booleans()), min_size=2, max_size=6))
    def a_batch(self, things: list[tuple[str, int, bool]]) -> None:
        self.apply(*(self.an_event(*thing) for thing in things))

    @rule()
    def all_who_are_due_join_again(self) -> None:
        if not isinstance(self.state.phase, Sealed):
            for node in sorted(self.state.participants):
                if node in self.state.participants:
                    self.apply(self.rejoining(self.state, node))

    @rule()
    def all_finish(self) -> None:
        if isinstance(self.state.phase, Sealed):
            self.apply(
                *(
                    Finish(node, self.state.incarnation, self.run.number)
                    for node in sorted(self.state.participants)
                )
            )
            assert isinstance(self.state.phase, Closed)
            assert self.state.phase.finished

    @precondition(lambda self: bool(timers(self.run.state)))
    @rule(index=st.integers(0, 2))
    def a_timer_ends(self, index: int) -> None:
        running = timers(self.state)
        timer = running[index % len(running)]
        self.apply(timer)
        assert timer not in timers(self.state)

    @precondition(lambda self: bool(self.seen_timers))
    @rule(index=st.integers(0, 30))
    def a_timer_ends_late(self, index: int) -> None:
        timer = self.seen_timers[index % len(self.seen_timers)]
        before = self.state
        if timer not in timers(before):
            step = advance(before, timer)
            assert (step.state, step.messages) == (before, ())

    @rule(host=HOSTS, aspect=st.sampled_from(Aspect), lasting=st.booleans())
    def keep_out(self, host: int, aspect: Aspect, lasting: bool) -> None:
        names = {
            Aspect.NODE: self.name(host),
            Aspect.ADDRESS: f"n{host}",
            Aspect.SLOT: f"s{host % 4}",
        }
        seconds = None if lasting else 60.0
        self.apply(Exclude(aspect, names[aspect], "bad memory", "alice", seconds))

    @precondition(lambda self: bool(self.run.state.exclusions))
    @rule(index=st.integers(0, 3))
    def let_in_again(self, index: int) -> None:
        out = self.state.exclusions[index % len(self.state.exclusions)]
        self.apply(Admit(out.aspect, out.name, "alice"))
        assert out not in self.state.exclusions

    @rule(chance=st.integers(0, 5))
    def close(self, chance: int) -> None:
        if chance == 0:
            self.apply(Close("alice", "enough", "noon"))

    @precondition(lambda self: isinstance(self.run.state.phase, Closed))
    @rule(host=HOSTS)
    def reopen(self, host: int) -> None:
        join = self.a_join(host)
        kept_out = any(covers(out, join.node) for out in self.state.exclusions)
        if self.name(host) not in self.state.fenced and not kept_out:
            incarnation = self.state.incarnation
            self.apply(self.a_join(host, new_incarnation=True, incarnation=incarnation, after=1))
            assert self.state.incarnation == incarnation + 1

    # -- what must hold -------------------------------------------------------------------

    def two_states(self, before: RunState, after: RunState, events: tuple[Event, ...]) -> None:
        kinds = {type(event) for event in events}
        old, new = before.phase, after.phase
        if isinstance(new, Closed) and not isinstance(old, Closed):
            spent = before.restarts > budget_of(before)
            assert spent or kinds & {Close, Fail, Finish}, "L3: something else closed the run"
            for node in (n for place in PLACES for n in getattr(before, place)):
                in_time = any(isinstance(e, Leave | Lost) and e.node == node for e in events)
                last = self.told[node].last
                assert in_time or isinstance(last, RunClosed | Refused), "C1: not told"
        if after.incarnation == before.incarnation:
            assert after.restarts - before.restarts <= sum(type(e) is Fail for e in events)
            if not kinds & {Lost, RejoinOver, Join} and not isinstance(new, Closed):
                assert after.restarts >= before.restarts, "B1: the budget was refilled"
            if len(events) == 1:
                self.budget(before, events[0])
        if Fail not in kinds:
            assert after.restarts <= before.restarts
        assert after.restarts >= 0
        if after.restarts > budget_of(after) and not isinstance(new, Closed):
            assert after.restarts == budget_of(after) + 1
            assert isinstance(new, Gathering | LastCall), "B1: passed, and it goes on"
            cut = not all(member.connected for member in after.candidates.values())
            assert after.participants or cut, "B1: nobody is missing, and it is not judged"
        live = {node for place in PLACES for node in getattr(before, place)}
        if live & {node for place in PLACES for node in getattr(after, place)}:
            assert before.settings == after.settings, "J6: bounds changed under live nodes"
        if isinstance(new, Sealed) and len(events) == 1 and not isinstance(old, Sealed):
            self.sealing(before, new, events[0])

    def budget(self, before: RunState, event: Event) -> None:
        """B1: charged for each failing round, given back for the loss of a member."""
        old, after = before.phase, self.state
        expected = before.restarts
        if isinstance(old, Sealed) and isinstance(event, Fail):
            expected += self.run.number > old.record.number
        if isinstance(old, Gathering) and old.charged:
            members = {**before.participants, **before.candidates}
            expected -= any(
                m.standing is Standing.MEMBER and n in after.fenced for n, m in members.items()
            )
        new = after.phase
        if isinstance(new, Closed) and old != new and not isinstance(event, Close):
            passed = expected > after.restarts == budget_of(after)
            assert passed is not new.finished, "B1: closed within the budget, or finished beyond it"
            assert new.finished or (new.by, new.at) == (after.failures[0].node, "")
            expected -= passed
        assert after.restarts == expected
        if isinstance(event, Lost) and event.cause is Cause.DISCONNECT:
            member = find(before, event.node)
            assert member is None or not member.connected or after == before

    def sealing(self, before: RunState, new: Sealed, event: Event) -> None:
        """What S2, G1 and R1 promise those who were there before the round was sealed."""
        after, seats = self.state, {seat.node.id: seat.rank for seat in new.record.seats}
        assert after.settings is not None
        goal = goal_of(after.settings)
        assert len(seats) <= goal, "J3: more seats than nodes wanted"
        if isinstance(before.phase, LastCall):
            over = isinstance(event, LastCallOver) or before.phase.over
            assert over or len(seats) == goal, "J4: sealed before it was over"
        there = [*after.participants.values(), *after.spares.values()]
        assert all(m.connected for m in there), "sealed with a candidate that is cut"
        everyone = {**before.participants, **before.candidates}
        for node, member in everyone.items():
            if member.standing is Standing.MEMBER and find(after, node):
                assert node in seats or node in after.finished, "S2: a member has no seat"
        left_over = [m for n, m in before.candidates.items() if n in after.spares]
        for member in left_over:
            assert member.standing is not Standing.MEMBER
            for node in seats:
                other = everyone.get(node)
                stronger = other is None or (
                    other.standing is not Standing.NEW or member.standing is Standing.NEW
                )
                assert stronger, "S2: one that waited has given way to a newcomer"
        hints = {seat.node.node_rank for seat in new.record.seats} - {None}
        for seat in new.record.seats:
            if seat.node.node_rank is not None and seat.node.node_rank < len(seats):
                assert seat.rank == seat.node.node_rank, "R1: a hint was not honoured"
            was = everyone.get(seat.node.id)
            if was is not None and was.rank is not None and was.rank < len(seats) and not hints:
                assert seat.rank == was.rank, "R1: a survivor has moved for nothing"

    def promises(self) -> None:
        state, phase = self.state, self.state.phase
        assert not self.fenced & {n for place in PLACES for n in getattr(state, place)}
        active = [member.node for place in PLACES[:4] for member in getattr(state, place).values()]
        for field in ("slot", "node_rank"):
            claims = [claim for n in active if (claim := getattr(n, field)) is not None]
            assert len(claims) == len(set(claims)), f"two nodes hold one {field}"
        match phase:
            case Sealed():
                self.promises_of_a_sealed_round(phase)
            case Gathering() | LastCall():
                for node in state.participants:
                    last = self.told[node].last
                    assert isinstance(last, RoundOpened), f"L1: {node} knows nothing of the round"
                    assert (last.incarnation, last.round) == (state.incarnation, phase.round)
                    given = {notice.node for notice in standing(state, node)}
                    assert given <= self.told[node].notices, "P1: not told"
                self.somebody_moves_it(phase)
            case Closed():
                assert self.run.places() == {}

    def promises_of_a_sealed_round(self, phase: Sealed) -> None:
        state, record = self.state, phase.record
        assert state.settings is not None
        room = goal_of(state.settings) - len(record.seats) - len(state.waiting)
        assert room >= 0, "N1: more nodes wait than there is room for"
        assert phase.done or not (room and state.spares), "N1: a spare could wait"
        assert not (phase.done and state.waiting), "F1: nodes wait while the round is ending"
        assert state.participants, "F1: nobody works, and the round is not over"
        for node in state.participants:
            told = self.told[node]
            assert isinstance(told.last, RoundSealed), f"{node} does not know of its round"
            assert told.last.record == record
            assert told.count == len(state.waiting), "N1: the count is another"
            assert {n.node for n in standing(state, node)} <= told.notices, "P1: not told"
        assert set(state.notices) <= {*state.participants, *state.waiting, *state.spares}
        for place in (state.waiting, state.spares):
            for node in place:
                last = self.told[node].last
                assert isinstance(last, Parked)
                assert last.spare is (place is state.spares)

    def somebody_moves_it(self, phase: Gathering | LastCall) -> None:
        """A round that gathers waits for nodes, or a timer runs; nothing else holds it up."""
        state = self.state
        running = {type(timer) for timer in timers(state)} - {ExclusionOver}
        enough = state.settings is not None and len(state.candidates) >= state.settings.min_nodes
        cut = not all(m.connected for m in state.candidates.values())
        full = state.settings is not None and len(state.candidates) >= goal_of(state.settings)
        if isinstance(phase, LastCall):
            assert running == (set() if phase.over else {LastCallOver})
            assert enough, "J2: a last call with too few"
            assert cut or not phase.over, "J4: over, and not sealed"
            assert cut or not full, "J3: full, and not sealed"
        elif state.participants:
            assert RejoinOver in running, "G1: nothing ends the wait for those who are due"
        elif enough and not cut:  # else the host's grace holds it up
            assert running == {ReplacementWaitOver}, "J5: nothing holds it up, and not sealed"
            assert phase.lost
            assert not full, "J3: full, and not sealed"

    @staticmethod
    def rejoining(state: RunState, node: str) -> Join:
        due = round_number(state.phase) - 1
        assert state.settings is not None
        member = state.participants[node]
        return Join(member.node, state.settings, incarnation=state.incarnation, after=due)

    def lives(self, rejoining: bool) -> None:
        """From here, with nodes enough, timers and graces that end, the round is sealed.

        One that began beyond the budget is closed instead, if nobody is lost on the way (B1).
        """
        state = self.state
        if isinstance(state.phase, Sealed | Closed):
            return
        spent = state.restarts > budget_of(state)
        number = round_number(state.phase)
        if rejoining:
            for node in sorted(state.participants):
                if node in state.participants and not isinstance(state.phase, Sealed | Closed):
                    state = advance(state, self.rejoining(state, node)).state
        for node, member in sorted(state.candidates.items()):
            if not member.connected and not isinstance(state.phase, Sealed | Closed):
                back = (
                    Reconnected(node) if rejoining else Lost(node, Cause.DISCONNECT, member.beats)
                )
                state = advance(state, back).state
        wanted: Settings = state.settings or self.run.settings
        for count in range(wanted.min_nodes):
            fresh = a_node(f"fresh{count}")
            if not isinstance(state.phase, Sealed | Closed):
                state = advance(state, Join(fresh, wanted)).state
        for _ in range(3):
            for timer in timers(state):
                state = advance(state, timer).state
        if spent and (rejoining or isinstance(state.phase, Closed)):
            assert isinstance(state.phase, Closed), "stuck"
            return
        assert isinstance(state.phase, Sealed), "stuck"
        assert state.phase.record.number == number


NODE_FIELDS = {"slot", "node_rank", "topology", "local_world_size"}

TestCore = CoreMachine.TestCase
TestCore.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,  # a busy machine is no failure
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
