"""What the contract itself brings: waiting by looking again."""

from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend, Token
from rallypoint.rendezvous.serverless.backends.memory import MemoryRendezvousBackend
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
