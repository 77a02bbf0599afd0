"""Starting a server inside this process."""

import pytest

from rallypoint.errors import StoreError
from rallypoint.hosting import in_process


def test_importing_the_package_provides_the_starter() -> None:
    server = in_process.start_server("127.0.0.1", 0, b"", False)
    assert server.port > 0
    server.stop()


def test_without_a_starter_the_error_says_what_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "_start", [])
    with pytest.raises(StoreError, match="import rallypoint first"):
        in_process.start_server("127.0.0.1", 0, b"", False)
    calls: list[tuple[str, int, bytes, bool]] = []

    class Server:
        host, port = "h", 1

        def stop(self) -> None: ...

        def wait_until_empty(self, deadline: object) -> bool:
            return True

    def start(host: str, port: int, token: bytes, insecure: bool, _tls: object) -> Server:
        calls.append((host, port, token, insecure))
        return Server()

    in_process.provide(start)
    assert in_process.start_server("a", 2, b"t", True).port == 1
    assert calls == [("a", 2, b"t", True)]
