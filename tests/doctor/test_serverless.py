"""What keeps nodes apart where no server is, each named: engines and files."""

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from tests.core.builders import a_node, a_settings
from tests.engine_servers import EtcdServers, RedisServer, free_ports
from tests.rendezvous.serverless.backends.engine_cases import make, meet

from rallypoint.cli.doctor import doctor
from rallypoint.cli.status import command as status
from rallypoint.core.advance import advance
from rallypoint.core.events import Join
from rallypoint.core.state import RunState, encode_state
from rallypoint.deadline import Deadline
from rallypoint.doctor import serverless
from rallypoint.doctor.findings import Finding, Verdict
from rallypoint.doctor.probe import Probe
from rallypoint.doctor.serverless import examine_serverless, where
from rallypoint.engines.contract import Commit, Entry
from rallypoint.errors import (
    AuthenticationError,
    ParameterError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
)
from rallypoint.rendezvous.serverless.backends.engine import EngineRendezvousBackend
from rallypoint.rendezvous.serverless.backends.store import FileRendezvousBackend
from rallypoint.testing.fakes import MemoryEngine

NODE = msgspec.structs.replace(a_node("n1"), address="127.0.0.1")
STATE = encode_state(advance(RunState("job"), Join(NODE, a_settings(2, 2))).state)


def steps(backend: str, endpoint: str, run_id: str = "job") -> dict[str, Finding]:
    found = examine_serverless(backend, endpoint, run_id, Probe(2.0))
    return {finding.step: finding for finding in found}


class Engine(MemoryEngine):
    """An engine in memory, some of whose calls fail."""

    def __init__(self, **fails: StoreError) -> None:
        super().__init__()
        self.fails = fails
        self.closed = False

    def about(self, deadline: Deadline) -> str:
        if "about" in self.fails:
            raise self.fails["about"]
        return super().about(deadline)

    def commit(
        self,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
        expire: Mapping[str, float] | None = None,
    ) -> Commit:
        if "commit" in self.fails:
            raise self.fails["commit"]
        return super().commit(expected, changes, deadline, expire)

    def close(self) -> None:
        self.closed = True


