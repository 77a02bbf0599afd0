"""Every duration and limit with its default, its flag, its variable and its parameter.

This table is the one place for defaults: the settings read it, and the documentation and
`rallypoint run --explain` print it. The environment is read by the command line only.
"""

from dataclasses import dataclass

from rallypoint.net import protocol

MIB = 1024 * 1024
SERVER_LIMITS = (
    "frame_limit", "arriving_limit", "handshake_frame_limit", "handshake_seconds",
    "connections_limit",
    "address_limit", "handshakes_limit", "joins_per_second", "joins_at_once", "buffer_limit",
    "event_limit", "runs_limit", "store_limit", "keys_limit", "key_limit", "waiters_limit",
    "results_limit", "run_name_limit", "text_limit",
)  # fmt: skip
"""Set by `rallypoint serve --limit NAME=N`, or RALLYPOINT_NAME in its environment."""


@dataclass(frozen=True, slots=True)
class Default:
    """One row.

    Args:
        name: what it is called in the code.
        default: its value in `unit`.
        unit: "s", "bytes" or "".
        flag: option of `rallypoint run`, "" if it has none.
        env: environment variable of that option, "" if it has none.
        parameter: name in the rendezvous configuration, "" if it has none.
        meaning: one sentence.
        aliases: other spellings of the parameter.
    """

    name: str
    default: float
    unit: str
    flag: str
    env: str
    parameter: str
    meaning: str
    aliases: tuple[str, ...] = ()


def _setting(
    name: str, default: float, meaning: str, *, option: str = "", aliases: tuple[str, ...] = ()
) -> Default:
    option = option or name
    flag, env = f"--{option.replace('_', '-')}", f"RALLYPOINT_{option.upper()}"
    return Default(name, default, "s", flag, env, name, meaning, aliases)


def _limit(name: str, value: float, unit: str, meaning: str) -> Default:
    if name not in SERVER_LIMITS:
        return Default(name, value, unit, "", "", "", meaning)
    flag, env = f"--limit {name}=N", f"RALLYPOINT_{name.upper()}"
    return Default(name, value, unit, flag, env, "", meaning)


