"""When a round may change so that nothing is lost: the workers save first. PURE.

Two things ask for a change that can wait: nodes that wait to be let in, and a node that is
about to leave. What is done about newcomers is a setting:

    now         they are let in at once, gathered for a moment (case-C5)
    checkpoint  the workers are asked to save; all ranks having saved, the round changes
    never       they wait until something else opens a round

A node that leaves is waited for in the same way: where a notice was given, always; where a
signal asks this agent to go, under `checkpoint`. A loss waits for nobody: there is nothing left
to save (L1).

Every agent announces the change to its own workers, which agree on a step (`worker.saving`).
The agent that the change begins with, which is rank 0's for newcomers and the leaving node's
own, watches for the word that all ranks have saved, and acts: it joins again, or leaves, and
that opens the next round for all others (N2, L1). No worker is stopped before all have saved,
except when the grace is over.
"""

import msgspec

from rallypoint.agent.policy.events import (
    Action,
    AdmitDue,
    AskToSave,
    Exit,
    GiveNotice,
    Join,
    LetGoOn,
    NodesWaiting,
    Notice,
    NoticesStand,
    StartAdmitTimer,
    TakeBack,
    WorkersSaved,
)
from rallypoint.agent.reporting.exit_codes import EXIT_SIGNAL_BASE
from rallypoint.core.events import Assignment
from rallypoint.core.state import Newcomers
from rallypoint.worker.change import ChangeKind

SIGTERM = 15  # what a notice announces, and what a node that followed it exits as after


class Rules(msgspec.Struct, frozen=True):
    """How an agent lets nodes in and out.

    Args:
        admit: what is done about nodes that wait.
        gather_seconds: wait after a newcomer under `now`, so that several give one new round.
        grace_seconds: time that workers have to save, if a notice does not give them less.
    """

    admit: Newcomers = Newcomers.NOW
    gather_seconds: float = 0.1
    grace_seconds: float = 60.0


class Change(msgspec.Struct, frozen=True):
    """A change that is waited for.

    Args:
        kind: of the change.
        node: id of the node that leaves, "" for this one or for newcomers.
        who: for people.
        why: for people.
        seconds: how long the workers have to save.
    """

    kind: ChangeKind
    node: str
    who: str
    why: str
    seconds: float


class Admission(msgspec.Struct, frozen=True):
    """Where the changes of a round stand, as one agent sees them.

    Args:
        waiting: nodes that wait to be let in.
        leaving: how this agent ends once the workers have saved, None if it does not.
        notices: those that stand and whose time is not over.
        over: ids of nodes whose notice's time is over; they are not waited for again.
        asked: the change that was announced to the workers, None if none is.
        timer: number of the first timer that runs, 0 for none; later ones run beside it.
        timers: how many there were.
    """

    waiting: int = 0
    leaving: Exit | None = None
    notices: tuple[Notice, ...] = ()
    over: frozenset[str] = frozenset()
    asked: Change | None = None
    timer: int = 0
    timers: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """What came of an event: with `then`, the workers are stopped for it."""

    admission: Admission
    actions: tuple[Action, ...] = ()
    reason: str = ""
    then: Join | Exit | None = None


def decide(
    admission: Admission,
    rules: Rules,
    seat: Assignment,
    event: NodesWaiting | NoticesStand | AdmitDue | WorkersSaved,
) -> Outcome:
    """Return what an agent whose workers are at work does about an event."""
    match event:
        case NodesWaiting(count=count):
            return _look(msgspec.structs.replace(admission, waiting=count), rules, seat)
        case NoticesStand(notices=notices):
            new = tuple(one for one in notices if one.node not in admission.over)
            return _look(msgspec.structs.replace(admission, notices=new), rules, seat)
        case AdmitDue(round=number, timer=timer):
            runs = 0 < admission.timer <= timer  # the first that is over counts
            if number != seat.round or not runs:
                return Outcome(admission)
            return _due(msgspec.structs.replace(admission, timer=0), rules, seat)
    if event.round != seat.round:
        return Outcome(admission)
    return _saved(admission, rules, seat, event.step)


def asked_to_go(admission: Admission, rules: Rules, seat: Assignment, end: Exit) -> Outcome:
    """Return what is done when this agent is asked to go, with `end` as its exit.

    Asked again, it goes at once.
    """
    if rules.admit is not Newcomers.CHECKPOINT or admission.leaving is not None:
        return Outcome(admission, then=end, reason=end.text)
    return will_go(admission, rules, seat, end)


def will_go(admission: Admission, rules: Rules, seat: Assignment, end: Exit) -> Outcome:
    """Return what is done when this agent will have to go; all nodes are told."""
    if admission.leaving is not None:
        return Outcome(admission)
    asked = _look(msgspec.structs.replace(admission, leaving=end), rules, seat)
    notice = GiveNotice(end.text, rules.grace_seconds)
    return msgspec.structs.replace(asked, actions=(*asked.actions, notice))


