"""What an agent and its workers say to each other about a change that is pending.

To the workers: a small file (`worker.change`), and a signal where one is wanted. From them: the
word in the run's store that all ranks have saved (`worker.saving`), which a thread waits for,
as long as the workers have time to save and no longer.

The thread looks at the store before it announces the change, so that a save for an earlier
change is never taken for one for this.
"""

import tempfile
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from rallypoint.agent.policy import events
from rallypoint.agent.reporting.report import say
from rallypoint.deadline import Deadline
from rallypoint.errors import RallypointError, StoreTimeoutError
from rallypoint.store.api import Store
from rallypoint.store.prefix import PrefixStore
from rallypoint.worker.change import CHANGE_FILE, ChangeKind, ChangeWriter
from rallypoint.worker.member import round_prefix
from rallypoint.worker.saving import SAVED, go_on


class Changes:
    """One agent's announcements to its workers, and their answer.

    Args:
        open_store: opens the store of the run as its workers see it; None where there is none.
        put: takes `WorkersSaved`, and `AgentFailed` for a fault of ours.
        call: makes the workers look at the file (sends them a signal).
    """

    def __init__(
        self,
        open_store: Callable[[], Store] | None,
        put: Callable[[events.Event], None],
        call: Callable[[], None] = lambda: None,
    ) -> None:
        self._open_store = open_store
        self._put = put
        self._call = call
        self._lock = threading.Lock()
        self._asks = 0
        name = f"rallypoint-change-{uuid.uuid4().hex}.json"
        self._writer = ChangeWriter(Path(tempfile.gettempdir()) / name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.take_back()

    def environment(self) -> dict[str, str]:
        """Return what the workers' environments say of the file."""
        return {CHANGE_FILE: str(self._writer.path)}

    def ask(self, ask: events.AskToSave) -> None:
        """Announce a change; where the ask wants it, tell when all ranks have saved."""
        who = f"{ask.who} leaves: " if ask.kind is ChangeKind.LEAVING else ""
        say(f"{who}{ask.why}: the workers have {ask.seconds:g} s to save first")
        with self._lock:
            self._asks += 1
            number = self._asks
        if ask.watch and self._open_store is not None:
            self._in_background(partial(self._watch, self._open_store, ask, number))
        else:
            self._announce(ask, number)

    def take_back(self) -> None:
        """Say that nothing is pending any more."""
        with self._lock:
            self._asks += 1
            self._writer.take_back()

    def let_go_on(self, what: events.LetGoOn) -> None:
        """Let the workers go on that wait for a change which does not come."""

        def tell(open_store: Callable[[], Store]) -> None:
            with open_store() as store:
                of_round = PrefixStore(round_prefix(what.incarnation, what.round), store)
                of_round.set(go_on(what.step), b"")

        if self._open_store is not None:
            self._in_background(partial(tell, self._open_store))

    def _announce(self, ask: events.AskToSave, number: int) -> None:
        with self._lock:
            if number != self._asks:
                return  # taken back, or announced anew, in the meantime
            self._writer.announce(ask.kind, ask.who, ask.why, ask.seconds)
        self._call()

    def _watch(self, open_store: Callable[[], Store], ask: events.AskToSave, number: int) -> None:
        limit = Deadline(ask.seconds)
        with ExitStack() as held:
            try:
                store = held.enter_context(open_store())
                of_round = PrefixStore(round_prefix(ask.incarnation, ask.round), store)
                before, _step = of_round.watch(SAVED, -1, limit.remaining())
            finally:
                self._announce(ask, number)  # even if nobody will hear that they have saved
            try:
                _version, step = of_round.watch(SAVED, before, limit.remaining())
            except StoreTimeoutError:
                return  # the timer that the policy has started says so too
        if step is not None:
            self._put(events.WorkersSaved(ask.round, int(step)))

    def _in_background(self, body: Callable[[], None]) -> None:
        def run() -> None:
            try:
                body()
            except RallypointError as error:  # the round then changes when the time is over
                say(f"no word of the workers' saving: {error}")
            except BaseException as error:  # handed on, never swallowed
                self._put(events.AgentFailed(f"watching for the workers' saving: {error!r}"))

        threading.Thread(target=run, name="rallypoint-changes", daemon=True).start()
