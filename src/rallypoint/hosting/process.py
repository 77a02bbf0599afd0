"""Starting the server as a process of its own, which outlives the agent that started it.

The agent binds the port itself and hands the listening socket over: exactly one agent can
bind, clients can connect at once, and nothing has to be waited for. The server's own output
goes to a file, so that it neither mixes with the workers' nor holds the agent's pipes open. A
server that ends with nothing in it takes it away; what holds something, the agent names.

The server waits a while for its first client. The agent holds the writing end of a pipe as long as
it lives: once that is closed, however the agent ended, nobody is waited for any more.
"""

import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rallypoint.hosting.contract import check_elsewhere
from rallypoint.net.addresses import join_endpoint, parse_rendezvous_endpoint
from rallypoint.net.endpoints import is_list, one_host
from rallypoint.net.tls import TLS, read_tls
from rallypoint.net.token_sources import FILE_VARIABLE, TOKEN_VARIABLE, token_environment
from rallypoint.server.options import Options, is_loopback
from rallypoint.server.server import bind
from rallypoint.server.tls import ServerTLS


@dataclass(frozen=True)
class Spawned:
    """A server process: where it listens, its pid, where its output goes, what it bound."""

    endpoint: str
    pid: int
    log: Path
    addresses: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it: an /etc/hosts often says so of its own name."""
        return all(is_loopback(address) for address in self.addresses)

    def exit_code(self) -> int | None:
        """Return how it has ended (-N: by signal N), None while it runs; once, where it started."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # nobody waits for children here (SIGCHLD is ignored)
            return None
        return os.waitstatus_to_exitcode(status) if pid else None


def host_if_ours(
    endpoint: str,
    token: bytes,
    insecure: bool,
    is_host: bool | None = None,
    tls: TLS | None = None,
) -> Spawned | None:
    """Start a server process if the endpoint is an address of this machine.

    Args:
        endpoint: HOST:PORT; port 0 picks one (see `Spawned.endpoint`).
        token: shared secret of the run's nodes.
        insecure: allow listening off loopback without one.
        is_host: True: must host; False: never; None: if the address can be bound here.
        tls: its files; None: those of the environment.

    Returns None when another process or machine hosts, or for a list of endpoints. Raises
    ParameterError when a token is needed, RendezvousConnectionError when it must host and
    cannot.
    """
    if is_host:
        one_host(endpoint)
    if is_host is False or is_list(endpoint):
        return None
    host, port = parse_rendezvous_endpoint(endpoint)
    files = read_tls() if tls is None else tls
    if files.for_servers:
        ServerTLS(files)  # unusable files are this command's error, not its server's
    try:
        sockets = bind(host, port, Options(token=token, insecure=insecure))
    except OSError as error:
        check_elsewhere(endpoint, error, is_host)
        return None
    try:
        files.check_hosting()
        return _spawn(host, sockets, insecure, {**token_environment(token), **files.environment()})
    finally:
        for sock in sockets:
            sock.close()


def _spawn(
    host: str, sockets: list[socket.socket], insecure: bool, secrets: dict[str, str]
) -> Spawned:
    port = sockets[0].getsockname()[1]
    fds = [sock.fileno() for sock in sockets]
    environment = dict(os.environ)
    environment.pop(FILE_VARIABLE, None)
    environment.pop(TOKEN_VARIABLE, None)
    environment |= secrets
    command = [sys.executable, "-m", "rallypoint", "serve", "--until-empty"]
    command += [f"--fd={fd}" for fd in fds] + (["--insecure"] if insecure else [])
    handle, name = tempfile.mkstemp(prefix=f"rallypoint-server-{port}-", suffix=".log")
    command.append(f"--log-file={name}")
    host_fd, _held = os.pipe()  # closed by the end of this process alone
    command.append(f"--host-fd={host_fd}")
    with os.fdopen(handle, "wb") as log:
        process = subprocess.Popen(  # our own program, no shell
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[*fds, host_fd],
            start_new_session=True,
        )
    os.close(host_fd)
    process.returncode = 0  # it outlives us on purpose: no ResourceWarning, no wait
    addresses = tuple(str(sock.getsockname()[0]) for sock in sockets)
    return Spawned(join_endpoint(host, port), process.pid, Path(name), addresses)
