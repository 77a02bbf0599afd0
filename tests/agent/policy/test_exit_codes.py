import pytest

from rallypoint.agent.policy import events as e
from rallypoint.agent.policy import exit_codes
from rallypoint.core.state import Failure, Verdict

FAILURE = Failure("node-b", 5, 1, 3)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (e.JoinError.NOT_NEEDED, 0),
        (e.JoinError.CLOSED, 4),
        (e.JoinError.TIMEOUT, 3),
        (e.JoinError.CONNECTION, 3),
        (e.JoinError.UNHEALTHY, 3),
        (e.JoinError.REFUSED, 93),
        (e.JoinError.OTHER, 1),
    ],
)
def test_exit_after_a_failed_join(error: e.JoinError, code: int) -> None:
    end = exit_codes.of_join(e.JoinFailed(error, "why", (FAILURE,)), 3)
    assert end.code == code
    assert end.text == ("" if code == 0 else "why")


@pytest.mark.parametrize(
    ("verdict", "max_restarts", "code"),
    [
        (Verdict.FINISHED, 3, 0),
        (Verdict.CLOSED, 3, 4),
        (Verdict.BUDGET, 3, 93),
        (Verdict.BUDGET, 0, 1),  # nobody has tried whether a restart helps
    ],
)
def test_closed_run_gives_the_same_exit_during_a_join(
    verdict: Verdict, max_restarts: int, code: int
) -> None:
    closed = e.RunClosed(1, "node-b", "its budget is used up", verdict, (FAILURE,))
    assert exit_codes.of_run(closed, max_restarts).code == code
    joining = e.JoinFailed(e.JoinError.CLOSED, "closed", (FAILURE,), verdict)
    if verdict is not Verdict.FINISHED:
        assert exit_codes.of_join(joining, max_restarts).code == code
        assert exit_codes.of_run(closed, max_restarts).failures == (FAILURE,)


def test_exit_after_a_signal() -> None:
    assert exit_codes.of_signal(e.Signal("SIGTERM", 15)) == e.Exit(143, "received SIGTERM")


def test_replaced_node_exits_but_a_fenced_one_may_rejoin() -> None:
    assert exit_codes.of_fence(e.Fenced("was silent")) is None
    end = exit_codes.of_fence(e.Fenced("node-c has its slot", replaced=True))
    assert end is not None
    assert (end.code, end.text) == (93, "this node was replaced for good: node-c has its slot")


def test_only_a_closed_run_has_its_verdict_as_exit_code() -> None:
    failed = e.JoinFailed(e.JoinError.TIMEOUT, "why", (), Verdict.BUDGET)
    assert exit_codes.of_join(failed, 3).code == 3
