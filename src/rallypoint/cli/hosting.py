"""Hosting the run's server where the endpoint is this machine's.

The first attempt is made before the node joins. Where the port is another process's, that is
most often the server of the run, and the node connects to it. Until it does, the attempt is
made again with growing pauses: a server of an earlier run may be about to end, or the name
may not be known yet (A4); nothing tells of either.
"""

import signal
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rallypoint.agent import backoff
from rallypoint.agent.report import complain, say
from rallypoint.cli.plan import Plan
from rallypoint.errors import RallypointError
from rallypoint.rendezvous.endpoint import parse_rendezvous_endpoint
from rallypoint.store.places import is_list

if TYPE_CHECKING:
    from rallypoint.rendezvous.dynamic import DynamicRendezvousHandler
    from rallypoint.server.spawn import Spawned

LONGEST_PAUSE_SECONDS = 4.0


def host(plan: Plan, is_host: bool | None, handler: "DynamicRendezvousHandler") -> "list[Spawned]":
    """Start the server if the endpoint is this machine's, now or as soon as it can be had.

    Args:
        plan: of this node.
        is_host: True: it must be this machine; False: it is not; None: it is seen.
        handler: of this node; shut down if hosting fails.

    Returns the servers that it has started; one may come later. Raises what
    `server.spawn.host_if_ours` raises.
    """
    from rallypoint.server.spawn import host_if_ours
    from rallypoint.store.tls import read_tls
    from rallypoint.store.token import weaknesses

    params, token = plan.parameters, plan.secret()
    servers: list[Spawned] = []
    tls = read_tls(params.config)

    warned = weaknesses(token, exposed=False)
    for text in warned:
        complain(f"warning: {text}")

    def attempt() -> None:
        hosted = host_if_ours(params.endpoint, token, plan.insecure, is_host, tls)
        if hosted is None:
            return
        servers.append(hosted)
        if not hosted.is_local:
            for text in set(weaknesses(token, exposed=True)).difference(warned):
                complain(f"warning: {text}")
        elif _means_many(plan):
            say(
                f"{params.endpoint} is {', '.join(hosted.addresses)} on this machine, which no "
                "other one reaches; for nodes on other machines give an address of this one "
                "as the endpoint, or mend its own name in /etc/hosts"
            )

    try:
        attempt()
    except RallypointError:
        handler.shutdown()
        raise
    if is_host is None and not is_list(params.endpoint):
        body = threading.Thread(target=_host_later, args=[attempt, handler], daemon=True)
        body.start()
    return servers


def tell_of(servers: "Iterable[Spawned]") -> None:
    """Name, at this node's end, the logs of servers that hold something, and how those ended."""
    for server in servers:
        code = server.exit_code()
        try:
            said = server.log.stat().st_size > 0
        except FileNotFoundError:  # it has ended well, and had nothing to say
            continue
        how = f" has failed (exit code {code})" if code else ""
        if code is not None and code < 0:
            how = f" was killed by {signal.Signals(-code).name}"
        if said:
            complain(f"the server that this node hosted{how or ' has written a log'}: {server.log}")
        elif code is not None:
            server.log.unlink(missing_ok=True)
            complain(f"the server that this node hosted{how or ' has ended'} without a word")


def _means_many(plan: Plan) -> bool:
    """Whether the endpoint is a name for other machines too: no address, not localhost."""
    host, _ = parse_rendezvous_endpoint(plan.parameters.endpoint)
    named = any(letter.isalpha() for letter in host) and ":" not in host
    return named and host != "localhost" and plan.parameters.max_nodes > 1


def _host_later(attempt: Callable[[], None], handler: "DynamicRendezvousHandler") -> None:
    """Until connected, try again: whoever had the port may have ended (a run before ours)."""
    connected = threading.Event()

    def look() -> None:
        if handler.view().connected:
            connected.set()

    unwatch = handler.on_change(look)
    try:
        look()
        for pause in backoff.pauses():
            if connected.wait(min(pause, LONGEST_PAUSE_SECONDS)):
                return
            attempt()
    except RallypointError as error:
        complain(f"cannot host the server of this run: {error}")
    finally:
        unwatch()
