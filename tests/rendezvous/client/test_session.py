"""The client session by its inputs and outputs: no socket, no thread, no clock."""

import msgspec
import pytest

from rallypoint.core.events import (
    Assignment,
    Close,
    Fail,
    Finish,
    Join,
    Leave,
    Notify,
    Refusal,
    Refused,
    RoundOpened,
    RunClosed,
    SettingsHeld,
    WaitingChanged,
)
from rallypoint.core.state import Failure, Node, Settings, Verdict
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    StoreConnectionError,
)
from rallypoint.net import protocol as p
from rallypoint.rendezvous import timing, wire
from rallypoint.rendezvous.client.session import Request, Session, Withdrawn, join_error
from rallypoint.rendezvous.view import NodeMessage, Seated, View

NODE, OTHER, SETTINGS = Node("a", "host"), Node("b", "host"), Settings(1, 2)
SEAT = Assignment(2, 7, 0, 1, 0, 1, 0, 1, "host", 1, 0, "why")
CLOSED = RunClosed(2, 7, "x", "noon", "enough", Verdict.CLOSED)
FENCED = Refused(Refusal.FENCED, "lost")
EXCLUDED = Refused(Refusal.EXCLUDED, "bad memory")
STALE = Refused(Refusal.STALE, "over")
OPENED = RoundOpened(2, 8, "b was lost")
FAILURE = Failure("a", 0, 0, 1)


def a_session(*messages: NodeMessage) -> Session:
    """Return a connected session that has received these messages."""
    session = Session("run", "first:29400", 15.0)
    session.connected()
    for message in messages:
        push(session, message)
    return session


def push(session: Session, message: NodeMessage) -> str:
    return receive(session, wire.Push(message))


def receive(session: Session, body: msgspec.Struct) -> str:
    return session.receive(p.frame(body)[4:])


def sent(frame: bytes) -> object:
    return msgspec.msgpack.decode(frame[4:], type=wire.ClientBody)


def joined(session: Session, node: Node = NODE) -> Join:
    return session.join(node, SETTINGS, "why")[0]


# -- the connection -----------------------------------------------------------------------


def test_a_new_session_is_not_connected() -> None:
    session = Session("run", "first:29400", 15.0)
    assert session.view == View(connected=False)
    assert not session.over
    assert session.greetings() == []
    session.connected()
    assert session.view == View()
    session.disconnected()
    assert session.view == View(connected=False)


def test_a_lost_connection_changes_nothing_else_in_the_view() -> None:
    session = a_session(Seated(SEAT), WaitingChanged(2, 7, 3))
    session.disconnected()
    assert session.view == View(SEAT, waiting=3, connected=False)
    session.connected()
    assert session.view == View(SEAT, waiting=3)


def test_pauses_between_attempts_grow_until_the_session_is_connected_again() -> None:
    session = a_session()
    first = timing.FIRST_PAUSE_SECONDS
    assert [session.retry_seconds(False, 1.5) for _ in range(3)] == [
        pytest.approx(first * factor) for factor in (1.5, 3.0, 6.0)
    ]
    session.connected()
    assert session.retry_seconds(False, 0.5) == pytest.approx(first / 2)
    pauses = [session.retry_seconds(standby=True, jitter=1.0) for _ in range(9)]
    assert pauses[-1] == timing.STANDBY_PAUSE_SECONDS


def test_heartbeats_are_sent_until_the_server_counts_as_gone() -> None:
    session = Session("run", "first:29400", 6.0)
    assert session.heartbeat_seconds == 2.0
    frame = session.heartbeat(6.0, 0.0)
    assert frame is not None
    assert sent(frame) == wire.Beat()
    assert session.heartbeat(6.1, 0.0) is None
    assert session.heartbeat(6.1, 3.1) == frame, "a paused process has not listened"


def test_one_of_several_servers_may_be_silent_for_less_time() -> None:
    session = Session("run", "a:1,b:1", 60.0, several=True)
    assert session.heartbeat_seconds == 3.0
    assert session.heartbeat(5.0, 0.0) is not None
    assert session.heartbeat(5.1, 0.0) is None


