"""Wrong input and wrong setups: one clear error each, the right exit code, no process left.

A clear error is one line on stderr that says what is wrong, where, and what to change, without a
traceback. Exit code 2 means that the command was wrong, 1 that something else was.
"""

import contextlib
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.harness import LOOPBACK, Fleet, Process, endpoint, free_port, outer_address

pytestmark = pytest.mark.integration

JOIN_SECONDS = 3


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        yield started


def one_line(process: Process, code: int, *parts: str) -> None:
    """Check that a process ended with this code and one line that has all the parts.

    Before the error, a node that cannot connect may say that it still tries (case-A3).
    """
    assert process.wait() == code, process.shown()
    said = process.err.lines
    lines = [line for line in said if "; trying for " not in line.text]
    assert len(lines) == 1, process.shown()
    text = lines[0].text
    assert text.startswith("rallypoint: ")
    for part in parts:
        assert re.search(part, text), f"{part!r} is not in {text!r}"


def job(where: str, *more: str) -> list[str]:
    return ["--nnodes=2", f"--endpoint={where}", "--run-id=bad", f"--join-timeout={JOIN_SECONDS}",
            *more]  # fmt: skip


# -- usage: exit code 2 -----------------------------------------------------------------------

USAGE = {
    "an endpoint without a port": (
        ["--nnodes=2", "--endpoint=first", "--run-id=x", "worker.py"],
        ["--endpoint first: the port is missing; give first:29400"],
    ),
    "more nodes than at most": (
        ["--nnodes=4:2", f"--endpoint={LOOPBACK}:29400", "--run-id=x", "worker.py"],
        [r"--nnodes 4:2", r"did you mean 2:4\?"],
    ),
    "a missing script": (
        ["--standalone", "nope.py"],
        [r"no such script: 'nope.py' \(in /.*\)", "give -m"],
    ),
    "no number of workers": (
        ["--standalone", "--nproc-per-node=many", "worker.py"],
        ["--nproc-per-node many: give a number above 0, auto, cpu or gpu"],
    ),
    "a port that is none": (
        ["--nnodes=2", "--endpoint=first:port", "--run-id=x", "worker.py"],
        ["endpoint='first:port': the port 'port' is not a number"],
    ),
    "a setting that is none": (
        ["--standalone", "--rdzv-conf=lease=soon", "worker.py"],
        ["lease", "soon"],
    ),
    "an unknown backend": (
        ["--nnodes=2", "--backend=nope", f"--endpoint={LOOPBACK}:1", "--run-id=x", "worker.py"],
        ["nope", "core"],
    ),
    "a rank that is none": (
        ["--nnodes=2", f"--endpoint={endpoint()}", "--run-id=x", "--node-rank=-1", "worker.py"],
        ["--node-rank -1"],
    ),
    "redirects without a place": (
        ["--standalone", "--redirects=3", "worker.py"],
        ["--redirects needs --log-dir DIR"],
    ),
}


@pytest.mark.parametrize("mistake", USAGE)
def test_usage_errors(fleet: Fleet, mistake: str) -> None:
    argv, parts = USAGE[mistake]
    one_line(fleet.rallypoint("node", "run", *argv), 2, *parts)
    assert fleet.left() == []


# -- a port that another program has ----------------------------------------------------------


@contextlib.contextmanager
def stranger(answer: bytes | None) -> Iterator[str]:
    """Listen as another program. None: close at once; b"": never answer."""
    held: list[socket.socket] = []

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                if answer is None:
                    client.close()
                    continue
                held.append(client)
                if answer:
                    client.recv(4096)
                    client.sendall(answer)
                    client.shutdown(socket.SHUT_WR)

    with socket.create_server((LOOPBACK, 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener], daemon=True)
        thread.start()
        try:
            yield f"{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for client in held:
                client.close()


STRANGERS = {
    "http": b"HTTP/1.0 400 Bad Request\r\nServer: other\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "silent": b"",
    "closing": None,
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_port_used_by_another_program_is_reported(fleet: Fleet, kind: str) -> None:
    with stranger(STRANGERS[kind]) as where:
        agent = fleet.agent("node", *job(where))
        one_line(agent, 3, where, "not .*a Rallypoint server", "; give a port of")
    assert fleet.left() == []


def test_serve_on_a_used_port_is_refused(fleet: Fleet) -> None:
    with stranger(None) as where:
        server = fleet.rallypoint("server", "serve", "--bind", where)
        assert server.wait() == 1
        (line,) = server.err.lines
        assert f"cannot listen on {where}: Address already in use" in line.text


# -- who cannot be reached --------------------------------------------------------------------


def test_unknown_host_is_reported(fleet: Fleet) -> None:
    agent = fleet.agent("node", *job("nope.invalid:29400"))
    one_line(agent, 3, "nope.invalid", "(?i)name|resolve", f"join={JOIN_SECONDS} s")
    assert fleet.left() == []


def test_endpoint_without_a_listener_is_reported(fleet: Fleet) -> None:
    where = f"127.0.0.2:{free_port('127.0.0.2')}"
    agent = fleet.agent("node", *job(where, "--rdzv-conf=is_host=false"))
    one_line(agent, 3, where, "(?i)refused", "rallypoint serve", f"join={JOIN_SECONDS} s")
    assert fleet.left() == []


def test_wrong_token_is_refused(fleet: Fleet) -> None:
    server, where = fleet.server(env={"RALLYPOINT_TOKEN": "right"})
    agent = fleet.agent("node", *job(where), env={"RALLYPOINT_TOKEN": "wrong"})
    one_line(agent, 93, where, "(?i)token", "same")
    without = fleet.agent("none", *job(where))
    one_line(without, 93, where, "(?i)token", "RALLYPOINT_TOKEN|same")
    assert [process.pid for process in fleet.left()] == [server.pid]


@pytest.mark.cases("case-H1")
def test_serving_other_machines_needs_a_token(fleet: Fleet) -> None:
    address = outer_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    where = f"{address}:{free_port(address)}"
    one_line(
        fleet.agent("node", *job(where)), 2, f"refusing to listen on {address} without a token",
        "export RALLYPOINT_TOKEN=", "--insecure",
    )  # fmt: skip
    assert fleet.left() == []


# -- nodes that do not agree ------------------------------------------------------------------


def test_different_node_counts_are_refused(fleet: Fleet) -> None:
    where = endpoint()
    options = [f"--endpoint={where}", "--run-id=bounds"]
    first = fleet.agent("first", "--nnodes=2:3", *options)
    first.expect("1 of 2 nodes, waiting for 1")
    second = fleet.agent("second", "--nnodes=2:4", *options)
    one_line(
        second, 93, "min_nodes=2, max_nodes=4 were asked for",
        f"opened with min_nodes=2, max_nodes=3 by .* pid {first.pid}", "give all nodes the same",
    )  # fmt: skip
    first.send(signal.SIGTERM)
    assert first.wait() == 128 + signal.SIGTERM
    fleet.all_gone()


def test_too_few_nodes_is_reported(fleet: Fleet) -> None:
    agent = fleet.agent("alone", *job(endpoint()))
    one_line(agent, 3, "1 of at least 2 nodes", f"join={JOIN_SECONDS} s|join_timeout")
    fleet.all_gone()
