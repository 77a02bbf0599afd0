import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from rallypoint.agent.config import AgentConfig, SignalPlan, Supervision
from rallypoint.agent.join import progress
from rallypoint.agent.join.handlers import AgentHandler, SealedRound
from rallypoint.agent.loop import Agent
from rallypoint.agent.output import OutputPlan
from rallypoint.agent.policy.membership_change import MembershipRules
from rallypoint.agent.workers.environment import WorkerContext
from rallypoint.core.events import (
    Assignment,
    Refusal,
    Refused,
    RoundOpened,
    RunClosed,
)
from rallypoint.core.state import Failure, Newcomers, Verdict
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.view import View
from rallypoint.store.file import FileStore

LIMIT_SECONDS = 20
GATHER = MembershipRules(gather_seconds=0.01)
FAILURE = Failure("node-b", 0, 0, 7, "", "noon", "boom", 1)
CLOSED = RunClosed(1, 1, "node-b", "noon", "max_restarts=0 is used up", Verdict.BUDGET, (FAILURE,))


def sealed(number: int) -> SealedRound:
    seat = Assignment(1, number, 0, 2, 0, 2, 0, 2, "10.0.0.1", 4711, 0, "all came")
    return SealedRound(seat, ("10.0.0.1", 4711))


class FakeHandler(AgentHandler):
    """Gives the rounds and errors it was made with, one a join; then joins wait for ever."""

    def __init__(self, *answers: SealedRound | BaseException) -> None:
        self.answers = list(answers)
        self.log: list[str] = []
        self.told = View()
        self.callback: Callable[[View], None] = lambda _view: None
        self.on_fail: View | None = None
        self.failures: list[Failure] = []
        self.joined: queue.Queue[int] = queue.Queue()
        self.over = threading.Event()
        self.noticed = threading.Event()
        self.finish_error: Exception | None = None

    def push(self, **changes: object) -> None:
        self.told = msgspec.structs.replace(self.told, **changes)
        self.callback(self.told)

    def next_round(self, why: str) -> SealedRound:
        self.log.append(f"join: {why}" if why else "join")
        self.joined.put(len(self.log))
        if not self.answers:
            self.over.wait(LIMIT_SECONDS)
            raise RendezvousConnectionError("left while joining")
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        self.told = View(assignment=answer.assignment)
        return answer

    def on_change(self, callback: Callable[[View], None]) -> Callable[[], None]:
        self.callback = callback
        return lambda: self.log.append("unwatch")

    def view(self) -> View:
        return self.told

    def finish(self) -> None:
        self.log.append("finish")
        if self.finish_error is not None:
            raise self.finish_error

    def fail(self, failure: Failure) -> None:
        self.log.append("fail")
        self.failures.append(failure)
        if self.on_fail is not None:
            self.told = self.on_fail
            self.callback(self.told)

    def leave(self, why: str) -> None:
        self.log.append(f"leave: {why}")
        self.over.set()

    def notice(self, why: str, seconds: float | None) -> None:
        self.log.append(f"notice: {why}")
        self.noticed.set()

    def node_id(self) -> str:
        return "me"

    def waiting_for(self) -> Report | None:
        return Report("run", "gathering", 1, 1, "1 of 2 nodes have joined")


def agent(
    handler: AgentHandler,
    script: str,
    workers: int = 1,
    grace: float = 5.0,
    rules: MembershipRules = GATHER,
    store_url: str = "tcp://h:1",
    **more: Any,
) -> Agent:
    config = AgentConfig(
        argv=(sys.executable, "-c", script),
        context=WorkerContext("run", workers, store_url=store_url),
        output=OutputPlan(),
        node="node-a",
        base_env=dict(os.environ),
        stop_grace_seconds=grace,
        rules=rules,
        **more,
    )
    return Agent(config, handler)


class Running:
    """An agent in a thread, so that a test can push news to it."""

    def __init__(self, agent: Agent) -> None:
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run, args=[agent])
        self._thread.start()

    def _run(self, agent: Agent) -> None:
        self.code = agent.run()

    def ended(self) -> int | None:
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive()
        return self.code


