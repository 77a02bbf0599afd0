"""The state of a run: plain immutable values. PURE.

A live node is in exactly one of five places: `candidates`, `participants`, `waiting`,
`spares`, `finished`. The phase says which of them can be filled:

    Gathering, LastCall   candidates have joined this round; participants are live nodes of the
                          previous round that have not joined again yet (rule G1);
                          no node waits or is a spare
    Sealed                participants work; others wait (room left) or are spares; no candidates
    Closed                no nodes

There is no timestamp: the hosts run the timers, for the durations in `Settings`, and `at` texts
are labels for people that nothing compares. A mapping is never changed once it is part of a state.
`encode_state` makes bytes of a state.
"""

from enum import StrEnum

import msgspec

from rallypoint.errors import RendezvousStateError

NodeId = str
NO_REASON = "no reason was given"


class Value(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):  # gc: immutable values cannot form reference cycles
    """Base of the core's values."""


class Node(Value, frozen=True):
    """A node's identity and its proposal for the next round.

    Args:
        id: random; each process makes one, and another one after it was fenced.
        address: where its peers reach it.
        port: a free port there for the bootstrap store.
        pid: its process id, for people.
        slot: the pod or task it runs as; a new node with the same slot replaces it.
        node_rank: the rank it asks for.
        topology: label (rack, block); nodes with the same one get neighbouring ranks.
        local_world_size: number of its workers, at least 1.
        role: name of its workers' role.
        host: its host name, for people only.
    """

    id: NodeId
    address: str
    port: int = 0
    pid: int = 0
    slot: str | None = None
    node_rank: int | None = None
    topology: str | None = None
    local_world_size: int = 1
    role: str = "default"
    host: str = ""

    @property
    def label(self) -> str:
        """The node as people read it: host or address, and pid."""
        name = self.address if self.host in ("", self.address) else f"{self.host} ({self.address})"
        return f"{name} pid {self.pid}" if self.pid else f"{name} id {self.id[:8]}"


class Newcomers(StrEnum):
    """When agents let waiting nodes in (see `agent.policy.membership_change`)."""

    NOW = "now"
    CHECKPOINT = "checkpoint"
    NEVER = "never"


class Settings(Value, frozen=True):
    """What a run was opened with. The hosts time the durations; the core only tests for 0.

    Args:
        min_nodes: fewest nodes of a round.
        max_nodes: most nodes of a round.
        target_nodes: a round seals as soon as this many have joined, and takes no more; None for
            max_nodes.
        max_restarts: rounds that failing workers may open; None is no limit (rule B1).
        last_call_seconds: extra wait of a first round once min_nodes are there (rule J2).
        rejoin_timeout_seconds: how long a participant may take to join the next round (rule G1).
        replacement_wait_seconds: wait for a replacement after a loss (rule J5).
        lease_seconds: silence after which a node is lost (rule L1).
        disconnect_grace_seconds: time for a disconnected node to reconnect (rule L1).
        steady_after_seconds: a round that works for so long resets `failing` (rule B1).
        quarantine_failures: rounds that one node may end by failing workers, within
            `QUARANTINE_ROUNDS`, before it is excluded (rule H1); 0: any number.
        quarantine_time_seconds: how long it is excluded then.
        admit: the policy of the node that opened the run, None if it gives none; each agent
            follows its own, and a node with another one is warned.
    """

    min_nodes: int
    max_nodes: int
    target_nodes: int | None = None
    max_restarts: int | None = None
    last_call_seconds: float = 30.0
    rejoin_timeout_seconds: float = 60.0
    replacement_wait_seconds: float = 0.0
    lease_seconds: float = 15.0
    disconnect_grace_seconds: float = 1.0
    steady_after_seconds: float = 300.0
    quarantine_failures: int = 0
    quarantine_time_seconds: float = 600.0
    admit: Newcomers | None = None


class Standing(StrEnum):
    """A candidate's claim to a seat, strongest first (rule S2)."""

    MEMBER = "member"
    WAITING = "waiting"
    NEW = "new"


class Member(Value, frozen=True):
    """A live node as the state holds it.

    Args:
        node: who it is.
        arrival: its number in the order of arrivals.
        rank: its rank in the last round it took part in, None if in none.
        standing: its claim to a seat.
        beats: its heartbeats (serverless); a `Lost` with an older count is ignored.
        connected: False while it is disconnected and may reconnect.
    """

    node: Node
    arrival: int
    rank: int | None = None
    standing: Standing = Standing.NEW
    beats: int = 0
    connected: bool = True


