"""The plan of a simulation: a value made from a seed that can be printed, shrunk and run again.

The same plan always gives the same run, to the last message.
"""

import random
from enum import StrEnum

import msgspec

from rallypoint.core.state import Settings
from rallypoint.rendezvous.settings import least_rejoin


class Kind(StrEnum):
    """The kinds of faults and events in a simulated world."""

    KILL = "kill a node's process"
    VANISH = "power off a node's machine"
    PAUSE = "stop a node for a while"
    SLOW = "slow a node down for a while"
    JUMP = "make a node's clock jump forward"
    WORKER = "make a worker of a node fail"
    LEAVE = "send SIGTERM to a node"
    COME = "start a new node"
    CUT = "cut a node's connection; both sides notice"
    CUT_NEAR = "cut a node's connection; only the node notices"
    CUT_FAR = "cut a node's connection; only the server notices"
    PART = "block the network between a node and the server for a while"
    PART_UP = "block the network from a node to the server for a while"
    PART_DOWN = "block the network from the server to a node for a while"
    KILL_STEP = "kill the process that acts at a step"
    PAUSE_STEP = "stop the process that acts at a step for a while"
    SERVER_PAUSE = "stop the server for a while"
    SERVER_SLOW = "slow the server's network down for a while"
    SERVER_JUMP = "make the server's clock jump forward"
    SERVER_KILL = "kill the server; it starts again from its disk after a while"
    SERVER_POWER = "power off the server; it starts again from the synced part of its disk"
    SERVER_TWIN = "stop the server until another has taken over; then it continues"
    SERVER_FULL = "fill the server's disk for a while"
    SERVER_LOST = "kill the server; it starts again without its disk after a while"
    CLOSE = "close the run"
    NOTICE = "give notice that a node will leave"
    EXCLUDE = "exclude a node for a while"


SERVER_KINDS = {
    Kind.SERVER_PAUSE, Kind.SERVER_SLOW, Kind.SERVER_JUMP, Kind.SERVER_KILL,
    Kind.SERVER_POWER, Kind.SERVER_LOST, Kind.SERVER_TWIN, Kind.SERVER_FULL,
}  # fmt: skip
STEP_KINDS = {Kind.KILL_STEP, Kind.PAUSE_STEP}


class Fault(msgspec.Struct, frozen=True):
    """One fault.

    Args:
        kind: of the fault.
        at: seconds since the start (the step kinds: number of the step).
        node: index of the node, later ones included.
        seconds: duration, or size of a jump.
        back: whether the machine of a killed node starts a new agent after `seconds`.
    """

    kind: Kind
    at: float
    node: int = 0
    seconds: float = 0.0
    back: bool = False

    def line(self) -> str:
        """Return the fault as text."""
        when = f"step {self.at:.0f}" if self.kind in STEP_KINDS else f"{self.at:7.3f} s"
        whom = "" if self.kind in SERVER_KINDS | STEP_KINDS | {Kind.COME} else f"  node {self.node}"
        long = f"  {self.seconds:.2f} s" if self.seconds else ""
        return f"{when}  {self.kind.value}{whom}{long}{'  and comes back' if self.back else ''}"


class Plan(msgspec.Struct, frozen=True):
    """One simulation.

    Args:
        seed: of everything that the plan leaves open, such as latencies and orders.
        nodes: number of nodes at the start.
        settings: of the run.
        faults: in order of time.
        join_seconds: timeout of a join.
        work_seconds: work of each node's workers; 0: endless.
        stop_seconds: grace period for workers to end.
        latency: least and most seconds of a message.
        stores: number of clients of the run's store, whose calls are checked.
        slots: whether nodes name their slot, so that a successor replaces its predecessor.
        shared: run without a server, over a compare-and-set store.
        fault_seconds: when faults stop.
        resume_seconds: how long the server keeps the results of a disconnected client.
        disk_seconds: least and most seconds of a disk write, and of a sync.
        admit: when newcomers are admitted: "now", "checkpoint" or "never".
        save_seconds: time for workers to save.
    """

    seed: int
    nodes: int
    settings: Settings
    faults: tuple[Fault, ...] = ()
    join_seconds: float = 120.0
    work_seconds: float = 0.0
    stop_seconds: float = 1.0
    latency: tuple[float, float] = (0.0002, 0.002)
    stores: int = 0
    slots: bool = False
    shared: bool = False
    fault_seconds: float = 30.0
    resume_seconds: float = 60.0
    disk_seconds: tuple[float, float] = (0.0002, 0.005)
    admit: str = "now"
    save_seconds: float = 5.0

    @property
    def bound_seconds(self) -> float:
        """Return the seconds after the last fault within which everything must settle."""
        s = self.settings
        waits = s.rejoin_timeout_seconds + s.replacement_wait_seconds + s.last_call_seconds
        waits += self.stop_seconds + self.save_seconds
        return 3 * s.lease_seconds + 2 * waits + 15.0

    def lines(self) -> list[str]:
        """Return the plan as text."""
        s = self.settings
        head = [
            f"seed {self.seed}: {self.nodes} nodes, min {s.min_nodes}, max {s.max_nodes}, "
            f"target {s.target_nodes}, max_restarts {s.max_restarts}, "
            f"{'shared' if self.shared else 'hosted'}, {self.stores} store clients",
            f"lease {s.lease_seconds:g} s, grace {s.disconnect_grace_seconds:g}, last call "
            f"{s.last_call_seconds:g}, rejoin {s.rejoin_timeout_seconds:g}, replacement "
            f"{s.replacement_wait_seconds:g}, work {self.work_seconds:g}, "
            f"stop {self.stop_seconds:g}, quarantine {s.quarantine_failures}, admit {self.admit}, "
            f"save {self.save_seconds:g}",
        ]
        return head + [f"  {fault.line()}" for fault in self.faults]


