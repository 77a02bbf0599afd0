"""The rendezvous part of the wire format, and events that no client of ours sends."""

import msgspec
import pytest

from rallypoint.core.events import (
    Admit,
    Assignment,
    Close,
    Exclude,
    Fail,
    Join,
    Leave,
    Notify,
    Parked,
    Refusal,
    Refused,
    RoundOpened,
    RunClosed,
    WaitingChanged,
)
from rallypoint.core.state import (
    Aspect,
    Failure,
    Node,
    Settings,
    Verdict,
)
from rallypoint.net import protocol as p
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.view import Seated

FAILURE = Failure("n", 0, 0, 1)
SEAT = Assignment(1, 1, 0, 2, 0, 2, 0, 2, "10.0.0.1", 7, 0, "all came")
OPENED = RoundOpened(1, 2, "b was lost", ("b",))
PARKED = Parked(1, 2, False, "waits")
CLOSED = RunClosed(1, 1, "a", "", "enough", Verdict.CLOSED)
FENCED = Refused(Refusal.FENCED, "its lease lapsed")


def test_push_round_trip() -> None:
    for message in (Seated(SEAT), OPENED, PARKED, CLOSED, FENCED, WaitingChanged(1, 1, 3)):
        data = p.frame(wire.Push(message))[4:]
        assert msgspec.msgpack.decode(data, type=wire.ServerBody) == wire.Push(message)


def join(**changes: object) -> Join:
    node = Node("id", "10.0.0.1")
    settings = Settings(1, 2)
    of_node = {k: v for k, v in changes.items() if k in Node.__struct_fields__}
    of_settings = {k: v for k, v in changes.items() if k in Settings.__struct_fields__}
    return Join(
        msgspec.structs.replace(node, **of_node), msgspec.structs.replace(settings, **of_settings)
    )


def test_valid_events() -> None:
    assert wire.problem(join()) == ""
    assert wire.problem(join(slot="s" * 1024, disconnect_grace_seconds=0.0)) == ""
    assert wire.problem(Leave("id")) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"min_nodes": 0}, "min_nodes=0"),
        ({"min_nodes": 3}, "max_nodes=2"),
        ({"local_world_size": 0}, "local_world_size=0"),
        ({"lease_seconds": float("nan")}, "lease_seconds=nan"),
        ({"disconnect_grace_seconds": -1.0}, "disconnect_grace_seconds=-1"),
        ({"rejoin_timeout_seconds": float("inf")}, "rejoin_timeout_seconds=inf"),
        ({"id": ""}, "without an id"),
        ({"host": "h" * 1025}, "1024 characters"),
        ({"role": "a\x1b[31m"}, "control characters"),
        ({"node_rank": -1}, "node_rank=-1"),
        ({"quarantine_failures": -1}, "quarantine_failures=-1"),
        ({"steady_after_seconds": -1.0}, "steady_after_seconds=-1"),
        ({"local_world_size": 2**63 - 1}, "local_world_size="),
        ({"lease_seconds": 1e300}, "lease_seconds=1e+300"),
    ],
)
def test_invalid_events(changes: dict[str, object], words: str) -> None:
    assert words in wire.problem(join(**changes))


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Notify("a", "why"), ""),
        (Notify("a", "why", seconds=0.0), ""),
        (Notify("a", "why", seconds=-1.0), "a notify with seconds=-1.0"),
        (Exclude(Aspect.NODE, "a", "", "me", float("nan")), "an exclude with seconds=nan"),
        (Exclude(Aspect.NODE, "a", "", "me", 60.0), ""),
        (Exclude(Aspect.NODE, "a" * 1024, "", "me"), ""),
        (Exclude(Aspect.NODE, "a" * 1025, "", "me"), "that cannot be shown"),
        (Admit(Aspect.SLOT, "", "me"), "an exclusion without a name"),
        (Exclude(Aspect.NODE, "a", "w" * 1025, "me"), "a text of more than 1024 characters"),
        (Notify("a", "why", "m" * 1025), "a text of more than 1024 characters"),
        (Notify("a", "w" * 1024, "m" * 1024), ""),
        (Admit(Aspect.SLOT, "a\x1b[2J", "me"), "that cannot be shown"),
        (Admit(Aspect.SLOT, "a", "me"), ""),
    ],
)
def test_valid_and_invalid_requests(event: wire.NodeEvent, words: str) -> None:
    problem = wire.problem(event)
    assert words in problem if words else problem == ""


def test_control_characters_are_made_visible() -> None:
    close = Close("me\x1b[2J", "line\nand\ttab\r", "now")
    assert wire.cleaned(close) == Close("me\ufffd[2J", "line and tab", "now")
    admit = Admit(Aspect.SLOT, "s\x1b", "me\n")
    assert wire.cleaned(admit) == Admit(Aspect.SLOT, "s\ufffd", "me")
    exclude = Exclude(Aspect.SLOT, "s\n", "w\x07", "me")
    assert wire.cleaned(exclude) == Exclude(Aspect.SLOT, "s", "w\ufffd", "me")
    leave = Leave("id", "plain \u00fc")
    assert wire.cleaned(leave) is leave
    fail = Fail("id", 1, 1, Failure("n\x07", 0, 0, 1, message="\x1b]0;title\x07 kept\nline"))
    assert isinstance(cleaned := wire.cleaned(fail), Fail)
    assert (cleaned.failure.node, cleaned.failure.message) == (
        "n\ufffd",
        "\ufffd]0;title\ufffd kept\nline",
    )


def test_token_without_permission_is_refused() -> None:
    denied = wire.Denied(3, "looks only")
    assert msgspec.msgpack.decode(p.frame(denied)[4:], type=wire.ServerBody) == denied
