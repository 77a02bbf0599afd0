"""TensorPlay's RendezvousHandler and Store, over a Rallypoint run (see `launcher_adapter`)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tensorplay import distributed as dist
from tensorplay.distributed.elastic.rendezvous import api

from rallypoint.errors import StoreTimeoutError
from rallypoint.integrations.agent_round import AgentKeys, AgentRound
from rallypoint.integrations.launcher_adapter import (
    LauncherAdapter,
    LauncherHandler,
    core_parameters,
    errors_of,
)

KEYS = AgentKeys(
    role_info="tp_elastic/role_info/",
    ranks="tp_elastic/assigned_ranks/",
    exit_barrier="tp_elastic/agent/terminal_state",
    arrivals="ARRIVED",
)
NOT_OURS = ("min_nodes", "max_nodes", "rank")  # also attributes of the parameters
Value = bytes | str


class TensorPlayHandler(LauncherHandler, api.RendezvousHandler):  # type: ignore[misc] # not installed there
    """The handler of `python -m tensorplay.distributed.run --rdzv-backend rallypoint`.

    Args:
        params: TensorPlay's RendezvousParameters; its config takes Rallypoint's names.
    """

    def __init__(self, params: Any) -> None:
        ours = core_parameters(params, params.config, without=NOT_OURS)
        super().__init__(api, params.backend, LauncherAdapter(ours, "TensorPlay", KEYS))

    @property
    def use_agent_store(self) -> bool:
        """Return False: rank 0 of the workers runs their store, at the round's address."""
        return False

    def next_rendezvous(self) -> api.RendezvousInfo:
        """Join the next round, and wait until it is sealed."""
        with errors_of(api):
            info, agent_round = self._adapter.join()
        store = RoundStore(agent_round)
        return api.RendezvousInfo(store, info.rank, info.world_size, self.bootstrap(info))


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except StoreTimeoutError as error:
        raise dist.StoreTimeoutError(str(error)) from error


class RoundStore(dist.Store):  # type: ignore[misc] # not installed for the check
    """The store of one round, for TensorPlay's agent; the workers run their own.

    Timeouts are seconds; a missing value is TensorPlay's StoreTimeoutError.
    """

    def __init__(self, agent_round: AgentRound) -> None:
        self._round = agent_round
        self._store = agent_round.store
        self.timeout = self._store.timeout.total_seconds()

    def set(self, key: str, value: Value) -> None:
        """Write a value."""
        self._round.set(key, value)

    def get(self, key: str, timeout: float | None = None) -> bytes:
        """Wait for a value, and return it."""
        with _store_errors():
            return self._round.get(key, self.timeout if timeout is None else timeout)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, and return the sum."""
        return self._round.add(key, amount)

    def compare_set(self, key: str, expected: Value, value: Value) -> bytes:
        """Write if the value is as expected; return the value afterwards."""
        return self._store.compare_set(key, expected, value)

    def compare_and_swap(self, key: str, expected: Value, value: Value) -> tuple[bool, bytes]:
        """Write if the value is as expected; return whether it was, and the former value.

        A missing key counts as empty, as in TensorPlay's own stores.
        """
        swapped, current = self._store.compare_and_swap(key, expected, value)
        if not swapped and current is None and not expected:
            swapped, current = self._store.compare_and_swap(key, None, value)
        if swapped:
            return True, expected.encode() if isinstance(expected, str) else expected
        return False, current or b""

    def has(self, key: str) -> bool:
        """Return whether the key exists."""
        return self._store.check([key])

    def delete_key(self, key: str) -> None:
        """Delete a key."""
        self._store.delete_key(key)

    def wait(self, keys: Sequence[str], timeout: float | None = None) -> bool:
        """Wait for keys; return True, or raise StoreTimeoutError.

        TensorPlay's barrier relies on that error, although its own stores return False.
        """
        with _store_errors():
            self._round.wait(keys, self.timeout if timeout is None else timeout)
        return True
