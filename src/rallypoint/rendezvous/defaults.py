"""Every duration and limit with its default, its flag, its variable and its parameter.

This table is the one place for defaults: the settings read it, and the documentation and
`rallypoint run --explain` print it. The environment is read by the command line only.
"""

from dataclasses import dataclass

from rallypoint.store import protocol


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


def _limit(name: str, value: int, unit: str, meaning: str) -> Default:
    return Default(name, value, unit, "", "", "", meaning)


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
        "How long a node that was told to join again may take before it counts as lost.",
    ),
    _setting(
        "stop_grace",
        30.0,
        "Time for workers to end by themselves before they are killed.",
    ),
    Default(
        "port",
        protocol.DEFAULT_PORT,
        "",
        "--port",
        "RALLYPOINT_PORT",
        "",
        "Port of the server where the endpoint names none.",
    ),
    _limit("frame_limit", protocol.FRAME_LIMIT, "bytes", "Largest message after the handshake."),
    _limit(
        "handshake_frame_limit",
        protocol.HANDSHAKE_FRAME_LIMIT,
        "bytes",
        "Largest message before a client has proved who it is.",
    ),
    _limit("key_limit", protocol.KEY_LIMIT, "bytes", "Longest key of the store."),
    _limit("protocol_version", protocol.PROTOCOL_VERSION, "", "Version of the wire format."),
)

_BY_NAME = {row.name: row for row in DEFAULTS}


def row(name: str) -> Default:
    """Return the row called `name` (KeyError if there is none)."""
    return _BY_NAME[name]


def value(name: str) -> float:
    """Return the default called `name`, in its unit."""
    return _BY_NAME[name].default


def spellings(name: str) -> tuple[str, ...]:
    """Return the parameter names under which `name` may be given."""
    found = _BY_NAME[name]
    return (found.parameter, *found.aliases)
