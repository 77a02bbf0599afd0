from rallypoint.core.events import (
    Assignment,
    Join,
    Refusal,
    Refused,
    RunClosed,
)
from rallypoint.core.state import Node, Settings, Verdict
from rallypoint.net import protocol as p
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.client import dialogue
from rallypoint.rendezvous.coordinator import View

NODE, SETTINGS = Node("a", "host"), Settings(1, 2)
SEAT = Assignment(2, 7, 0, 1, 0, 1, 0, 1, "host", 1, 0, "why")
CLOSED = RunClosed(2, 7, "x", "", "y", Verdict.CLOSED)
FENCED = Refused(Refusal.FENCED, "lost")


def asked(view: View, before: Join | None = None, node: Node = NODE) -> tuple[Join, View]:
    return dialogue.request(view, before, node, SETTINGS, "why", False)


def test_a_first_join_knows_nothing() -> None:
    join, view = asked(View())
    assert (join.incarnation, join.after, join.why) == (0, 0, "why")
    assert view == View()


def test_a_join_of_the_same_node_names_its_seat_and_forgets_the_rest() -> None:
    before = Join(NODE, SETTINGS)
    told = View(SEAT, waiting=3, fenced=FENCED, connected=False)
    join, view = asked(told, before)
    assert (join.incarnation, join.after) == (2, 7)
    assert view == View(SEAT, connected=False)


def test_another_node_or_another_incarnation_knows_nothing() -> None:
    before = Join(NODE, SETTINGS)
    assert asked(View(SEAT), before, Node("b", "host"))[0].after == 0
    assert asked(View(SEAT, closed=CLOSED), before) == (Join(NODE, SETTINGS, why="why"), View())


def test_a_join_is_settled_by_a_newer_seat_or_a_reason() -> None:
    join = Join(NODE, SETTINGS, 2, 6)
    assert dialogue.is_settled(join, View(SEAT), None)
    assert not dialogue.is_settled(Join(NODE, SETTINGS, 2, 7), View(SEAT), None)
    assert not dialogue.is_settled(join, View(), None)
    assert dialogue.is_settled(join, View(), FENCED)
    for view in (View(fenced=FENCED), View(closed=CLOSED), View(error=ValueError())):
        assert dialogue.is_settled(join, view, None)


def test_what_goes_first_on_a_new_connection() -> None:
    join = Join(NODE, SETTINGS, 2, 6)
    assert dialogue.greetings(View(), None, [b"x"]) == [b"x"]
    assert dialogue.greetings(View(), join, [b"x"]) == [p.frame(wire.Ask(0, join)), b"x"]
    assert dialogue.greetings(View(SEAT), join, []) == [p.frame(wire.Resume("a", 2, 7))]
    again = Join(NODE, SETTINGS, 2, 7)  # the seat is that of the round before
    assert dialogue.greetings(View(SEAT), again, []) == [p.frame(wire.Ask(0, again))]
    for over in (View(SEAT, fenced=FENCED), View(SEAT, closed=CLOSED)):
        assert dialogue.greetings(over, join, []) == []


def test_beats_silence_and_pauses() -> None:
    assert dialogue.beat_seconds(3.0) == 1.0
    assert dialogue.beat_seconds(600.0) == dialogue.LONGEST_BEAT_SECONDS
    assert dialogue.silence_seconds(15.0, several=False) == 15.0
    assert dialogue.silence_seconds(15.0, several=True) == 5.0
    assert dialogue.beat_seconds(600.0, several=True) == 3.0
    assert dialogue.silence_seconds(3.0, several=True) == 3.0
    assert dialogue.is_gone(3.1, 0.0, 3.0)
    assert not dialogue.is_gone(3.0, 0.0, 3.0)
    assert not dialogue.is_gone(9.0, 5.0, 3.0), "who was held up has not listened"
    assert dialogue.next_pause(0.05) == 0.1
    assert dialogue.next_pause(1.5) == dialogue.LONGEST_PAUSE_SECONDS


def test_an_absence_is_a_lease_a_beat_an_attempt_and_a_pause() -> None:
    assert dialogue.absence_seconds(15.0) == 15.0 + 5.0 + 5.0 + 3.0
    assert dialogue.absence_seconds(3.0) == 3.0 + 1.0 + 5.0 + 3.0


def test_pauses_grow_and_are_shorter_where_another_server_will_lead() -> None:
    pause, pauses = dialogue.FIRST_PAUSE_SECONDS, []
    for _ in range(8):
        pause = dialogue.next_pause(pause)
        pauses.append(pause)
    assert pauses == sorted(pauses)
    assert pauses[-1] == dialogue.LONGEST_PAUSE_SECONDS
    assert dialogue.next_pause(pause, standby=True) == dialogue.STANDBY_PAUSE_SECONDS
