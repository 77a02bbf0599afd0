"""A server in a thread of this process: start, calls, end, failures."""

import socket
import threading
from collections.abc import Callable

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError
from rallypoint.server import embedded
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.options import Options
from rallypoint.server.runs import RunHost
from rallypoint.store.tcp import TCPStore


def test_port_0_picks_one_and_stop_frees_it() -> None:
    server = embedded.start("127.0.0.1", 0, b"", False)
    assert server.port > 0
    with pytest.raises(OSError, match=f"127.0.0.1:{server.port}"):
        embedded.start("127.0.0.1", server.port, b"", False)
    server.stop()
    again = embedded.start("127.0.0.1", server.port, b"", False)
    again.stop()
    again.stop()  # once more is no error
    assert not [t for t in threading.enumerate() if t.name == "rallypoint-server"]


def test_serving_beyond_loopback_needs_a_token() -> None:
    with pytest.raises(ParameterError, match="token"):
        EmbeddedServer("0.0.0.0", 0, Options())


def test_wait_until_empty(server: EmbeddedServer) -> None:
    assert server.wait_until_empty(Deadline(10))
    store = TCPStore("127.0.0.1", server.port)
    assert server.call(lambda s: len(s.connections), Deadline(10)) == 1
    assert not server.wait_until_empty(Deadline(0.05))
    store.close()
    assert server.wait_until_empty(Deadline(10))


def test_error_in_the_loop_ends_the_server_and_is_raised(
    serve: Callable[..., EmbeddedServer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = EmbeddedServer("127.0.0.1", 0, Options())

    def broken(self: RunHost, now: float, gap: float) -> None:
        raise KeyError("a fault in the core")

    monkeypatch.setattr(RunHost, "sweep", broken)
    server.call(lambda s: s.run("some run"), Deadline(10))
    server._thread.join(10)
    with pytest.raises(KeyError, match="a fault in the core"):
        server.stop()
    with pytest.raises(KeyError):
        server.wait_until_empty(Deadline(1))
    assert "this server has failed and ends: KeyError('a fault in the core')" in caplog.text
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