_WEIGHTS: dict[Kind, int] = {
    Kind.KILL: 4, Kind.VANISH: 3, Kind.PAUSE: 4, Kind.SLOW: 1, Kind.JUMP: 1, Kind.WORKER: 3,
    Kind.LEAVE: 2, Kind.COME: 4, Kind.CUT: 4, Kind.CUT_NEAR: 2, Kind.CUT_FAR: 2, Kind.PART: 3,
    Kind.PART_UP: 2, Kind.PART_DOWN: 2, Kind.KILL_STEP: 4, Kind.PAUSE_STEP: 3,
    Kind.SERVER_PAUSE: 3, Kind.SERVER_SLOW: 1, Kind.SERVER_JUMP: 1, Kind.SERVER_KILL: 3,
    Kind.SERVER_POWER: 3, Kind.SERVER_LOST: 1, Kind.SERVER_TWIN: 2, Kind.SERVER_FULL: 1,
    Kind.CLOSE: 1, Kind.NOTICE: 2, Kind.EXCLUDE: 2,
}  # fmt: skip


def settings_from(dice: random.Random, nodes: int) -> Settings:
    """Return random settings for about `nodes` nodes."""
    least = dice.randint(1, nodes)
    most = max(least, nodes + dice.randint(-1, 2))
    lease = dice.choice([3.0, 6.0, 9.0])
    return Settings(
        min_nodes=least,
        max_nodes=most,
        target_nodes=dice.choice([None, None, dice.randint(least, most)]),
        max_restarts=dice.choice([None, None, 0, 1, 5]),
        last_call_seconds=dice.choice([0.0, 0.5, 2.0]),
        rejoin_timeout_seconds=dice.choice([2.0, 5.0, 10.0]),
        replacement_wait_seconds=dice.choice([0.0, 0.0, 1.0, 3.0]),
        lease_seconds=lease,
        disconnect_grace_seconds=dice.choice([0.2, 1.0, lease]),
        steady_after_seconds=dice.choice([1.0, 300.0]),
        quarantine_failures=dice.choice([0, 0, 0, 1, 2]),
        quarantine_time_seconds=dice.choice([1.0, 600.0]),
    )


def plan_from(seed: int, shared: bool | None = None) -> Plan:
    """Return the plan of a seed: mixed faults on a small run."""
    dice = random.Random(seed)
    nodes = dice.randint(2, 5)
    settings = settings_from(dice, nodes)
    alone = dice.random() < 0.2 if shared is None else shared
    window = dice.choice([8.0, 15.0, 25.0])
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    count = dice.choice([0, 1, 1, 2, 2, 3, 4, 6])
    longest = dice.choice([1.0, settings.lease_seconds, 3 * settings.lease_seconds])
    faults = []
    for kind in dice.choices(kinds, weights, k=count):
        at = float(dice.randint(5, 600)) if kind in STEP_KINDS else dice.uniform(0.0, window)
        seconds = dice.uniform(0.05, longest)
        node, back = dice.randrange(nodes + 4), dice.random() < 0.6
        faults.append(Fault(kind, at, node, seconds, back))
    plan = Plan(
        seed=seed,
        nodes=nodes,
        settings=settings,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        join_seconds=dice.choice([20.0, 120.0]),
        work_seconds=dice.choice([0.0, 0.0, dice.uniform(2.0, window)]),
        stop_seconds=dice.choice([0.1, 1.0, 3.0]),
        latency=dice.choice([(0.0002, 0.002), (0.001, 0.05), (0.0002, 0.3)]),
        stores=0 if alone else dice.choice([0, 0, 1, 3]),
        slots=dice.random() < 0.3,
        shared=alone,
        fault_seconds=window,
        resume_seconds=dice.choice([2.0, 60.0]),
        disk_seconds=dice.choice([(0.0002, 0.005), (0.005, 0.2)]),
        admit=dice.choice(["now", "now", "checkpoint", "never"]),
        save_seconds=dice.choice([1.0, 5.0]),
    )
    # a user cannot set less
    rejoin = max(settings.rejoin_timeout_seconds, least_rejoin(plan.stop_seconds))
    settings = msgspec.structs.replace(settings, rejoin_timeout_seconds=rejoin)
    return msgspec.structs.replace(plan, settings=settings)
