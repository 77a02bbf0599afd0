"""Admin actions are recorded with who, from where, and when."""

import logging

import pytest

from rallypoint.core.events import Admit, Close, Exclude, Leave, Notify
from rallypoint.core.state import Aspect
from rallypoint.rendezvous.coordinator import Order
from rallypoint.server.audit import deed, order, recorded


def test_close_records_who_and_when(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rallypoint.audit"):
        event = recorded(Close("me", "done\nwith", "1970"), "run", "token 00ff", "10.0.0.1:7")
    assert event.by == "me (token 00ff, 10.0.0.1)"
    assert event.at.endswith(" UTC")  # the server's, whatever the client said
    (line,) = caplog.messages
    assert "token 00ff, 10.0.0.1:7" in line
    assert "\n" not in line


def test_without_tokens_only_the_log_has_the_address(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rallypoint.audit"):
        assert recorded(Close("me", "done"), "run", "", "10.0.0.1:7").by == "me"
    assert "no token, 10.0.0.1:7" in caplog.text


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Exclude(Aspect.SLOT, "pod-3", "bad memory", "me"), "exclude 'slot pod-3' of run 'run'"),
        (Admit(Aspect.NODE, "n7", "me"), "admit 'node n7' of run 'run' by 'me'"),
    ],
)
def test_exclusions_are_recorded_with_their_time(
    event: Exclude | Admit, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "rallypoint.audit"):
        stored = recorded(event, "run", "token 00ff", "10.0.0.1:7")
    assert stored.by == "me (token 00ff, 10.0.0.1)"
    assert stored.at.endswith(" UTC")
    assert words in caplog.text


def test_notice_by_another_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rallypoint.audit"):
        stored = recorded(Notify("n7", "spot machine", "me", 25.0), "run", "", "10.0.0.1:7")
    assert stored == Notify("n7", "spot machine", "me", 25.0)
    assert "notify 'n7' of run 'run' by 'me' (no token, 10.0.0.1:7): 'spot machine'" in caplog.text


def test_orders_need_an_admin_and_own_events_do_not() -> None:
    orders: list[Order] = [
        Close("me", "done"),
        Exclude(Aspect.NODE, "n7", "", "me"),
        Admit(Aspect.NODE, "n7", "me"),
        Notify("n7", "why"),
    ]
    assert [order(event, "n8") for event in orders] == orders
    assert order(Notify("n7", "why"), "n7") is None
    assert order(Leave("n7"), "n7") is None
    assert [deed(event) for event in orders] == [
        "close",
        "exclude a node from",
        "admit a node to",
        "give notice for a node of",
    ]
