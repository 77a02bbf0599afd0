"""The values of the state: labels for people, places, numbers, and the state as bytes."""

import gc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.builders import Drive, a_failure, a_node, sealed

from rallypoint.core.state import (
    FORMAT,
    PLACES,
    Aspect,
    Closed,
    Exclusion,
    Failure,
    Gathering,
    LastCall,
    Member,
    Node,
    Notice,
    Phase,
    RunState,
    Sealed,
    Verdict,
    decode_state,
    encode_state,
    find,
    round_number,
)
from rallypoint.errors import RendezvousStateError


@pytest.mark.parametrize(
    ("node", "label"),
    [
        (Node(id="0123456789", address="10.0.0.1"), "10.0.0.1 id 01234567"),
        (Node(id="0123456789", address="10.0.0.1", pid=7), "10.0.0.1 pid 7"),
        (Node(id="x", address="10.0.0.1", pid=7, host="node1"), "node1 (10.0.0.1) pid 7"),
        (Node(id="x", address="node1", pid=7, host="node1"), "node1 pid 7"),
    ],
)
def test_label_of_a_node(node: Node, label: str) -> None:
    assert node.label == label


@pytest.mark.parametrize(
    ("failure", "label"),
    [
        (a_failure("n1", code=3), "rank 0 (local 0) on n1: exit code 3"),
        (Failure("n1", 5, 1, None, "", "noon"), "rank 5 (local 1) on n1: it hung at noon"),
        (
            Failure("n1", 5, 1, None, "SIGKILL", "noon"),
            "rank 5 (local 1) on n1: signal SIGKILL at noon",
        ),
    ],
)
def test_label_of_a_failure(failure: Failure, label: str) -> None:
    assert failure.label == label


def test_round_numbers_of_the_phases() -> None:
    record = sealed("node1", "node2").record
    phases: list[tuple[Phase, int]] = [
        (Gathering(3), 3),
        (LastCall(4, 1), 4),
        (Sealed(record), 1),
        (Closed(5, "", "", ""), 5),
    ]
    assert [round_number(phase) for phase, _ in phases] == [n for _, n in phases]


def test_closed_run_has_finished_by_its_verdict() -> None:
    assert [Closed(1, "", "", "", verdict).finished for verdict in Verdict] == [True, False, False]
    assert Closed(1, "", "", "").verdict is Verdict.CLOSED


@pytest.mark.parametrize("place", PLACES)
def test_node_is_found_in_every_place(place: str) -> None:
    member = Member(node=a_node("node1"), arrival=1)
    state = msgspec.structs.replace(RunState(run_id="x"), **{place: {"node1": member}})
    assert find(state, "node1") is member
    assert find(state, "node2") is None


def test_rank_0_gives_the_bootstrap_address() -> None:
    record = sealed("node2", "node1").record
    assert (record.master_addr, record.master_port) == ("node1", 20_001)


def test_values_are_not_tracked_by_the_garbage_collector() -> None:
    run = sealed("n1", "n2")
    member = run.state.participants["n1"]
    values = (run.state, run.record, run.record.seats[0], member, member.node, run.settings)
    for value in (*values, *run.step.messages, run.joining("n3")):
        assert not gc.is_tracked(value), value


def test_values_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        RunState(run_id="x").run_id = "y"  # type: ignore[misc] # this is the point


def test_text_of_a_notice() -> None:
    notice = Notice("x", "node7 pid 7", "spot machine", "alice", 25.0)
    assert notice.sentence == "node7 pid 7 will leave: spot machine, in 25 s"
    assert Notice("x", "node7", "why", "alice").sentence == "node7 will leave: why"


def test_text_of_an_exclusion() -> None:
    out = Exclusion(1, Aspect.SLOT, "pod-3", "bad memory", "alice", "noon", 60.0)
    assert out.sentence == "slot pod-3 was excluded by alice at noon for 60 s: bad memory"
    out = Exclusion(1, Aspect.NODE, "node7", "why", "alice")
    assert out.sentence == "node node7 was excluded by alice until it is admitted: why"


def states() -> list[RunState]:
    run = Drive(2, 3)
    found = [run.state]
    run.join("node1", slot="s", node_rank=1, topology="r", host="h")
    found.append(run.state)
    run.join("node2")
    found.append(run.state)
    run = sealed("node1", "node2", "node3", most=4)
    run.join("node4", "node5")
    run.finish("node2")
    found.append(run.state)
    run.fail("node1")
    found.append(run.state)
    run.lose("node3")
    run.close()
    return [*found, run.state]


@pytest.mark.parametrize("state", states(), ids=lambda s: type(s.phase).__name__)
def test_round_trip(state: RunState) -> None:
    data = encode_state(state)
    assert decode_state(data) == state
    assert encode_state(decode_state(data)) == data


def test_equal_states_give_equal_bytes() -> None:
    state = next(s for s in states() if len(s.candidates) == 2)
    turned = msgspec.structs.replace(state, candidates=dict(reversed(state.candidates.items())))
    assert turned == state
    assert encode_state(turned) == encode_state(state)


@pytest.mark.parametrize("data", [b"", b"rally", b"rally\x02\x80", b"{}", b"\x80"])
def test_foreign_data_is_refused(data: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="not Rallypoint's, or of another version"):
        decode_state(data)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "truncated"),
        (b"\x80", "Expected `array`, got `object`"),
        (msgspec.msgpack.encode([]), "Expected `array` of at least length 1, got 0"),
        (msgspec.msgpack.encode([3]), "Expected `str`, got `int`"),
        (msgspec.msgpack.encode(["x", None, 3]), "Expected `str`, got `int` - at `$[2]`"),
        (msgspec.msgpack.encode(["x"]) + b"\x00", "trailing"),
    ],
)
def test_damaged_data_is_refused(body: bytes, what: str) -> None:
    with pytest.raises(RendezvousStateError, match="is damaged") as caught:
        decode_state(FORMAT + body)
    assert what in str(caught.value)
    assert "use another run id or key, or remove it" in str(caught.value)


@given(st.integers(0), st.binary(max_size=3))
def test_no_bytes_raise_anything_else(cut: int, noise: bytes) -> None:
    data = encode_state(states()[3])
    cut %= len(data)
    for damaged in (data[:cut], data[:cut] + noise + data[cut + len(noise) :], noise):
        try:
            state = decode_state(damaged)
        except RendezvousStateError:
            continue
        assert decode_state(encode_state(state)) == state


def test_refused_state_is_quoted_by_its_first_8_bytes() -> None:
    with pytest.raises(RendezvousStateError, match="begins with b'12345678', expected"):
        decode_state(b"123456789")
