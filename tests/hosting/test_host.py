"""Which machine hosts: the first attempt, the retries while a node joins, and what ends them."""

import errno
import socket
import threading
from collections.abc import Callable

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError, RendezvousConnectionError
from rallypoint.hosting import host
from rallypoint.hosting.host import HostingRetry, host_if_ours

LIMIT_SECONDS = 10
NOT_OURS = [
    OSError(errno.EADDRNOTAVAIL, "no such address here"),
    OSError(errno.EADDRINUSE, "taken"),
    socket.gaierror(-2, "unknown"),
]


def failing(error: OSError) -> Callable[[str, int], object]:
    def start(_host: str, _port: int) -> object:
        raise error

    return start


def never(_host: str, _port: int) -> object:
    pytest.fail("a server was started")


@pytest.mark.parametrize("is_host", [None, True])
def test_the_server_is_started_at_the_endpoint(is_host: bool | None) -> None:
    assert host_if_ours("[::1]:7", is_host, lambda host, port: (host, port)) == ("::1", 7)


@pytest.mark.parametrize("error", NOT_OURS)
def test_an_address_of_another_server_is_an_error_only_with_is_host(error: OSError) -> None:
    assert host_if_ours("h:1", None, failing(error)) is None
    with pytest.raises(RendezvousConnectionError, match=r"is_host=true .* cannot listen on h:1: "):
        host_if_ours("h:1", True, failing(error))


def test_other_errors_of_the_bind_are_errors() -> None:
    with pytest.raises(RendezvousConnectionError, match="cannot listen on h:80: Permission denied"):
        host_if_ours("h:80", None, failing(OSError(errno.EACCES, "Permission denied")))


def test_with_is_host_false_nothing_is_started() -> None:
    assert host_if_ours("127.0.0.1:0", False, never) is None


def test_no_node_hosts_for_a_list_of_endpoints() -> None:
    assert host_if_ours("127.0.0.1:0,127.0.0.1:1", None, never) is None
    with pytest.raises(ParameterError, match="several endpoints"):
        host_if_ours("127.0.0.1:0,127.0.0.1:1", True, never)


class Node:
    """The joining node as its callbacks show it."""

    def __init__(self, join_seconds: float = 600) -> None:
        self.limit = Deadline(join_seconds)
        self.connected = False
        self.over = False
        self.unwatched = threading.Event()
        self._callback: Callable[[], None] = lambda: None

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callback = callback
        return self.unwatched.set

    def change(self, connected: bool = False, over: bool = False) -> None:
        self.connected = connected
        self.over = over
        self._callback()


class Attempts:
    """Counts them; the third one may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.count = 0
        self._made = threading.Condition()

    def __call__(self) -> None:
        with self._made:
            self.count += 1
            self._made.notify_all()
            if self.count == 3 and self.error is not None:
                raise self.error

    def await_more(self, number: int) -> None:
        with self._made:
            goal = self.count + number
            assert self._made.wait_for(lambda: self.count >= goal, LIMIT_SECONDS)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "FIRST_SECONDS", 0.001)
    monkeypatch.setattr(host, "LONGEST_SECONDS", 0.002)


def joining(
    attempts: Attempts, node: Node, report: Callable[[str], object] = pytest.fail
) -> HostingRetry:
    return HostingRetry(
        attempts, node.limit, lambda: node.over, lambda: node.connected, node.watch, report
    )


def test_a_seat_ends_the_retries_and_a_connection_does_not() -> None:
    attempts, node = Attempts(), Node()
    with joining(attempts, node):
        attempts.await_more(3)
        node.change(connected=True)
        node.change(connected=False)  # it was the server of an earlier run, which has ended
        attempts.await_more(3)
        node.change(connected=True, over=True)
        assert node.unwatched.wait(LIMIT_SECONDS)


def test_a_connected_node_makes_no_attempt() -> None:
    attempts, node = Attempts(), Node(join_seconds=0.05)
    node.change(connected=True)
    with joining(attempts, node):
        assert node.unwatched.wait(LIMIT_SECONDS)
    assert attempts.count == 0


def test_the_retries_end_with_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "FIRST_SECONDS", 600.0)
    monkeypatch.setattr(host, "LONGEST_SECONDS", 600.0)
    attempts, node = Attempts(), Node()
    with joining(attempts, node):
        assert not node.unwatched.is_set()
    assert node.unwatched.wait(LIMIT_SECONDS)
    assert attempts.count == 0


def test_the_retries_end_at_the_limit_of_the_join() -> None:
    attempts, node = Attempts(), Node(join_seconds=0.05)
    with joining(attempts, node):
        assert node.unwatched.wait(LIMIT_SECONDS)
    assert attempts.count > 0


@pytest.mark.parametrize(
    "error", [RendezvousConnectionError("no permission"), OSError("too many open files")]
)
def test_an_error_is_reported_and_ends_the_retries(error: Exception) -> None:
    attempts, node, lines = Attempts(error), Node(), list[str]()
    with joining(attempts, node, lines.append):
        assert node.unwatched.wait(LIMIT_SECONDS)
    assert lines == [f"cannot host the server of this run: {error}"]
    assert attempts.count == 3


def test_pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "FIRST_SECONDS", 1.0)
    monkeypatch.setattr(host, "LONGEST_SECONDS", 4.0)
    attempts, node, pauses = Attempts(OSError("enough")), Node(), list[float]()
    later = joining(attempts, node, lambda _: None)

    def is_due(pause: float) -> bool:
        pauses.append(pause)
        return True

    monkeypatch.setattr(later, "_is_due", is_due)
    with later:
        assert node.unwatched.wait(LIMIT_SECONDS)
    assert pauses == [1.0, 2.0, 4.0]
