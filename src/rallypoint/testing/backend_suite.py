"""What every `RendezvousBackend` must do, as tests to inherit.

    from rallypoint.testing.backend_suite import BackendSuite

    class TestMyBackend(BackendSuite):
        def make_backend(self):
            return MyBackend(...)   # no state yet

        def another(self, backend):
            return MyBackend(...)   # a second client of the same state

Uses plain assert and methods named test_*, so any runner that collects such classes will do.
"""

import threading
from abc import ABC, abstractmethod

from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend, Token

LARGE_STATE_BYTES = 4 * 1024 * 1024
WAIT_SECONDS = 10.0  # for what must happen; no test waits this long when all is well
SHORT_SECONDS = 0.1  # for what must not happen
WRITERS, WRITES = 4, 25


class BackendSuite(ABC):
    """Conformance tests of a backend; a subclass says how to make one."""

    @abstractmethod
    def make_backend(self) -> RendezvousBackend:
        """Return a backend that has no state yet."""

    def another(self, backend: RendezvousBackend) -> RendezvousBackend:
        """Return a second client of the same state (by default the same object)."""
        return backend

    def put(self, backend: RendezvousBackend, state: bytes, token: Token | None = None) -> Token:
        """Write a state that must be accepted; return its token."""
        answer = backend.set_state(state, token)
        assert answer is not None, "set_state returned None for a write that is allowed"
        present, fresh, has_set = answer
        assert has_set, "set_state refused a write that is allowed"
        assert present == state
        return fresh

    def assert_refused(
        self, backend: RendezvousBackend, token: Token | None, present: bytes
    ) -> None:
        """Check that a token writes nothing and is answered with the present state."""
        answer = backend.set_state(b"must not be written", token)
        assert answer is not None, "a refused write must be answered with the present state"
        state, fresh, has_set = answer
        assert not has_set
        assert state == present
        found = backend.get_state()
        assert found is not None
        assert found[0] == present
        self.put(backend, present, fresh)  # the token that came with the answer is a good one

    def test_has_a_name(self) -> None:
        """It says what it is."""
        name = self.make_backend().name
        assert isinstance(name, str)
        assert name

    def test_no_state_at_first(self) -> None:
        """Before the first write there is neither state nor token."""
        assert self.make_backend().get_state() is None

    def test_first_write_needs_no_token(self) -> None:
        """None stands for "there is no state"."""
        backend = self.make_backend()
        self.put(backend, b"one")
        found = self.another(backend).get_state()
        assert found is not None
        assert found[0] == b"one"

    def test_a_read_token_writes(self) -> None:
        """The token of a read allows one write."""
        backend = self.make_backend()
        self.put(backend, b"one")
        found = self.another(backend).get_state()
        assert found is not None
        self.put(self.another(backend), b"two", found[1])

    def test_a_write_token_writes(self) -> None:
        """The token of a write allows the next one."""
        backend = self.make_backend()
        token = self.put(backend, b"one")
        token = self.put(backend, b"two", token)
        self.put(backend, b"three", token)

    def test_none_is_refused_where_a_state_is(self) -> None:
        """None writes the first state only."""
        backend = self.make_backend()
        self.put(backend, b"one")
        self.assert_refused(self.another(backend), None, b"one")

    def test_an_old_token_is_refused(self) -> None:
        """A token is used up by the next write."""
        backend = self.make_backend()
        old = self.put(backend, b"one")
        self.put(backend, b"two", old)
        self.assert_refused(self.another(backend), old, b"two")

    def test_an_old_token_of_an_equal_state_is_refused(self) -> None:
        """The state is what it was, but it was written since."""
        backend = self.make_backend()
        old = self.put(backend, b"one")
        token = self.put(backend, b"two", old)
        self.put(backend, b"one", token)
        self.assert_refused(backend, old, b"one")

    def test_nonsense_is_refused(self) -> None:
        """Any object may come as a token."""
        for nonsense in ("nonsense", b"", b"one", 0, -1, 1.5, True, (), object(), "1", [b"one"]):
            backend = self.make_backend()
            answer = backend.set_state(b"must not be written", nonsense)
            assert answer is None or not answer[2]
            assert backend.get_state() is None
            self.put(backend, b"one")
            self.assert_refused(backend, nonsense, b"one")

    def test_any_bytes(self) -> None:
        """A state is any bytes: empty, NUL, all values, text that looks like a number."""
        backend = self.make_backend()
        token = None
        for state in (b"", b"\0", bytes(range(256)), b"\n\r\n", b"12", "\u00e4".encode()):
            token = self.put(backend, state, token)
            found = self.another(backend).get_state()
            assert found is not None
            assert found[0] == state

    def test_a_large_state(self) -> None:
        """Megabytes are no special case."""
        backend = self.make_backend()
        state = bytes(range(256)) * (LARGE_STATE_BYTES // 256)
        token = self.put(backend, state)
        self.put(backend, state[::-1], token)
        found = self.another(backend).get_state()
        assert found is not None
        assert found[0] == state[::-1]

    def test_waiting_ends_at_once_when_there_is_news(self) -> None:
        """Whoever knows an older state, none, or nonsense does not wait."""
        backend = self.make_backend()
        old = self.put(backend, b"one")
        self.put(backend, b"two", old)
        for token in (old, None, "nonsense"):
            assert backend.wait_for_change(token, WAIT_SECONDS)

    def test_waiting_ends_with_the_time(self) -> None:
        """Without a change the answer is False."""
        backend = self.make_backend()
        assert not backend.wait_for_change(None, SHORT_SECONDS)
        token = self.put(backend, b"one")
        assert not backend.wait_for_change(token, SHORT_SECONDS)
        assert not backend.wait_for_change(token, 0.0)

    def test_a_write_wakes_who_waits(self) -> None:
        """A change by another client ends the wait, the first write included."""
        backend = self.make_backend()
        writer = self.another(backend)
        token = None
        for state in (b"one", b"two"):
            woken: list[bool] = []
            waiter = threading.Thread(
                target=lambda known=token, out=woken: out.append(
                    backend.wait_for_change(known, WAIT_SECONDS)
                )
            )
            waiter.start()
            token = self.put(writer, state, token)
            waiter.join(WAIT_SECONDS)
            assert woken == [True]
            found = backend.get_state()
            assert found is not None
            token = found[1]

    def test_no_update_is_lost(self) -> None:
        """Several writers that count up by compare-and-set reach the sum."""
        backend = self.make_backend()
        self.put(backend, b"0")
        failures: list[BaseException] = []

        def count() -> None:
            try:
                client = self.another(backend)
                for _ in range(WRITES):
                    found = client.get_state()
                    done = False
                    while not done:
                        assert found is not None
                        answer = client.set_state(b"%d" % (int(found[0]) + 1), found[1])
                        assert answer is not None
                        found, done = (answer[0], answer[1]), answer[2]
            except BaseException as error:  # told to the test's own thread
                failures.append(error)

        threads = [threading.Thread(target=count) for _ in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        assert not failures, failures
        found = backend.get_state()
        assert found is not None
        assert int(found[0]) == WRITERS * WRITES
