"""Two servers on a three-member etcd, a job that runs on them, and faults.

The job: two agents with one worker each and a node in this process, in one round, and clients that
call the store all the time and record requests and results. A fault hits the leading server or
etcd. Then the clients must be served again, the round and its workers must be the same, and some
order of all calls must explain their results (linearizability).

One pair serves several faults, each with its own seed.
"""

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from tests.engine_servers import EtcdServers
from tests.integration.harness import Fleet, Line, Process, free_port
from tests.proxy import Proxy

from rallypoint.deadline import Deadline
from rallypoint.errors import StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.rendezvous.client.coordinator import create_handler
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.store.tcp import TCPStore
from rallypoint.testing.simulator.history import NEVER, UNKNOWN, Call, explain

CLIENTS = 3
KEYS = 3
LIMIT_SECONDS = 40.0  # for clients to be served again
LOOPBACK = "127.0.0.1"


class Outcome(NamedTuple):
    """The cost of a fault, in seconds.

    Args:
        led: until the next server led; None if the same one continued.
        held: the longest time that a client of the store waited for a reply.
        node: until the node in this process was connected again; 0 if it never lost it.
        calls: store calls in that time.
    """

    led: float | None
    held: float
    node: float
    calls: int


class Server:
    """One of the servers, which reaches etcd through its own proxies."""

    def __init__(self, fleet: Fleet, name: str, etcd: EtcdServers, prefix: str) -> None:
        self.name, self.endpoint = name, f"{LOOPBACK}:{free_port()}"
        self.cables = [Proxy(port) for port in etcd.ports]
        hosts = ",".join(f"{LOOPBACK}:{cable.port}" for cable in self.cables)
        self._fleet, self._url, self._starts = fleet, f"etcd://{hosts}/{prefix}", 0
        self.process = self.start()

    def start(self) -> Process:
        """Start it, for the first time or again."""
        self._starts += 1
        self.process = self._fleet.rallypoint(
            f"{self.name}-{self._starts}", "serve", "--bind", self.endpoint, "--state", self._url
        )
        self.process.expect("^serving on ")
        return self.process

    def part(self, silent: bool) -> None:
        """Drop all bytes between it and etcd, or forward them again."""
        for cable in self.cables:
            cable.silent = silent
            if not silent:
                cable.cut()  # as the kernel does after a while

    def leads(self, after: float) -> Line | None:
        """Return its line that says that it leads, after a given time, if there is one."""
        lines = [line for line in self.process.err.lines if "this server leads" in line.text]
        return next((line for line in lines if line.at > after), None)

    def close(self) -> None:
        for cable in self.cables:
            cable.close()


