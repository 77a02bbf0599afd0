"""Chaos runs of agents: real processes, and the faults of a plan.

During the faults, and until all remaining agents work in one round, the run must only keep its
rules (`records`). Then the workers are released, and all agents must end with success. Every wait
has a limit.
"""

import contextlib
import heapq
import itertools
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
from tests.chaos import records, server_limits
from tests.chaos.plans import ENDS_AGENT, GRACE_SECONDS, LEASE_SECONDS, Act, Do, Kind, Plan
from tests.integration.harness import LOOPBACK, Fleet, Process, Proxy, free_port

SETTLE_SECONDS = 40.0  # lease, grace, rejoin and stop, and a slow machine
END_SECONDS = 25.0
QUIET_SECONDS = GRACE_SECONDS + 1.0  # without events, once all has settled
LOOK_SECONDS = 0.1
FRESH_SECONDS = 1.0  # a worker with a sign younger than this is at work
OPTIONS = (
    "--nnodes=1:9", "--run-id=chaos", f"--lease={LEASE_SECONDS}", "--last-call=0.5",
    f"--disconnect-grace={GRACE_SECONDS}", "--rejoin-timeout=10", "--stop-grace=2",
    "--max-restarts=100", "--join-timeout=60",
)  # fmt: skip


class Outcome(msgspec.Struct):
    """The outcome of a run.

    Args:
        plan: the faults.
        seconds: how long it took.
        seen: figures for people.
        wrong: violations, as sentences.
        told: the last output of the processes, if there are violations.
    """

    plan: Plan
    seconds: float = 0.0
    seen: str = ""
    wrong: list[str] = []
    told: str = ""

    def line(self) -> str:
        """Return it as a line for a report."""
        verdict = "ok" if not self.wrong else "VIOLATION: " + " | ".join(self.wrong)
        return f"{self.plan.text()} -> {self.seen}, {self.seconds:.1f} s: {verdict}"


class Node(NamedTuple):
    """An agent, and its proxy to the server."""

    process: Process
    cable: Proxy | None


