"""Faults planted in the core, the hosts, the sessions and the disk: each must be caught.

Each is one small change of what is shipped, put in place with pytest's monkeypatch for as
long as a search runs. `CASES` says in which kind of world it shows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

import rallypoint.core.advance as core
from rallypoint.agent.policy import decisions, view_events
from rallypoint.core import departures, exclusion, joins, ranks, rounds
from rallypoint.core.events import (
    Event,
    Finish,
    Join,
    Leave,
    RejoinOver,
    RoundOpened,
    RoundSealed,
    assignment,
)
from rallypoint.core.mutable_state import MutableState
from rallypoint.core.state import Gathering, Round, Sealed, Verdict
from rallypoint.rendezvous.client.session import Session
from rallypoint.rendezvous.serverless.failure_detector import FailureDetector
from rallypoint.server import connection, runs, store_host
from rallypoint.server.journal import records
from rallypoint.server.journal.group_commit import GroupCommit
from rallypoint.testing.simulator import Kind
from rallypoint.testing.simulator.server import SimulatedJournal, SimulatedWriter
from rallypoint.testing.simulator.serverless import Cell

Patch = pytest.MonkeyPatch
change = msgspec.structs.replace


class Case(NamedTuple):
    """A planted fault.

    Args:
        name: what is wrong.
        plant: puts it in place.
        shared: whether it is about worlds without a server.
        seeds: within how many seeds it must be caught.
        about: only seeds in which one of these goes wrong are run; none: all.
    """

    name: str
    plant: Callable[[Patch], None]
    shared: bool = False
    seeds: int = 2000
    about: tuple[Kind, ...] = ()


def no_guard(patch: Patch) -> None:
    original = rounds.settle

    def settle(d: MutableState, **over: Any) -> None:
        missing, d.participants = d.participants, {}
        original(d, **over)
        if not isinstance(d.phase, Sealed):
            d.participants = missing

    def only_gathering(d: MutableState, **over: Any) -> None:
        (settle if isinstance(d.phase, Gathering) else original)(d, **over)

    patch.setattr(rounds, "settle", only_gathering)


def rule(patch: Patch, event: type, apply: Callable[[MutableState, Any], None]) -> None:
    patch.setitem(core.TRANSITIONS, event, apply)


def fenced_ids_are_welcome(patch: Patch) -> None:
    def join(d: MutableState, e: Join) -> None:
        d.fenced.pop(e.node.id, None)
        joins.join(d, change(e, after=0) if d.place_of(e.node.id) is None else e)

    rule(patch, Join, join)


def leaving_closes(patch: Patch) -> None:
    def leave(d: MutableState, e: Leave) -> None:
        departures.leave(d, e)
        if isinstance(d.phase, Gathering) and d.round > 1:
            rounds.close_run(d, e.node, "", "a node left", Verdict.CLOSED)

    rule(patch, Leave, leave)


def first_finish_closes(patch: Patch) -> None:
    def finish(d: MutableState, e: Finish) -> None:
        departures.finish(d, e)
        if isinstance(d.phase, Sealed) and d.phase.done:
            rounds.close_run(d, e.node, "", "one has finished", Verdict.FINISHED)

    rule(patch, Finish, finish)


def late_timers_count(patch: Patch) -> None:
    def set_timers(self: runs.RunHost, step: core.Step) -> None:
        for timer in step.timers:
            if timer not in self._timers:
                self._start_timer(timer, core.timer_seconds(self.state, timer))

    def rejoin_over(d: MutableState, e: RejoinOver) -> None:
        if isinstance(d.phase, Gathering):
            for late in list(d.participants.values()):
                departures.lose(d, late.node, "did not join in time")

    patch.setattr(runs.RunHost, "_set_timers", set_timers)
    rule(patch, RejoinOver, rejoin_over)


def results_are_not_kept(patch: Patch) -> None:
    call = store_host.StoreHost.call

    def forgetful(self: store_host.StoreHost, client_id: bytes, asked: Any) -> None:
        for client in self.clients.values():
            client.results.clear()
        call(self, client_id, asked)

    patch.setattr(store_host.StoreHost, "call", forgetful)


def old_connections_count(patch: Patch) -> None:
    patch.setattr(connection.Connection, "_replaces", lambda self, former: True)


def the_answer_changes(patch: Patch) -> None:
    def again(record: Round) -> RoundSealed:
        return RoundSealed(change(record, reason="told again"))

    patch.setattr(joins, "RoundSealed", again)


def each_is_told_its_own_address(patch: Patch) -> None:
    seat = assignment
    patch.setattr(runs, "assignment", lambda r, n: change(seat(r, n), master_port=1000 + n))


def graces_run_on(patch: Patch) -> None:
    def stop_grace(self: runs.RunHost, who: str) -> bool:
        return self._graces.pop(who, None) is not None

    patch.setattr(runs.RunHost, "_stop_grace", stop_grace)


def gaps_count_as_silence(patch: Patch) -> None:
    patch.setattr(runs.RunHost, "_forgive", lambda self, now, gap, lease: None)


def told_before_stored(patch: Patch) -> None:
    patch.setattr(
        GroupCommit, "hold", lambda self, receiver, data, aside=False: receiver.release(data)
    )


def readers_do_not_wait(patch: Patch) -> None:
    def hold(self: GroupCommit, receiver: Any, data: bytes, aside: bool = False) -> None:
        if self._marked or self._held_for_next:
            self._held_for_next.append((receiver, data, aside))
        else:
            receiver.release(data)

    patch.setattr(GroupCommit, "hold", hold)


def disks_are_not_synced(patch: Patch) -> None:
    def sync(self: SimulatedWriter, done: Any) -> None:
        self._process.soon(done, None)

    patch.setattr(SimulatedWriter, "_sync", sync)


def two_leaders_without_a_fence(patch: Patch) -> None:
    patch.setattr(SimulatedJournal, "leads", True)
    patch.setattr(SimulatedJournal, "may_answer", lambda self: True)


def results_are_not_stored(patch: Patch) -> None:
    kept = records._kept

    def bare(client: Any) -> bytes | None:
        if client is None:
            return None
        twin = store_host.ClientRecord(client.since, client.record)
        return kept(twin)

    patch.setattr(records, "_kept", bare)


def blind_writes(patch: Patch) -> None:
    def write(self: Cell, data: bytes, token: Any) -> bool:
        self.data, self.version = data, self.version + 1
        self._stored(data)
        return True

    patch.setattr(Cell, "compare_and_set", write)


def beats_are_not_seen(patch: Patch) -> None:
    silent = FailureDetector._silent

    def blind(self: FailureDetector, state: Any, *given: Any) -> Any:
        return silent(self, state, *given) if not self._heartbeats else _judge(self, state, *given)

    def _judge(self: FailureDetector, state: Any, me: str, now: float, lease: float) -> list[Event]:
        before = {who: sign.at for who, sign in self._heartbeats.items()}
        lost = silent(self, state, me, now, lease)
        for who, at in before.items():
            if who in self._heartbeats:
                self._heartbeats[who].at = at
        return lost

    patch.setattr(FailureDetector, "_silent", blind)


def a_seat_is_not_told(patch: Patch) -> None:
    send = runs.RunHost._send

    def lossy(self: runs.RunHost, to: tuple[str, ...], message: Any) -> None:
        cut = isinstance(message, RoundSealed) and message.record.number > 1
        send(self, to[1:] if cut else to, message)

    patch.setattr(runs.RunHost, "_send", lossy)


def nobody_resumes(patch: Patch) -> None:
    patch.setattr(Session, "greetings", lambda self: list(self._pending.values()))


def fenced_nodes_work_on(patch: Patch) -> None:
    events_of = view_events.events_of
    patch.setattr(
        view_events,
        "events_of",
        lambda *given: [e for e in events_of(*given) if type(e).__name__ != "Fenced"],
    )


def opened_rounds_are_overlooked(patch: Patch) -> None:
    patch.setattr(decisions, "_newer", lambda *given: False)


def newcomers_first(patch: Patch) -> None:
    order = ranks.seat_order
    patch.setattr(ranks, "seat_order", lambda m: tuple(-each for each in order(m)))


def no_budget(patch: Patch) -> None:
    patch.setattr(rounds, "is_spent", lambda d, settings: False)


def nobody_is_put_out(patch: Patch) -> None:
    patch.setattr(exclusion, "_remove", lambda d, member, out: None)


def who_is_kept_out_comes_in(patch: Patch) -> None:
    patch.setattr(exclusion, "bars", lambda d, node: False)


def round_numbers_stay(patch: Patch) -> None:
    def open_round(d: MutableState, why: str, lost: tuple[str, ...] = ()) -> None:
        number = d.round
        rounds.open_round(d, why, lost)
        if isinstance(d.phase, Gathering):
            d.phase = change(d.phase, round=number)

    patch.setattr(joins, "open_round", open_round)


def ranks_twice(patch: Patch) -> None:
    assign = ranks.assign_ranks

    def twice(members: Any) -> Any:
        seated = assign(members)
        return [*seated[:-1], seated[0]] if len(seated) > 3 else seated

    patch.setattr(ranks, "assign_ranks", twice)


def reasons_are_made_up(patch: Patch) -> None:
    opened = RoundOpened
    patch.setattr(rounds, "RoundOpened", lambda i, n, why, lost: opened(i, n, "", lost))


CASES = [
    Case("G1: a round is sealed without a node that is alive", no_guard),
    Case("G1, without a server", no_guard, shared=True),
    Case("L2: a fenced id is accepted", fenced_ids_are_welcome),
    Case("L3: a leave closes the run", leaving_closes),
    Case("F1: the first finish closes the run", first_finish_closes),
    Case("E1: a timer that is too late counts", late_timers_count),
    Case("E1: a sealed round changes when it is told again", the_answer_changes),
    Case(
        "E1: what an old connection says counts",
        old_connections_count,
        seeds=9000,
        about=(Kind.PART, Kind.PART_UP),
    ),
    Case("each node is told an address of its own", each_is_told_its_own_address),
    Case("results of calls are not kept", results_are_not_kept),
    Case("a grace is not stopped by coming back", graces_run_on),
    Case("the judge's own absence counts as silence", gaps_count_as_silence),
    Case("told before it is stored", told_before_stored),
    Case("read by others before it is stored", readers_do_not_wait, seeds=6000),
    Case("stored and not synced", disks_are_not_synced),
    Case("two servers lead, and nothing keeps them apart", two_leaders_without_a_fence),
    Case("results of calls are not stored", results_are_not_stored, seeds=6000),
    Case("compare-and-set without comparing", blind_writes, shared=True),
    Case("heartbeats are not seen", beats_are_not_seen, shared=True),
    Case("a seat is not told", a_seat_is_not_told),
    Case("a session does not resume", nobody_resumes),
    Case("an agent works on though it was fenced", fenced_nodes_work_on),
    Case("an agent overlooks that its round is over", opened_rounds_are_overlooked),
    Case("S2: newcomers push out members", newcomers_first),
    Case("B1: the budget is not kept", no_budget),
    Case("H1: a node that is excluded keeps its place", nobody_is_put_out),
    Case("H1: a node that is kept out is let in", who_is_kept_out_comes_in),
    Case("the round's number does not grow", round_numbers_stay),
    Case("one rank twice", ranks_twice),
    Case("workers are ended without a reason", reasons_are_made_up),
]
