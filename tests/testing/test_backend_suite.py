"""The suite finds what is wrong: each fault is caught by the test that is there for it."""

import pytest

from rallypoint.rendezvous.serverless.backends.contract import MemoryRendezvousBackend, Token
from rallypoint.testing.backend_suite import BackendSuite


class Suite(BackendSuite):
    """The suite over a backend of a given class."""

    __test__ = False

    def __init__(self, kind: type[MemoryRendezvousBackend]) -> None:
        self.kind = kind

    def make_backend(self) -> MemoryRendezvousBackend:
        return self.kind()


class Unfenced(MemoryRendezvousBackend):
    """Writes whatever token comes."""

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        found = self.get_state()
        return super().set_state(state, None if found is None else found[1])


class ByValue(MemoryRendezvousBackend):
    """Takes an equal state for an unwritten one."""

    def get_state(self) -> tuple[bytes, Token] | None:
        found = super().get_state()
        return None if found is None else (found[0], found[0])

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        found = super().get_state()
        right = found is not None and found[0] == token
        answer = super().set_state(state, found[1] if right and found else token)
        return None if answer is None else (answer[0], answer[0], answer[2])


class Cutting(MemoryRendezvousBackend):
    """Keeps text only."""

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        return super().set_state(state.rstrip(b"\0"), token)


class Deaf(MemoryRendezvousBackend):
    """Never tells of a change."""

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        return False


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (Unfenced, "test_none_is_refused_where_a_state_is"),
        (Unfenced, "test_an_old_token_is_refused"),
        (Unfenced, "test_nonsense_is_refused"),
        (ByValue, "test_an_old_token_of_an_equal_state_is_refused"),
        (Cutting, "test_any_bytes"),
        (Deaf, "test_waiting_ends_at_once_when_there_is_news"),
        (Deaf, "test_a_write_wakes_who_waits"),
    ],
)
def test_search_finds_planted_faults(kind: type[MemoryRendezvousBackend], test: str) -> None:
    getattr(Suite(MemoryRendezvousBackend), test)()
    with pytest.raises(AssertionError):
        getattr(Suite(kind), test)()
