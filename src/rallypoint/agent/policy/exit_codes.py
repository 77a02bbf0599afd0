"""The exit code and the closing message of an agent. PURE.

A scheduler decides by the code whether to restart: 93 means that a restart would fail the same
way, 3 and 4 that this node was not at fault. docs/exit-codes.md lists all codes.
"""

from rallypoint.agent.policy.events import (
    Exit,
    Fenced,
    JoinError,
    JoinFailed,
    PreemptSignal,
    RunClosed,
    Signal,
)
from rallypoint.core.state import Verdict

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_JOINED = 3
EXIT_CLOSED = 4
EXIT_NO_RESTART = 93
EXIT_SIGNAL_BASE = 128

_OF_JOIN = {
    JoinError.NOT_NEEDED: EXIT_DONE,
    JoinError.CLOSED: EXIT_CLOSED,
    JoinError.TIMEOUT: EXIT_NOT_JOINED,
    JoinError.CONNECTION: EXIT_NOT_JOINED,
    JoinError.UNHEALTHY: EXIT_NOT_JOINED,
    JoinError.REFUSED: EXIT_NO_RESTART,
    JoinError.OTHER: EXIT_FAILED,
}


def of_signal(signal: Signal | PreemptSignal) -> Exit:
    """Return the exit after a signal that asked this agent to end."""
    return Exit(EXIT_SIGNAL_BASE + signal.number, f"received {signal.name}")


def of_run(closed: RunClosed, max_restarts: int) -> Exit:
    """Return the exit after the run was closed."""
    if closed.finished:
        return Exit(EXIT_DONE)
    text = f"the run was closed by {closed.by}: {closed.why}"
    return Exit(_of_verdict(closed.verdict, max_restarts), text, closed.failures)


def of_fence(fenced: Fenced) -> Exit | None:
    """Return the exit of a fenced node, None if it may rejoin as a newcomer."""
    if not fenced.replaced:
        return None
    return Exit(EXIT_NO_RESTART, f"this node was replaced for good: {fenced.why}")


def of_join(failed: JoinFailed, max_restarts: int) -> Exit:
    """Return the exit after a join that ended without a round."""
    if failed.error is JoinError.NOT_NEEDED:
        return Exit(EXIT_DONE)
    code = _OF_JOIN[failed.error]
    if failed.error is JoinError.CLOSED and failed.verdict is not None:
        code = _of_verdict(failed.verdict, max_restarts)
    return Exit(code, failed.text, failed.failures)


def _of_verdict(verdict: Verdict, max_restarts: int) -> int:
    """With max_restarts=0, one failure says nothing about whether a restart would help."""
    if verdict is Verdict.BUDGET:
        return EXIT_NO_RESTART if max_restarts else EXIT_FAILED
    return EXIT_CLOSED
