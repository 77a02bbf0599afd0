"""The plan of a chaos run: made from a seed, printed, and repeatable.

The seed determines the times of a plan, but not what the machine does between them; so a plan that
failed once may pass the next time. Its line says which fault hit which node.
"""

import random
from enum import StrEnum

import msgspec

LEASE_SECONDS = 4.0
GRACE_SECONDS = 2.0
WINDOW_SECONDS = 5.0
HARMLESS_STOP_SECONDS = 1.5  # well below the lease: no node may be lost


class Kind(StrEnum):
    """The kinds of runs."""

    HOSTED = "hosted"  # agents and a server
    SHARED = "shared"  # agents over a file, without a server
    WRITERS = "writers"  # writers of one FileStore, killed in mid-write
    DESCRIPTORS = "descriptors"  # a server without free file descriptors
    MEMORY = "memory"  # a server that is given all the values there are


class Do(StrEnum):
    """The kinds of faults."""

    KILL = "kill -9 agent"
    STOP = "stop agent"
    TERM = "SIGTERM agent"
    WORKER = "kill -9 worker of agent"
    COME = "start another agent"
    RESET = "reset the connections of agent"
    SILENCE = "let nothing pass to and from agent"
    SERVER_STOP = "stop the server"
    SERVER_KILL = "kill -9 the server, and start it again"


OF_SERVER = {Do.SERVER_STOP, Do.SERVER_KILL}
ENDS_AGENT = {Do.KILL, Do.TERM}


class Act(msgspec.Struct, frozen=True):
    """One fault.

    Args:
        at: seconds after the start of the run.
        do: its kind.
        who: number of the agent.
        seconds: for how long; of a killed agent: until another one comes, 0 for never.
    """

    at: float
    do: Do
    who: int = 0
    seconds: float = 0.0

    @property
    def harmless(self) -> bool:
        """Whether no node may be lost by it."""
        short = self.do is Do.STOP and self.seconds <= HARMLESS_STOP_SECONDS
        return short or self.do in OF_SERVER | {Do.RESET, Do.WORKER, Do.COME}

    def text(self) -> str:
        """Return it as words."""
        whom = "" if self.do in OF_SERVER | {Do.COME} else f" {self.who}"
        long = f" for {self.seconds:.1f} s" if self.seconds else ""
        if self.do is Do.KILL and self.seconds:
            long = f", another comes after {self.seconds:.1f} s"
        return f"{self.at:.1f} s {self.do}{whom}{long}"


class Plan(msgspec.Struct, frozen=True):
    """One run.

    Args:
        seed: the plan was made from it; also the seed of other random choices.
        kind: of the run.
        nodes: number of agents or writers at the start.
        acts: the faults, in order of time.
    """

    seed: int
    kind: Kind
    nodes: int
    acts: tuple[Act, ...] = ()

    def text(self) -> str:
        """Return it as a line."""
        done = "; ".join(act.text() for act in self.acts)
        return f"seed {self.seed} {self.kind} of {self.nodes}" + (f": {done}" if done else "")


_KINDS = {
    Kind.HOSTED: 10, Kind.SHARED: 4, Kind.WRITERS: 3, Kind.DESCRIPTORS: 1, Kind.MEMORY: 1,
}  # fmt: skip
_HOSTED = {
    Do.KILL: 5, Do.STOP: 4, Do.TERM: 2, Do.WORKER: 2, Do.COME: 2, Do.RESET: 3, Do.SILENCE: 3,
    Do.SERVER_STOP: 3, Do.SERVER_KILL: 3,
}  # fmt: skip
_SHARED = {Do.KILL: 5, Do.STOP: 4, Do.TERM: 2, Do.WORKER: 2, Do.COME: 2}
_LENGTHS = (0.3, HARMLESS_STOP_SECONDS, LEASE_SECONDS + 2.0)


def plan_from(seed: int, kind: Kind | None = None, server_kills: bool = True) -> Plan:
    """Return the plan of a seed.

    Args:
        seed: any number.
        kind: of the run; chosen by the seed if None.
        server_kills: whether the server may be killed (it has a disk to start again from).
    """
    dice = random.Random(seed)
    chosen = dice.choices(list(_KINDS), list(_KINDS.values()))[0]
    kind = kind or chosen
    nodes = dice.randint(2, 4)
    if kind not in (Kind.HOSTED, Kind.SHARED):
        return Plan(seed, kind, nodes)
    weights = dict(_HOSTED if kind is Kind.HOSTED else _SHARED)
    if not server_kills:
        weights.pop(Do.SERVER_KILL, None)
    return Plan(seed, kind, nodes, _acts(dice, nodes, weights))


def _acts(dice: random.Random, nodes: int, weights: dict[Do, int]) -> tuple[Act, ...]:
    moments: list[float] = []
    for _ in range(dice.randint(1, 5)):  # half of them shortly after another one
        at = dice.uniform(0.2, WINDOW_SECONDS)
        if moments and dice.random() < 0.5:
            at = dice.choice(moments) + dice.uniform(0.0, 0.5)
        moments.append(at)
    moments.sort()
    there, harmed, acts = list(range(nodes)), set[int](), list[Act]()
    for at in moments:
        do = dice.choices(list(weights), list(weights.values()))[0]
        who, seconds = dice.choice(there), dice.uniform(0.1, dice.choice(_LENGTHS))
        back = do is Do.KILL and dice.random() < 0.5
        act = Act(at, do, who, seconds if do in _LONG or back else 0.0)
        if not act.harmless and who in harmed:
            continue  # one fault per agent, so that its consequences can be checked
        if do in ENDS_AGENT and len(there) == 1:
            continue
        if do in ENDS_AGENT:
            there.remove(who)
        if not act.harmless:
            harmed.add(who)
        acts.append(act)
    return tuple(acts)


_LONG = {Do.STOP, Do.SILENCE, Do.SERVER_STOP, Do.SERVER_KILL}
