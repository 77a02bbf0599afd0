"""When nodes join or leave a round at work, so that the workers save first. PURE.

Two causes can wait until the workers have saved: nodes that wait to be admitted, and a node
that will leave. A setting says what happens to newcomers:

    now         they are admitted at once, after a short pause to gather several (case-C5)
    checkpoint  the workers are asked to save; the round changes once all ranks have saved
    never       they wait until something else opens a round

A leaving node is waited for in the same way: always after a notice; after a signal to its
agent only under `checkpoint`. A lost node is not waited for: there is nothing to save (L1).

Every agent announces the change to its own workers, which agree on a step (`worker.saving`).
One agent acts: that of rank 0 for newcomers, and that of the leaving node. It waits until all
ranks have saved, then joins again or leaves, which opens the next round for all nodes (N2, L1).
No worker is stopped before all have saved, unless the grace is over.
"""

import msgspec

from rallypoint.agent.policy import events
from rallypoint.agent.policy.exit_codes import EXIT_SIGNAL_BASE
from rallypoint.core.events import Assignment
from rallypoint.core.state import Newcomers
from rallypoint.worker.change import ChangeKind

SIGTERM = 15  # the signal that a notice announces; it gives the exit code of a node that leaves


class MembershipRules(msgspec.Struct, frozen=True):
    """When an agent lets nodes join and leave.

    Args:
        admit: what happens to nodes that wait to be admitted.
        gather_seconds: pause after a newcomer under `now`, so that several make one round.
        grace_seconds: time for the workers to save, unless a notice gives less.
    """

    admit: Newcomers = Newcomers.NOW
    gather_seconds: float = 0.1
    grace_seconds: float = 60.0


class Change(msgspec.Struct, frozen=True):
    """A change that waits for the workers to save.

    Args:
        kind: of the change.
        node: id of the node that leaves, "" for this one or for newcomers.
        who: the node or nodes, for people.
        why: reason, for people.
        seconds: time for the workers to save.
    """

    kind: ChangeKind
    node: str
    who: str
    why: str
    seconds: float


class MembershipState(msgspec.Struct, frozen=True):
    """The pending changes of a round, as one agent sees them.

    Args:
        waiting: number of nodes that wait to be admitted.
        leaving: how this agent exits once the workers have saved, None if it does not leave.
        notices: current notices whose time is not over.
        over: ids of nodes whose notice's time is over; they are not waited for again.
        asked: the change that was announced to the workers, None if none was.
        timer: number of the first timer that runs, 0 for none; later ones run beside it.
        timers: number of timers started so far.
    """

    waiting: int = 0
    leaving: events.Exit | None = None
    notices: tuple[events.Notice, ...] = ()
    over: frozenset[str] = frozenset()
    asked: Change | None = None
    timer: int = 0
    timers: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """The result of an event. If `then` is set, the workers are stopped and it follows."""

    membership: MembershipState
    actions: tuple[events.Action, ...] = ()
    reason: str = ""
    then: events.Join | events.Exit | None = None


def decide(
    membership: MembershipState,
    rules: MembershipRules,
    seat: Assignment,
    event: events.NodesWaiting
    | events.NoticesChanged
    | events.ChangeTimerElapsed
    | events.WorkersSaved,
) -> Outcome:
    """Return what an agent whose workers run does about an event."""
    match event:
        case events.NodesWaiting(count=count):
            return _update(msgspec.structs.replace(membership, waiting=count), rules, seat)
        case events.NoticesChanged(notices=notices):
            new = tuple(one for one in notices if one.node not in membership.over)
            return _update(msgspec.structs.replace(membership, notices=new), rules, seat)
        case events.ChangeTimerElapsed(round=number, timer=timer):
            runs = 0 < membership.timer <= timer  # the first that elapses counts
            if number != seat.round or not runs:
                return Outcome(membership)
            return _due(msgspec.structs.replace(membership, timer=0), rules, seat)
    if event.round != seat.round:
        return Outcome(membership)
    return _saved(membership, rules, seat, event.step)


def asked_to_leave(
    membership: MembershipState, rules: MembershipRules, seat: Assignment, end: events.Exit
) -> Outcome:
    """Return what happens when this agent is asked to end, with `end` as its exit.

    The second time it ends at once.
    """
    if rules.admit is not Newcomers.CHECKPOINT or membership.leaving is not None:
        return Outcome(membership, then=end, reason=end.text)
    return will_leave(membership, rules, seat, end)


def will_leave(
    membership: MembershipState, rules: MembershipRules, seat: Assignment, end: events.Exit
) -> Outcome:
    """Return what happens when this agent will have to leave; all nodes are notified."""
    if membership.leaving is not None:
        return Outcome(membership)
    asked = _update(msgspec.structs.replace(membership, leaving=end), rules, seat)
    notice = events.GiveNotice(end.text, rules.grace_seconds)
    return msgspec.structs.replace(asked, actions=(*asked.actions, notice))


def _wanted(membership: MembershipState, rules: MembershipRules) -> Change | None:
    """Return the change to save for, the most urgent one first."""
    end = membership.leaving
    if end is not None:
        own = [n.seconds for n in membership.notices if n.mine and n.seconds is not None]
        seconds = min([rules.grace_seconds, *own])
        return Change(ChangeKind.LEAVING, "", "this node", end.text, seconds)
    for notice in sorted(membership.notices, key=lambda one: not one.mine):
        known = rules.grace_seconds if notice.seconds is None else notice.seconds
        seconds = min(rules.grace_seconds, known)
        return Change(ChangeKind.LEAVING, notice.node, notice.label, notice.why, seconds)
    if membership.waiting and rules.admit is Newcomers.CHECKPOINT:
        who = _nodes(membership.waiting)
        return Change(ChangeKind.JOINING, "", who, wait(membership.waiting), rules.grace_seconds)
    return None


