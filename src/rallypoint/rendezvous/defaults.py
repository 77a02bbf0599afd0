"""Every duration and limit: its default, range, option, variable, parameter and meaning.

A setting that all nodes of a run share is a row here, a field of `core.state.Settings` (named
as the row, with `_seconds` for a duration), and the rule that uses it. All else follows from the
row: `RendezvousSettings`, the option of `rallypoint run` and its variable, the check of what
clients send, `rallypoint run --explain`, status and docs/defaults.md.
"""

from dataclasses import dataclass

from rallypoint.core.state import Settings
from rallypoint.net import protocol

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Default:
    """One row.

    Args:
        name: its name in the code.
        default: the value, in `unit`.
        unit: "s", "bytes" or "".
        flag: option of a command, "" if it has none.
        env: environment variable of that option, "" if it has none.
        parameter: name in the rendezvous configuration, "" if it has none.
        meaning: one sentence.
        aliases: other names of the parameter.
        zero: whether 0 is allowed; no value may be below.
    """

    name: str
    default: float
    unit: str
    flag: str
    env: str
    parameter: str
    meaning: str
    aliases: tuple[str, ...] = ()
    zero: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether all nodes of a run share it: it is part of the run's state."""
        return self.name in _SHARED


_SHARED = frozenset(field.removesuffix("_seconds") for field in Settings.__struct_fields__)


def _setting(
    name: str, default: float, meaning: str, *aliases: str, option: str = "", unit: str = "s",
    zero: bool = False,
) -> Default:  # fmt: skip
    option = option or name
    flag, env = f"--{option.replace('_', '-')}", f"RALLYPOINT_{option.upper()}"
    return Default(name, default, unit, flag, env, name, meaning, aliases, zero)


def _limit(name: str, default: float, unit: str, meaning: str) -> Default:
    """Return a limit of the server, an option of `rallypoint serve`."""
    flag, env = f"--limit {name}=N", f"RALLYPOINT_{name.upper()}"
    return Default(name, default, unit, flag, env, "", meaning)


