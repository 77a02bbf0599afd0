"""`rallypoint serve --state URL`: several servers on one state, of which one leads."""

import asyncio
import functools
import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from rallypoint.cli.options import Seconds, together
from rallypoint.engines.url import is_engine_url, open_engine, redacted
from rallypoint.errors import ParameterError
from rallypoint.net.endpoints import join_endpoint, parse_rendezvous_endpoint
from rallypoint.net.listener import is_loopback
from rallypoint.rendezvous import defaults
from rallypoint.server.ha.failover import Attend, Failover, FailoverConfig, advertised
from rallypoint.server.options import Options

logger = logging.getLogger("rallypoint.server")

ETCD_LEAST_SECONDS = 2.0  # etcd extends shorter leases to this

_OPTIONS = (
    click.option(
        "--state",
        metavar="URL",
        envvar="RALLYPOINT_STATE",
        help="Keep runs and stores in etcd://... or redis://..., for several servers.",
    ),
    click.option(
        "--advertise",
        metavar="ADDRESS:PORT",
        envvar="RALLYPOINT_ADVERTISE",
        help="Address by which clients reach this server. [default: that of --bind]",
    ),
    click.option(
        "--leader-lease",
        type=Seconds(),
        metavar="SECONDS",
        default=defaults.value("leader_lease"),
        envvar="RALLYPOINT_LEADER_LEASE",
        show_default=True,
        help="How long a leader may be silent before another server takes over.",
    ),
)


@dataclass(frozen=True)
class StateOptions:
    """The values of the options."""

    url: str | None
    advertise: str | None
    lease: float
    named: tuple[str, ...] = ()  # the other options that were given

    def check(self, data_dir: str | None, until_empty: bool) -> None:
        """Check the options and their combinations before anything is bound.

        Raises ParameterError.
        """
        if data_dir is not None and not data_dir.strip():
            text = f"--data-dir {data_dir!r}: give a directory"
            raise ParameterError(text)
        if self.url is None:
            if self.named:
                raise ParameterError(f"{self.named[0]}: only valid with --state")
            return
        if not is_engine_url(self.url):
            raise ParameterError(
                f"--state {redacted(self.url)}: give etcd[s]://HOST[,HOST...][/PREFIX] or "
                "redis[s]://HOST[/PREFIX]; for a local directory, give --data-dir DIR"
            )
        for other, given in (("--data-dir", data_dir), ("--until-empty", until_empty)):
            if given:
                raise ParameterError(f"--state and {other}: give only one of them")
        if not self.lease > 0:
            raise ParameterError(f"--leader-lease {self.lease:g}: give more than 0 seconds")
        is_etcd = self.url.startswith(("etcd://", "etcds://"))
        if is_etcd and self.lease < ETCD_LEAST_SECONDS:
            raise ParameterError(
                f"--leader-lease {self.lease:g}: etcd supports no lease below "
                f"{ETCD_LEAST_SECONDS:g} s"
            )
        _check_advertised(self.advertise)
        open_engine(self.url).close()  # checks the URL; the first call connects

    def at(self, sockets: list[socket.socket]) -> FailoverConfig | None:
        """Return the configuration for failover, None for a single server."""
        if self.url is None:
            return None
        name = f"{socket.gethostname()} pid {os.getpid()} {uuid.uuid4().hex[:8]}"
        where = advertised(sockets, self.url)
        if self.advertise:
            host, port = parse_rendezvous_endpoint(self.advertise, default_port=0)
            where = join_endpoint(host, port or sockets[0].getsockname()[1])
        elif _bound_to_all(sockets) and is_loopback(parse_rendezvous_endpoint(where)[0]):
            logger.warning(
                "clients on other hosts are sent to %s, which only this host can reach: give "
                "--advertise ADDRESS:PORT", where
            )  # fmt: skip
        return FailoverConfig(self.url, name, where, self.lease)


def _check_advertised(where: str | None) -> None:
    host, _port = parse_rendezvous_endpoint(where)
    if not where:
        return
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        if error.errno != socket.EAI_NONAME:
            return  # the name service may be out of reach for a while
        raise ParameterError(
            f"--advertise {where}: {host!r} does not resolve; give the ADDRESS:PORT by which "
            "clients reach this server"
        ) from error


def _bound_to_all(sockets: list[socket.socket]) -> bool:
    return sockets[0].getsockname()[0] in ("0.0.0.0", "::")  # noqa: S104 - read, not bound


def state_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of highly available servers; the command gets `shared`, a `StateOptions`."""

    @functools.wraps(command)
    def taking(
        *, state: str | None, advertise: str | None, leader_lease: float, **options: Any
    ) -> None:
        context = click.get_current_context()
        named = tuple(
            option
            for option, name in (("--advertise", "advertise"), ("--leader-lease", "leader_lease"))
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        )
        command(shared=StateOptions(state, advertise, leader_lease, named), **options)

    return together(_OPTIONS, taking)


async def serve_in_turn(
    options: Options, sockets: list[socket.socket], state: FailoverConfig, attend: Attend
) -> None:
    """Stand by, and serve while this process leads, until SIGTERM or SIGINT."""
    failover = Failover(options, sockets, state, attend)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, failover.stop)
    await failover.serve()
