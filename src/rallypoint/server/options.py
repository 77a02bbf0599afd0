"""What a server is started with.

The table of defaults (`rendezvous.defaults`) explains each limit; `rallypoint serve --limit
NAME=N` sets one.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rallypoint.errors import ParameterError
from rallypoint.net.listener import is_loopback
from rallypoint.net.tls import NO_TLS, TLS
from rallypoint.rendezvous import defaults


def _limit(name: str) -> Any:
    return int(defaults.value(name))


def _rate(name: str) -> Any:
    return float(defaults.value(name))


@dataclass(frozen=True)
class Options:
    """Settings of a server process.

    Args:
        token: the accepted tokens, one a line (net/tokens.py), read again when their file
            changes; empty: none is asked for (loopback, or insecure).
        insecure: allow other addresses than loopback without a token.
        tls: the server's files; with a certificate it speaks TLS only.
        resume_seconds: how long a disconnected client's last answers are kept.
        until_empty: end once the last client has gone.
        linger_seconds: how long an empty server waits for someone else to come.
        first_client_seconds: how long it waits for the first client, with until_empty.

    All others are limits; see the table of defaults.
    """

    token: bytes = field(default=b"", repr=False)
    insecure: bool = False
    tls: TLS = NO_TLS
    resume_seconds: float = 60.0
    until_empty: bool = False
    linger_seconds: float = 3.0
    first_client_seconds: float = 60.0
    handshake_seconds: float = _rate("handshake_seconds")
    handshake_frame_limit: int = _limit("handshake_frame_limit")
    frame_limit: int = _limit("frame_limit")
    arriving_limit: int = _limit("arriving_limit")
    event_limit: int = _limit("event_limit")
    buffer_limit: int = _limit("buffer_limit")
    connections_limit: int = _limit("connections_limit")
    address_limit: int = _limit("address_limit")
    handshakes_limit: int = _limit("handshakes_limit")
    joins_per_second: float = _rate("joins_per_second")
    joins_at_once: int = _limit("joins_at_once")
    runs_limit: int = _limit("runs_limit")
    store_limit: int = _limit("store_limit")
    keys_limit: int = _limit("keys_limit")
    key_limit: int = _limit("key_limit")
    waiters_limit: int = _limit("waiters_limit")
    results_limit: int = _limit("results_limit")
    run_name_limit: int = _limit("run_name_limit")
    text_limit: int = _limit("text_limit")


LIMITS = tuple(f.name for f in dataclasses.fields(Options) if f.name in defaults.SERVER_LIMITS)


def with_limits(options: Options, given: Iterable[str], env: Mapping[str, str]) -> Options:
    """Return options with the limits that are given.

    Args:
        options: all else.
        given: texts such as "keys_limit=1000"; they override the environment.
        env: may have RALLYPOINT_KEYS_LIMIT and so on.

    Raises ParameterError.
    """
    variables = {name: env.get(f"RALLYPOINT_{name.upper()}") for name in LIMITS}
    texts = [f"{name}={value}" for name, value in variables.items() if value]
    changes = dict(_pair(text, options) for text in (*texts, *given))
    return dataclasses.replace(options, **changes)


def _pair(text: str, options: Options) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or name not in LIMITS:
        raise ParameterError(f"--limit {text}: give NAME=N with one of {', '.join(LIMITS)}")
    try:
        number = type(getattr(options, name))(value)
    except ValueError:
        number = -1
    if not 0 < number < float("inf"):
        raise ParameterError(f"--limit {text}: give a number above 0")
    return name, number


def needs_peer_credentials(options: Options) -> bool:
    """Return whether a client's process is all that decides if it may talk to the server."""
    return not (options.token or options.insecure or options.tls.verify_client)


def exposure(addresses: Iterable[str], options: Options, owner: int | None = None) -> str:
    """Return who can reach a server, for people.

    Args:
        addresses: it listens on these.
        options: its settings.
        owner: the uid whose processes (and root's) are the only ones answered, None if the
            system cannot tell whose process a client is.
    """
    kinds = ["TLS with client certificates" if options.tls.verify_client else "TLS"]
    if not options.tls.for_servers:
        kinds = []
    if options.token:
        kinds.append("token")
    if kinds:
        return " and ".join(kinds)
    if owner is not None:
        return f"no token: open to the processes of uid {owner} and of root"
    if all(map(is_loopback, addresses)):
        asked = "INSECURE: " if options.insecure else ""
        return f"{asked}no token: open to every process of this machine"
    return "INSECURE: no token, open to everyone who reaches it"
