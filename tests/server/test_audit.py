"""Admin actions are recorded with who, from where, and when."""

import logging

import pytest

from rallypoint.rendezvous.core.events import Close
from rallypoint.server.audit import recorded


def test_a_close_says_by_whom_and_when(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rallypoint.audit"):
        event = recorded(Close("me", "done\nwith", "1970"), "run", "token 00ff", "10.0.0.1:7")
    assert event.by == "me (token 00ff, 10.0.0.1:7)"
    assert event.at.endswith(" UTC")  # the server's, whatever the client said
    (line,) = caplog.messages
    assert "token 00ff, 10.0.0.1:7" in line
    assert "\n" not in line


def test_without_tokens_only_the_log_has_the_address(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rallypoint.audit"):
        assert recorded(Close("me", "done"), "run", "", "10.0.0.1:7").by == "me"
    assert "no token, 10.0.0.1:7" in caplog.text
