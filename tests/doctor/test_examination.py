"""The ten broken set-ups, each named by the doctor; most of them for real on loopback."""

import contextlib
import errno
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.certificates import make_certificates
from tests.server.in_turn import InTurn
from tests.web.crowd import Crowd
from tests.web.serving import served

from rallypoint.core.state import Settings
from rallypoint.doctor.examination import (
    Question,
    cause,
    examine,
    examine_all,
    in_short,
    worst,
)
from rallypoint.doctor.findings import Attempt, Finding, Verdict
from rallypoint.doctor.probe import Probe
from rallypoint.net import protocol as p
from rallypoint.net.addresses import free_port
from rallypoint.net.dialer import AddressInfo
from rallypoint.net.tls import TLS
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.options import Options
from rallypoint.testing.fakes import MemoryEngine

pytestmark = pytest.mark.integration
LOOPBACK = "127.0.0.1"
SECONDS = 1.0


def found(question: Question, probe: Probe | None = None) -> dict[str, Finding]:
    return {finding.step: finding for finding in examine(question, probe or Probe(SECONDS))}


def named(question: Question, probe: Probe | None = None) -> Finding:
    wrong = cause(list(found(question, probe).values()))
    assert wrong is not None
    assert wrong.remedy
    return wrong


@contextlib.contextmanager
def answering(reply: Callable[[socket.socket], None]) -> Iterator[int]:
    """A program that takes one connection after another and answers as told."""
    with socket.create_server((LOOPBACK, 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):  # closed by the test
                while True:
                    sock, _ = listening.accept()
                    with sock, contextlib.suppress(OSError):
                        reply(sock)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def saying(said: bytes) -> Callable[[socket.socket], None]:
    """Return what answers a hello with these bytes."""

    def reply(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(said)
        sock.recv(9)

    return reply


@contextlib.contextmanager
def hosted(token: bytes = b"") -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(LOOPBACK, 0, Options(token=token))
    try:
        yield server
    finally:
        server.stop()


# -- one after the other --------------------------------------------------------------------


def test_1_name_does_not_resolve() -> None:
    wrong = named(Question("nope.invalid", 29400))
    assert (wrong.step, wrong.verdict) == ("name", Verdict.FAIL)
    assert "nope.invalid does not resolve" in wrong.text


def test_2_wrong_port() -> None:
    wrong = named(Question(LOOPBACK, free_port(LOOPBACK)))
    assert wrong.step == "connect"
    assert "connection refused" in wrong.text
    assert "nothing listens on port" in wrong.remedy


def test_2_wrong_port_while_the_default_port_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted() as server:
        monkeypatch.setattr("rallypoint.doctor.examination.DEFAULT_PORT", server.port)
        steps = found(Question(LOOPBACK, free_port(LOOPBACK)))
    assert steps["port"].remedy == f"did you mean port {server.port}?"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server"),
        (b"SSH-2.0-OpenSSH_9\r\n", "an SSH server"),
        (b"-ERR unknown command\r\n", "a Redis server"),
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00", "etcd"),
        (b"what?", "it sent b'what?'"),
    ],
)
def test_3_another_program_uses_the_port(said: bytes, kind: str) -> None:
    with answering(saying(said)) as port:
        wrong = named(Question(LOOPBACK, port))
    assert wrong.step == "answer"
    assert "another program listens there" in wrong.text
    assert kind in wrong.text


def test_3_another_program_closes_the_connection() -> None:
    with answering(lambda sock: None) as port:
        wrong = named(Question(LOOPBACK, port))
    assert (wrong.step, wrong.verdict) == ("answer", Verdict.FAIL)


def test_4_firewall_drops_packets() -> None:
    # a full queue of connections drops what comes next, as a firewall does
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind((LOOPBACK, 0))
        full.listen(0)
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        wrong = named(Question(LOOPBACK, full.getsockname()[1]))
    assert wrong.step == "connect"
    assert "did not answer" in wrong.text
    assert "firewall" in wrong.remedy


@pytest.mark.parametrize(
    ("server", "mine", "text"),
    [
        (b"sesame", b"", "requires a token, but this node has none"),
        (b"sesame", b"other", "different tokens"),
        (b"", b"sesame", "but the server has none"),
    ],
)
def test_5_wrong_token(server: bytes, mine: bytes, text: str) -> None:
    with hosted(server) as running:
        wrong = named(Question(LOOPBACK, running.port, token=mine))
    assert (wrong.step, wrong.verdict) == ("token", Verdict.FAIL)
    assert text in wrong.text


def test_5_token_for_one_run_without_a_run_id() -> None:
    with hosted(b"run:digits secret") as running:
        wrong = named(Question(LOOPBACK, running.port, token=b"run:digits secret"))
    assert (wrong.step, wrong.verdict) == ("token", Verdict.FAIL)
    assert "for run 'digits' alone: give --run-id digits" in wrong.text


