"""The contract's own waiting, by reading again, and the backend in memory."""

from rallypoint.rendezvous.serverless.backends.contract import (
    MemoryRendezvousBackend,
    RendezvousBackend,
    Token,
)
from rallypoint.testing.backend_suite import BackendSuite


class Minimal(RendezvousBackend):
    """A backend of a third party that cannot tell of changes."""

    def __init__(self) -> None:
        self._inner = MemoryRendezvousBackend()

    @property
    def name(self) -> str:
        return "minimal"

    def get_state(self) -> tuple[bytes, Token] | None:
        return self._inner.get_state()

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        return self._inner.set_state(state, token)


class TestMinimalBackend(BackendSuite):
    def make_backend(self) -> Minimal:
        return Minimal()


class TestMemoryBackend(BackendSuite):
    def make_backend(self) -> MemoryRendezvousBackend:
        return MemoryRendezvousBackend()


def test_name_of_the_backend_in_memory() -> None:
    assert MemoryRendezvousBackend().name == "memory"
    assert MemoryRendezvousBackend("x").name == "x"