class Failure(Value, frozen=True):
    """A worker that failed.

    Args:
        node: label of the node.
        rank: the worker's global rank.
        local_rank: its rank on the node.
        exit_code: None if a signal ended it, or if it hung.
        signal: name of the signal, or "".
        at: when, as a text.
        message: its last lines.
        round: the round it worked in.
    """

    node: str
    rank: int
    local_rank: int
    exit_code: int | None
    signal: str = ""
    at: str = ""
    message: str = ""
    round: int = 0

    @property
    def label(self) -> str:
        """One line for people."""
        how = f"signal {self.signal}" if self.signal else f"exit code {self.exit_code}"
        how = "it hung" if self.exit_code is None and not self.signal else how
        when = f" at {self.at}" if self.at else ""
        return f"rank {self.rank} (local {self.local_rank}) on {self.node}: {how}{when}"


class Seat(Value, frozen=True):
    """A participant of a sealed round, with the ranks of its workers.

    Args:
        node: the participant.
        rank: its rank among the nodes.
        worker_offset: global rank of its first worker.
        role_offset: rank of its first worker among the workers of its role.
        role_world_size: number of workers of its role.
    """

    node: Node
    rank: int
    worker_offset: int
    role_offset: int
    role_world_size: int


class Round(Value, frozen=True):
    """A sealed round; it never changes (rule E1).

    Args:
        incarnation: of the run.
        number: of the round.
        seats: in rank order.
        world_size: number of all workers.
        restarts: how much of the failure budget is used up.
        reason: why it was sealed when it was.
        failing: number of consecutive rounds before it that failing workers ended.
    """

    incarnation: int
    number: int
    seats: tuple[Seat, ...]
    world_size: int
    restarts: int
    reason: str
    failing: int = 0

    @property
    def master_addr(self) -> str:
        """Bootstrap address: rank 0's."""
        return self.seats[0].node.address

    @property
    def master_port(self) -> int:
        """Bootstrap port: the one that rank 0 proposed."""
        return self.seats[0].node.port


class Notice(Value, frozen=True):
    """A live node will leave: its machine is to be taken away, or an operator says so.

    Args:
        node: id of the node.
        label: its label.
        why: for people.
        by: who gave the notice.
        seconds: time it had left when the notice was given, None if that is not known.
    """

    node: NodeId
    label: str
    why: str
    by: str
    seconds: float | None = None

    @property
    def sentence(self) -> str:
        """The notice for people."""
        when = "" if self.seconds is None else f", in {self.seconds:g} s"
        return f"{self.label} will leave: {self.why}{when}"


class Aspect(StrEnum):
    """What the name in an exclusion is."""

    NODE = "node"  # id, host name or label
    ADDRESS = "address"
    SLOT = "slot"


