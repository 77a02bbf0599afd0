"""The store of one round, as the agents of torchrun and TensorPlay use it.

Such an agent exchanges a few keys with the others after each rendezvous (the number of workers
of each role) and at its end (the exit barrier). It would wait for them even after the round has
ended. Here each wait ends with the round:

* the exit barrier succeeds once no node is left to wait for: all have finished, or one was lost
  or has joined again;
* the exchange of ranks in a round that lost a node returns placeholder values; the agent ends
  that round at its next check anyway;
* any other wait fails with the reason why the round is over.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rallypoint.deadline import Deadline
from rallypoint.errors import RallypointError, StoreTimeoutError
from rallypoint.rendezvous import DynamicRendezvousHandler, RendezvousInfo
from rallypoint.store.api import Store

logger = logging.getLogger("rallypoint")

CHECK_SECONDS = 0.5  # interval at which a wait checks the round; one request each
FINISHED_CHECK_SECONDS = 2.0  # the same once finished; two requests, since nothing is pushed
T = TypeVar("T")


@dataclass(frozen=True)
class AgentKeys:
    """The names of an agent's keys.

    Args:
        role_info: prefix of the keys with each node's role and number of workers.
        ranks: prefix of the keys with each node's ranks, written by the first node.
        exit_barrier: prefix of the exit barrier's keys.
        arrivals: suffix of the exit barrier's key that counts the nodes.
    """

    role_info: str
    ranks: str
    exit_barrier: str
    arrivals: str


class AgentRound:
    """The store of one round; `finished` once this node's agent has reached its exit barrier."""

    def __init__(
        self, handler: DynamicRendezvousHandler, info: RendezvousInfo, keys: AgentKeys
    ) -> None:
        self.store: Store = info.store
        self.finished = False
        self._handler = handler
        self._info = info
        self._keys = keys
        self._own_role = b""

    def why_over(self) -> str:
        """Return why the round is over, "" while it is not."""
        view = self._handler.view()
        if view.closed is not None:
            return f"the run was closed by {view.closed.by}: {view.closed.why}"
        if view.fenced is not None:
            return view.fenced.why
        if view.opened is not None:
            return view.opened.why
        return self._why_others_left() if self.finished else ""

    def _why_others_left(self) -> str:
        """Return why the others are in another round; a finished node is not notified of it."""
        seat = self._info.assignment
        try:
            report = self._handler.waiting_for()
        except RallypointError as error:
            logger.info("cannot ask whether the others are still in the round: %s", error)
            return ""
        if seat is None or (report.incarnation, report.round) == (seat.incarnation, seat.round):
            return ""
        return report.reason

    def set(self, key: str, value: bytes | str) -> None:
        """Write a value; this node's role is kept for placeholder values."""
        if key.startswith(self._keys.role_info):
            self._own_role = value.encode() if isinstance(value, str) else value
        self.store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; this node has finished once it counts itself at the exit barrier."""
        prefix, arrivals = self._keys.exit_barrier, self._keys.arrivals
        if key.startswith(prefix) and key.endswith(arrivals) and not self.finished:
            self._finish()
        return self.store.add(key, amount)

    def get(self, key: str, limit_seconds: float) -> bytes:
        """Wait for a value while the round lasts, and return it."""
        try:
            return self._wait(lambda limit: self.store.get(key, limit), limit_seconds)
        except _RoundOverError:
            return self._placeholder(key)

    def multi_get(self, keys: Sequence[str], limit_seconds: float) -> list[bytes]:
        """Wait for values while the round lasts, and return them."""
        try:
            return self._wait(lambda limit: self.store.multi_get(keys, limit), limit_seconds)
        except _RoundOverError:
            return [self.store.get_nowait(key) or self._placeholder(key) for key in keys]

    def wait(self, keys: Sequence[str], limit_seconds: float) -> None:
        """Wait for keys while the round lasts."""
        try:
            self._wait(lambda limit: self.store.wait(keys, limit), limit_seconds)
        except _RoundOverError:
            if not all(key.startswith(self._keys.exit_barrier) for key in keys):
                raise

    def _wait(self, call: Callable[[float], T], limit_seconds: float) -> T:
        deadline = Deadline(limit_seconds)
        interval = FINISHED_CHECK_SECONDS if self.finished else CHECK_SECONDS
        while True:
            left = deadline.remaining()
            try:
                return call(min(left, interval))
            except StoreTimeoutError as error:
                why = self.why_over()
                if why:
                    raise _RoundOverError(f"the round is over: {why}") from error
                if left <= interval:
                    raise

    def _finish(self) -> None:
        self.finished = True
        try:
            self._handler.finish()
        except RallypointError as error:  # the round was over already: no node waits for this one
            logger.info("cannot report that this node is done: %s", error)

    def _placeholder(self, key: str) -> bytes:
        if self._own_role and key.startswith(self._keys.role_info):
            return self._own_role
        if self._own_role and key.startswith(self._keys.ranks):
            workers = json.loads(self._own_role)["local_world_size"]
            first, total = self._info.rank * workers, self._info.world_size * workers
            return json.dumps([first, total, first, total]).encode()
        raise _RoundOverError(f"key {key!r}: the round is over: {self.why_over()}")


class _RoundOverError(StoreTimeoutError):
    """The round ended during the wait."""
