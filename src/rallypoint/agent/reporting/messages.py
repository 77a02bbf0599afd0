"""What a node that waits, for its round or for its workers' end, tells its user. PURE."""

from rallypoint.agent.policy.decisions import Decision
from rallypoint.agent.policy.events import Event, Signal, StopWorkers
from rallypoint.core.explain import goal_of, nodes
from rallypoint.rendezvous.coordinator import NodeStatus, Report
from rallypoint.rendezvous.reports.status import done_sentence
from rallypoint.wallclock import duration

NAMES_SHOWN = 3
_JOINING = ("gathering", "last call")
_AT_WORK = "sealed"  # who waits for a seat meanwhile waits as long as the round lasts


def stopping_line(event: Event | None, decision: Decision) -> str:
    """Return what a signal that ends the workers brings, "" if this is none."""
    for action in decision.actions:
        if isinstance(event, Signal) and isinstance(action, StopWorkers):
            if not action.grace_seconds:
                return f"received {event.name}: ending the workers at once"
            return (
                f"received {event.name}: stopping the workers, up to {action.grace_seconds:g} s; "
                "again to end the grace"
            )
    return ""


def waiting_line(report: Report, age_seconds: float, left_seconds: float) -> str:
    """Return what is there, who is waited for, and when the wait ends.

    Args:
        report: what the run is doing; one without members tells its reason only.
        age_seconds: how old the report is.
        left_seconds: until the join gives up.
    """
    state = _state(report, age_seconds)
    if report.phase == _AT_WORK:
        return state
    return f"{state}; join ends in {duration(max(0.0, left_seconds))}"


def _state(report: Report, age: float) -> str:
    settings = report.settings
    if report.phase not in _JOINING or settings is None or not report.members:
        return report.reason
    have = sum(member.place == "candidate" for member in report.members)
    absent = [member for member in report.members if member.place == "participant"]
    wanted = goal_of(settings) if have >= settings.min_nodes else settings.min_nodes
    missing = max(len(absent), wanted - have)
    if report.phase == "last call":
        return f"{have} of at most {nodes(wanted)}, {_last_call(report, age)}"
    text = f"{have} of {nodes(max(wanted, have + len(absent)))}, waiting for {missing}"
    seen = _seen(absent, age) or done_sentence(report) or _gone(report, age)
    return f"{text}: {seen}" if seen else text


def _last_call(report: Report, age: float) -> str:
    for timer in report.timers:
        if timer.setting == "last_call" and timer.remaining_seconds is not None:
            return f"last call ends in {duration(max(0.0, timer.remaining_seconds - age))}"
    return "last call"


def _seen(absent: list[NodeStatus], age: float) -> str:
    shown = [_one(member, age) for member in absent[:NAMES_SHOWN]]
    more = len(absent) - len(shown)
    if not shown:
        return ""
    return f"last seen {', '.join(shown)}" + (f" and {more} more" if more else "")


def _one(member: NodeStatus, age: float) -> str:
    name = member.node.host or member.node.address
    if member.heard_seconds is not None:
        name += f" {_ago(member.heard_seconds + age)}"
    return name if member.connected else f"{name} (its connection is cut)"


def _gone(report: Report, age: float) -> str:
    """Who the round before has lost, or who left: nobody else is known to be missing."""
    ended = [line for line in report.rounds if line.ended_seconds is not None]
    if not ended:
        return "not heard of yet"
    last = ended[-1]
    if not last.lost:
        return ""
    shown = ", ".join(last.lost[:NAMES_SHOWN])
    how = "left" if set(last.lost) <= set(last.left) else "lost"
    return f"{how} {_ago((last.ended_seconds or 0.0) + age)}: {shown}"


def _ago(seconds: float) -> str:
    return f"{duration(seconds) if seconds >= 60 else f'{seconds:.0f} s'} ago"