_WITHOUT_DEFAULT = frozenset((
    "slot", "target_nodes", "role", "topology", "token", "token_file", "is_host", "insecure",
    "new_incarnation", "max_restarts", "rank", "node_rank", "path", "store_path", "admit",
    "use_agent_store", "tls", "tls_ca", "tls_cert", "tls_key", "tls_verify_client",
))  # fmt: skip
DEFAULTS: tuple[Default, ...] = (
    _setting(
        "join",
        600.0,
        "How long a node waits for a round to be complete before it gives up.",
        option="join_timeout",
        aliases=("join_timeout",),
    ),
    _setting(
        "last_call",
        30.0,
        "Extra wait of a first round for more nodes, once the fewest are there.",
        option="last_call_timeout",
        aliases=("last_call_timeout",),
    ),
    _setting(
        "close",
        30.0,
        "How long closing, leaving and shutting down may take.",
        option="close_timeout",
        aliases=("close_timeout",),
    ),
    _setting(
        "lease",
        15.0,
        "Silence after which a node is lost.",
        aliases=("heartbeat", "heartbeat_timeout"),
    ),
    Default(
        "keep_alive_interval",
        5.0,
        "s",
        "",
        "",
        "keep_alive_interval",
        "Time between signs of life: a third of the lease.",
    ),
    Default(
        "keep_alive_max_attempt",
        3,
        "",
        "",
        "",
        "keep_alive_max_attempt",
        "Signs of life that a lease holds; with the interval given, the lease is the product.",
    ),
    _setting(
        "disconnect_grace",
        1.0,
        "Time for a cut connection to come back; never longer than the lease.",
    ),
    _setting(
        "replacement_wait",
        0.0,
        "How long a round that lost a node waits for a replacement.",
    ),
    _setting(
        "rejoin_timeout",
        60.0,
        "How long a node that was told to join again may take before it counts as lost; if not "
        "given, at least 30 s more than stop_grace.",
    ),
    _setting(
        "steady_after",
        300.0,
        "How long a round must work for failures before it to count no more as a row.",
    ),
    Default(
        "quarantine_failures",
        0,
        "",
        "--quarantine-failures",
        "RALLYPOINT_QUARANTINE_FAILURES",
        "quarantine_failures",
        "Of the last 16 rounds, as many as one node's workers may end before it is kept out; "
        "0: any.",
    ),
    _setting("quarantine_time", 600.0, "How long such a node is kept out."),
    _setting(
        "admit_grace",
        60.0,
        "Time for workers to save before the round changes (`--admit checkpoint`, notices).",
    ),
    _setting(
        "stop_grace",
        30.0,
        "Time for workers to end by themselves before they are killed.",
    ),
    _setting(
        "health_check_timeout",
        60.0,
        "How long the node's own health check may take.",
    ),
    _setting(
        "hang_timeout",
        0.0,
        "How long a worker that tells its steps may stand still; 0 is for ever.",
    ),
    Default(
        "port",
        protocol.DEFAULT_PORT,
        "",
        "",
        "",
        "",
        "Port of the server where an endpoint of the API names none; commands want it named.",
    ),
    Default(
        "leader_lease",
        2.0,
        "s",
        "serve --leader-lease",
        "RALLYPOINT_LEADER_LEASE",
        "",
        "Of servers on one `--state`: after so long a silent leader is replaced (etcd: 2 or more).",
    ),
    _limit(
        "frame_limit",
        protocol.FRAME_LIMIT,
        "bytes",
        "Largest message after the handshake; a larger one closes the connection, unread.",
    ),
    _limit(
        "arriving_limit",
        512 * MIB,
        "bytes",
        "Messages above 1 MiB that are arriving, together; another one waits, who stalls is cut.",
    ),
    _limit(
        "handshake_frame_limit",
        protocol.HANDSHAKE_FRAME_LIMIT,
        "bytes",
        "The same before a client has proved who it is.",
    ),
    _limit(
        "handshake_seconds",
        10.0,
        "s",
        "Time in which a client must have proved itself; the connection is closed.",
    ),
    _limit(
        "connections_limit",
        100_000,
        "",
        "Connections of a server; a new one is told that the server is busy.",
    ),
    _limit(
        "address_limit",
        50_000,
        "",
        "Connections from one address; a new one is told that the server is busy.",
    ),
    _limit(
        "handshakes_limit",
        16_384,
        "",
        "Connections that have proved nothing yet (with TLS, a quarter); the oldest is closed.",
    ),
    _limit(
        "joins_per_second",
        20.0,
        "",
        "Joins of one connection, on average; above it the connection is closed.",
    ),
    _limit("joins_at_once", 200, "", "Joins of one connection in a burst."),
    _limit(
        "buffer_limit",
        256 * MIB,
        "bytes",
        "What a client may leave unread; above it the client is cut off.",
    ),
    _limit(
        "event_limit",
        256 * 1024,
        "bytes",
        "Largest rendezvous message; a larger one closes the connection.",
    ),
    _limit(
        "runs_limit",
        100_000,
        "",
        "Runs that a server keeps; a client of a new one is refused.",
    ),
    _limit("store_limit", 1024 * MIB, "bytes", "Keys and values of a run; a write fails."),
    _limit("keys_limit", 1_000_000, "", "Keys of a run; a write of a new one fails."),
    _limit("key_limit", protocol.KEY_LIMIT, "bytes", "Longest key of the store; the call fails."),
    _limit("waiters_limit", 200_000, "", "Calls of a run that wait; another one fails."),
    _limit(
        "results_limit",
        64 * MIB,
        "bytes",
        "Answers kept of one client until it says it has them; its next call fails.",
    ),
    _limit(
        "run_name_limit",
        protocol.RUN_LIMIT,
        "",
        "Characters of a run id; the client is refused.",
    ),
    _limit("text_limit", 1024, "", "Characters of a node's names; its join closes the connection."),
    _limit("protocol_version", protocol.PROTOCOL_VERSION, "", "Version of the wire format."),
)

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
