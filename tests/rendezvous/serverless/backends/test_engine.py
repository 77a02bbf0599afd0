"""The backend on any engine: the suite on the engine in memory, errors, whole runs."""

from typing import Any

import pytest

from rallypoint.errors import (
    AuthenticationError,
    RendezvousConnectionError,
    RendezvousStateError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
)
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend
from rallypoint.rendezvous.serverless.backends.engine import EngineRendezvousBackend
from rallypoint.testing.backend_suite import BackendSuite
from rallypoint.testing.fakes import MemoryEngine


class TestEngineBackend(BackendSuite):
    def make_backend(self) -> EngineRendezvousBackend:
        return EngineRendezvousBackend(MemoryEngine(), "run")

    def another(self, backend: RendezvousBackend) -> EngineRendezvousBackend:
        assert isinstance(backend, EngineRendezvousBackend)
        return EngineRendezvousBackend(backend.engine.clone(), "run")


class Failing(MemoryEngine):
    """Fails as it is told."""

    error: StoreError

    def read(self, *_: Any) -> Any:
        raise self.error

    def commit(self, *_: Any, **__: Any) -> Any:
        raise self.error

    def wait(self, *_: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "mapped"),
    [
        (StoreConnectionError("cut"), RendezvousConnectionError),
        (StoreLimitError("full"), RendezvousConnectionError),
        (AuthenticationError("password"), RendezvousStateError),
        (StoreError("foreign"), RendezvousStateError),
    ],
)
def test_errors_are_mapped_by_type(error: StoreError, mapped: type[Exception]) -> None:
    engine = Failing()
    engine.error = error
    backend = EngineRendezvousBackend(engine, "job 7")
    for call in (
        backend.get_state,
        lambda: backend.set_state(b""),
        lambda: backend.wait_for_change(None, 1),
    ):
        with pytest.raises(
            mapped, match=f"backend memory: .*run 'job 7' failed: {error}"
        ) as caught:
            call()
        assert caught.value.__cause__ is error


def test_two_runs_are_separate() -> None:
    engine = MemoryEngine()
    one, two = EngineRendezvousBackend(engine, "1"), EngineRendezvousBackend(engine, "2")
    answer = one.set_state(b"one")
    assert answer is not None
    assert two.get_state() is None
    assert two.set_state(b"two", answer[1]) is None
    assert one.name == "memory"
