"""How one server comes to lead, and stops: a thread that stands by, leads, and notices the end.

    stands by --(nobody leads, and it wins the election)--> leads
    leads --(another one leads, or the database is silent for two leases)--> stands by

Standing by costs nothing: the database notifies of the end of the leader's entry. A leader
renews its entry every third of a lease. While the database does not answer, nothing that
depends on leading is sent (`Election.is_safe`). After two leases of silence this server steps
back, so that its clients ask another one. What it wrote is safe all the time: each commit is
fenced by the entry (journal/engine.py).

Each new `LeaderStatus` goes to `changed`, from the thread. An unexpected error is part of it, and
ends the thread.
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
SILENT_LEASES = 2  # without an answer of the database, until a leader steps back
LOOK_SECONDS = 30.0  # after this a wait ends and looks again
FIRST_PAUSE_SECONDS = 0.05
JOIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """What a server knows of who leads.

    Args:
        term: ours, None while standing by.
        leader: the term of the leader, ourselves included; None if it is not known.
        trouble: why it is not known.
        refused: the database refuses our credentials; this does not pass by itself.
        failure: the error that ended the thread.
    """

    term: Term | None = None
    leader: Term | None = None
    trouble: str = ""
    refused: bool = False
    failure: BaseException | None = None


class Leadership:
    """Takes part in the election, in a thread of its own.

    Args:
        election: used by this thread, and by the journal's commits.
        candidate: this server.
        lease: of the election, in seconds.
        changed: called from the thread with each new status.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        election: Election,
        candidate: Leader,
        lease: float,
        changed: Callable[[LeaderStatus], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self.status = LeaderStatus()
        self._election = election
        self._candidate = candidate
        self._lease = lease
        self._changed = changed
        self._clock = clock
        self._resigned: Term | None = None
        self._wake = threading.Event()  # ends a pause: to resign, or to stop
        self._over = False
        self._thread = threading.Thread(target=self._run, name="rallypoint-leadership", daemon=True)

    def start(self) -> None:
        """Begin to stand by."""
        self._thread.start()

    def resign(self, term: Term) -> None:
        """Let another server lead; returns at once. Stands by again after a lease."""
        self._resigned = term
        self._wake.set()

    def stop(self) -> None:
        """Stop leading, and end; a standby may take a moment longer."""
        self._over = True
        self._wake.set()
        if self._thread.is_alive():
            limit = JOIN_SECONDS if self.status.term is not None else 0.0
            self._thread.join(limit)

    # -- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over:
                term = self._stand_by()
                if term is not None:
                    self._lead(term)
        except BaseException as error:  # handed on to the server's owner
            self._tell(LeaderStatus(failure=error))

    def _tell(self, status: LeaderStatus) -> None:
        if status != self.status:
            self.status = status
            self._changed(status)

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
                    # An earlier term of ours that could not be given up while the database was
                    # away: no need to wait for its end.
                    self._election.resign(present, Deadline(self._lease))
                    continue
                self._tell(LeaderStatus(leader=present))
                self._election.wait(present, Deadline(LOOK_SECONDS))
                pause = FIRST_PAUSE_SECONDS
            except StoreError as error:
                refused = isinstance(error, AuthenticationError)
                self._tell(LeaderStatus(trouble=str(error), refused=refused))
                pause = wait_before_next(pause, Deadline(LOOK_SECONDS))
        return None

    def _lead(self, term: Term) -> None:
        """Lead until the term is over."""
        self._tell(LeaderStatus(term, term))
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
                        LeaderStatus(
                            trouble=f"its entry of epoch {term.epoch} is gone, or another's"
                        )
                    )
                    return
                renewed = self._clock()
            except StoreError as error:
                if self._clock() - renewed > SILENT_LEASES * self._lease:
                    self._tell(LeaderStatus(trouble=str(error)))
                    return

    def _give_up(self, term: Term) -> None:
        self._wake.clear()
        try:
            self._election.resign(term, Deadline(self._lease))
        except StoreError as error:
            logger.warning(
                "the leadership could not be given up, and ends with its lease: %s", error
            )
        self._tell(LeaderStatus())
        # Give another candidate a lease's head start.
        self._wake.wait(0.0 if self._over else self._lease)
