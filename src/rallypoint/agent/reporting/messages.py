"""What the agent tells its user: progress of a join, stopping lines, the final report. PURE."""

from collections.abc import Sequence

from rallypoint.agent.policy.decisions import Decision
from rallypoint.agent.policy.events import Event, Exit, Signal, StopWorkers
from rallypoint.agent.policy.exit_codes import EXIT_DONE, EXIT_SIGNAL_BASE
from rallypoint.core.explain import goal_of, nodes
from rallypoint.core.state import Failure
from rallypoint.rendezvous.coordinator import NodeStatus, Report
from rallypoint.rendezvous.reports.status import done_sentence
from rallypoint.wallclock import duration

NAMES_SHOWN = 3
LATER_FAILURES_SHOWN = 8
_JOINING = ("gathering", "last call")
AT_WORK = "sealed"  # a node may then wait for as long as the round lasts


def stopping_line(event: Event | None, decision: Decision) -> str:
    """Return how a signal stops the workers, "" if the event is not such a signal."""
    for action in decision.actions:
        if isinstance(event, Signal) and isinstance(action, StopWorkers):
            if not action.grace_seconds:
                return f"received {event.name}: killing the workers now"
            return (
                f"received {event.name}: stopping the workers within {action.grace_seconds:g} s; "
                "send it again to kill them now"
            )
    return ""


def waiting_line(report: Report, age_seconds: float, left_seconds: float) -> str:
    """Return how many nodes have joined, which are missing, and when the join times out.

    Args:
        report: the run's report; without members only its reason is used.
        age_seconds: age of the report.
        left_seconds: until the join times out.
    """
    state = _state(report, age_seconds)
    if report.phase == AT_WORK:
        return state
    return f"{state}; join timeout in {duration(max(0.0, left_seconds))}"


def _state(report: Report, age: float) -> str:
    settings = report.settings
    if report.phase not in _JOINING or settings is None or not report.members:
        return report.reason
    have = sum(member.place == "candidate" for member in report.members)
    absent = [member for member in report.members if member.place == "participant"]
    wanted = goal_of(settings) if have >= settings.min_nodes else settings.min_nodes
    missing = max(len(absent), wanted - have)
    if report.phase == "last call":
        return f"{have} of at most {nodes(wanted)} have joined; {_last_call(report, age)}"
    text = f"{have} of {nodes(max(wanted, have + len(absent)))}, waiting for {missing}"
    seen = _seen(absent, age) or done_sentence(report) or _gone(report, age)
    return f"{text}: {seen}" if seen else text


def _last_call(report: Report, age: float) -> str:
    for timer in report.timers:
        if timer.setting == "last_call" and timer.remaining_seconds is not None:
            return f"starting in {duration(max(0.0, timer.remaining_seconds - age))}"
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
    """Return which nodes the last round lost: no others are known to be missing."""
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


def final_report(end: Exit, own: Sequence[Failure] = ()) -> str:
    """Return the report of a failed run, "" if there is nothing to report.

    The first failure comes first, with the last lines of its stderr, then its consequences.

    Args:
        end: the agent's exit.
        own: failures of this node's workers, used if the coordinator reported none.
    """
    if end.code == EXIT_DONE or end.code >= EXIT_SIGNAL_BASE:
        return ""
    failures = end.failures or tuple(own)
    lines = []
    if failures:
        first, *later = failures
        lines += [f"first failure: {_in_round(first)}", *_quoted(first.message)]
        same = [failure for failure in later if failure.round == first.round]
        lines += _listed("later failures, probably its consequences:", same)
        others = [failure for failure in later if failure.round != first.round]
        lines += [*_listed("in later rounds:", others), ""]
    return "\n".join([*lines, end.text]).strip("\n")


def _in_round(failure: Failure) -> str:
    return f"{failure.label}, in round {failure.round}" if failure.round else failure.label


def _quoted(message: str) -> list[str]:
    if not message.strip():
        return ["  (it wrote nothing to stderr)"]
    return ["  its last lines:", *(f"  | {line}" for line in message.splitlines())]


def _listed(head: str, failures: Sequence[Failure]) -> list[str]:
    if not failures:
        return []
    shown = [f"  {_in_round(failure)}" for failure in failures[:LATER_FAILURES_SHOWN]]
    hidden = len(failures) - len(shown)
    more = [f"  and {hidden} more"] if hidden else []
    return ["", head, *shown, *more]
