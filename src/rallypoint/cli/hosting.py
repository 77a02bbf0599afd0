"""Hosting the run's server where the endpoint is this machine's: now, or while the node joins.

What is to be said to the user of the command line is said here; `rendezvous.hosting` has the
theory.
"""

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from rallypoint.agent.reporting.report import complain, say
from rallypoint.cli.plan import Plan
from rallypoint.errors import RallypointError
from rallypoint.net.addresses import parse_rendezvous_endpoint
from rallypoint.net.endpoints import is_list

if TYPE_CHECKING:
    from rallypoint.hosting.process import Spawned
    from rallypoint.rendezvous.handler import DynamicRendezvousHandler


@contextmanager
def hosted(
    plan: Plan, is_host: bool | None, handler: "DynamicRendezvousHandler"
) -> "Iterator[None]":
    """Start the server if the endpoint is this machine's, now or as soon as it can be had.

    At the end its log is named. Raises what `server.spawn.host_if_ours` raises.

    Args:
        plan: of this node.
        is_host: True: it must be this machine; False: it is not; None: it is seen.
        handler: of this node; shut down if hosting fails.
    """
    from rallypoint.hosting.process import host_if_ours
    from rallypoint.hosting.retry import Hosting
    from rallypoint.net.tls import read_tls
    from rallypoint.net.token_sources import weaknesses

    params, token = plan.parameters, plan.secret()
    servers: list[Spawned] = []
    tls, warned = read_tls(params.config), weaknesses(token, exposed=False)
    for text in warned:
        complain(f"warning: {text}")

    def attempt() -> None:
        server = host_if_ours(params.endpoint, token, plan.insecure, is_host, tls)
        if server is None:
            return
        servers.append(server)
        if not server.is_local:
            for text in set(weaknesses(token, exposed=True)).difference(warned):
                complain(f"warning: {text}")
        elif _means_many(plan):
            say(
                f"{params.endpoint} is {', '.join(server.addresses)} on this machine, which no "
                "other one reaches; for nodes on other machines give an address of this one "
                "as the endpoint, or mend its own name in /etc/hosts"
            )

    try:
        attempt()
    except RallypointError:
        handler.shutdown()
        raise
    may_later = is_host is None and not is_list(params.endpoint)
    try:
        with Hosting(attempt, handler, complain) if may_later and not servers else nullcontext():
            yield
    finally:
        tell_of(servers)


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
