"""Asks the workers to save before a membership change, and waits until they have.

The request is a small file (`worker.change`), and a signal if configured. The answer is a key
in the run's store, set once all ranks have saved (`worker.saving`); a thread waits for it while
the workers have time to save.

The thread reads that key before it announces the change, so that a save for an earlier change
does not count for this one.
"""

import tempfile
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

from rallypoint.agent.policy import events
from rallypoint.agent.reporting.console import say
from rallypoint.deadline import Deadline
from rallypoint.errors import RallypointError, StoreTimeoutError
from rallypoint.store.api import Store
from rallypoint.store.prefix import PrefixStore
from rallypoint.worker.change import CHANGE_FILE, ChangeKind, ChangeWriter
from rallypoint.worker.process import round_prefix
from rallypoint.worker.saving import SAVED, release_key


class SaveRequests:
    """One agent's requests to its workers, and their answers.

    Args:
        open_store: opens the run's store as the workers see it; None without a store.
        put: gets `WorkersSaved`, and `AgentFailed` for an internal error.
        send_signal: sends the workers the configured signal, if any.
    """

    def __init__(
        self,
        open_store: Callable[[], Store] | None,
        put: Callable[[events.Event], None],
        send_signal: Callable[[], None] = lambda: None,
    ) -> None:
        self._open_store = open_store
        self._put = put
        self._send_signal = send_signal
        self._lock = threading.Lock()
        self._asks = 0
        name = f"rallypoint-change-{uuid.uuid4().hex}.json"
        self._writer = ChangeWriter(Path(tempfile.gettempdir()) / name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.cancel()

    def environment(self) -> dict[str, str]:
        """Return the environment variable that names the file."""
        return {CHANGE_FILE: str(self._writer.path)}

    def ask(self, ask: events.AskToSave) -> None:
        """Announce a change; if `ask.watch`, put `WorkersSaved` when all ranks have saved."""
        who = f"{ask.who} leaves: " if ask.kind is ChangeKind.LEAVING else ""
        say(f"{who}{ask.why}: the workers have {ask.seconds:g} s to save first")
        with self._lock:
            self._asks += 1
            number = self._asks
        if ask.watch and self._open_store is not None:
            self._in_background(partial(self._watch, self._open_store, ask, number))
        else:
            self._announce(ask, number)

    def cancel(self) -> None:
        """Withdraw the announcement, if there is one."""
        with self._lock:
            self._asks += 1
            self._writer.cancel()

    def release(self, what: events.ReleaseWorkers) -> None:
        """Release the workers that wait for a change that will not happen."""

        def release(open_store: Callable[[], Store]) -> None:
            with open_store() as store:
                of_round = PrefixStore(round_prefix(what.incarnation, what.round), store)
                of_round.set(release_key(what.step), b"")

        if self._open_store is not None:
            self._in_background(partial(release, self._open_store))

    def _announce(self, ask: events.AskToSave, number: int) -> None:
        with self._lock:
            if number != self._asks:
                return  # cancelled or announced again meanwhile
            self._writer.announce(ask.kind, ask.who, ask.why, ask.seconds)
        self._send_signal()

    def _watch(self, open_store: Callable[[], Store], ask: events.AskToSave, number: int) -> None:
        limit = Deadline(ask.seconds)
        with ExitStack() as held:
            try:
                store = held.enter_context(open_store())
                of_round = PrefixStore(round_prefix(ask.incarnation, ask.round), store)
                before, _step = of_round.watch(SAVED, -1, limit.remaining())
            finally:
                self._announce(ask, number)  # even if this agent cannot wait for the answer
            try:
                _version, step = of_round.watch(SAVED, before, limit.remaining())
            except StoreTimeoutError:
                return  # the policy's own timer has elapsed too
        if step is not None:
            self._put(events.WorkersSaved(ask.round, int(step)))

    def _in_background(self, body: Callable[[], None]) -> None:
        def run() -> None:
            try:
                body()
            except RallypointError as error:  # the round changes when the policy's timer elapses
                say(f"cannot tell whether the workers have saved: {error}")
            except BaseException as error:  # handed on, never swallowed
                self._put(events.AgentFailed(f"waiting for the workers to save: {error!r}"))

        threading.Thread(target=run, name="rallypoint-save-requests", daemon=True).start()
