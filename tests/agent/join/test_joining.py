import os
import queue
import threading
import time
from pathlib import Path

import psutil
import pytest
from tests.agent.test_loop import LIMIT_SECONDS, FakeHandler, sealed

from rallypoint import backoff
from rallypoint.agent.join.handlers import SealedRound
from rallypoint.agent.join.joining import HealthCheck, Joiner
from rallypoint.agent.policy import events as e
from rallypoint.agent.workers import process_tree
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


class Checks(HealthCheck):
    """Returns the given problems one by one, then none."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    def run(self) -> str:
        return self.answers.pop(0) if self.answers else ""


def joined(
    handler: FakeHandler, seconds: float = 600.0, health_check: HealthCheck | None = None
) -> SealedRound | e.JoinFailed:
    answers: queue.Queue[SealedRound | e.JoinFailed] = queue.Queue()
    joiner = Joiner(handler, answers.put, seconds, health_check)
    joiner.begin("because")
    answer = answers.get(timeout=LIMIT_SECONDS)
    joiner.end()
    return answer


def test_sealed_round_is_the_answer() -> None:
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
def test_each_error_has_a_kind(error: Exception, kind: e.JoinError) -> None:
    assert joined(FakeHandler(error)) == e.JoinFailed(kind, "x")


def test_wrong_token_counts_as_refused() -> None:
    error = RendezvousConnectionError("x")
    error.__cause__ = AuthenticationError("unknown token")
    assert joined(FakeHandler(error)) == e.JoinFailed(e.JoinError.REFUSED, "x")


def test_internal_error_keeps_its_traceback() -> None:
    answer = joined(FakeHandler(KeyError("oh")))
    assert isinstance(answer, e.JoinFailed)
    assert answer.error is e.JoinError.OTHER
    assert "Traceback" in answer.text


def test_failed_join_carries_the_verdict_of_a_closed_run() -> None:
    handler = FakeHandler(RendezvousClosedError("x"))
    failure = Failure("node-b", 0, 0, 1)
    closed = RunClosed(1, 1, "node-b", "noon", "budget", Verdict.BUDGET, (failure,))
    handler.told = View(closed=closed)
    assert joined(handler) == e.JoinFailed(e.JoinError.CLOSED, "x", (failure,), Verdict.BUDGET)


def test_h1_node_does_not_join_until_it_is_healthy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
    handler = FakeHandler(sealed(1))
    assert joined(handler, 600.0, Checks("no disk", "still no disk")) == sealed(1)
    assert handler.log == ["join: because"]
    out = capsys.readouterr().out
    assert "no disk; this node does not join; checking again in 0.01 s" in out
    assert "still no disk; this node does not join; checking again in 0.02 s" in out


def test_h1_join_fails_if_the_node_is_not_healthy_in_time() -> None:
    handler = FakeHandler(sealed(1))
    answer = joined(handler, 0.5, Checks("no disk"))
    assert answer == e.JoinFailed(
        e.JoinError.UNHEALTHY,
        "no disk; this node did not join, since it was not healthy within 0.5 s (--join-timeout)",
    )
    assert handler.log == [], "it has not joined"


def test_ending_agent_does_not_wait_for_health() -> None:
    answers: queue.Queue[SealedRound | e.JoinFailed] = queue.Queue()
    joiner = Joiner(FakeHandler(), answers.put, 600.0, Checks(*["no disk"] * 9))
    joiner.begin("")
    threading.Timer(0.05, joiner.end).start()
    answer = answers.get(timeout=LIMIT_SECONDS)
    assert answer == e.JoinFailed(e.JoinError.UNHEALTHY, "the agent ends")


def test_reason_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    answers: queue.Queue[SealedRound | e.JoinFailed] = queue.Queue()
    joiner = Joiner(FakeHandler(sealed(1), sealed(2)), answers.put, 600.0)
    joiner.begin("a worker of this node failed", announced=True)
    answers.get(timeout=LIMIT_SECONDS)
    joiner.end()
    assert capsys.readouterr().out == ""
    joiner.begin("was fenced")
    answers.get(timeout=LIMIT_SECONDS)
    joiner.end()
    assert capsys.readouterr().out == "rallypoint: joining the next round: was fenced\n"


def problem_of(command: str, seconds: float = 20.0) -> str:
    return HealthCheck(command, seconds, os.environ).run()


def test_healthy_node_has_no_problem() -> None:
    assert problem_of("echo fine; true") == ""


def test_failed_health_check_quotes_its_last_lines() -> None:
    assert problem_of("seq 1 9; echo no disk >&2; exit 3") == (
        "the health check 'seq 1 9; echo no disk >&2; exit 3' failed with exit code 3: "
        "6 | 7 | 8 | 9 | no disk"
    )
    assert problem_of("kill -9 $$") == "the health check 'kill -9 $$' failed with signal 9"
    assert "exit code 127" in problem_of("/no/such/program")


def test_health_check_is_killed_with_its_children_at_the_limit(tmp_path: Path) -> None:
    watched: list[int] = []
    forgotten: list[int] = []
    command = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    health_check = HealthCheck(
        command, 0.5, os.environ, lambda roots: watched.extend(roots), forgotten.extend
    )
    began = time.monotonic()
    assert "took longer than 0.5 s (--health-check-timeout)" in health_check.run()
    assert time.monotonic() - began < 15
    child = int((tmp_path / "pid").read_text())
    assert process_tree.state_of(child) in ("", psutil.STATUS_ZOMBIE)
    assert watched == forgotten != []


def test_missing_shell_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_args: object, **_kwargs: object) -> None:
        raise OSError(2, "No such file or directory")

    monkeypatch.setattr("rallypoint.agent.join.joining.subprocess.Popen", fails)
    assert problem_of("true") == "the health check 'true' cannot be run: No such file or directory"
