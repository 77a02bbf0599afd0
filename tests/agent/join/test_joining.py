import queue
import threading

import pytest
from tests.agent.test_loop import LIMIT_SECONDS, FakeHandler, sealed

from rallypoint import backoff
from rallypoint.agent.join.handlers import Round
from rallypoint.agent.join.health_check import Checkup
from rallypoint.agent.join.joining import Joining
from rallypoint.agent.policy import events as e
from rallypoint.core.events import RunClosed
from rallypoint.core.state import Failure, Verdict
from rallypoint.errors import (
    AuthenticationError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.rendezvous.view import View


class Checks(Checkup):
    """Answers what it was made with, and then that the node is well."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    def run(self) -> str:
        return self.answers.pop(0) if self.answers else ""


def joined(
    handler: FakeHandler, seconds: float = 600.0, checkup: Checkup | None = None
) -> Round | e.JoinFailed:
    answers: queue.Queue[Round | e.JoinFailed] = queue.Queue()
    joining = Joining(handler, answers.put, seconds, checkup)
    joining.begin("because")
    answer = answers.get(timeout=LIMIT_SECONDS)
    joining.end()
    return answer


def test_a_round_is_the_answer() -> None:
    assert joined(FakeHandler(sealed(1))) == sealed(1)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RendezvousGracefulExitError("x"), e.JoinError.NOT_NEEDED),
        (RendezvousClosedError("x"), e.JoinError.CLOSED),
        (RendezvousTimeoutError("x"), e.JoinError.TIMEOUT),
        (RendezvousConnectionError("x"), e.JoinError.CONNECTION),
        (RendezvousStateError("x"), e.JoinError.REFUSED),
        (AuthenticationError("x"), e.JoinError.REFUSED),
    ],
)
def test_each_error_has_its_kind(error: Exception, kind: e.JoinError) -> None:
    assert joined(FakeHandler(error)) == e.JoinFailed(kind, "x")


def test_a_wrong_token_is_a_refusal_wherever_it_is_found() -> None:
    error = RendezvousConnectionError("x")
    error.__cause__ = AuthenticationError("unknown token")
    assert joined(FakeHandler(error)) == e.JoinFailed(e.JoinError.REFUSED, "x")


def test_a_fault_of_ours_is_shown_whole() -> None:
    answer = joined(FakeHandler(KeyError("oh")))
    assert isinstance(answer, e.JoinFailed)
    assert answer.error is e.JoinError.OTHER
    assert "Traceback" in answer.text


def test_what_became_of_a_closed_run_is_told_along() -> None:
    handler = FakeHandler(RendezvousClosedError("x"))
    failure = Failure("node-b", 0, 0, 1)
    closed = RunClosed(1, 1, "node-b", "noon", "budget", Verdict.BUDGET, (failure,))
    handler.told = View(closed=closed)
    assert joined(handler) == e.JoinFailed(e.JoinError.CLOSED, "x", (failure,), Verdict.BUDGET)


def test_h1_a_node_takes_no_seat_until_it_is_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
    handler = FakeHandler(sealed(1))
    assert joined(handler, 600.0, Checks("no disk", "still no disk")) == sealed(1)
    assert handler.log == ["join: because"]
    out = capsys.readouterr().out
    assert "no disk; this node takes no seat; looking again in 0.01 s" in out
    assert "still no disk; this node takes no seat; looking again in 0.02 s" in out


def test_h1_a_node_that_is_not_well_in_time_says_so() -> None:
    handler = FakeHandler(sealed(1))
    answer = joined(handler, 0.5, Checks("no disk"))
    assert answer == e.JoinFailed(
        e.JoinError.UNHEALTHY,
        "no disk; this node takes no seat, and was not well within 0.5 s (--join-timeout)",
    )
    assert handler.log == [], "it has asked for nothing"


def test_an_agent_that_ends_waits_for_no_health() -> None:
    answers: queue.Queue[Round | e.JoinFailed] = queue.Queue()
    joining = Joining(FakeHandler(), answers.put, 600.0, Checks(*["no disk"] * 9))
    joining.begin("")
    threading.Timer(0.05, joining.end).start()
    answer = answers.get(timeout=LIMIT_SECONDS)
    assert answer == e.JoinFailed(e.JoinError.UNHEALTHY, "the agent ends")


def test_why_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    answers: queue.Queue[Round | e.JoinFailed] = queue.Queue()
    joining = Joining(FakeHandler(sealed(1), sealed(2)), answers.put, 600.0)
    joining.begin("its worker failed", told=True)
    answers.get(timeout=LIMIT_SECONDS)
    joining.end()
    assert capsys.readouterr().out == ""
    joining.begin("was fenced")
    answers.get(timeout=LIMIT_SECONDS)
    joining.end()
    assert capsys.readouterr().out == "rallypoint: joining the next round: was fenced\n"
