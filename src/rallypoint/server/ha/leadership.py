"""One server's way to lead, and back: a thread that stands by, leads, and notices the end.

    stands by --(nobody leads, and it won)--> leads --(another one leads, or nobody
    can tell for two leases)--> stands by

Standing by costs nothing: the engine says when the leader's entry goes. Leading, the entry is
renewed every third of a lease. While the engine does not answer, nobody is told anything that
rests on leading (`Election.is_safe`); when it has not answered for two leases, the clients had
better ask another server, so this one steps back. What it wrote is safe all the time: each
commit is fenced by the entry (engine_journal.py).

What is seen is given to `changed` as a `View`, from the thread; a failure that is not the
engine's is part of it, and ends the thread.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rallypoint.deadline import Clock, Deadline
from rallypoint.engines.election import Election, Leader, Term
from rallypoint.errors import AuthenticationError, StoreError
from rallypoint.net.dialer import wait_before_next

logger = logging.getLogger("rallypoint.server")

RENEWALS = 3  # in a lease
PATIENCE_LEASES = 2  # without an answer of the engine, until a leader steps back
LOOK_SECONDS = 30.0  # a wait ends by itself after that, and looks again
FIRST_PAUSE_SECONDS = 0.05
JOIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class View:
    """What a server knows of who leads.

    Args:
        term: ours, None while standing by.
        leader: who leads as far as it is known, ourselves included.
        trouble: why it is not known.
        refused: the trouble is with our credentials, and does not pass by itself.
        failure: what ended the thread.
    """

    term: Term | None = None
    leader: Term | None = None
    trouble: str = ""
    refused: bool = False
    failure: BaseException | None = None


class Leadership:
    """Stands for election in a thread of its own.

    Args:
        election: for the office; used by this thread, and by the journal's commits.
        candidate: who stands.
        lease: seconds, as the election's.
        changed: called from the thread with each new view.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        election: Election,
        candidate: Leader,
        lease: float,
        changed: Callable[[View], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self.view = View()
        self._election, self._candidate, self._lease = election, candidate, lease
        self._changed, self._clock = changed, clock
        self._resigned: Term | None = None
        self._wake = threading.Event()  # ends a pause: to resign, or to stop
        self._over = False
        self._thread = threading.Thread(target=self._run, name="rallypoint-leadership", daemon=True)

    def start(self) -> None:
        """Begin to stand by."""
        self._thread.start()

    def resign(self, term: Term) -> None:
        """Let another one lead instead; returns at once. Stands by again after a lease."""
        self._resigned = term
        self._wake.set()

    def stop(self) -> None:
        """Give the office up and end; a server that stands by may take a moment longer."""
        self._over = True
        self._wake.set()
        if self._thread.is_alive():
            limit = JOIN_SECONDS if self.view.term is not None else 0.0
            self._thread.join(limit)

    # -- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over:
                term = self._stand_by()
                if term is not None:
                    self._lead(term)
        except BaseException as error:  # given to whoever runs the server, never swallowed
            self._tell(View(failure=error))

    def _tell(self, view: View) -> None:
        if view != self.view:
            self.view = view
            self._changed(view)

    def _stand_by(self) -> Term | None:
        pause = FIRST_PAUSE_SECONDS
        while not self._over:
            try:
                present = self._election.present(Deadline(self._lease))
                if present is None:
                    term = self._election.try_to_lead(self._candidate, Deadline(self._lease))
                    if term is not None:
                        return term
                    continue
                if present.leader == self._candidate:
                    # A term of ours that was given up while the engine was away, and which the
                    # engine has kept: it need not be waited for.
                    self._election.resign(present, Deadline(self._lease))
                    continue
                self._tell(View(leader=present))
                self._election.wait(present, Deadline(LOOK_SECONDS))
                pause = FIRST_PAUSE_SECONDS
            except StoreError as error:
                refused = isinstance(error, AuthenticationError)
                self._tell(View(trouble=str(error), refused=refused))
                pause = wait_before_next(pause, Deadline(LOOK_SECONDS))
        return None

    def _lead(self, term: Term) -> None:
        """Lead until it is over, in whatever way."""
        self._tell(View(term, term))
        renewed = self._clock()
        while True:
            self._wake.wait(self._lease / RENEWALS)
            if self._over or self._resigned is term:
                self._give_up(term)
                return
            self._wake.clear()
            try:
                if not self._election.renew(term, Deadline(self._lease / RENEWALS)):
                    self._tell(
                        View(trouble=f"its entry of epoch {term.epoch} is gone, or another's")
                    )
                    return
                renewed = self._clock()
            except StoreError as error:
                if self._clock() - renewed > PATIENCE_LEASES * self._lease:
                    self._tell(View(trouble=str(error)))
                    return

    def _give_up(self, term: Term) -> None:
        self._wake.clear()
        try:
            self._election.resign(term, Deadline(self._lease))
        except StoreError as error:
            logger.warning("the office could not be given up, and ends with its lease: %s", error)
        self._tell(View())
        self._wake.wait(0.0 if self._over else self._lease)  # for another one to be faster
