"""The backend in memory meets the contract."""

from rallypoint.rendezvous.serverless.backends.memory import MemoryRendezvousBackend
from rallypoint.testing.backend_suite import BackendSuite


class TestMemoryBackend(BackendSuite):
    def make_backend(self) -> MemoryRendezvousBackend:
        return MemoryRendezvousBackend()


def test_name() -> None:
    assert MemoryRendezvousBackend().name == "memory"
    assert MemoryRendezvousBackend("x").name == "x"