class Client(threading.Thread):
    """Makes random store calls, one at a time, and records them."""

    def __init__(self, name: str, endpoint: str, prefix: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.history: list[Call] = []
        self.longest = 0.0
        self.failure: BaseException | None = None
        self._store = TCPStore(endpoint, run="job", timeout=LIMIT_SECONDS)
        self._prefix, self._random = prefix, random.Random(f"{seed} {name}")
        self._over = threading.Event()
        self.start()

    def _request(self, number: int) -> Any:
        rng = self._random
        kind = rng.choice(("add", "add", "set", "peek", "swap", "append"))
        what = kind if kind in ("add", "append") else "value"
        key = f"{self._prefix}/{what}{rng.randrange(KEYS)}"
        value = f"{self.name}-{number}".encode()
        match kind:
            case "add":
                return p.Add(key, 1)
            case "set":
                return p.Set(key, value)
            case "swap":
                seen = [c.result for c in self.history if c.request == p.Peek(key)]
                last = seen[-1] if seen and seen[-1] is not UNKNOWN else None
                return p.CompareSwap(key, last, value)
            case "append":
                return p.Append(key, b"%d," % number)
        return p.Peek(key)

    def run(self) -> None:
        try:
            number = 0
            while not self._over.wait(self._random.uniform(0, 0.08)):
                number += 1
                self._one(self._request(number))
        except BaseException as error:  # told to the test by `finish`
            self.failure = error

    def _one(self, request: Any) -> None:
        asked = time.monotonic()
        try:
            result = self._store._call(request, LIMIT_SECONDS)
            answered = time.monotonic()
        except StoreConnectionError:
            result, answered = UNKNOWN, NEVER
        if isinstance(result, list):
            result = list(result)
        self.longest = max(self.longest, time.monotonic() - asked)
        self.history.append(Call(self.name, request, asked, answered, result))

    def answered_since(self, moment: float) -> bool:
        """Return whether a call that began after a given time has a reply."""
        return any(c.asked > moment and c.answered < NEVER for c in self.history[-5:])

    def finish(self) -> None:
        """End it; raise its error, if any."""
        self._over.set()
        self.join(LIMIT_SECONDS)
        self._store.close()
        assert not self.is_alive(), f"{self.name} waits for an answer"
        if self.failure is not None:
            raise self.failure


class ServerPair:
    """The servers, the job, and the faults."""

    def __init__(self, folder: Path, etcd: EtcdServers, prefix: str) -> None:
        self.etcd, self.runs = etcd, 0
        self.fleet = Fleet(folder)
        self.fleet.__enter__()
        self.servers = [Server(self.fleet, f"server{n}", etcd, prefix) for n in range(2)]
        self.endpoint = ",".join(server.endpoint for server in self.servers)
        job = ["--nnodes", "3", "--endpoint", self.endpoint, "--run-id", "job"]
        self.agents = [self.fleet.agent(f"agent{n}", *job) for n in range(2)]
        config = {"join": LIMIT_SECONDS, "close": 5}
        self.node: DynamicRendezvousHandler = create_handler(
            RendezvousParameters("core", self.endpoint, "job", 3, 3, config=config)
        )
        self.node.next_rendezvous()
        self.seat = self.node.view().assignment
        self.work = [agent.expect(r"work: round 1 .* pid \d+") for agent in self.agents]
        self.pids = [int(line.text.rsplit(" ", 1)[1]) for line in self.work]

    def close(self) -> None:
        self.node.shutdown()
        self.fleet.__exit__(None, None, None)
        for server in self.servers:
            server.close()

    # -- one run --------------------------------------------------------------------------

    def leader(self) -> Server:
        """Return the server that leads."""
        with contextlib.closing(TCPStore(self.endpoint, timeout=LIMIT_SECONDS)) as store:
            assert store.target.servers.leader is not None
            port = store.target.servers.leader[1]
        return next(s for s in self.servers if s.endpoint.endswith(f":{port}"))

    def run(
        self, fault: Callable[["ServerPair", Server, random.Random], None], seed: int
    ) -> Outcome:
        """Cause a fault while the job runs, then check everything."""
        self.runs += 1
        rng, leader = random.Random(seed), self.leader()
        prefix = f"run{self.runs}"
        clients = [Client(f"c{n}", self.endpoint, prefix, seed) for n in range(CLIENTS)]
        back: list[float] = []
        unwatch = self.node.on_change(
            lambda: back.append(time.monotonic()) if self.node.view().connected else None
        )
        threading.Event().wait(rng.uniform(0.2, 0.7))
        began = time.monotonic()
        try:
            fault(self, leader, rng)
            self._settle(clients)
        finally:
            unwatch()
            for client in clients:
                client.finish()
        self.check(clients)
        led = [line.at for s in self.servers if (line := s.leads(began)) is not None]
        return Outcome(
            min(led) - began if led else None,
            max(client.longest for client in clients),
            max((at - began for at in back), default=0.0),
            sum(len(client.history) for client in clients),
        )

    def _settle(self, clients: list[Client]) -> None:
        """Wait until all clients are served again."""
        deadline, moment = Deadline(LIMIT_SECONDS), time.monotonic()
        while not all(c.answered_since(moment) for c in clients) or not self.node.view().connected:
            assert not deadline.expired(), [c.failure for c in clients]
            threading.Event().wait(0.05)

    def check(self, clients: list[Client]) -> None:
        """Check the round, its workers and the store."""
        assert self.node.view().assignment == self.seat, self.node.view()
        report = self.node.report()
        assert (report.phase, report.round) == ("sealed", 1), report
        assert all(psutil.pid_exists(pid) for pid in self.pids)
        for agent, line in zip(self.agents, self.work, strict=True):
            later = [each.text for each in agent.out.lines[line.number + 1 :]]
            assert not any("work:" in text or "round" in text for text in later), later
        calls = [call for client in clients for call in client.history]
        wrong = explain(calls)
        assert not wrong, wrong


# -- the faults -------------------------------------------------------------------------------


def kill_leader(pair: ServerPair, leader: Server, rng: random.Random) -> None:
    """Kill the leading server; start it again once another one leads."""
    at = leader.process.kill()
    _wait_for_next(pair, leader, at)
    leader.start()


def kill_etcd_leader(pair: ServerPair, leader: Server, rng: random.Random) -> None:
    """Kill the member that leads etcd; start it again after a while."""
    member = pair.etcd.members[pair.etcd.leader()]
    member.kill()
    threading.Event().wait(rng.uniform(2.0, 4.0))
    member.start()


def pause_leader(
    pair: ServerPair, leader: Server, rng: random.Random, seconds: float = 10.0
) -> None:
    """Stop the leading server (SIGSTOP) for a time, then continue it."""
    at = leader.process.send(signal.SIGSTOP)
    try:
        _wait_for_next(pair, leader, at)
        threading.Event().wait(max(0.0, at + seconds - time.monotonic()))
    finally:
        leader.process.send(signal.SIGCONT)


def part_leader(pair: ServerPair, leader: Server, rng: random.Random) -> None:
    """Disconnect the leading server from etcd, but not from its clients; reconnect it later."""
    at = time.monotonic()
    leader.part(silent=True)
    try:
        _wait_for_next(pair, leader, at)
        threading.Event().wait(rng.uniform(0.0, 3.0))
    finally:
        leader.part(silent=False)


def _wait_for_next(pair: ServerPair, leader: Server, at: float) -> None:
    other = next(server for server in pair.servers if server is not leader)
    deadline = Deadline(LIMIT_SECONDS)
    while other.leads(at) is None:
        assert not deadline.expired(), other.process.shown()
        threading.Event().wait(0.02)


FAULTS = {
    "kill the leading server": kill_leader,
    "kill the etcd leader": kill_etcd_leader,
    "pause the leading server for 10 s": pause_leader,
    "cut the leading server off from etcd": part_leader,
}


@contextlib.contextmanager
def pair_on(etcd: EtcdServers, folder: Path, prefix: str) -> Iterator[ServerPair]:
    """Run a pair of servers and its job."""
    pair = ServerPair(folder, etcd, prefix)
    try:
        yield pair
    finally:
        pair.close()
