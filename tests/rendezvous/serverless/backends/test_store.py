"""The backend over a store meets the contract, and maps the store's errors."""

from typing import Any

import pytest

from rallypoint.errors import (
    AuthenticationError,
    RendezvousConnectionError,
    RendezvousStateError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
    StoreTimeoutError,
)
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend
from rallypoint.rendezvous.serverless.backends.store import StoreRendezvousBackend
from rallypoint.store.memory import MemoryStore
from rallypoint.store.prefix import PrefixStore
from rallypoint.testing.backend_suite import BackendSuite


class TestStoreBackend(BackendSuite):
    def make_backend(self) -> StoreRendezvousBackend:
        return StoreRendezvousBackend(MemoryStore(), "run")

    def another(self, backend: RendezvousBackend) -> StoreRendezvousBackend:
        assert isinstance(backend, StoreRendezvousBackend)
        return StoreRendezvousBackend(backend.store.clone(), "run")


class TestOverPrefix(TestStoreBackend):
    def make_backend(self) -> StoreRendezvousBackend:
        return StoreRendezvousBackend(PrefixStore("jobs", MemoryStore()), "run")


class Failing(MemoryStore):
    """A store that fails as it is told."""

    error: StoreError | None = None

    def _call(self, request: Any, timeout: float) -> Any:
        if self.error is not None:
            raise self.error
        return super()._call(request, timeout)


@pytest.mark.parametrize(
    ("error", "mapped"),
    [
        (StoreConnectionError("cut"), RendezvousConnectionError),
        (StoreTimeoutError("slow"), RendezvousConnectionError),
        (AuthenticationError("token"), RendezvousStateError),
        (StoreLimitError("full"), RendezvousStateError),
    ],
)
def test_errors_are_mapped_by_type(error: StoreError, mapped: type[Exception]) -> None:
    store = Failing()
    backend = StoreRendezvousBackend(store, "run")
    store.error = error
    for call in (backend.get_state, lambda: backend.set_state(b"")):
        with pytest.raises(mapped, match=str(error)) as caught:
            call()
        assert caught.value.__cause__ is error
        assert "core" in str(caught.value)


def test_two_runs_are_separate() -> None:
    store = MemoryStore()
    one, two = StoreRendezvousBackend(store, "1"), StoreRendezvousBackend(store, "2")
    one.set_state(b"one")
    assert two.get_state() is None
    assert one.name == "core"


def test_foreign_value_is_named() -> None:
    store = MemoryStore()
    backend = StoreRendezvousBackend(store, "run")
    backend.set_state(b"x")
    (key,) = store.list()
    store.set(key, b"abc")
    with pytest.raises(RendezvousStateError, match=key):
        backend.get_state()


def test_fencing_token_of_another_run_writes_nothing() -> None:
    store = MemoryStore()
    one, two = StoreRendezvousBackend(store, "1"), StoreRendezvousBackend(store, "2")
    answer = one.set_state(b"one")
    assert answer is not None
    assert two.set_state(b"two", answer[1]) is None
    assert two.get_state() is None