def until(path: Path) -> str:
    limit = time.monotonic() + LIMIT_SECONDS
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < limit
        time.sleep(0.01)
    return path.read_text().strip()


def sleeps_in_round_one(path: Path) -> str:
    """A script that says it is up, sleeps in round 1 and is done in any later one."""
    return (
        "import os, time\n"
        f"open({str(path)!r} + os.environ['RALLYPOINT_ROUND'], 'w').write(f'{{os.getpid()}}\\n')\n"
        "time.sleep(60 if os.environ['RALLYPOINT_ROUND'] == '1' else 0)\n"
    )


SAVES_IN_ROUND_ONE = """
import os, sys, threading
from rallypoint import worker
if os.environ["RALLYPOINT_ROUND"] == "2":
    sys.exit(0 if worker.pending_change() is None else "an old announcement")
step = 0
while True:
    step += 1
    if worker.should_save(step):
        print(f"saves for: {worker.pending_change().why}", flush=True)
        worker.saved(step)
    threading.Event().wait(0.01)
"""


@pytest.mark.cases("case-G4")
def test_workers_save_before_a_newcomer_is_admitted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handler, path = FakeHandler(sealed(1), sealed(2)), tmp_path / "store"
    asked = agent(
        handler,
        SAVES_IN_ROUND_ONE,
        workers=2,
        rules=MembershipRules(Newcomers.CHECKPOINT),
        store_url=path.as_uri(),
        worker_store=lambda: FileStore(path),
    )
    running = Running(asked)
    handler.joined.get(timeout=LIMIT_SECONDS)
    handler.push(waiting=1)
    assert running.ended() == 0
    assert handler.log[1].startswith("join: 1 node waits; all workers have saved at step ")
    said = capfd.readouterr()
    assert "1 node waits: the workers have 60 s to save first" in said.out
    assert "saves for: 1 node waits" in said.out
    assert said.err == ""


def test_finished_node_leaves_at_once_and_writes_nothing_to_stderr(
    capfd: pytest.CaptureFixture[str],
) -> None:
    handler = FakeHandler(sealed(1))
    script = "import os; assert os.environ['MASTER_ADDR'] == '10.0.0.1'"
    assert agent(handler, script, workers=2).run() == 0
    assert handler.log == ["join", "finish", "leave: its work is done", "unwatch"]
    assert capfd.readouterr().err == ""


def test_failed_worker_is_reported_and_the_next_round_succeeds(
    capfd: pytest.CaptureFixture[str],
) -> None:
    handler = FakeHandler(sealed(1), sealed(2))
    script = "import os, sys; sys.exit('oh dear' if os.environ['RALLYPOINT_ROUND'] == '1' else 0)"
    assert agent(handler, script).run() == 0
    (failure,) = handler.failures
    assert (failure.exit_code, failure.message, failure.round) == (1, "oh dear", 1)
    assert handler.log[:2] == ["join", "fail"]
    assert handler.log[2].startswith(
        "join: a worker of this node failed: rank 0 (local 0) on node-a"
    )
    assert capfd.readouterr().err == "oh dear\n"


def test_first_failure_is_reported_when_the_budget_is_used_up(
    capfd: pytest.CaptureFixture[str],
) -> None:
    handler = FakeHandler(sealed(1))
    handler.on_fail = View(closed=CLOSED)
    assert agent(handler, "raise SystemExit(3)").run() == 1
    err = capfd.readouterr().err
    assert "the run was closed by node-b: max_restarts=0 is used up" in err
    assert "first failure: rank 0 (local 0) on node-b: exit code 7 at noon, in round 1" in err
    assert "  | boom" in err
    assert "Traceback" not in err


def test_loss_of_another_node_leads_to_the_next_round(tmp_path: Path) -> None:
    handler = FakeHandler(sealed(1), sealed(2))
    running = Running(agent(handler, sleeps_in_round_one(tmp_path / "r")))
    pid = int(until(tmp_path / "r1"))
    handler.push(opened=RoundOpened(1, 2, "node-c was lost", ("node-c",)))
    assert running.ended() == 0
    assert not psutil.pid_exists(pid)
    assert handler.log[:2] == ["join", "join: node-c was lost"]
    assert "fail" not in handler.log, "what dies of being stopped is no failure"


