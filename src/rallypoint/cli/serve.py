"""`rallypoint serve`: start a server for any number of runs and their stores."""

import asyncio
import dataclasses
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import click
import uvloop

from rallypoint.cli.options import tls_options, token_file_option
from rallypoint.cli.serve_state import StateOptions, serve_in_turn, state_options
from rallypoint.deadline import Deadline
from rallypoint.engines.url import redacted
from rallypoint.errors import JournalError, ParameterError, RallypointError
from rallypoint.net.addresses import LOOPBACK
from rallypoint.net.endpoints import parse_rendezvous_endpoint
from rallypoint.net.listener import is_loopback, listen
from rallypoint.net.tls import read_tls
from rallypoint.net.token_sources import read_token, weaknesses
from rallypoint.server import tracing
from rallypoint.server.ha.failover import Attend, FailoverConfig
from rallypoint.server.journal.contract import Journal, Opened
from rallypoint.server.journal.persistence import Persistence
from rallypoint.server.journal.records import Stored
from rallypoint.server.options import Options, with_limits
from rallypoint.server.server import Server, endpoint_of
from rallypoint.server.tls import ServerTLS

EXIT_FAILED, EXIT_USAGE = 1, 2
OPEN_SECONDS = 60.0  # for a database that is out of reach for a while
Kept = tuple[Journal, Opened]


@click.command()
@click.option(
    "--bind",
    "where",
    metavar="ADDRESS:PORT",
    default="127.0.0.1:29400",
    envvar="RALLYPOINT_BIND",
    show_default=True,
    help="Address to listen on; port 0 picks a free port and prints it.",
)
@token_file_option()
@click.option(
    "--insecure", is_flag=True, help="Listen on addresses other than loopback without a token."
)
@tls_options
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=N",
    help="Set a limit, such as keys_limit=10000 (list: docs/defaults.md).",
)
@click.option(
    "--http",
    metavar="[ADDRESS:]PORT",
    envvar="RALLYPOINT_HTTP",
    help="Address for the live page, /api/v1 and /metrics (needs rallypoint[web]); a PORT alone is "
    "on loopback.",
)
@click.option(
    "--http-name",
    "http_names",
    multiple=True,
    metavar="NAME",
    envvar="RALLYPOINT_HTTP_NAME",
    help="Further host name by which browsers reach the page.",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    help="Keep runs and stores in this directory, across restarts and power loss.",
)
@state_options
@click.option("--until-empty", is_flag=True, help="Exit when the last client has gone.")
@click.option("--fd", "fds", type=int, multiple=True, hidden=True)
@click.option("--host-fd", type=int, hidden=True)
@click.option("--log-file", type=Path, hidden=True)
@click.option("-v", "--verbose", is_flag=True, help="Log what each run does.")
def command(
    where: str,
    token_file: str | None,
    insecure: bool,
    limits: tuple[str, ...],
    http: str | None,
    http_names: tuple[str, ...],
    data_dir: str | None,
    shared: StateOptions,
    until_empty: bool,
    fds: tuple[int, ...],
    host_fd: int | None,
    log_file: Path | None,
    verbose: bool,
    **tls: Any,
) -> None:
    """Serve rendezvous and a key/value store to any number of runs.

    \b
    Example, for a cluster:
        export RALLYPOINT_TOKEN=$(openssl rand -hex 16)
        rallypoint serve --bind 10.0.0.1:29400 --http 127.0.0.1:29480
    With TLS and a private CA (see `rallypoint certs`):
        rallypoint serve --bind 10.0.0.1:29400 --tls-cert head.pem --tls-key head.key
    Durable: after a crash, the same command continues all runs (docs/durability.md):
        rallypoint serve --bind 10.0.0.1:29400 --data-dir /var/lib/rallypoint
    Highly available: on two or three hosts, one leads (docs/high-availability.md):
        rallypoint serve --bind 10.0.0.1:29400 --state etcd://h1:2379,h2:2379,h3:2379/prod
    """
    _set_logs(verbose, log_file is not None)
    try:
        shared.check(data_dir, until_empty)
        tracing.asked(os.environ)
        token, files = read_token(None, token_file), read_tls(tls)
        given = Options(token, insecure, files, until_empty=until_empty)
        options = _usable(with_limits(given, limits, os.environ))
        web = _page_sockets(http, options) if http else []
        kept, sockets = _ready(data_dir, where, fds, options)
        state = shared.at(sockets)
    except (RallypointError, OSError) as error:
        _refuse(error)
    if not fds:
        _announce(sockets, kept, state, web, options)
    page = partial(_page, web, http_names)
    if state is not None:
        _to_the_end(serve_in_turn(options, sockets, state, page), [*sockets, *web])
    else:
        _to_the_end(_serve(options, sockets, page, kept, host_fd), [*sockets, *web])
    _drop_if_empty(log_file)


def _refuse(error: Exception) -> NoReturn:
    text = error.strerror if isinstance(error, OSError) else str(error)
    click.echo(f"rallypoint serve: {text}", err=True)
    sys.exit(EXIT_USAGE if isinstance(error, ParameterError) else EXIT_FAILED)


def _usable(options: Options) -> Options:
    """Check the TLS files before anything listens. Raises ParameterError."""
    if options.tls.for_servers:
        ServerTLS(options.tls)
    return options


