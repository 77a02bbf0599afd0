import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from tests.cli.test_plan import make

from rallypoint.cli import hosting
from rallypoint.errors import RendezvousConnectionError
from rallypoint.hosting.process import ServerProcess
from rallypoint.rendezvous.api import RendezvousTimeout
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.view import View

LIMIT_SECONDS = 10


class Handler:
    """As much of a handler as hosting looks at."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(timeout=RendezvousTimeout())
        self.shut = False
        self.unwatched = threading.Event()

    def view(self) -> View:
        return View(connected=False)

    def on_change(self, _callback: Callable[[], None]) -> Callable[[], None]:
        return self.unwatched.set

    def shutdown(self) -> bool:
        self.shut = True
        return True


class Attempts:
    """Stands for the server's start; each attempt is counted."""

    def __init__(self, error: Exception | None = None) -> None:
        self.count = 0
        self.error = error
        self.third = threading.Event()

    def __call__(self, *_args: Any) -> None:
        self.count += 1
        if self.count == 3:
            self.third.set()
            if self.error is not None:
                raise self.error


def host(
    monkeypatch: pytest.MonkeyPatch, attempts: Attempts, is_host: bool | None, handler: Handler
) -> AbstractContextManager[None]:
    monkeypatch.setattr("rallypoint.hosting.host.host_if_ours", attempts)
    monkeypatch.setattr("rallypoint.hosting.host.FIRST_SECONDS", 0.001)
    plan = make(nnodes="2", endpoint="h:1", run_id="x")
    return hosting.hosted(plan, is_host, cast("DynamicRendezvousHandler", handler))


def test_node_tries_to_host_again(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts, handler = Attempts(), Handler()
    with host(monkeypatch, attempts, None, handler):
        assert attempts.third.wait(LIMIT_SECONDS)
        assert not handler.unwatched.is_set()
    assert handler.unwatched.wait(LIMIT_SECONDS)


def test_a_token_file_readable_by_others_causes_one_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("short")
    path.chmod(0o644)
    hosted = Ended("h:1", 0, tmp_path / "log", ("10.0.0.1",))
    monkeypatch.setattr("rallypoint.hosting.host.host_if_ours", lambda *_: hosted)
    plan = make(nnodes="2", endpoint="h:1", run_id="x", token_file=path)
    with hosting.hosted(plan, True, cast("DynamicRendezvousHandler", Handler())):
        pass
    said = capsys.readouterr().err
    assert said.count(f"warning: the token file {path} (mode 644)") == 1
    assert said.count("fewer than 16 characters") == 1


def test_an_error_of_a_retry_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts, handler = Attempts(RendezvousConnectionError("no permission")), Handler()
    with host(monkeypatch, attempts, None, handler):
        assert handler.unwatched.wait(LIMIT_SECONDS)
    assert "cannot host the server of this run: no permission" in capsys.readouterr().err


@pytest.mark.parametrize("is_host", [True, False])
def test_with_is_host_given_there_is_one_attempt(
    monkeypatch: pytest.MonkeyPatch, is_host: bool
) -> None:
    attempts, handler, before = Attempts(), Handler(), threading.active_count()
    with host(monkeypatch, attempts, is_host, handler):
        assert attempts.count == 1
        assert threading.active_count() == before


def test_an_error_of_the_first_attempt_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts, handler = Attempts(RendezvousConnectionError("refused")), Handler()
    attempts.count = 2
    refused = pytest.raises(RendezvousConnectionError, match="refused")
    with refused, host(monkeypatch, attempts, None, handler):
        pytest.fail("it went on")
    assert handler.shut


@pytest.mark.parametrize(
    ("endpoint", "nnodes", "means"),
    [("first:1", "2", True), ("first:1", "1", False), ("localhost:1", "2", False),
     ("10.0.0.1:1", "2", False), ("[fe80::1]:1", "2", False)],
)  # fmt: skip
def test_a_name_means_that_other_machines_connect(endpoint: str, nnodes: str, means: bool) -> None:
    plan = make(nnodes=nnodes, endpoint=endpoint, run_id="x")
    assert hosting._means_many(plan) is means


class Ended(ServerProcess):
    """A server that has ended in a way of its own."""

    code: ClassVar[int | None] = None

    def exit_code(self) -> int | None:
        return self.code


@pytest.mark.parametrize(
    ("code", "log", "said", "kept"),
    [
        (0, None, "", False),  # as it should be
        (None, "", "", True),  # it still serves others
        (None, "held up", " has written a log: {log}", True),
        (0, "held up", " has written a log: {log}", True),
        (1, "oh dear", " has failed (exit code 1): {log}", True),
        (-9, "held up", " was killed by SIGKILL: {log}", True),
        (-9, "", " was killed by SIGKILL; it wrote no log", False),
    ],
)
def test_at_the_end_a_log_is_named_or_removed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
    code: int | None, log: str | None, said: str, kept: bool,
) -> None:  # fmt: skip
    server = Ended("h:1", 1, tmp_path / "log")
    Ended.code = code
    if log is not None:
        server.log.write_text(log)
    hosting.report_servers([server])
    head = "rallypoint: the server that this node hosted" if said else ""
    expected = head + said.format(log=server.log)
    assert capsys.readouterr().err.strip() == expected
    assert server.log.exists() is kept