def test_5_wrong_token_over_tls(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    made, other = make_certificates(tmp_path / "one"), make_certificates(tmp_path / "two")
    files, trusts = TLS(cert=str(made.cert), key=str(made.key)), TLS(ca=str(made.ca))
    server = EmbeddedServer(LOOPBACK, 0, Options(token=b"sesame", tls=files))
    try:
        place = (LOOPBACK, server.port)
        assert "this node has none" in named(Question(*place, tls=trusts)).text
        wrong = named(Question(*place, token=b"other", tls=trusts))
        assert "different tokens" in wrong.text
        wrong = named(Question(*place, token=b"sesame", tls=TLS(ca=str(other.ca))))
        assert (wrong.step, wrong.verdict) == ("certificate", Verdict.FAIL)
        assert "the certificate of 127.0.0.1 is not accepted" in wrong.text
    finally:
        server.stop()
    plain = EmbeddedServer("127.0.0.2", 0, Options(insecure=True, tls=files))
    try:
        wrong = named(Question("127.0.0.2", plain.port, token=b"sesame", tls=trusts))
        assert wrong.step == "certificate"
        assert "the certificate of 127.0.0.2 is not accepted" in wrong.text
    finally:
        plain.stop()
    plain = EmbeddedServer(LOOPBACK, 0, Options(tls=files))
    try:
        wrong = named(Question(LOOPBACK, plain.port, token=b"sesame", tls=trusts))
        assert "but the server has none" in wrong.text
    finally:
        plain.stop()


def test_6_port_speaks_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.cert, made.key)

    def shake(sock: socket.socket) -> None:
        with contextlib.suppress(ssl.SSLError):  # a plain hello is no handshake
            context.wrap_socket(sock, server_side=True).close()

    with answering(shake) as port:
        wrong = named(Question(LOOPBACK, port))
    assert wrong.step == "answer"
    assert "uses TLS, but this node does not" in wrong.text


def test_7_other_version() -> None:
    said = p.frame(p.Goodbye(p.GOODBYE_VERSION, "this server speaks protocol 9"))
    with answering(saying(said)) as port:
        wrong = named(Question(LOOPBACK, port))
    assert (wrong.step, wrong.text) == ("answer", "this server speaks protocol 9")
    assert "same version" in wrong.remedy


class WithoutIPv6(Probe):
    """A machine without a route for IPv6, and a name that has nothing else."""

    def resolve(self, host: str, port: int) -> list[AddressInfo]:
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::7", port, 0, 0))]

    def connect(self, info: AddressInfo) -> tuple[Attempt, socket.socket | None]:
        return Attempt(str(info[4][0]), int(info[4][1]), 0.0, errno.ENETUNREACH), None


def test_8_ipv6_only() -> None:
    wrong = named(Question("six.example", 29400), WithoutIPv6(SECONDS))
    assert wrong.step == "connect"
    assert "network is unreachable" in wrong.text
    assert "no route to the endpoint's IPv6 addresses" in wrong.remedy


def test_9_loopback_with_several_nodes() -> None:
    with hosted() as server:
        wrong = named(Question(LOOPBACK, server.port, "run", nodes=2))
    assert wrong.step == "address"
    assert "loopback address, but 2 nodes should meet there" in wrong.text
    assert "on each machine, loopback is that machine itself" in wrong.remedy


def test_10_server_is_frozen() -> None:
    with served() as server:
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            wrong = named(Question(LOOPBACK, server.port))
        finally:
            os.kill(pid, signal.SIGCONT)
    assert wrong.step == "answer"
    assert "accepts connections but sends nothing" in wrong.text
    assert "stopped or overloaded" in wrong.remedy


# -- and when all is well ----------------------------------------------------------------------


def test_working_run_has_no_problem() -> None:
    with hosted(b"") as server, Crowd(server.port, "job", Settings(2, 2)) as crowd:
        crowd.join("n1", "n2")
        steps = found(Question(LOOPBACK, server.port, "job"))
    assert list(steps) == [
        "name", "address", "connect", "answer", "token", "round trip", "clock", "server", "run",
        "peers",
    ]  # fmt: skip
    del steps["peers"]  # the crowd's addresses are nobody's
    assert worst(list(steps.values())) is Verdict.OK, steps


def test_summary_is_one_line_or_none() -> None:
    with hosted() as server:
        assert in_short([Question(LOOPBACK, server.port, "job")], SECONDS) == ""
        line = in_short([Question(LOOPBACK, server.port, "job", nodes=3)], SECONDS)
        assert line.startswith("doctor: address: the endpoint is a loopback address")
        assert "\n" not in line


def test_one_usable_server_of_several_is_enough() -> None:
    dead = free_port(LOOPBACK)
    with hosted() as server:
        questions = Question.each(f"{LOOPBACK}:{dead},{LOOPBACK}:{server.port}", "", b"", 0)
        steps = list(examine_all(questions, Probe(SECONDS)))
        assert worst(steps) is Verdict.WARN
        refused = next(step for step in steps if step.verdict is Verdict.WARN)
        assert refused.text.startswith(f"{LOOPBACK}:{dead}: ")
        assert in_short(questions, SECONDS).startswith("doctor: ")
    assert worst(list(examine_all(questions, Probe(SECONDS)))) is Verdict.FAIL


def test_standby_server_names_the_leader() -> None:
    engine = MemoryEngine()
    first = InTurn(engine, "a")
    first.leads()
    second = InTurn(engine, "b")
    second.stands_by()
    steps = {step.step: step for step in examine(Question.each(second.where)[0], Probe(5.0))}
    assert steps["answer"].verdict is Verdict.OK
    assert steps["answer"].text.endswith(f"it stands by; the leader is {first.where}")
    for server in (second, first):
        assert server.stop() is None


def test_examination_leaves_nothing_behind() -> None:
    from rallypoint.deadline import Deadline

    with hosted() as server:
        found(Question(LOOPBACK, server.port, "job"))
        assert server.call(lambda s: list(s.runs), Deadline(5)) == []
