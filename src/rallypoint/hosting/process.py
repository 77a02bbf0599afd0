"""Starting the server as a process of its own, which outlives the agent that started it.

The agent binds the port itself and passes the listening sockets on: exactly one agent can bind
them, and clients can connect at once. The server writes to a log file, so that its output
neither mixes with the workers' nor keeps the agent's pipes open. A server that ends with an
empty log removes it; the agent names a log that is not empty.

The server waits a while for its first client. The agent holds the write end of a pipe for as
long as it lives; once that is closed, however the agent ended, the server no longer waits.
"""

import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rallypoint.net.endpoints import join_endpoint
from rallypoint.net.listener import is_loopback, listen
from rallypoint.net.tls import TLS
from rallypoint.net.token_sources import FILE_VARIABLE, TOKEN_VARIABLE, token_environment


@dataclass(frozen=True)
class ServerProcess:
    """A server process.

    Args:
        endpoint: HOST:PORT where it listens.
        pid: its process id.
        log: the file with its output.
        addresses: the IP addresses that are bound.
    """

    endpoint: str
    pid: int
    log: Path
    addresses: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it.

        Many /etc/hosts files map the machine's own name to loopback.
        """
        return all(is_loopback(address) for address in self.addresses)

    def exit_code(self) -> int | None:
        """Return the exit code (-N: ended by signal N), None while it runs.

        The code can be collected only once, and only in the process that started the server.
        """
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # collected already, or SIGCHLD is ignored
            return None
        return os.waitstatus_to_exitcode(status) if pid else None


def start_process(host: str, port: int, token: bytes, insecure: bool, tls: TLS) -> ServerProcess:
    """Start a server process that is bound to exactly this address.

    Args and Raises: see `rallypoint.hosting.in_process.start_server`. Unusable TLS files are
    an error here, not in the log of the server.
    """
    if tls.for_servers:
        from rallypoint.net.tls_socket import server_context  # `ssl` is slow to import

        server_context(tls)
    sockets = listen(host, port, token, insecure)
    try:
        tls.check_hosting()
        return _spawn(host, sockets, insecure, {**token_environment(token), **tls.environment()})
    finally:
        for sock in sockets:
            sock.close()


def _spawn(
    host: str, sockets: list[socket.socket], insecure: bool, secrets: dict[str, str]
) -> ServerProcess:
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
    host_fd, _held = os.pipe()  # `_held` is closed by the end of this process alone
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
    return ServerProcess(join_endpoint(host, port), process.pid, Path(name), addresses)