def test_a_fault_ends_the_session_and_is_kept_in_the_view() -> None:
    session, error = a_session(), KeyError("a fault")
    session.fail(error)
    assert session.over
    assert session.view == View(connected=False, error=error)


def test_a_body_that_cannot_be_decoded_ends_the_connection() -> None:
    with pytest.raises(StoreConnectionError, match="first:29400: "):
        a_session().receive(b"\xc1")


def test_a_goodbye_ends_the_connection() -> None:
    goodbye = p.Goodbye(p.GOODBYE_LIMIT, "too many")
    with pytest.raises(StoreConnectionError, match=r"first:29400 .*too many"):
        receive(a_session(), goodbye)


def test_a_heartbeat_of_the_server_changes_nothing() -> None:
    session = a_session()
    assert receive(session, wire.Beat()) == ""
    assert session.view == View()


def test_other_settings_than_the_runs_are_a_warning() -> None:
    session = a_session()
    assert push(session, SettingsHeld("the run has max_nodes=3")) == "the run has max_nodes=3"
    assert push(session, OPENED) == ""
    assert session.view == View(opened=OPENED)


# -- what is said first on a new connection -------------------------------------------------


def test_a_join_without_an_answer_is_sent_again() -> None:
    session = a_session()
    join, frame = session.join(NODE, SETTINGS, "why")
    assert sent(frame) == wire.Ask(0, join)
    assert session.greetings() == [frame]


def test_a_node_with_a_seat_resumes() -> None:
    session = a_session()
    joined(session)
    push(session, Seated(SEAT))
    assert [sent(frame) for frame in session.greetings()] == [wire.Resume("a", 2, 7)]


def test_a_node_that_asks_for_the_next_round_joins_again_instead_of_resuming() -> None:
    session = a_session()
    joined(session)
    push(session, Seated(SEAT))
    join, frame = session.join(NODE, SETTINGS)
    assert (join.incarnation, join.after) == (2, 7)
    assert session.greetings() == [frame]


@pytest.mark.parametrize("message", [FENCED, EXCLUDED, CLOSED])
def test_a_node_that_is_shut_out_says_nothing_of_itself(message: NodeMessage) -> None:
    session = a_session()
    joined(session)
    push(session, Seated(SEAT))
    push(session, message)
    request = session.ask(Close("me", "x"))
    assert session.greetings() == [request.frame]


def test_requests_without_a_response_are_sent_again_in_order() -> None:
    session = a_session()
    one, two = session.ask(Close("me", "x")), session.ask(Close("me", "y"))
    assert session.greetings() == [one.frame, two.frame]
    receive(session, wire.Done(one.id))
    assert session.greetings() == [two.frame]


# -- joining --------------------------------------------------------------------------------


def test_a_first_join_knows_no_round() -> None:
    session = a_session()
    join, _frame = session.join(NODE, SETTINGS, "why", new_incarnation=True)
    assert join == Join(NODE, SETTINGS, 0, 0, "why", new_incarnation=True)
    assert session.joined is join
    assert session.outcome(join) is None


def test_a_join_of_the_same_node_keeps_its_seat_and_nothing_else() -> None:
    session = a_session()
    joined(session)
    for message in (Seated(SEAT), WaitingChanged(2, 7, 3), FENCED):
        push(session, message)
    session.disconnected()
    join = joined(session)
    assert (join.incarnation, join.after) == (2, 7)
    assert session.view == View(SEAT, connected=False)
    assert session.outcome(join) is None


def test_a_join_under_another_id_knows_no_round() -> None:
    session = a_session()
    joined(session)
    push(session, Seated(SEAT))
    assert joined(session, OTHER).after == 0
    assert session.view == View()


def test_a_join_after_the_end_of_the_run_knows_no_round() -> None:
    session = a_session()
    joined(session)
    push(session, Seated(SEAT))
    push(session, CLOSED)
    assert joined(session).after == 0
    assert session.view == View()


