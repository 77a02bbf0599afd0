"""`rallypoint serve`: a server for any number of runs and their stores."""

import asyncio
import logging
import os
import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import uvloop

from rallypoint.cli.options import tls_options
from rallypoint.errors import ParameterError, RallypointError
from rallypoint.rendezvous.endpoint import parse_rendezvous_endpoint
from rallypoint.server.options import Options, is_loopback, with_limits
from rallypoint.server.server import Server, bind, endpoint_of
from rallypoint.store.tls import read_tls
from rallypoint.store.token import read_token


@click.command()
@click.option(
    "--bind",
    "where",
    metavar="ADDRESS:PORT",
    default="127.0.0.1:29400",
    envvar="RALLYPOINT_BIND",
    show_default=True,
    help="What to listen on, exactly; port 0 picks a free one, which is printed.",
)
@click.option("--token-file", help="File with the shared secret (else RALLYPOINT_TOKEN).")
@click.option("--insecure", is_flag=True, help="Allow other addresses than loopback, no token.")
@tls_options
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=N",
    help="Set a limit, such as keys_limit=10000 (docs/defaults.md lists them).",
)
@click.option(
    "--http",
    metavar="ADDRESS:PORT",
    envvar="RALLYPOINT_HTTP",
    help="Where to serve the live page, /api/v1 and /metrics (needs rallypoint[web]).",
)
@click.option(
    "--http-name",
    "http_names",
    multiple=True,
    metavar="NAME",
    envvar="RALLYPOINT_HTTP_NAME",
    help="A name, beside this machine's own, by which browsers reach the page.",
)
@click.option("--until-empty", is_flag=True, help="End once the last client has gone.")
@click.option("--fd", "fds", type=int, multiple=True, hidden=True)
@click.option("--log-file", type=Path, hidden=True)
@click.option("-v", "--verbose", is_flag=True, help="Say what each run is doing.")
def command(
    where: str,
    token_file: str | None,
    insecure: bool,
    limits: tuple[str, ...],
    http: str | None,
    http_names: tuple[str, ...],
    until_empty: bool,
    fds: tuple[int, ...],
    log_file: Path | None,
    verbose: bool,
    **tls: Any,
) -> None:
    """Serve rendezvous and a key/value store to any number of runs.

    \b
    Example, for a cluster:
        export RALLYPOINT_TOKEN=$(openssl rand -hex 16)
        rallypoint serve --bind 10.0.0.1:29400 --http 127.0.0.1:29480
    With TLS, by an authority of one's own (see `rallypoint certs`):
        rallypoint serve --bind 10.0.0.1:29400 --tls-cert head.pem --tls-key head.key
    """
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("rallypoint.audit").setLevel(logging.INFO)
    try:
        token = read_token(None, token_file)
        options = Options(token, insecure, read_tls(tls), until_empty=until_empty)
        options = with_limits(options, limits, os.environ)
        web = _page_sockets(http, options) if http else []
        sockets = _sockets(where, fds, options)
    except (RallypointError, OSError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        click.echo(f"rallypoint serve: {text}", err=True)
        sys.exit(1)
    if not fds:
        click.echo(f"serving on {', '.join(endpoint_of(sock) for sock in sockets)}")
    if web:
        click.echo(f"page on {', '.join(page_url(sock, options) for sock in web)}")
    _serve_to_the_end(options, sockets, web, http_names)
    if log_file is not None and log_file.stat().st_size == 0:
        log_file.unlink()


def _sockets(where: str, fds: tuple[int, ...], options: Options) -> list[socket.socket]:
    if fds:
        return [socket.socket(fileno=fd) for fd in fds]
    host, port = parse_rendezvous_endpoint(where)
    return bind(host, port, options)


def _serve_to_the_end(
    options: Options,
    sockets: list[socket.socket],
    web: list[socket.socket],
    names: tuple[str, ...],
) -> None:
    try:
        uvloop.run(_serve(options, sockets, web, names))
    except Exception as error:  # a fault of ours: the server has logged where
        click.echo(f"rallypoint serve: the server has failed: {error!r}", err=True)
        sys.exit(1)


def _page_sockets(where: str, options: Options) -> list[socket.socket]:
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise ParameterError("--http needs the extra `web`: pip install 'rallypoint[web]'")
    return _sockets(where, (), options)


def page_url(sock: socket.socket, options: Options) -> str:
    """Return where the page is: off loopback it speaks TLS if the server does."""
    secure = options.tls.for_servers and not is_loopback(str(sock.getsockname()[0]))
    return f"{'https' if secure else 'http'}://{endpoint_of(sock)}/"


async def _serve(
    options: Options,
    sockets: list[socket.socket],
    web: list[socket.socket],
    names: tuple[str, ...],
) -> None:
    server = Server(options, sockets)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    if options.until_empty:
        # A scheduler that ends a job signals all its processes at once. Members then say
        # goodbye, and the server that one of them started ends after the last of them.
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    await server.start()
    if not web:
        await server.serve()
        return
    from rallypoint.web.listener import Listener

    page = Listener(server, web, names)
    page.start()
    try:
        await server.serve()
    finally:
        await page.stop()
