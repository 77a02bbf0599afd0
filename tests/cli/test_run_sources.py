from pathlib import Path

import pytest
from tests.core.builders import a_node, a_settings

from rallypoint.cli import run_sources
from rallypoint.cli.run_sources import ServerlessSource, ServerSource, open_source
from rallypoint.core.advance import advance
from rallypoint.core.events import Event, Join, Leave
from rallypoint.core.state import RunState, encode_state
from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError, RendezvousConnectionError
from rallypoint.net.addresses import free_port
from rallypoint.rendezvous.reports.status import RunStatus
from rallypoint.rendezvous.serverless.backends.contract import MemoryRendezvousBackend
from rallypoint.rendezvous.serverless.backends.engine import EngineRendezvousBackend
from rallypoint.rendezvous.serverless.backends.store import FileRendezvousBackend
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.testing.fakes import MemoryEngine

SETTINGS = a_settings(2, 2)


class Kept:
    """A run in a backend, written to as nodes would."""

    def __init__(self) -> None:
        self.backend = MemoryRendezvousBackend()
        self.source = ServerlessSource(self.backend, "memory")
        self.state = RunState("job")
        self._token: object = None

    def do(self, *events: Event) -> None:
        self.state = advance(self.state, *events).state
        answer = self.backend.set_state(encode_state(self.state), self._token)
        assert answer is not None
        self._token = answer[1]

    def look(self) -> RunStatus:
        (run,) = self.source.read("job", Deadline(1)).runs
        return run


def test_single_status_of_a_shared_state_has_no_times() -> None:
    kept = Kept()
    kept.do(Join(a_node("n1"), SETTINGS))
    run = kept.look()
    assert run.phase == "gathering"
    assert run.since_seconds is None
    assert run.members[0].heard_seconds is None
    assert [line.opened_seconds for line in run.rounds] == [None]


def test_second_status_shows_what_happened() -> None:
    kept = Kept()
    kept.do(Join(a_node("n1"), SETTINGS), Join(a_node("n2"), SETTINGS))
    kept.look()
    kept.do(Leave("n2"))
    run = kept.look()
    assert run.since_seconds is not None
    assert [line.number for line in run.rounds] == [1, 2]
    assert "n2" in run.rounds[0].ended_because
    assert run.members[0].heard_seconds is not None


def test_missing_state_is_an_unknown_run() -> None:
    assert Kept().look().settings is None


def test_file_is_examined_and_never_created(tmp_path: Path) -> None:
    path = tmp_path / "job"
    with pytest.raises(ParameterError, match="there is no such file"):
        open_source("file", str(path), "job", b"")
    assert not path.exists()
    state = advance(RunState("job"), Join(a_node("n1"), SETTINGS)).state
    FileRendezvousBackend(str(path), "job").set_state(encode_state(state))
    source = open_source("file", f"file://{path}", "job", b"")
    (run,) = source.read("job", Deadline(1)).runs
    assert [member.id for member in run.members] == ["n1"]
    source.close()


@pytest.mark.parametrize(
    ("backend", "run_id", "text"),
    [
        ("file", None, "needs --run-id"),
        ("static", "job", "give core, file, etcd or redis"),
        ("core", None, "the port 'x' is not a number"),
    ],
)
def test_invalid_requests_are_refused(backend: str, run_id: str | None, text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        open_source(backend, "h:x", run_id, b"")


@pytest.mark.integration
def test_missing_server_is_named() -> None:
    source = ServerSource(f"127.0.0.1:{free_port('127.0.0.1')}", b"")
    with pytest.raises(RendezvousConnectionError, match=r"^cannot reach 127\.0\.0\.1") as failure:
        source.read(None, Deadline(0.3))
    assert "join=" not in str(failure.value)
    source.close()


def test_reachable_server_of_several_is_asked(server: EmbeddedServer, port: int) -> None:
    source = ServerSource(f"127.0.0.1:{port},127.0.0.1:{server.port}", b"")
    status = source.read(None, Deadline(20))
    assert status.server is not None
    assert status.server.endpoint == f"127.0.0.1:{server.port}"
    source.close()


def test_file_of_another_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("something else, and long enough")
    with pytest.raises(ParameterError, match="not a Rallypoint store file"):
        open_source("file", str(tmp_path / "notes"), "job", b"")


def test_state_in_a_database_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, opened = MemoryEngine(), list[str]()

    def open_engine(url: str) -> MemoryEngine:
        opened.append(url)
        return engine

    monkeypatch.setattr(run_sources, "open_engine", open_engine)
    state = advance(RunState("job"), Join(a_node("n1"), SETTINGS)).state
    EngineRendezvousBackend(engine.clone(), "job").set_state(encode_state(state))
    source = open_source("etcd", "u:secret@h1:2379", "job", b"")
    status = source.read("job", Deadline(1))
    assert opened == ["etcd://u:secret@h1:2379"]
    assert "secret" not in status.source
    assert [member.id for member in status.runs[0].members] == ["n1"]
    source.close()
