"""What elections must do on every engine."""

import time

import pytest

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Engine
from rallypoint.engines.election import Election, Leader, NotLeadingError
from rallypoint.testing.store_handles import in_thread

LEASE_SECONDS = 2.0
ONE, TWO = Leader("1", "a:1"), Leader("2", "b:2")


def limit() -> Deadline:
    return Deadline(10)


def election(engine: Engine) -> Election:
    return Election(engine, "server", LEASE_SECONDS, time.monotonic)


def a_leader_that_wakes_up_is_fenced(engine: Engine) -> None:
    """The first stops renewing; the second leads within the lease + 1 s or so; the first's
    write, though it changes a key that nobody has touched, is refused."""
    first, second = election(engine), election(engine.clone())
    term = first.try_to_lead(ONE, limit())
    assert term is not None
    assert first.is_safe()
    assert second.try_to_lead(TWO, limit()) is None
    assert second.present(limit()) == term
    assert first.commit(term, {"state": None}, {"state": b"1"}, limit()).done

    began, next_term = time.monotonic(), None
    while next_term is None:
        second.wait(second.present(limit()), limit())
        next_term = second.try_to_lead(TWO, limit())
        assert time.monotonic() - began < 3 * LEASE_SECONDS + 1
    assert time.monotonic() - began > LEASE_SECONDS * 0.5
    assert next_term.epoch > term.epoch
    assert not first.is_safe()
    for expected in ({"other": None}, {"other": None, "state": None}):
        with pytest.raises(NotLeadingError, match=f"epoch {term.epoch} was refused: b:2 leads"):
            first.commit(term, expected, {"other": b"late"}, limit())
    assert engine.read(["other"], limit()) == {}
    assert not first.renew(term, limit())
    assert second.renew(next_term, limit())


def resigning_makes_room_at_once(engine: Engine) -> None:
    first, second = election(engine), election(engine.clone())
    term = first.try_to_lead(ONE, limit())
    assert term is not None
    waiting = in_thread(second.wait, term, limit())
    first.resign(term, limit())
    assert waiting.result(2)
    assert second.try_to_lead(TWO, limit()) is not None
    with pytest.raises(NotLeadingError):
        first.commit(term, {"x": None}, {"x": b""}, limit())


def renewing_keeps_the_epoch(engine: Engine) -> None:
    first, second = election(engine), election(engine.clone())
    term = first.try_to_lead(ONE, limit())
    assert term is not None
    end = time.monotonic() + 2 * LEASE_SECONDS
    while time.monotonic() < end:
        assert first.renew(term, limit())
        assert second.try_to_lead(TWO, limit()) is None
        time.sleep(LEASE_SECONDS / 3)
    assert second.present(limit()) == term


CASES = (a_leader_that_wakes_up_is_fenced, resigning_makes_room_at_once, renewing_keeps_the_epoch)