class Exclusion(Value, frozen=True):
    """Nodes that may not take part (rule H1).

    Args:
        number: of the exclusion in its run; its timer names it.
        aspect: what `name` is.
        name: of the nodes.
        why: for people.
        by: who excluded them.
        at: when (a text), "" if that is not known.
        seconds: for how long, None: until they are admitted.
        nodes: ids of the nodes that were removed; they are refused under any other name, too.
        slots: of nodes excluded by id or label; new nodes in these slots are refused, too.
    """

    number: int
    aspect: Aspect
    name: str
    why: str
    by: str
    at: str = ""
    seconds: float | None = None
    nodes: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The exclusion for people."""
        since = f" at {self.at}" if self.at else ""
        long = "until it is admitted" if self.seconds is None else f"for {self.seconds:g} s"
        return f"{self.aspect} {self.name} was excluded by {self.by}{since} {long}: {self.why}"


class Strike(Value, frozen=True):
    """A round that the failing workers of one node ended (rule H1)."""

    aspect: Aspect
    name: str
    round: int


class Verdict(StrEnum):
    """How a run ended."""

    FINISHED = "finished"
    BUDGET = "budget"  # its workers failed too often (rule B1)
    CLOSED = "closed"  # somebody has closed it


class Gathering(Value, frozen=True, tag=True):
    """Nodes are joining round `round`.

    `lost`: a participant was lost since the previous round was sealed.
    `former` is the number of participants of the previous round. With `patience_over`, the round
    no longer waits for replacements. `charged`: a failing worker opened it at the expense of the
    budget; the charge is taken back if a node turns out to have been lost (B1).
    """

    round: int
    lost: bool = False
    former: int = 0
    patience_over: bool = False
    charged: bool = False


class LastCall(Value, frozen=True, tag=True):
    """min_nodes have joined, and more may. `call` numbers the last calls of a run.

    Once `over`, the round seals as soon as no candidate is disconnected.
    """

    round: int
    call: int
    over: bool = False


class Sealed(Value, frozen=True, tag=True):
    """Round `record.number` is agreed and at work; `done` holds the ids of finished nodes."""

    record: Round
    done: frozenset[NodeId] = frozenset()


class Closed(Value, frozen=True, tag=True):
    """The incarnation has ended: by whom, when (a text), why, and how."""

    round: int
    by: str
    at: str
    why: str
    verdict: Verdict = Verdict.CLOSED

    @property
    def finished(self) -> bool:
        """Whether all went well."""
        return self.verdict is Verdict.FINISHED


Phase = Gathering | LastCall | Sealed | Closed


class RunState(Value, frozen=True):
    """All that is decided about one run.

    Args:
        run_id: its name.
        settings: what it was opened with; None before the first join.
        opened_by: label of the node that opened it.
        incarnation: counts the openings of the run.
        phase: where it stands.
        candidates, participants, waiting, spares, finished: the live nodes by id.
        fenced: refused ids with the reason; the newest `FENCED_LIMIT`.
        arrivals: how many nodes have come so far.
        calls: how many last calls there were.
        restarts: failing rounds so far (rule B1).
        failures: of the newest failing round, in order, after the first failure of the consecutive
            failing rounds; at most `FAILURES_LIMIT`.
        opening: why the round was opened, "" for the first.
        notices: by id of the node that will leave; until it does, or the round is over.
        failing: number of consecutive rounds that failing workers ended (rule B1).
        exclusions: in force, oldest first; they outlive incarnations (rule H1).
        exclusion_count: how many there were.
        strikes: which node ended which of the last `QUARANTINE_ROUNDS` rounds.
        replaced: fenced ids whose slot or rank another node has taken (rule I1).
    """

    run_id: str
    settings: Settings | None = None
    opened_by: str = ""
    incarnation: int = 1
    phase: Phase = Gathering(round=1)
    candidates: dict[NodeId, Member] = {}
    participants: dict[NodeId, Member] = {}
    waiting: dict[NodeId, Member] = {}
    spares: dict[NodeId, Member] = {}
    finished: dict[NodeId, Member] = {}
    fenced: dict[NodeId, str] = {}
    arrivals: int = 0
    calls: int = 0
    restarts: int = 0
    failures: tuple[Failure, ...] = ()
    opening: str = ""
    notices: dict[NodeId, Notice] = {}
    failing: int = 0
    exclusions: tuple[Exclusion, ...] = ()
    exclusion_count: int = 0
    strikes: tuple[Strike, ...] = ()
    replaced: frozenset[NodeId] = frozenset()


PLACES = ("candidates", "participants", "waiting", "spares", "finished")
FENCED_LIMIT = 4096
FAILURES_LIMIT = 16
EXCLUSIONS_LIMIT = 1024
QUARANTINE_ROUNDS = 16


def round_number(phase: Phase) -> int:
    """Return the number of the round that a phase is about."""
    return phase.record.number if isinstance(phase, Sealed) else phase.round


def find(state: RunState, node: NodeId) -> Member | None:
    """Return a live node's member record, wherever it is."""
    for place in PLACES:
        member: Member | None = getattr(state, place).get(node)
        if member is not None:
            return member
    return None


# -- as bytes: msgpack, every type checked in decoding, with the version before it ----------

FORMAT = b"rally\x01"

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER = msgspec.msgpack.Decoder(RunState)


def encode_state(state: RunState) -> bytes:
    """Return the state as bytes; equal states give equal bytes."""
    return FORMAT + _ENCODER.encode(state)


def decode_state(data: bytes) -> RunState:
    """Return the state that `encode_state` made these bytes of (RendezvousStateError if none)."""
    if not data.startswith(FORMAT):
        raise RendezvousStateError(
            f"stored state is not Rallypoint's, or of another version: it begins with "
            f"{data[:8]!r}, expected {FORMAT!r}; use another run id or key, or remove it"
        )
    try:
        return _DECODER.decode(data[len(FORMAT) :])
    except msgspec.DecodeError as error:
        raise RendezvousStateError(
            f"stored state of {len(data)} bytes is damaged: {error}; "
            "use another run id or key, or remove it"
        ) from error
