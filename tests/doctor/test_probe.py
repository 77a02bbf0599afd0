import errno
import socket

import pytest
from tests.doctor.test_examination import LOOPBACK, answering, hosted, saying

from rallypoint.doctor.findings import Answer
from rallypoint.doctor.probe import Probe
from rallypoint.errors import StoreConnectionError
from rallypoint.net.addresses import free_port
from rallypoint.net.connection import ConnectionConfig
from rallypoint.net.dialer import AddressInfo

pytestmark = pytest.mark.integration


def info(port: int) -> AddressInfo:
    return (socket.AF_INET, socket.SOCK_STREAM, 0, "", (LOOPBACK, port))


def test_connection_finding_says_how_it_ended() -> None:
    probe = Probe(1.0)
    with hosted() as server:
        place, sock = probe.connect(info(server.port))
        assert sock is not None
        sock.close()
        assert (place.code, place.address, place.port) == (0, LOOPBACK, server.port)
    place, sock = probe.connect(info(free_port(LOOPBACK)))
    assert (place.code, sock) == (errno.ECONNREFUSED, None)


def test_unsupported_address_family_is_reported() -> None:
    place, sock = Probe(1.0).connect((socket.AF_INET6, 99, 99, "", ("::1", 1, 0, 0)))
    assert place.code != 0
    assert sock is None


def test_conversation_asks_for_the_server_status() -> None:
    probe = Probe(2.0)
    with hosted() as server:
        target = ConnectionConfig(LOOPBACK, server.port, "run")
        greeting, talk = probe.greet(info(server.port), target)
        assert greeting.answer is Answer.OURS
        assert greeting.knows_token
        assert talk is not None
        assert 0 <= talk.round_trip() < 2
        status, report = talk.server(), talk.report()
        assert status is not None
        assert status.endpoint.endswith(f":{server.port}")
        assert report is not None
        assert report.run_id == "run"
        talk.close()
        with pytest.raises(StoreConnectionError):
            talk.round_trip()


def test_peer_that_disconnects_early_is_another_program() -> None:
    probe = Probe(1.0)
    with answering(saying(b"\x00\x00\x00\x02ab")) as port:
        greeting, talk = probe.greet(info(port), ConnectionConfig(LOOPBACK, port, "run"))
    assert (greeting.answer, talk) == (Answer.OTHER, None)


def test_peers_are_probed_in_parallel() -> None:
    with hosted() as server:
        rows = [("a", LOOPBACK, server.port), ("b", LOOPBACK, free_port(LOOPBACK))]
        rows.append(("c", "nope.invalid", 1))
        tried = dict(Probe(2.0).peers(rows))
    assert tried["a"].code == 0
    assert tried["b"].code == errno.ECONNREFUSED
    assert tried["c"].code != 0
