"""The store of one round, as the agents of torchrun and TensorPlay use it.

Such an agent reads and writes a few keys after each rendezvous (who has how many workers of
which role) and at its end (the exit barrier), and waits for others there, blind for what
happens meanwhile. Here each wait ends when the round does:

* the exit barrier is passed when nobody is left to wait for: all have finished, or one was
  lost or began again;
* the exchange of ranks in a round that has lost a member is answered with stand-ins: such a
  round needs no right figures, only an end, which the agent makes at its next look;
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

LOOK_SECONDS = 0.5  # how often a wait looks whether its round is still on; costs a request
DONE_LOOK_SECONDS = 2.0  # the same for who has finished; costs two, as it is told no more
T = TypeVar("T")


@dataclass(frozen=True)
class AgentKeys:
    """What an agent calls its keys.

    Args:
        role_info: prefix; each node tells its workers there.
        ranks: prefix; the first node gives each its ranks there.
        exit_barrier: prefix of the barrier at the end.
        arrivals: end of the key of that barrier which counts the nodes.
    """

    role_info: str
    ranks: str
    exit_barrier: str
    arrivals: str


class AgentRound:
    """The keys of one round; `finished` once this node's agent came to its exit barrier."""

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
        """Return why nobody waits in this round any more, "" while it is on."""
        view = self._handler.view()
        if view.closed is not None:
            return f"the run was closed by {view.closed.by}: {view.closed.why}"
        if view.fenced is not None:
            return view.fenced.why
        if view.opened is not None:
            return view.opened.why
        return self._why_gone_on() if self.finished else ""

    def _why_gone_on(self) -> str:
        """Return why the others are in another round: who has finished is not told of it."""
        seat = self._info.assignment
        try:
            report = self._handler.waiting_for()
        except RallypointError as error:
            logger.info("could not ask whether the others are still at work: %s", error)
            return ""
        if seat is None or (report.incarnation, report.round) == (seat.incarnation, seat.round):
            return ""
        return report.reason

    def set(self, key: str, value: bytes | str) -> None:
        """Write; this node's role is remembered for stand-ins."""
        if key.startswith(self._keys.role_info):
            self._own_role = value.encode() if isinstance(value, str) else value
        self.store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """Add; whoever counts itself in at the exit barrier has finished its work."""
        prefix, arrivals = self._keys.exit_barrier, self._keys.arrivals
        if key.startswith(prefix) and key.endswith(arrivals) and not self.finished:
            self._finish()
        return self.store.add(key, amount)

    def get(self, key: str, limit_seconds: float) -> bytes:
        """Return a value, waiting for it while the round is on."""
        try:
            return self._wait(lambda limit: self.store.get(key, limit), limit_seconds)
        except _RoundOverError:
            return self._stand_in(key)

    def multi_get(self, keys: Sequence[str], limit_seconds: float) -> list[bytes]:
        """Return all values, waiting for them while the round is on."""
        try:
            return self._wait(lambda limit: self.store.multi_get(keys, limit), limit_seconds)
        except _RoundOverError:
            return [self.store.get_nowait(key) or self._stand_in(key) for key in keys]

    def wait(self, keys: Sequence[str], limit_seconds: float) -> None:
        """Wait for keys while the round is on."""
        try:
            self._wait(lambda limit: self.store.wait(keys, limit), limit_seconds)
        except _RoundOverError:
            if not all(key.startswith(self._keys.exit_barrier) for key in keys):
                raise

    def _wait(self, call: Callable[[float], T], limit_seconds: float) -> T:
        deadline = Deadline(limit_seconds)
        look = DONE_LOOK_SECONDS if self.finished else LOOK_SECONDS
        while True:
            left = deadline.remaining()
            try:
                return call(min(left, look))
            except StoreTimeoutError as error:
                why = self.why_over()
                if why:
                    raise _RoundOverError(f"the round is over: {why}") from error
                if left <= look:
                    raise

    def _finish(self) -> None:
        self.finished = True
        try:
            self._handler.finish()
        except RallypointError as error:  # the round was over before: nobody waits for us
            logger.info("could not say that this node is done: %s", error)

    def _stand_in(self, key: str) -> bytes:
        if self._own_role and key.startswith(self._keys.role_info):
            return self._own_role
        if self._own_role and key.startswith(self._keys.ranks):
            workers = json.loads(self._own_role)["local_world_size"]
            first, total = self._info.rank * workers, self._info.world_size * workers
            return json.dumps([first, total, first, total]).encode()
        raise _RoundOverError(f"key {key!r}: the round is over: {self.why_over()}")


class _RoundOverError(StoreTimeoutError):
    """What was waited for will not come."""
