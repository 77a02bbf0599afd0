"""The state as bytes: round trips, equal bytes, and words for what is no state."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.builders import Drive, sealed

from rallypoint.core.codec import FORMAT, decode, encode
from rallypoint.core.state import State
from rallypoint.errors import RendezvousStateError


def states() -> list[State]:
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
def test_round_trip(state: State) -> None:
    data = encode(state)
    assert decode(data) == state
    assert encode(decode(data)) == data


def test_equal_states_give_equal_bytes_whatever_the_order() -> None:
    state = next(s for s in states() if len(s.candidates) == 2)
    turned = msgspec.structs.replace(state, candidates=dict(reversed(state.candidates.items())))
    assert turned == state
    assert encode(turned) == encode(state)


@pytest.mark.parametrize("data", [b"", b"rally", b"rally\x02\x80", b"{}", b"\x80"])
def test_what_is_not_ours_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="not Rallypoint's, or of another version"):
        decode(data)


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
def test_what_is_damaged_is_refused_in_words(body: bytes, what: str) -> None:
    with pytest.raises(RendezvousStateError, match="is damaged") as caught:
        decode(FORMAT + body)
    assert what in str(caught.value)
    assert "use another run id or key, or remove it" in str(caught.value)


@given(st.integers(0), st.binary(max_size=3))
def test_no_bytes_raise_anything_else(cut: int, noise: bytes) -> None:
    data = encode(states()[3])
    cut %= len(data)
    for damaged in (data[:cut], data[:cut] + noise + data[cut + len(noise) :], noise):
        try:
            state = decode(damaged)
        except RendezvousStateError:
            continue
        assert decode(encode(state)) == state


def test_refused_state_is_quoted_by_its_first_8_bytes() -> None:
    with pytest.raises(RendezvousStateError, match="begins with b'12345678', expected"):
        decode(b"123456789")