def test_the_outcome_of_a_join_is_its_seat() -> None:
    session = a_session()
    join = joined(session)
    push(session, Seated(SEAT))
    assert session.outcome(join) == SEAT


def test_the_seat_of_the_round_before_is_no_outcome() -> None:
    session = a_session()
    joined(session)
    push(session, Seated(SEAT))
    join = joined(session)
    assert session.outcome(join) is None
    later = msgspec.structs.replace(SEAT, round=8)
    push(session, Seated(later))
    assert session.outcome(join) == later


@pytest.mark.parametrize("message", [STALE, EXCLUDED, FENCED, Refused(Refusal.CLOSED, "over")])
def test_the_outcome_of_a_join_is_its_refusal(message: Refused) -> None:
    session = a_session()
    join = joined(session)
    push(session, message)
    assert session.outcome(join) == message


def test_a_fence_is_the_outcome_although_the_view_has_a_seat() -> None:
    session = a_session()
    join = joined(session)
    push(session, Seated(SEAT))
    push(session, FENCED)
    assert session.outcome(join) == FENCED


def test_a_token_that_does_not_allow_a_join_refuses_it() -> None:
    session = a_session()
    join = joined(session)
    receive(session, wire.Denied(0, "may only look"))
    assert session.outcome(join) == Refused(Refusal.TOKEN, "may only look")


def test_a_new_join_forgets_the_refusal_of_the_last_one() -> None:
    session = a_session()
    joined(session)
    push(session, STALE)
    assert session.outcome(joined(session)) is None


def test_the_outcome_of_a_join_is_the_end_of_the_run() -> None:
    session = a_session()
    join = joined(session)
    push(session, CLOSED)
    assert session.outcome(join) == CLOSED


def test_the_outcome_of_a_join_is_what_ended_the_session() -> None:
    session, error = a_session(), KeyError("a fault")
    join = joined(session)
    push(session, STALE)
    session.fail(error)
    assert session.outcome(join) is error


def test_a_leave_another_join_or_the_end_of_the_session_withdraws_a_join() -> None:
    session = a_session()
    first = joined(session)
    second = joined(session)
    assert session.outcome(first) == Withdrawn()
    assert session.outcome(second) is None
    session.leave("enough")
    assert session.outcome(second) == Withdrawn()
    third = joined(session)
    session.stop()
    assert session.over
    assert session.outcome(third) == Withdrawn()
    assert session.joined is None


def test_a_join_without_a_seat_is_not_sent_again() -> None:
    session = a_session()
    first = joined(session)
    second = joined(session)
    session.end_join(first)
    assert len(session.greetings()) == 1
    session.end_join(second)
    assert session.greetings() == []


@pytest.mark.parametrize(
    ("outcome", "kind", "words"),
    [
        (STALE, RendezvousStateError, "run 'run' on first:1: over"),
        (Refused(Refusal.CLOSED, "over"), RendezvousClosedError, "run 'run' on first:1: over"),
        (CLOSED, RendezvousClosedError, "run 'run' was closed by x at noon: enough"),
        (
            msgspec.structs.replace(CLOSED, at="", verdict=Verdict.FINISHED),
            RendezvousGracefulExitError,
            "run 'run' was closed by x: enough; this node is not needed any more",
        ),
        (Withdrawn(), RendezvousStateError, "run 'run': this node left while it was joining"),
        (
            KeyError("x"),
            RendezvousConnectionError,
            "the session with first:1 has failed: 'x'",
        ),
    ],
)
def test_each_outcome_without_a_seat_is_an_error_for_the_caller(
    outcome: Refused | RunClosed | Withdrawn | BaseException, kind: type[Exception], words: str
) -> None:
    error = join_error(outcome, "run", "first:1")
    assert type(error) is kind
    assert str(error) == words


# -- leaving --------------------------------------------------------------------------------


