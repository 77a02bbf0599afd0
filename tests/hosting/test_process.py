"""The server as a process of its own, and its log file."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError
from rallypoint.hosting.process import ServerProcess, start_process
from rallypoint.net.tls import NO_TLS, TLS
from rallypoint.rendezvous.api import RendezvousParameters
from rallypoint.rendezvous.registry import get_rendezvous_handler
from rallypoint.store.tcp import TCPStore

pytestmark = pytest.mark.integration


@pytest.fixture(name="spawned")
def _spawned() -> Iterator[ServerProcess]:
    found = start_process("127.0.0.1", 0, b"secret", False, NO_TLS)
    yield found
    with contextlib.suppress(ProcessLookupError):
        os.kill(found.pid, signal.SIGKILL)
    found.log.unlink(missing_ok=True)


def wait_for_the_end(pid: int) -> None:
    deadline = Deadline(20)
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert not deadline.expired()


def test_it_serves_at_once_and_ends_when_it_is_empty(spawned: ServerProcess) -> None:
    port = int(spawned.endpoint.rpartition(":")[2])
    with TCPStore("127.0.0.1", port, token="secret", timeout=20) as store:
        assert store.add("n", 1) == 1
    wait_for_the_end(spawned.pid)
    assert not spawned.log.exists()  # it had nothing to say


def test_a_log_that_is_not_empty_is_kept(spawned: ServerProcess) -> None:
    port = int(spawned.endpoint.rpartition(":")[2])
    with TCPStore("127.0.0.1", port, token="secret", timeout=20):
        os.kill(spawned.pid, signal.SIGSTOP)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as other:
            other.settimeout(1.6)
            with pytest.raises(TimeoutError):
                other.recv(1)
            os.kill(spawned.pid, signal.SIGCONT)
            other.settimeout(10)
            other.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert b"not HTTP" in other.recv(1000)
    wait_for_the_end(spawned.pid)
    assert "held up" in spawned.log.read_text()


def test_closing_a_run_leaves_no_log(spawned: ServerProcess) -> None:
    params = RendezvousParameters("core", spawned.endpoint, "job", 1, 1, token="secret")
    handler = get_rendezvous_handler(params)
    handler.set_closed()
    handler.shutdown()
    wait_for_the_end(spawned.pid)
    assert not spawned.log.exists()  # whoever takes part is told of the order


def test_the_exit_code_is_known_once(spawned: ServerProcess) -> None:
    assert spawned.exit_code() is None
    os.kill(spawned.pid, signal.SIGKILL)
    wait_for_the_end(spawned.pid)
    assert spawned.exit_code() == -signal.SIGKILL
    assert spawned.exit_code() is None  # it is known once


def test_a_port_in_use_is_an_error(spawned: ServerProcess) -> None:
    port = int(spawned.endpoint.rpartition(":")[2])
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
        start_process("127.0.0.1", port, b"secret", False, NO_TLS)


def test_a_token_is_needed_off_loopback() -> None:
    with pytest.raises(ParameterError, match="token"):
        start_process("0.0.0.0", 0, b"", False, NO_TLS)


def test_a_server_on_loopback_only_is_local() -> None:
    def spawned(*addresses: str) -> ServerProcess:
        return ServerProcess("first:1", 1, Path("log"), addresses)

    assert spawned("127.0.1.1", "::1").is_local
    assert not spawned("127.0.1.1", "10.0.0.7").is_local


def test_unusable_tls_files_are_an_error_before_the_start() -> None:
    files = TLS(cert="/nope.crt", key="/nope.key", ca="/nope.ca")
    with pytest.raises(ParameterError, match="/nope"):
        start_process("127.0.0.1", 0, b"", False, files)


@pytest.mark.parametrize("used", [False, True])
def test_the_server_stops_waiting_for_clients_when_its_starter_ends(
    tmp_path: Path, used: bool
) -> None:
    script = (
        "import sys; from rallypoint.hosting.process import start_process\n"
        "from rallypoint.net.tls import NO_TLS\n"
        "found = start_process('127.0.0.1', 0, b'secret', False, NO_TLS)\n"
        "print(found.pid, found.endpoint, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as host:  # type: ignore[call-overload]
        pid, endpoint = host.stdout.readline().split()
        with contextlib.ExitStack() as stack:
            if used:
                port = int(endpoint.rpartition(":")[2])
                store = TCPStore("127.0.0.1", port, token="secret", timeout=20)
                stack.enter_context(store).add("n", 1)
            host.kill()
            host.wait(20)
            if used:
                assert store.add("n", 1) == 2
        wait_for_the_end(int(pid))
