"""A call under way: what it waits for, and for how long."""

from rallypoint.store import protocol as p
from rallypoint.store.slot import Slot


def test_a_call_waits_for_its_answer_and_for_no_longer_than_it_may() -> None:
    slot = Slot(p.Get("key", 1.0), 60.0)
    assert slot.waits()
    assert 50.0 < slot.remaining() <= 60.0
    slot.answer = p.Reply(1, b"value")
    assert not slot.waits()
    late = Slot(p.Peek("key"), 0.0)
    assert not late.waits()
    assert late.remaining() == 0.0