def test_a_leave_ends_the_join_and_clears_the_view() -> None:
    session = a_session()
    joined(session)
    push(session, Seated(SEAT))
    request = session.leave("enough")
    assert request is not None
    assert sent(request.frame) == wire.Ask(request.id, Leave("a", "enough"))
    assert session.view == View()
    assert session.joined is None
    assert session.leave("again") is None


def test_a_leave_keeps_what_the_view_says_of_the_connection() -> None:
    session = a_session()
    joined(session)
    push(session, Seated(SEAT))
    session.disconnected()
    session.leave("enough")
    assert session.view == View(connected=False)


@pytest.mark.parametrize("message", [FENCED, CLOSED])
def test_a_node_that_is_no_member_has_nothing_to_leave(message: NodeMessage) -> None:
    session = a_session()
    joined(session)
    push(session, message)
    before = session.view
    assert session.leave("enough") is None
    assert session.joined is None
    assert session.view == before


# -- other requests ---------------------------------------------------------------------------


def test_each_request_has_an_id_of_its_own_and_one_response() -> None:
    session = a_session()
    one = session.request(wire.Inquire)
    two = session.request(lambda number: wire.Inquire(number, brief=True))
    assert (one.id, two.id) == (1, 2)
    assert sent(two.frame) == wire.Inquire(2, brief=True)
    assert not session.is_answered(one)
    answer = wire.Answer(1)
    receive(session, answer)
    assert session.is_answered(one)
    assert not session.is_answered(two)
    assert session.take_response(one) == answer
    assert session.take_response(one) is None


@pytest.mark.parametrize("kind", [wire.Done, wire.Answer, lambda n: wire.Denied(n, "no")])
def test_every_kind_of_response_ends_its_request(kind: type[wire.Done]) -> None:
    session = a_session()
    request = session.ask(Close("me", "x"))
    receive(session, kind(request.id))
    assert session.take_response(request) == kind(request.id)
    assert session.greetings() == []


def test_a_response_to_a_request_that_was_given_up_is_dropped() -> None:
    session = a_session()
    request = session.ask(Close("me", "x"))
    assert session.take_response(request) is None
    assert session.greetings() == []
    receive(session, wire.Done(request.id))
    assert session.take_response(request) is None


def test_the_end_of_the_session_answers_every_request() -> None:
    stopped, failed = a_session(), a_session()
    request = Request(1, b"")
    stopped.stop()
    assert stopped.is_answered(request)
    failed.view = View(error=KeyError("x"))
    assert failed.is_answered(request)


def test_finish_and_failure_name_the_seat() -> None:
    session = a_session()
    joined(session)
    push(session, Seated(SEAT))
    finish = session.finish("noon")
    assert sent(finish.frame) == wire.Ask(finish.id, Finish("a", 2, 7, at="noon"))
    fail = session.report_failure(FAILURE)
    assert sent(fail.frame) == wire.Ask(fail.id, Fail("a", 2, 7, FAILURE))


def test_finish_and_failure_need_a_seat() -> None:
    session = a_session()
    joined(session)
    with pytest.raises(RendezvousStateError, match="finish: this node is in no round"):
        session.finish("noon")
    session = a_session(Seated(SEAT))
    with pytest.raises(RendezvousStateError, match="fail: this node is in no round; join first"):
        session.report_failure(FAILURE)


def test_a_notice_names_the_node() -> None:
    session = a_session()
    with pytest.raises(RendezvousStateError, match="notice: this node has not joined, or has left"):
        session.notice("spot", 25.0)
    joined(session)
    request = session.notice("spot", 25.0)
    assert sent(request.frame) == wire.Ask(request.id, Notify("a", "spot", seconds=25.0))


def test_e1_a_close_names_the_incarnation_that_it_is_for() -> None:
    session = a_session()
    request = session.close("me", "enough", "noon")
    assert sent(request.frame) == wire.Ask(1, Close("me", "enough", at="noon", incarnation=0))
    push(session, Seated(SEAT))
    later = session.close("me", "enough", "noon")
    assert sent(later.frame) == wire.Ask(2, Close("me", "enough", at="noon", incarnation=2))
