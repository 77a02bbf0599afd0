"""The backend over a file meets the contract, between handles and between processes."""

import multiprocessing
from pathlib import Path

import pytest

from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend
from rallypoint.rendezvous.serverless.backends.store import FileRendezvousBackend
from rallypoint.testing.backend_suite import BackendSuite


class TestFileBackend(BackendSuite):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path, self.made = tmp_path, 0

    def make_backend(self) -> FileRendezvousBackend:
        self.made += 1
        return FileRendezvousBackend(self.path / f"{self.made}", "run")

    def another(self, backend: RendezvousBackend) -> FileRendezvousBackend:
        return FileRendezvousBackend(self.path / f"{self.made}", "run")


def count(path: str, times: int) -> None:
    backend = FileRendezvousBackend(path, "run")
    for _ in range(times):
        found = backend.get_state()
        done = False
        while not done:
            assert found is not None
            answer = backend.set_state(b"%d" % (int(found[0]) + 1), found[1])
            assert answer is not None
            found, done = (answer[0], answer[1]), answer[2]


@pytest.mark.integration
def test_processes_lose_no_update(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    backend = FileRendezvousBackend(path, "run")
    backend.set_state(b"0")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=count, args=(path, 20)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    found = backend.get_state()
    assert found is not None
    assert found[0] == b"60"


def test_name(tmp_path: Path) -> None:
    assert FileRendezvousBackend(tmp_path / "x", "run").name == "file"