def _set_logs(verbose: bool, hosted: bool) -> None:
    """Set up logging, and warn of variables that nothing reads.

    Args:
        verbose: log what each run does.
        hosted: an agent started this server. It has checked the variables, and it removes an
            empty log, so admin commands are not logged here: the nodes report them.
    """
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    if hosted:
        return
    from rallypoint.cli.variables import unread

    logging.getLogger("rallypoint.audit").setLevel(logging.INFO)
    for text in unread(os.environ, command):
        click.echo(f"rallypoint serve: warning: {text}", err=True)


def _warn(sockets: list[socket.socket], options: Options) -> None:
    exposed = any(not is_loopback(str(sock.getsockname()[0])) for sock in sockets)
    for text in weaknesses(options.token, exposed):
        click.echo(f"rallypoint serve: warning: {text}", err=True)


def _drop_if_empty(log_file: Path | None) -> None:
    if log_file is not None and log_file.stat().st_size == 0:
        log_file.unlink()


def _announce(
    sockets: list[socket.socket],
    kept: Kept | None,
    state: FailoverConfig | None,
    web: list[socket.socket],
    options: Options,
) -> None:
    _warn(sockets, options)
    click.echo(f"serving on {', '.join(map(endpoint_of, sockets))}")
    if kept is not None:
        number = len(kept[1].entries)
        click.echo(f"durable: {kept[0].where} ({number} {'entry' if number == 1 else 'entries'})")
    if state is not None:
        click.echo(f"state in {redacted(state.url)}, advertised as {state.advertise}")
    if web:
        click.echo(f"page on {', '.join(page_url(sock, options) for sock in web)}")


def _sockets(where: str, fds: tuple[int, ...], options: Options) -> list[socket.socket]:
    if fds:
        return [socket.socket(fileno=fd) for fd in fds]
    host, port = parse_rendezvous_endpoint(where)
    return listen(host, port, options.token, options.insecure)


def _ready(
    data_dir: str | None, where: str, fds: tuple[int, ...], options: Options
) -> tuple[Kept | None, list[socket.socket]]:
    kept = _opened(data_dir) if data_dir else None  # before anything listens
    try:
        return kept, _sockets(where, fds, options)
    except BaseException:
        if kept is not None:
            kept[0].close()
        raise


def _opened(data_dir: str) -> Kept:
    from rallypoint.server.journal.sqlite import SQLiteJournal

    journal = SQLiteJournal(data_dir)
    opened = journal.open(Deadline(OPEN_SECONDS))
    try:
        Stored(journal.where, opened.entries)  # refuses what does not fit
    except BaseException:
        journal.close()
        raise
    return journal, opened


def _to_the_end(serving: Coroutine[Any, Any, None], sockets: list[socket.socket]) -> None:
    try:
        uvloop.run(serving)
    except JournalError as error:
        click.echo(f"rallypoint serve: {error}", err=True)
        sys.exit(1)
    except Exception as error:  # a fault of ours: the server has logged where
        click.echo(f"rallypoint serve: the server has failed: {error!r}", err=True)
        sys.exit(1)
    finally:
        for sock in sockets:
            sock.close()


def _page_sockets(where: str, options: Options) -> list[socket.socket]:
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise ParameterError("--http needs the extra `web`: pip install 'rallypoint[web]'")
    if where.strip().isdecimal():
        where = f"{LOOPBACK}:{where.strip()}"
    try:
        host, port = parse_rendezvous_endpoint(where, -1)
    except ParameterError as error:
        raise ParameterError(f"--http {where}: give PORT or ADDRESS:PORT: {error}") from error
    if port == -1:  # the default is the port of the server itself
        raise ParameterError(f"--http {where}: the port is missing; give PORT or ADDRESS:PORT")
    return listen(host, port, options.token, options.insecure)


def page_url(sock: socket.socket, options: Options) -> str:
    """Return the URL of the page, with a warning if its token crosses the network in clear."""
    local = is_loopback(str(sock.getsockname()[0]))
    secure = options.tls.for_servers and not local
    warning = ""
    if options.token and not secure and not local:
        warning = (
            " WITHOUT TLS: the token crosses the network unencrypted; give --tls-cert and "
            "--tls-key, or bind the page to loopback behind a TLS proxy"
        )
    return f"{'https' if secure else 'http'}://{endpoint_of(sock)}/{warning}"


async def _serve(
    options: Options,
    sockets: list[socket.socket],
    page: Attend,
    kept: Kept | None,
    host_fd: int | None = None,
) -> None:
    server = Server(options, sockets)
    if kept is not None:
        Persistence(server, *kept)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    if options.until_empty:
        # A scheduler that ends a job signals all its processes at once. The nodes then leave, and
        # the server that one of them started ends after the last of them.
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    await server.start()
    if host_fd is not None:
        _watch_host(server, host_fd)
    async with page(server):
        await server.serve()


def _watch_host(server: Server, fd: int) -> None:
    """Stop waiting for a first client when the agent that started this server ends."""

    def ended() -> None:
        server.loop.remove_reader(fd)
        os.close(fd)
        server.options = dataclasses.replace(server.options, first_client_seconds=0.0)

    server.loop.add_reader(fd, ended)


@asynccontextmanager
async def _page(
    web: list[socket.socket], names: tuple[str, ...], server: Server
) -> AsyncIterator[None]:
    """Serve the live page and emit spans, where configured, while the block lasts."""
    with tracing.traced(server, os.environ):
        async with _shown(web, names, server):
            yield


@asynccontextmanager
async def _shown(
    web: list[socket.socket], names: tuple[str, ...], server: Server
) -> AsyncIterator[None]:
    if not web:
        yield
        return
    from rallypoint.web.app import Listener

    page = Listener(server, [sock.dup() for sock in web], names)
    page.start()
    try:
        yield
    finally:
        await page.stop()