_WITHOUT_DEFAULT = frozenset((
    "slot", "target_nodes", "role", "topology", "token", "token_file", "is_host", "insecure",
    "new_incarnation", "max_restarts", "rank", "node_rank", "path", "store_path", "admit",
    "use_agent_store", "tls", "tls_ca", "tls_cert", "tls_key", "tls_verify_client",
))  # fmt: skip
DEFAULTS: tuple[Default, ...] = (
    _setting("join", 600.0, "How long a node waits for a round to be complete before it gives up.",
             "join_timeout", option="join_timeout"),
    _setting("last_call", 30.0,
             "Extra wait of a first round for more nodes, once min_nodes are there.",
             "last_call_timeout", option="last_call_timeout"),
    _setting("close", 30.0, "How long closing, leaving and shutting down may take.",
             "close_timeout", option="close_timeout"),
    _setting("lease", 15.0, "Silence after which a node is lost.",
             "heartbeat", "heartbeat_timeout"),
    Default("keep_alive_interval", 5.0, "s", "", "", "keep_alive_interval",
            "Time between heartbeats: a third of the lease."),
    Default("keep_alive_max_attempt", 3, "", "", "", "keep_alive_max_attempt",
            "Heartbeats within a lease; if the interval is given, the lease is the product."),
    _setting("disconnect_grace", 1.0,
             "Time for a disconnected node to reconnect; never longer than the lease.", zero=True),
    _setting("replacement_wait", 0.0, "How long a round that lost a node waits for a replacement.",
             zero=True),
    _setting("rejoin_timeout", 60.0,
             "How long a node may take to join the next round before it is lost; if not given, at "
             "least 30 s more than stop_grace."),
    _setting("steady_after", 300.0,
             "How long a round must work to reset the count of consecutive failing rounds."),
    _setting("quarantine_failures", 0,
             "How many of the last 16 rounds one node's workers may end before it is excluded; 0: "
             "any number.", unit="", zero=True),
    _setting("quarantine_time", 600.0, "How long such a node is excluded."),
    _setting("admit_grace", 60.0,
             "Time for workers to save before the round changes (`--admit checkpoint`, notices)."),
    _setting("stop_grace", 30.0, "Time for workers to end by themselves before they are killed.",
             zero=True),
    _setting("health_check_timeout", 60.0, "How long the node's own health check may take."),
    _setting("hang_timeout", 0.0,
             "How long a worker that reports steps may go without reporting a step; 0: no limit.",
             zero=True),
    Default("port", protocol.DEFAULT_PORT, "", "", "", "",
            "Port of the server where an endpoint names none; only `run` requires a port."),
    Default("leader_lease", 2.0, "s", "serve --leader-lease", "RALLYPOINT_LEADER_LEASE", "",
            "Silence after which the leader of a `--state` is replaced (etcd: 2 or more)."),
    _limit("frame_limit", protocol.FRAME_LIMIT, "bytes",
           "Largest message after the handshake; a larger one closes the connection, unread."),
    _limit("arriving_limit", 512 * MIB, "bytes",
           "Messages above 1 MiB that are arriving, together; another one waits, and a client that "
           "stalls is disconnected."),
    _limit("handshake_frame_limit", protocol.HANDSHAKE_FRAME_LIMIT, "bytes",
           "Largest message before a client is authenticated."),
    _limit("handshake_seconds", 10.0, "s",
           "Time for a client to authenticate; after it, the connection is closed."),
    _limit("connections_limit", 100_000, "",
           "Connections of a server; a new one is told that the server is busy."),
    _limit("address_limit", 50_000, "",
           "Connections from one address; a new one is told that the server is busy."),
    _limit("handshakes_limit", 16_384, "",
           "Connections not authenticated yet (with TLS, a quarter); the oldest is closed."),
    _limit("joins_per_second", 20.0, "",
           "Joins of one connection, on average; above it the connection is closed."),
    _limit("joins_at_once", 200, "", "Joins of one connection in a burst."),
    _limit("buffer_limit", 256 * MIB, "bytes",
           "Data that a client has not read; above it the client is disconnected."),
    _limit("event_limit", 256 * 1024, "bytes",
           "Largest rendezvous message; a larger one closes the connection."),
    _limit("runs_limit", 100_000, "",
           "Runs that a server keeps; a client of a new one is refused."),
    _limit("store_limit", 1024 * MIB, "bytes", "Keys and values of a run; a write fails."),
    _limit("keys_limit", 1_000_000, "", "Keys of a run; a write of a new one fails."),
    _limit("key_limit", protocol.KEY_LIMIT, "bytes", "Longest key of the store; the call fails."),
    _limit("waiters_limit", 200_000, "", "Calls of a run that wait; another one fails."),
    _limit("results_limit", 64 * MIB, "bytes",
           "Results kept for one client until it acknowledges them; its next call fails."),
    _limit("run_name_limit", protocol.RUN_LIMIT, "",
           "Characters of a run id; the client is refused."),
    _limit("text_limit", 1024, "", "Characters of a node's names; its join closes the connection."),
    Default("protocol_version", protocol.PROTOCOL_VERSION, "", "", "", "",
            "Version of the wire format."),
)  # fmt: skip

SERVER_LIMITS = tuple(row.name for row in DEFAULTS if row.flag.startswith("--limit"))
"""Set by `rallypoint serve --limit NAME=N`, or RALLYPOINT_NAME in its environment."""
_BY_NAME = {row.name: row for row in DEFAULTS}


def row(name: str) -> Default:
    """Return the row called `name` (KeyError if there is none)."""
    return _BY_NAME[name]


def value(name: str) -> float:
    """Return the default called `name`, in its unit."""
    return _BY_NAME[name].default


def parameters() -> frozenset[str]:
    """Return the names of all parameters that handlers read, in each spelling."""
    rows = (row.name for row in DEFAULTS if row.parameter)
    return _WITHOUT_DEFAULT.union(*(spellings(name) for name in rows))


def spellings(name: str) -> tuple[str, ...]:
    """Return the parameter names under which `name` may be given."""
    found = _BY_NAME[name]
    return (found.parameter, *found.aliases)
