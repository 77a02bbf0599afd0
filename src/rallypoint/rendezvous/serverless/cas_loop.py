"""Read, advance, compare-and-set: again if another node has written first.

`CasLoop.run` returns a step only when its state is stored, which must come before its messages.
"""

import random
import threading
from collections.abc import Callable, Sequence

from rallypoint.core.advance import Step, advance, timers
from rallypoint.core.events import Event
from rallypoint.core.state import RunState, decode_state, encode_state
from rallypoint.deadline import Deadline
from rallypoint.errors import RendezvousStateError, RendezvousTimeoutError
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend, Token

_JITTER_FIRST_SECONDS, _JITTER_MOST_SECONDS = 0.001, 0.1
Decide = Callable[[RunState], Sequence[Event]]
Pause = Callable[[float], object]


def pause(seconds: float) -> None:
    """Wait; simulations replace this."""
    threading.Event().wait(seconds)


class CasLoop:
    """Exchange over one run's state. Not thread-safe.

    Args:
        backend: where the state is.
        run_id: name of the run, for its first state.
        pause: waits between two attempts, for a number of seconds.
    """

    def __init__(self, backend: RendezvousBackend, run_id: str, pause: Pause = pause) -> None:
        self._backend = backend
        self._run_id = run_id
        self._wait = pause
        self._known: tuple[bytes, RunState] | None = None  # an unchanged state is not decoded again
        self.token: Token | None = None

    def run(self, decide: Decide, deadline: Deadline) -> Step:
        """Apply the events that `decide` derives from the state, and store the result.

        `decide` is called again with the new state each time that another node was faster.
        Without events, or if they change nothing, nothing is written.

        Raises:
            RendezvousConnectionError, RendezvousStateError: as the backend does.
            RendezvousTimeoutError: other nodes were faster until the deadline.
        """
        found = self._backend.get_state()
        races = 0
        while True:
            state = self._read(found)
            events = decide(state)
            step = advance(state, *events) if events else _rest(state)
            if step.state == state:
                return step
            written = encode_state(step.state)
            answer = self._backend.set_state(written, self.token)
            if answer is not None and answer[2]:
                self._known, self.token = (written, step.state), answer[1]
                return step
            found = None if answer is None else (answer[0], answer[1])
            races += 1
            self._pause(races, deadline)

    def _read(self, found: tuple[bytes, Token] | None) -> RunState:
        if found is None:
            self._known, self.token = None, None
            return RunState(run_id=self._run_id)
        data, self.token = found
        if self._known is None or self._known[0] != data:
            self._known = (data, decode_state(data))
        state = self._known[1]
        if state.run_id != self._run_id:
            raise RendezvousStateError(
                f"backend {self._backend.name} holds the state of run {state.run_id!r}, not of "
                f"{self._run_id!r}; give each run a key or file of its own"
            )
        return state

    def _pause(self, races: int, deadline: Deadline) -> None:
        if deadline.expired():
            raise RendezvousTimeoutError(
                f"run {self._run_id!r}: {races} writes to backend {self._backend.name} lost their "
                f"race within {deadline.timeout:g} s; a run without a server is for small jobs"
            )
        most = min(_JITTER_MOST_SECONDS, _JITTER_FIRST_SECONDS * 2 ** min(races, 10))
        self._wait(deadline.capped(random.uniform(0, most)))  # noqa: S311 - jitter


def _rest(state: RunState) -> Step:
    return Step(state, (), timers(state), ())
