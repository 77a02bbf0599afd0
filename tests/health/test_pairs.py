import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError
from rallypoint.health import pairs
from rallypoint.health.judgement import Pair
from rallypoint.health.pairs import Echo, Place
from rallypoint.store.memory import MemoryStore

LOOPBACK = "127.0.0.1"


def test_a_link_is_measured() -> None:
    with Echo(LOOPBACK, 5.0) as echo:
        pair = pairs.measure("a", Place("b", LOOPBACK, echo.port), 5.0)
    assert pair.name == "a -> b"
    assert pair.seconds is not None
    assert 0 < pair.seconds < 5.0


def test_a_dead_link_says_why() -> None:
    with Echo(LOOPBACK, 5.0) as echo:
        port = echo.port
    assert pairs.measure("a", Place("b", LOOPBACK, port), 5.0) == Pair(
        "a", "b", None, "Connection refused"
    )
    with socket.create_server((LOOPBACK, 0)) as silent:
        place = Place("b", LOOPBACK, silent.getsockname()[1])
        assert pairs.measure("a", place, 0.1) == Pair("a", "b", None, "no answer in 0.1 s")


def test_what_is_not_ours_is_not_echoed() -> None:
    with Echo(LOOPBACK, 5.0) as echo, socket.create_connection((LOOPBACK, echo.port), 5.0) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        sock.settimeout(5.0)
        with contextlib.suppress(ConnectionResetError):  # closed while some of it was unread
            assert sock.recv(100) == b""
    stranger = socket.create_server((LOOPBACK, 0))

    def answer() -> None:
        client, _ = stranger.accept()
        client.sendall(b"220 some mail server")
        client.close()

    threading.Thread(target=answer, daemon=True).start()
    place = Place("b", LOOPBACK, stranger.getsockname()[1])
    assert pairs.measure("a", place, 5.0).trouble == "it answered something else"
    stranger.close()


def test_all_pairs_are_known_to_all() -> None:
    store = MemoryStore()

    def node(_number: int) -> tuple[list[Pair], int]:
        return pairs.meet(store.clone(), "same", LOOPBACK, 3, 5.0, Deadline(20.0))

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(node, range(3)))
    assert found[0] == found[1] == found[2]
    measured, absent = found[0]
    assert absent == 0
    assert len({pair.name for pair in measured}) == 6, "equal host names are told apart"
    with pytest.raises(ParameterError, match="--nodes 3: another node is here already"):
        node(3)


def test_who_has_not_come_is_counted() -> None:
    assert pairs.meet(MemoryStore(), "a", LOOPBACK, 3, 5.0, Deadline(0.1)) == ([], 2)


def test_labels_stay_as_they_are_where_they_differ() -> None:
    places = [Place("a", LOOPBACK, 1), Place("b", LOOPBACK, 2)]
    assert pairs.distinct(places) == places
