"""Hosting for `rallypoint run`: what the user is told (see `rallypoint.hosting.host`)."""

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from rallypoint.agent.reporting.console import complain, say
from rallypoint.cli.plan import Plan
from rallypoint.errors import RallypointError
from rallypoint.net.endpoints import is_list, parse_rendezvous_endpoint

if TYPE_CHECKING:
    from rallypoint.hosting.process import ServerProcess
    from rallypoint.rendezvous.handler import DynamicRendezvousHandler


@contextmanager
def hosted(
    plan: Plan, is_host: bool | None, handler: "DynamicRendezvousHandler"
) -> "Iterator[None]":
    """Start the server if the endpoint is this machine's, at once or while the node joins.

    At the end, names the log of a server that wrote one.

    Args:
        plan: of this node.
        is_host: see `host_if_ours`.
        handler: of this node; shut down if hosting fails.

    Raises what `host_if_ours` raises.
    """
    from rallypoint.hosting.host import host_if_ours
    from rallypoint.hosting.process import start_process
    from rallypoint.net.tls import read_tls
    from rallypoint.net.token_sources import weaknesses
    from rallypoint.rendezvous.client.coordinator import retry_hosting

    params, token = plan.parameters, plan.secret()
    servers: list[ServerProcess] = []
    tls, warned = read_tls(params.config), weaknesses(token, exposed=False)
    for text in warned:
        complain(f"warning: {text}")

    def attempt() -> None:
        server = host_if_ours(
            params.endpoint,
            is_host,
            lambda host, port: start_process(host, port, token, plan.insecure, tls),
        )
        if server is not None:
            servers.append(server)
            _warn_of_reach(server, plan, token, warned)

    try:
        attempt()
    except RallypointError:
        handler.shutdown()
        raise
    may_later = is_host is None and not is_list(params.endpoint)
    try:
        retries = may_later and not servers
        with retry_hosting(handler, attempt, complain) if retries else nullcontext():
            yield
    finally:
        report_servers(servers)


def report_servers(servers: "Iterable[ServerProcess]") -> None:
    """Name the log of each server that wrote one, and say how a server failed."""
    for server in servers:
        code = server.exit_code()
        try:
            wrote = server.log.stat().st_size > 0
        except FileNotFoundError:  # it has ended with an empty log
            continue
        how = f" has failed (exit code {code})" if code else ""
        if code is not None and code < 0:
            how = f" was killed by {signal.Signals(-code).name}"
        if wrote:
            complain(f"the server that this node hosted{how or ' has written a log'}: {server.log}")
        elif code is not None:
            server.log.unlink(missing_ok=True)
            complain(f"the server that this node hosted{how or ' has ended'}; it wrote no log")


def _warn_of_reach(
    server: "ServerProcess", plan: Plan, token: bytes, warned: "Iterable[str]"
) -> None:
    """Warn of a server that is reached by other machines, or by none of the run's."""
    from rallypoint.net.token_sources import weaknesses

    if not server.is_local:
        for text in set(weaknesses(token, exposed=True)).difference(warned):
            complain(f"warning: {text}")
    elif _means_many(plan):
        say(
            f"{plan.parameters.endpoint} resolves to {', '.join(server.addresses)} here, which no "
            "other machine can reach; for nodes on other machines give an address of this one as "
            "the endpoint, or correct this machine's name in /etc/hosts"
        )


def _means_many(plan: Plan) -> bool:
    """Whether the endpoint is a name for other machines too: no address, not localhost."""
    host, _ = parse_rendezvous_endpoint(plan.parameters.endpoint)
    named = any(letter.isalpha() for letter in host) and ":" not in host
    return named and host != "localhost" and plan.parameters.max_nodes > 1