def _wanted(admission: Admission, rules: Rules) -> Change | None:
    """Return the change to save for, the most pressing one first."""
    end = admission.leaving
    if end is not None:
        own = [n.seconds for n in admission.notices if n.mine and n.seconds is not None]
        seconds = min([rules.grace_seconds, *own])
        return Change(ChangeKind.LEAVING, "", "this node", end.text, seconds)
    for notice in sorted(admission.notices, key=lambda one: not one.mine):
        known = rules.grace_seconds if notice.seconds is None else notice.seconds
        seconds = min(rules.grace_seconds, known)
        return Change(ChangeKind.LEAVING, notice.node, notice.label, notice.why, seconds)
    if admission.waiting and rules.admit is Newcomers.CHECKPOINT:
        who = _nodes(admission.waiting)
        return Change(ChangeKind.JOINING, "", who, wait(admission.waiting), rules.grace_seconds)
    return None


def _look(admission: Admission, rules: Rules, seat: Assignment) -> Outcome:
    """Announce what is wanted now, or take back what no longer is."""
    wanted, asked = _wanted(admission, rules), admission.asked
    if wanted is not None and (asked is None or _differ(wanted, asked)):
        return _ask(admission, seat, wanted)
    if wanted is not None and asked is not None and wanted.seconds < asked.seconds:
        return _hasten(admission, seat, wanted)
    if wanted is None and asked is not None:
        off = msgspec.structs.replace(admission, asked=None, timer=0)
        taken = Outcome(off, (TakeBack(),), f"no change is pending any more ({asked.why})")
        return taken if not admission.waiting else _gather(taken, rules, seat)
    return Outcome(admission) if wanted else _gather(Outcome(admission), rules, seat)


def _differ(one: Change, other: Change) -> bool:
    return (one.kind, one.node) != (other.kind, other.node)


def _ask(admission: Admission, seat: Assignment, change: Change) -> Outcome:
    begun, timer = _timer(admission, seat, change.seconds)
    begun = msgspec.structs.replace(begun, asked=change)
    acts = seat.rank == 0 or end_of(admission) is not None
    what = (change.kind, change.who, change.why, change.seconds)
    ask = AskToSave(seat.incarnation, seat.round, *what, watch=acts)
    reason = f"{change.why}: the workers have {change.seconds:g} s to save first"
    return Outcome(begun, (ask, timer), reason)


def _hasten(admission: Admission, seat: Assignment, change: Change) -> Outcome:
    """The workers save as soon as they can anyway: what ends sooner is the wait for them.

    The time that was given first runs on beside it, and may still be over before.
    """
    begun, timer = _timer(admission, seat, change.seconds)
    both = msgspec.structs.replace(begun, asked=change, timer=admission.timer)
    return Outcome(both, (timer,), f"{change.why}: the workers have only {change.seconds:g} s now")


def _gather(so_far: Outcome, rules: Rules, seat: Assignment) -> Outcome:
    """Let newcomers in after a moment, where nothing has to be saved."""
    admission = so_far.admission
    if rules.admit is not Newcomers.NOW or not admission.waiting or admission.timer:
        return so_far
    begun, timer = _timer(admission, seat, rules.gather_seconds)
    return Outcome(begun, (*so_far.actions, timer), wait(admission.waiting))


def _timer(
    admission: Admission, seat: Assignment, seconds: float
) -> tuple[Admission, StartAdmitTimer]:
    number = admission.timers + 1
    begun = msgspec.structs.replace(admission, timer=number, timers=number)
    return begun, StartAdmitTimer(seat.round, seconds, number)


def _due(admission: Admission, rules: Rules, seat: Assignment) -> Outcome:
    asked = admission.asked
    late = f"; the workers have not saved in {asked.seconds:g} s" if asked else ""
    then = _change(admission, rules, late)
    if then is not None or asked is None:
        return Outcome(admission, then=then, reason=_text(then))
    over = msgspec.structs.replace(
        admission,
        asked=None,
        notices=tuple(one for one in admission.notices if one.node != asked.node),
        over=admission.over | {asked.node},
    )
    taken = Outcome(over, (TakeBack(),), f"{asked.who} has not left in {asked.seconds:g} s")
    looked = _look(over, rules, seat)
    return looked if looked.actions else taken


def _saved(admission: Admission, rules: Rules, seat: Assignment, step: int) -> Outcome:
    then = _change(admission, rules, f"; all workers have saved at step {step}")
    if then is not None:
        return Outcome(admission, then=then, reason=_text(then))
    if admission.notices:
        return Outcome(admission)  # the node that leaves does the next step
    go_on = LetGoOn(seat.incarnation, seat.round, step)
    return Outcome(admission, (go_on,), "the workers have saved, but no change is pending any more")


def end_of(admission: Admission) -> Exit | None:
    """Return how this agent ends if its round is over now, None if it goes on to the next."""
    if admission.leaving is not None:
        return admission.leaving
    for notice in admission.notices:
        if notice.mine:
            return Exit(EXIT_SIGNAL_BASE + SIGTERM, f"this node leaves: {notice.why}")
    return None


def _change(admission: Admission, rules: Rules, how: str) -> Join | Exit | None:
    """Return what this agent does once nothing has to be waited for."""
    if end := end_of(admission):
        return msgspec.structs.replace(end, text=end.text + how)
    if admission.waiting and rules.admit is not Newcomers.NEVER:
        return Join(wait(admission.waiting) + how)
    return None


def _text(then: Join | Exit | None) -> str:
    if then is None:
        return ""
    return then.why if isinstance(then, Join) else then.text


def wait(count: int) -> str:
    """Return "1 node waits", or how many do."""
    return f"{_nodes(count)} waits" if count == 1 else f"{_nodes(count)} wait"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