def on(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> dict[str, Finding]:
    monkeypatch.setattr(serverless, "open_engine", lambda _url: engine)
    found = steps("etcd", "h:1")
    assert engine.closed
    return found


# -- engines ------------------------------------------------------------------------------


def test_usable_database(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    EngineRendezvousBackend(engine, "job").set_state(STATE)
    found = on(engine, monkeypatch)
    assert list(found) == ["answer", "round trip", "write", "run", "peers"]
    assert {finding.verdict for finding in found.values()} <= {Verdict.OK, Verdict.NOTE}
    assert "1 of at least 2 nodes" in found["run"].text
    assert engine.scan("", Deadline(1)) == ["run/job/state"]  # nothing of ours is left


@pytest.mark.parametrize(
    ("fails", "step", "words"),
    [
        ({"about": StoreConnectionError("no answer")}, "answer", "start memory"),
        ({"commit": AuthenticationError("read only")}, "write", "credentials"),
        ({"commit": StoreLimitError("full")}, "write", "free space there"),
        ({"commit": StoreError("odd")}, "write", "look at its log"),
    ],
)
def test_refusal_of_the_database_is_reported(
    fails: dict[str, StoreError], step: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = on(Engine(**fails), monkeypatch)
    assert found[step].verdict is Verdict.FAIL
    assert words in found[step].remedy
    assert list(found)[-1] == step


def test_user_without_version_permission_may_still_write(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on(Engine(about=AuthenticationError("not for you")), monkeypatch)
    assert found["answer"].verdict is Verdict.NOTE
    assert found["write"].verdict is Verdict.OK


def test_one_host_of_several_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    gone = free_ports(1)[0]
    with listening() as port:
        engine.hosts = (("127.0.0.1", gone), ("127.0.0.1", port))
        monkeypatch.setattr(serverless, "open_engine", lambda _url: engine)
        found = list(examine_serverless("etcd", "h:1", "", Probe(2.0)))
    verdicts = [finding.verdict for finding in found if finding.step == "connect"]
    assert verdicts == [Verdict.WARN, Verdict.OK]
    assert found[-1].step == "write"
    engine.hosts = (("127.0.0.1", gone), ("nowhere.invalid", 1))
    found = list(examine_serverless("etcd", "h:1", "", Probe(2.0)))
    assert [finding.step for finding in found] == ["name", "connect", "name"]
    assert "start memory there" in found[1].remedy
    assert found[-1].verdict is Verdict.FAIL


@contextmanager
def listening() -> Iterator[int]:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


def test_unexaminable_endpoint_is_refused_at_once() -> None:
    with pytest.raises(ParameterError, match="give core, file, etcd or redis"):
        examine_serverless("static", "h:1", "", Probe(1.0))


def test_url_is_shown_without_its_password() -> None:
    assert "secret" not in where("etcd", "user:secret@h1:2379")
    assert where("file", "/shared/job") == "/shared/job"


# -- a file -------------------------------------------------------------------------------


def test_usable_file(tmp_path: Path) -> None:
    path = tmp_path / "job"
    FileRendezvousBackend(str(path), "job").set_state(STATE)
    found = steps("file", f"file://{path}")
    assert list(found) == ["path", "round trip", "write", "run", "peers"]
    assert {finding.verdict for finding in found.values()} <= {Verdict.OK, Verdict.NOTE}
    assert "1 of at least 2 nodes" in found["run"].text


def test_file_of_another_program(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("something else, and long enough")
    wrong = steps("file", str(tmp_path / "notes"))["answer"]
    assert wrong.verdict is Verdict.FAIL
    assert "is not a Rallypoint store file" in wrong.text
    assert "give the same path" in wrong.remedy


def test_missing_file_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "job"
    assert steps("file", str(path))["path"].verdict is Verdict.NOTE
    assert not path.exists()


def test_problem_of_a_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = steps("file", str(tmp_path / "none" / "job"))["path"]
    assert (missing.verdict, "mount" in missing.remedy) == (Verdict.FAIL, True)
    assert steps("file", str(tmp_path))["path"].verdict is Verdict.FAIL  # a directory
    monkeypatch.setattr(os, "access", lambda *_: False)
    shut = steps("file", str(tmp_path / "job"))["path"]
    assert (shut.verdict, "may not write" in shut.text) == (Verdict.FAIL, True)
    (tmp_path / "job").touch()
    assert "is not readable and writable" in steps("file", str(tmp_path / "job"))["path"].text


# -- real ones, by the commands -----------------------------------------------------------


def asked(command: Any, *args: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, [*args, "--timeout", "5"])
    return done.exit_code, done.output


def check(backend: str, endpoint: str, answer: str) -> None:
    """Look at a place before, during and after a round of two."""
    of = ("--backend", backend, "--endpoint", endpoint, "--run-id", "run")
    code, said = asked(doctor, *of)
    assert code == 0, said
    assert answer in said
    assert ("has no run 'run'" in said) is (backend != "file")
    assert asked(status, *of)[0] == (3 if backend != "file" else 2)  # there is no such run
    handlers = [make(backend, endpoint) for _ in range(2)]
    try:
        meet(handlers)
        code, said = asked(status, *of)
        assert code == 0, said
        assert "sealed" in said
        assert said.count("participant") >= 2
        code, said = asked(doctor, *of)
        assert code == 0, said
        for words in ("allowed (", "peers"):
            assert words in said
        handlers[0].set_closed()
        code, said = asked(doctor, *of)
        assert (code, "a closed run stays closed" in said) == (1, True), said
        code, said = asked(status, *of, "--json")
        assert (code, '"phase": "closed"' in said) == (0, True), said
    finally:
        for handler in handlers:
            handler.shutdown()


@pytest.mark.engines
@pytest.mark.integration
def test_real_etcd(etcd_server: EtcdServers) -> None:
    check("etcd", etcd_server.url(uuid.uuid4().hex), "etcd 3.")


@pytest.mark.engines
@pytest.mark.integration
def test_real_redis(redis_server: RedisServer) -> None:
    check("redis", redis_server.url(uuid.uuid4().hex), "redis ")


@pytest.mark.integration
def test_a_real_file(tmp_path: Path) -> None:
    check("file", str(tmp_path / "job"), "does not exist yet")