@pytest.mark.cases("case-C5")
def test_two_newcomers_make_one_new_round(tmp_path: Path) -> None:
    handler = FakeHandler(sealed(1), sealed(2))
    running = Running(agent(handler, sleeps_in_round_one(tmp_path / "r")))
    until(tmp_path / "r1")
    handler.push(waiting=1)
    handler.push(waiting=2)
    assert running.ended() == 0
    assert handler.log[:2] == ["join", "join: 2 nodes wait"]


def test_changes_during_the_join_are_not_lost(tmp_path: Path) -> None:
    class Early(FakeHandler):
        def next_round(self, why: str) -> SealedRound:
            answer = super().next_round(why)
            if answer.assignment.round == 1:
                self.push(opened=RoundOpened(1, 2, "node-c was lost"))
            return answer

    handler = Early(sealed(1), sealed(2))
    assert agent(handler, sleeps_in_round_one(tmp_path / "r")).run() == 0
    assert handler.log[:2] == ["join", "join: node-c was lost"]


def test_l2_fenced_node_rejoins_as_a_newcomer(tmp_path: Path) -> None:
    handler = FakeHandler(sealed(1), sealed(3))
    running = Running(agent(handler, sleeps_in_round_one(tmp_path / "r")))
    until(tmp_path / "r1")
    handler.push(fenced=Refused(Refusal.FENCED, "it was silent for 15 s"))
    assert running.ended() == 0
    assert handler.log[:2] == ["join", "join: was fenced: it was silent for 15 s"]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RendezvousGracefulExitError("go home"), 0, ""),
        (RendezvousClosedError("closed by x at noon"), 4, "rallypoint: closed by x at noon\n"),
        (RendezvousTimeoutError("1 of 2 joined"), 3, "rallypoint: 1 of 2 joined\n"),
    ],
)
def test_exit_after_a_join_without_a_round(
    error: Exception, code: int, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = FakeHandler(error)
    assert agent(handler, "").run() == code
    assert capfd.readouterr().err == text
    assert handler.log[-2:] == ["unwatch", "leave: its agent ends"]


@pytest.mark.cases("case-C9")
def test_node_leaves_when_a_background_thread_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = FakeHandler(sealed(1))
    running = Running(agent(handler, sleeps_in_round_one(tmp_path / "r")))
    pid = int(until(tmp_path / "r1"))
    handler.push(error=ValueError("a thread of ours"))
    assert running.ended() == 1
    assert not psutil.pid_exists(pid)
    assert "leave: lost touch with the coordinator: a thread of ours" in handler.log
    assert "a thread of ours" in capfd.readouterr().err


@pytest.mark.cases("case-C9")
def test_node_leaves_when_the_loop_raises(capfd: pytest.CaptureFixture[str]) -> None:
    class Broken(FakeHandler):
        def finish(self) -> None:
            raise ValueError("a fault in our code")

    handler = Broken(sealed(1))
    assert agent(handler, "").run() == 1
    assert handler.log == ["join", "unwatch", "leave: its agent ends"]
    assert "ValueError: a fault in our code" in capfd.readouterr().err


def test_worker_that_cannot_start_ends_the_agent(capfd: pytest.CaptureFixture[str]) -> None:
    handler = FakeHandler(sealed(1))
    config = AgentConfig(("/nope/python",), WorkerContext("r", 2), OutputPlan(), "n", {})
    assert Agent(config, handler).run() == 1
    assert "cannot start '/nope/python'" in capfd.readouterr().err


def test_finished_work_exits_0_without_a_coordinator(
    capfd: pytest.CaptureFixture[str],
) -> None:
    handler = FakeHandler(sealed(1))
    handler.finish_error = RendezvousConnectionError("refused")
    assert agent(handler, "").run() == 0
    assert "the work is done, but the coordinator could not be notified" in capfd.readouterr().err


@pytest.mark.parametrize("answers", [[sealed(1)], []], ids=["working", "joining"])
def test_sigterm_leaves_at_once_and_exits_143(answers: list[SealedRound], tmp_path: Path) -> None:
    handler = FakeHandler(*answers)

    def ask() -> None:
        handler.joined.get(timeout=LIMIT_SECONDS)
        if answers:
            until(tmp_path / "r1")
        os.kill(os.getpid(), signal.SIGTERM)

    asker = threading.Thread(target=ask)
    asker.start()
    assert agent(handler, sleeps_in_round_one(tmp_path / "r")).run() == 143
    asker.join(LIMIT_SECONDS)
    assert handler.log == ["join", "leave: received SIGTERM", "unwatch"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_long_join_shows_progress(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "INTERVALS_SECONDS", (0.01, 60.0))

    class Slow(FakeHandler):
        asked = threading.Event()

        def next_round(self, why: str) -> SealedRound:
            assert self.asked.wait(LIMIT_SECONDS)
            time.sleep(0.1)
            return super().next_round(why)

        def waiting_for(self) -> Report | None:
            self.asked.set()
            return super().waiting_for()

    assert agent(Slow(sealed(1)), "").run() == 0
    out = capfd.readouterr().out
    assert "rallypoint: 1 of 2 nodes have joined; join timeout in 9 min 59 s\n" in out


def test_workers_token_is_made_when_they_start(capfd: pytest.CaptureFixture[str]) -> None:
    config = AgentConfig(
        argv=(sys.executable, "-c", "import os; print(os.environ['RALLYPOINT_TOKEN'])"),
        context=WorkerContext("run", 2, token="of the start"),
        output=OutputPlan(),
        node="node-a",
        base_env={**os.environ, "RALLYPOINT_TOKEN": "of the nodes"},
        worker_token=lambda: "of now",
    )
    assert Agent(config, FakeHandler(sealed(1))).run() == 0
    out = capfd.readouterr().out
    assert out.count("of now") == 2
    assert "of the" not in out


def test_unusable_events_file_is_a_usage_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = FakeHandler(sealed(1))
    assert agent(handler, "", supervision=Supervision(events_file=str(tmp_path))).run() == 2
    assert "--events" in capfd.readouterr().err
    assert handler.log == ["unwatch", "leave: its agent ends"]


def test_signals_follow_the_signal_plan(tmp_path: Path) -> None:
    handler = FakeHandler(sealed(1))
    plan = SignalPlan(("SIGUSR1",), "SIGUSR2")
    heard = tmp_path / "heard"
    script = (
        "import pathlib, signal, sys\n"
        f"signal.signal(signal.SIGUSR1, lambda *_: (pathlib.Path({str(heard)!r}).touch()))\n"
        + sleeps_in_round_one(tmp_path / "r")
    )

    def ask() -> None:
        until(tmp_path / "r1")
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert handler.noticed.wait(LIMIT_SECONDS)
        limit = time.monotonic() + LIMIT_SECONDS
        while not heard.exists() and time.monotonic() < limit:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    asker = threading.Thread(target=ask)
    asker.start()
    assert agent(handler, script, supervision=Supervision(signals=plan)).run() in (128 + 12, 143)
    asker.join(LIMIT_SECONDS)
    assert heard.exists()
    assert any(line.startswith("notice: received SIGUSR2") for line in handler.log)


class Cut(FakeHandler):
    """Its server is gone; nothing that it is asked comes back before the end."""

    def view(self) -> View:
        return msgspec.structs.replace(super().view(), connected=not self.joined.qsize())

    def fail(self, failure: Failure) -> None:
        self.over.wait(LIMIT_SECONDS)

    def leave(self, why: str) -> None:
        super().leave(why)
        time.sleep(LIMIT_SECONDS)


def test_single_node_does_not_wait_for_a_server_that_is_gone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    handler = Cut(sealed(1), sealed(2))
    began = time.monotonic()
    assert agent(handler, "raise SystemExit(7)", alone=True).run() == 1
    assert time.monotonic() - began < LIMIT_SECONDS / 2
    out, err = capfd.readouterr()
    assert "a worker of this node failed: rank 0 (local 0) on node-a: exit code 7" in out
    assert "no answer yet" not in out
    assert "first failure: rank 0" in err
    assert "the server could not be notified" in err
    assert "join: a worker of this node failed" not in str(handler.log)
