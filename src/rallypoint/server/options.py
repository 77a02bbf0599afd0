"""What a server is started with, and the check that it may start so."""

import ipaddress
from dataclasses import dataclass

from rallypoint.errors import ParameterError
from rallypoint.store import protocol as p
from rallypoint.store.token import TOKEN_VARIABLE

MIB = 1024 * 1024


@dataclass(frozen=True)
class Options:
    """Settings of a server process.

    Args:
        token: shared secret; empty: none is asked for (loopback, or insecure).
        insecure: allow other addresses than loopback without a token.
        handshake_seconds: time in which a client must have proved itself.
        resume_seconds: how long a cut client's last results are kept for its return.
        frame_limit: largest frame after the handshake, in bytes.
        buffer_limit: unread bytes for one client at which it is cut off.
        store_limit: bytes of one run's store.
        runs_limit: how many runs (with their stores) it keeps at most.
        until_empty: end once the last client has gone.
        linger_seconds: how long an empty server waits for someone else to come.
        first_client_seconds: how long it waits for the first client, with until_empty.
    """

    token: bytes = b""
    insecure: bool = False
    handshake_seconds: float = 10.0
    resume_seconds: float = 60.0
    frame_limit: int = p.FRAME_LIMIT
    buffer_limit: int = 256 * MIB
    store_limit: int = 1024 * MIB
    runs_limit: int = 100_000
    until_empty: bool = False
    linger_seconds: float = 3.0
    first_client_seconds: float = 60.0


def is_loopback(address: str) -> bool:
    """Return whether an IP address is a loopback one."""
    return ipaddress.ip_address(address.split("%")[0]).is_loopback


def check_exposure(addresses: list[str], options: Options) -> None:
    """Refuse to listen off loopback without a token, unless that was asked for."""
    exposed = sorted({a for a in addresses if not is_loopback(a)})
    if exposed and not options.token and not options.insecure:
        raise ParameterError(
            f"refusing to listen on {', '.join(exposed)} without a token: anyone who reaches it "
            f"could join or close runs. Give all nodes the same secret (export {TOKEN_VARIABLE}="
            "$(openssl rand -hex 16), or --token-file FILE), or pass --insecure to allow it"
        )