def _update(membership: MembershipState, rules: MembershipRules, seat: Assignment) -> Outcome:
    """Announce the change that is wanted now, or cancel one that no longer is."""
    wanted, asked = _wanted(membership, rules), membership.asked
    if wanted is not None and (asked is None or _differ(wanted, asked)):
        return _ask(membership, seat, wanted)
    if wanted is not None and asked is not None and wanted.seconds < asked.seconds:
        return _shorten(membership, seat, wanted)
    if wanted is None and asked is not None:
        off = msgspec.structs.replace(membership, asked=None, timer=0)
        cancelled = Outcome(
            off, (events.CancelChange(),), f"no change is pending any more ({asked.why})"
        )
        return cancelled if not membership.waiting else _gather(cancelled, rules, seat)
    return Outcome(membership) if wanted else _gather(Outcome(membership), rules, seat)


def _differ(one: Change, other: Change) -> bool:
    return (one.kind, one.node) != (other.kind, other.node)


def _ask(membership: MembershipState, seat: Assignment, change: Change) -> Outcome:
    begun, timer = _timer(membership, seat, change.seconds)
    begun = msgspec.structs.replace(begun, asked=change)
    ask = events.AskToSave(
        seat.incarnation,
        seat.round,
        change.kind,
        change.who,
        change.why,
        change.seconds,
        watch=seat.rank == 0 or end_of(membership) is not None,
    )
    reason = f"{change.why}: the workers have {change.seconds:g} s to save first"
    return Outcome(begun, (ask, timer), reason)


def _shorten(membership: MembershipState, seat: Assignment, change: Change) -> Outcome:
    """Start a shorter timer; the workers need no new announcement, they save as soon as they can.

    The first timer keeps running beside it, and may still elapse first.
    """
    begun, timer = _timer(membership, seat, change.seconds)
    both = msgspec.structs.replace(begun, asked=change, timer=membership.timer)
    return Outcome(both, (timer,), f"{change.why}: the workers have only {change.seconds:g} s now")


def _gather(so_far: Outcome, rules: MembershipRules, seat: Assignment) -> Outcome:
    """Admit newcomers after a short pause, if nothing has to be saved."""
    membership = so_far.membership
    if rules.admit is not Newcomers.NOW or not membership.waiting or membership.timer:
        return so_far
    begun, timer = _timer(membership, seat, rules.gather_seconds)
    return Outcome(begun, (*so_far.actions, timer), wait(membership.waiting))


def _timer(
    membership: MembershipState, seat: Assignment, seconds: float
) -> tuple[MembershipState, events.StartChangeTimer]:
    number = membership.timers + 1
    begun = msgspec.structs.replace(membership, timer=number, timers=number)
    return begun, events.StartChangeTimer(seat.round, seconds, number)


def _due(membership: MembershipState, rules: MembershipRules, seat: Assignment) -> Outcome:
    asked = membership.asked
    late = f"; the workers have not saved in {asked.seconds:g} s" if asked else ""
    then = _change(membership, rules, late)
    if then is not None or asked is None:
        return Outcome(membership, then=then, reason=_text(then))
    over = msgspec.structs.replace(
        membership,
        asked=None,
        notices=tuple(one for one in membership.notices if one.node != asked.node),
        over=membership.over | {asked.node},
    )
    cancelled = Outcome(
        over, (events.CancelChange(),), f"{asked.who} has not left in {asked.seconds:g} s"
    )
    updated = _update(over, rules, seat)
    return updated if updated.actions else cancelled


def _saved(
    membership: MembershipState, rules: MembershipRules, seat: Assignment, step: int
) -> Outcome:
    then = _change(membership, rules, f"; all workers have saved at step {step}")
    if then is not None:
        return Outcome(membership, then=then, reason=_text(then))
    if membership.notices:
        return Outcome(membership)  # the leaving node acts next
    release = events.ReleaseWorkers(seat.incarnation, seat.round, step)
    return Outcome(membership, (release,), "the workers have saved, but no change is pending")


def end_of(membership: MembershipState) -> events.Exit | None:
    """Return how this agent exits if its round ends now, None if it joins the next round."""
    if membership.leaving is not None:
        return membership.leaving
    for notice in membership.notices:
        if notice.mine:
            return events.Exit(EXIT_SIGNAL_BASE + SIGTERM, f"this node leaves: {notice.why}")
    return None


def _change(
    membership: MembershipState, rules: MembershipRules, how: str
) -> events.Join | events.Exit | None:
    """Return what this agent does once no save is waited for."""
    if end := end_of(membership):
        return msgspec.structs.replace(end, text=end.text + how)
    if membership.waiting and rules.admit is not Newcomers.NEVER:
        return events.Join(wait(membership.waiting) + how)
    return None


def _text(then: events.Join | events.Exit | None) -> str:
    if then is None:
        return ""
    return then.why if isinstance(then, events.Join) else then.text


def wait(count: int) -> str:
    """Return "1 node waits" or "N nodes wait"."""
    return f"{_nodes(count)} waits" if count == 1 else f"{_nodes(count)} wait"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
