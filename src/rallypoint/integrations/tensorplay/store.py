"""TensorPlay's `Store` over ours, for its agent; the workers host their own.

Its durations are seconds, its missing values are its own StoreTimeoutError.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tensorplay import distributed as dist

from rallypoint.errors import StoreTimeoutError
from rallypoint.integrations.agent_round import AgentRound

Value = bytes | str


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except StoreTimeoutError as error:
        raise dist.StoreTimeoutError(str(error)) from error


class RoundStore(dist.Store):  # type: ignore[misc] # it is not installed for the check
    """The store of one round."""

    def __init__(self, agent_round: AgentRound) -> None:
        self._round = agent_round
        self._store = agent_round.store
        self.timeout = self._store.timeout.total_seconds()

    def set(self, key: str, value: Value) -> None:
        """Write a value."""
        self._round.set(key, value)

    def get(self, key: str, timeout: float | None = None) -> bytes:
        """Return a value, waiting for it."""
        with _errors():
            return self._round.get(key, self.timeout if timeout is None else timeout)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return the sum."""
        return self._round.add(key, amount)

    def compare_set(self, key: str, expected: Value, value: Value) -> bytes:
        """Write if the value is as expected; return what stands."""
        return self._store.compare_set(key, expected, value)

    def compare_and_swap(self, key: str, expected: Value, value: Value) -> tuple[bool, bytes]:
        """Write if the value is as expected; return whether, and what stood before.

        A missing key counts as empty, as in TensorPlay's own stores.
        """
        swapped, current = self._store.compare_and_swap(key, expected, value)
        if not swapped and current is None and not expected:
            swapped, current = self._store.compare_and_swap(key, None, value)
        if swapped:
            return True, expected.encode() if isinstance(expected, str) else expected
        return False, current or b""

    def has(self, key: str) -> bool:
        """Return whether the key is there."""
        return self._store.check([key])

    def delete_key(self, key: str) -> None:
        """Delete a key."""
        self._store.delete_key(key)

    def wait(self, keys: Sequence[str], timeout: float | None = None) -> bool:
        """Wait for keys; True, or StoreTimeoutError.

        TensorPlay's barrier counts on that error; its own stores return False there.
        """
        with _errors():
            self._round.wait(keys, self.timeout if timeout is None else timeout)
        return True
