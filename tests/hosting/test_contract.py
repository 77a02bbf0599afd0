"""Starting a server without knowing how."""

import errno
import socket

import pytest

from rallypoint.errors import RendezvousConnectionError, StoreError
from rallypoint.hosting import contract


def test_the_front_door_has_said_how() -> None:
    server = contract.start_server("127.0.0.1", 0, b"", False)
    assert server.port > 0
    server.stop()


def test_without_it_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "_start", [])
    with pytest.raises(StoreError, match="import rallypoint first"):
        contract.start_server("127.0.0.1", 0, b"", False)
    calls: list[tuple[str, int, bytes, bool]] = []

    class Server:
        host, port = "h", 1

        def stop(self) -> None: ...

        def wait_until_empty(self, deadline: object) -> bool:
            return True

    def start(host: str, port: int, token: bytes, insecure: bool, _tls: object) -> Server:
        calls.append((host, port, token, insecure))
        return Server()

    contract.provide(start)
    assert contract.start_server("a", 2, b"t", True).port == 1
    assert calls == [("a", 2, b"t", True)]


ELSEWHERE = [
    OSError(errno.EADDRNOTAVAIL, "no such address here"),
    OSError(errno.EADDRINUSE, "taken"),
]


@pytest.mark.parametrize("error", [*ELSEWHERE, socket.gaierror(-2, "unknown")])
def test_who_cannot_listen_looks_elsewhere_unless_it_must_host(error: OSError) -> None:
    contract.check_elsewhere("h:1", error, None)
    with pytest.raises(RendezvousConnectionError, match=r"is_host=true .* cannot listen on h:1: "):
        contract.check_elsewhere("h:1", error, True)


def test_other_errors_are_no_reason_to_look_elsewhere() -> None:
    with pytest.raises(RendezvousConnectionError, match="cannot listen on h:80: Permission denied"):
        contract.check_elsewhere("h:80", OSError(errno.EACCES, "Permission denied"), None)