class Experiment:
    """One run of agents.

    Args:
        plan: what is done.
        fleet: starts the processes.
        durable: whether the server has a disk (`--data-dir`).
    """

    def __init__(self, plan: Plan, fleet: Fleet, durable: bool) -> None:
        self.plan = plan
        self.fleet = fleet
        self.wrong: list[str] = []
        self.lives: list[records.Life] = []
        self._durable = durable
        self._began = time.monotonic()
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._newcomers = itertools.count(plan.nodes)
        self._nodes: dict[int, Node] = {}
        self._gone: set[int] = set()  # ended by the plan, or by themselves after a fault
        self._harmed: set[int] = set()
        self._killed_workers: set[int] = set()
        self._excused: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._away: list[tuple[float, float]] = []  # of the server
        self._port = free_port()
        self._server: Process | None = None
        self._work = fleet.folder / "lives"
        self._work.mkdir()
        (fleet.folder / "chaos_worker.py").write_text(records.WORKER, encoding="utf-8")

    # -- the run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the plan; violations are in `wrong`."""
        if self.plan.kind is not Kind.SHARED:
            self._start_server()
        for number in range(self.plan.nodes):
            self._later(0.2 * number, lambda n=number: self._start(n))  # type: ignore[misc]
        for act in self.plan.acts:
            self._later(act.at, lambda act=act: self._do(act))  # type: ignore[misc]
        while self._agenda:
            at, _, call = heapq.heappop(self._agenda)
            time.sleep(max(0.0, at - time.monotonic()))
            call()
        self._settle()
        if self.plan.kind in (Kind.DESCRIPTORS, Kind.MEMORY):
            self._try_limits()
        self._end()
        self._judge()

    def rounds(self) -> int:
        """Return how many rounds there were with workers."""
        return len({life.number for life in self.lives})

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        at = self._began + seconds
        heapq.heappush(self._agenda, (at, next(self._order), call))

    def _after(self, seconds: float, call: Callable[[], object]) -> None:
        self._later(time.monotonic() - self._began + seconds, call)

    # -- processes --------------------------------------------------------------------------------

    def _start_server(self) -> None:
        argv = [sys.executable, "-m", "rallypoint", "serve", f"--bind={LOOPBACK}:{self._port}"]
        if self._durable:
            argv.append(f"--data-dir={self.fleet.folder / 'data'}")
        if self.plan.kind is Kind.MEMORY:
            argv += server_limits.MEMORY_OPTIONS
        limits = {
            Kind.DESCRIPTORS: f"ulimit -n {server_limits.DESCRIPTORS}",
            Kind.MEMORY: f"ulimit -v {server_limits.ADDRESS_SPACE_KIB}",
        }
        if limit := limits.get(self.plan.kind):
            argv = ["sh", "-c", f'{limit}; exec "$@"', "sh", *argv]
        self._server = self.fleet.start(f"server{len(self.fleet.processes)}", *argv)
        self._server.expect(r"^serving on ")

    def _start(self, number: int) -> None:
        cable, where = None, ["--backend=file", f"--endpoint={self.fleet.folder / 'job'}"]
        if self.plan.kind is Kind.HOSTED:
            cable = Proxy(f"{LOOPBACK}:{self._port}")
            where = [f"--endpoint={cable.endpoint}"]
        elif self.plan.kind is not Kind.SHARED:  # without a proxy between them and the flood
            where = [f"--endpoint={LOOPBACK}:{self._port}"]
        argv = ["run", *OPTIONS, *where, "chaos_worker.py", str(self._work)]
        env = {"CHAOS_AGENT": str(number)}
        process = self.fleet.rallypoint(f"agent{number}", *argv, str(self.fleet.stop_file), env=env)
        self._nodes[number] = Node(process, cable)

    def _start_another(self) -> None:
        self._start(next(self._newcomers))

    def close(self) -> None:
        """End the proxies."""
        for node in self._nodes.values():
            if node.cable is not None:
                node.cable.close()

    # -- acts -------------------------------------------------------------------------------------

    def _do(self, act: Act) -> None:
        if act.do is Do.COME:
            self._start_another()
        elif act.do is Do.SERVER_STOP:
            self._stop_server(act.seconds)
        elif act.do is Do.SERVER_KILL:
            self._kill_server(act.seconds)
        elif act.who in self._nodes and act.who not in self._gone:
            self._do_to(act, self._nodes[act.who])

    def _do_to(self, act: Act, node: Node) -> None:
        who, now = act.who, time.monotonic()
        if not act.harmless:
            self._harmed.add(who)
        if act.do in ENDS_AGENT:
            self._gone.add(who)
        if act.do is Do.KILL:
            node.process.kill()
            if act.seconds:
                self._after(act.seconds, self._start_another)
        elif act.do is Do.TERM:
            node.process.send(signal.SIGTERM)
        elif act.do is Do.STOP:
            node.process.send(signal.SIGSTOP)
            self._excused[str(who)].append((now, now + act.seconds))
            self._after(act.seconds, lambda: self._go_on(node.process))
        elif act.do is Do.WORKER:
            self._kill_worker(who)
        elif node.cable is not None and act.do is Do.RESET:
            node.cable.reset()
        elif node.cable is not None and act.do is Do.SILENCE:
            node.cable.cut()
            self._excused[str(who)].append((now, now + act.seconds))
            self._after(act.seconds, node.cable.mend)

    @staticmethod
    def _go_on(process: Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send(signal.SIGCONT)

    def _kill_worker(self, who: int) -> None:
        now = time.monotonic()
        for life in records.read_lives(self._work):
            if life.agent == str(who) and not life.end and now - life.ended < FRESH_SECONDS:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(_pidfd(life.pid), signal.SIGKILL)
                    self._killed_workers.add(life.pid)

    def _stop_server(self, seconds: float) -> None:
        server, now = self._server, time.monotonic()
        if server is not None and server.is_running():
            server.send(signal.SIGSTOP)
            self._away.append((now, now + seconds))
            self._after(seconds, lambda: self._go_on(server))

    def _kill_server(self, seconds: float) -> None:
        server, now = self._server, time.monotonic()
        if server is not None and server.is_running():
            server.kill()
            self._away.append((now, now + seconds))
            self._after(seconds, self._start_server)

    # -- limits -----------------------------------------------------------------------------------

    def _try_limits(self) -> None:
        before = {life.number for life in self._at_work()}
        server = self._server
        if server is None:
            return
        if self.plan.kind is Kind.DESCRIPTORS:
            self.wrong += server_limits.use_up_descriptors(self._port)
        else:
            self.wrong += server_limits.give_big_values(self._port, psutil.Process(server.pid))
        if {life.number for life in self._at_work()} != before:
            self.wrong.append("members did not work on in their round while the server was full")
        self._start_another()
        self._settle()

    # -- the end ----------------------------------------------------------------------------------

    def _there(self) -> dict[int, Node]:
        return {n: node for n, node in self._nodes.items() if n not in self._gone}

    def _settle(self) -> None:
        limit, since, before = time.monotonic() + SETTLE_SECONDS, time.monotonic(), None
        while True:
            working = self._round_of_all()
            if working is None or working != before:
                since, before = time.monotonic(), working
            elif time.monotonic() - since > QUIET_SECONDS:
                return
            if time.monotonic() > limit:
                names = ", ".join(str(number) for number in self._there())
                self.wrong.append(
                    f"hang: agents {names} are not in one round {SETTLE_SECONDS:g} s after the "
                    f"last act; at work: {'; '.join(life.text() for life in self._at_work())}"
                )
                return
            time.sleep(LOOK_SECONDS)

    def _round_of_all(self) -> tuple[int, int] | None:
        """Return the round in which all remaining agents work, None if they do not."""
        for number, node in self._there().items():
            if not node.process.is_running():
                self._gone.add(number)
                self._ended_by_itself(number, node.process)
        working = self._at_work()
        agents = sorted(life.agent for life in working)
        there = sorted(str(number) for number in self._there())
        rounds = {(life.number, life.size) for life in working}
        settled = agents == there and len(rounds) == 1 and working[0].size == len(there)
        return working[0].number if settled else None

    def _at_work(self) -> list[records.Life]:
        self.lives = records.read_lives(self._work)
        now = time.monotonic()
        return [each for each in self.lives if not each.end and now - each.ended < FRESH_SECONDS]

    def _ended_by_itself(self, number: int, process: Process) -> None:
        code = process.wait(END_SECONDS)
        if number not in self._harmed:
            self.wrong.append(f"healthy agent {number} ended with code {code}")
        elif code != 0 and not process.err.text.strip():
            self.wrong.append(f"agent {number} ended with code {code} and said nothing")

    def _end(self) -> None:
        self.fleet.release()
        for number, node in self._there().items():
            try:
                code = node.process.wait(END_SECONDS)
            except AssertionError:
                self.wrong.append(f"hang: agent {number} still runs {END_SECONDS:g} s after work")
                continue
            if code != 0:
                self.wrong.append(f"agent {number} ended with code {code}")
        if self._server is not None:
            self._server.send(signal.SIGTERM)
            if (code := self._server.wait(END_SECONDS)) != 0:
                self.wrong.append(f"the server ended with code {code}")
        try:
            self.fleet.all_gone(END_SECONDS)
        except AssertionError as error:
            self.wrong.append(str(error))

    def _judge(self) -> None:
        self.lives = records.read_lives(self._work)
        for away in self._away:
            for number in self._nodes:
                self._excused[str(number)].append(away)
        harmed = {str(number) for number in self._harmed}
        self.wrong += records.wrong_ranks(self.lives)
        self.wrong += records.two_worlds(self.lives, self._excused)
        self.wrong += records.killed_workers(self.lives, harmed, self._killed_workers)
        pids = {node.process.pid: number for number, node in self._nodes.items()}
        for number, node in self._nodes.items():
            text = node.process.out.text
            if number not in self._harmed and "was fenced" in text:
                self.wrong.append(f"healthy agent {number} was fenced")
            for pid in set(re.findall(r"pid (\d+) was lost", text)):
                if pids.get(int(pid)) not in self._harmed:
                    self.wrong.append(f"agent {number} was told that healthy pid {pid} was lost")


def _pidfd(pid: int) -> int:
    import os

    return os.pidfd_open(pid)


def run_agents(plan: Plan, folder: Path, durable: bool) -> Outcome:
    """Run a plan with agents."""
    began = time.monotonic()
    outcome = Outcome(plan)
    with Fleet(folder) as fleet:
        experiment = Experiment(plan, fleet, durable)
        try:
            experiment.run()
        except AssertionError as error:
            experiment.wrong.append(str(error))
        finally:
            experiment.close()
        outcome.wrong = experiment.wrong
        if experiment.wrong:
            outcome.told = "\n".join(process.shown() for process in fleet.processes)
    outcome.seconds = time.monotonic() - began
    outcome.seen = f"{experiment.rounds()} rounds"
    return outcome
