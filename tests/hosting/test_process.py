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
from rallypoint.errors import ParameterError, RendezvousConnectionError
from rallypoint.hosting.process import Spawned, host_if_ours
from rallypoint.net.tls import TLS
from rallypoint.rendezvous.api import RendezvousParameters
from rallypoint.rendezvous.registry import get_rendezvous_handler
from rallypoint.store.tcp import TCPStore

pytestmark = pytest.mark.integration


@pytest.fixture(name="spawned")
def _spawned() -> Iterator[Spawned]:
    found = host_if_ours("127.0.0.1:0", b"secret", False)
    assert found is not None
    yield found
    with contextlib.suppress(ProcessLookupError):
        os.kill(found.pid, signal.SIGKILL)
    found.log.unlink(missing_ok=True)


def wait_for_the_end(pid: int) -> None:
    deadline = Deadline(20)
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert not deadline.expired()


def test_it_serves_at_once_and_ends_when_empty(spawned: Spawned) -> None:
    port = int(spawned.endpoint.rpartition(":")[2])
    with TCPStore("127.0.0.1", port, token="secret", timeout=20) as store:
        assert store.add("n", 1) == 1
    wait_for_the_end(spawned.pid)
    assert not spawned.log.exists()  # it had nothing to say


def test_what_it_says_is_kept(spawned: Spawned) -> None:
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


def test_orders_leave_nothing_to_keep(spawned: Spawned) -> None:
    params = RendezvousParameters("core", spawned.endpoint, "job", 1, 1, token="secret")
    handler = get_rendezvous_handler(params)
    handler.set_closed()
    handler.shutdown()
    wait_for_the_end(spawned.pid)
    assert not spawned.log.exists()  # whoever takes part is told of the order


def test_how_it_ended_is_known_where_it_was_started(spawned: Spawned) -> None:
    assert spawned.exit_code() is None
    os.kill(spawned.pid, signal.SIGKILL)
    wait_for_the_end(spawned.pid)
    assert spawned.exit_code() == -signal.SIGKILL
    assert spawned.exit_code() is None  # asked once too often


def test_exactly_one_hosts(spawned: Spawned) -> None:
    assert host_if_ours(spawned.endpoint, b"secret", False) is None
    with pytest.raises(RendezvousConnectionError, match=f"{spawned.endpoint}.*a free port"):
        host_if_ours(spawned.endpoint, b"secret", False, is_host=True)


def test_who_is_not_the_host_does_not_start_one() -> None:
    assert host_if_ours("192.0.2.1:29400", b"", False) is None  # another machine's
    assert host_if_ours("nope.invalid:29400", b"", False) is None  # not in DNS yet
    assert host_if_ours("127.0.0.1:0", b"", False, is_host=False) is None
    with pytest.raises(RendezvousConnectionError, match=r"nope\.invalid:29400"):
        host_if_ours("nope.invalid:29400", b"", False, is_host=True)
    with pytest.raises(ParameterError, match="token"):
        host_if_ours("0.0.0.0:0", b"", False)


def test_who_can_be_reached_from_elsewhere() -> None:
    def spawned(*addresses: str) -> Spawned:
        return Spawned("first:1", 1, Path("log"), addresses)

    assert spawned("127.0.1.1", "::1").is_local
    assert not spawned("127.0.1.1", "10.0.0.7").is_local


def test_unusable_tls_files_are_the_commands_error() -> None:
    files = TLS(cert="/nope.crt", key="/nope.key", ca="/nope.ca")
    with pytest.raises(ParameterError, match="/nope"):
        host_if_ours("127.0.0.1:0", b"", False, None, files)


def test_nobody_hosts_one_of_a_list() -> None:
    endpoint = "127.0.0.1:0,127.0.0.1:1"
    assert host_if_ours(endpoint, b"secret", False) is None
    with pytest.raises(ParameterError, match="of a list nobody hosts by itself"):
        host_if_ours(endpoint, b"secret", False, is_host=True)


@pytest.mark.parametrize("used", [False, True])
def test_nobody_is_waited_for_once_the_host_has_ended(tmp_path: Path, used: bool) -> None:
    script = (
        "import sys; from rallypoint.hosting.process import host_if_ours\n"
        "found = host_if_ours('127.0.0.1:0', b'secret', False)\n"
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
