"""Parameters and timeouts: spellings, conversions, and refusals by name."""

from datetime import timedelta
from typing import Any

import pytest

from rallypoint.errors import ParameterError
from rallypoint.rendezvous.parameters import RendezvousParameters, RendezvousTimeout


def make(**config: Any) -> RendezvousParameters:
    return RendezvousParameters("core", "h:1", "run", 1, 2, **config)


def test_positional_form_of_torch() -> None:
    params = RendezvousParameters("core", "h:1", "run", 2, 4, "10.0.0.1", lease=3)
    assert (params.backend, params.endpoint, params.run_id) == ("core", "h:1", "run")
    assert (params.min_nodes, params.max_nodes, params.local_addr) == (2, 4, "10.0.0.1")
    assert (params.node_rank, params.local_world_size) == (None, 1)
    assert params.get("lease") == 3


def test_keyword_form_of_tensorplay() -> None:
    params = RendezvousParameters(
        "core",
        "h:1",
        "run",
        min_nodes=2,
        max_nodes=3,
        node_rank=1,
        local_world_size=8,
        config={"a": 1, "b": 2},
        b=3,
    )
    assert (params.node_rank, params.local_world_size) == (1, 8)
    assert params.config == {"a": 1, "b": 3}
    assert "2:3" in repr(params)


def test_max_nodes_is_min_nodes_if_not_given() -> None:
    assert RendezvousParameters("core", "h:1", "run", 3).max_nodes == 3


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"backend": ""}, "backend=''"),
        ({"min_nodes": 0}, "min_nodes=0"),
        ({"min_nodes": 4, "max_nodes": 2}, "max_nodes=2"),
        ({"min_nodes": "many"}, "min_nodes='many'"),
        ({"min_nodes": True}, "min_nodes=True"),
        ({"node_rank": -1}, "node_rank=-1"),
        ({"local_world_size": 0}, "local_world_size=0"),
    ],
)
def test_refuses_by_name(arguments: dict[str, Any], names: str) -> None:
    given = {"backend": "core", "endpoint": "h", "run_id": "r", **arguments}
    with pytest.raises(ParameterError) as caught:
        RendezvousParameters(**given)
    assert names in str(caught.value)
    assert "allowed" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_get() -> None:
    assert make(a=1).get("a") == 1
    assert make().get("a") is None
    assert make().get("a", 5) == 5


@pytest.mark.parametrize("value", [1, True, "1", "true", "T", "YES", "y", " True "])
def test_true(value: Any) -> None:
    assert make(a=value).get_as_bool("a") is True


@pytest.mark.parametrize("value", [0, False, "0", "false", "F", "No", "n"])
def test_false(value: Any) -> None:
    assert make(a=value).get_as_bool("a") is False


@pytest.mark.parametrize("value", ["", "maybe", 2, -1, 1.0, []])
def test_no_bool(value: Any) -> None:
    with pytest.raises(ParameterError, match=r"^a="):
        make(a=value).get_as_bool("a")


def test_bool_default() -> None:
    assert make().get_as_bool("a") is None
    assert make().get_as_bool("a", True) is True


def test_int() -> None:
    assert make(a="7").get_as_int("a") == 7
    assert make(a=-7).get_as_int("a") == -7
    assert make().get_as_int("a") is None
    assert make().get_as_int("a", 3) == 3


@pytest.mark.parametrize("value", ["", "1.5", "x", 1.5, True, [], float("inf"), float("nan")])
def test_no_int(value: Any) -> None:
    with pytest.raises(ParameterError, match=r"^a="):
        make(a=value).get_as_int("a")


def test_timeout_defaults() -> None:
    timeout = RendezvousTimeout()
    assert timeout.join == timedelta(seconds=600)
    assert timeout.last_call == timedelta(seconds=30)
    assert timeout.close == timedelta(seconds=30)
    assert timeout.heartbeat == timedelta(seconds=15)


def test_timeout_takes_seconds_and_timedelta() -> None:
    timeout = RendezvousTimeout(1.5, timedelta(minutes=1), close=2, heartbeat=3)
    assert timeout.join == timedelta(seconds=1.5)
    assert timeout.last_call == timedelta(seconds=60)
    assert timeout == RendezvousTimeout(1.5, 60, 2, 3)
    assert hash(timeout) == hash(RendezvousTimeout(1.5, 60, 2, 3))
    assert timeout != RendezvousTimeout()
    assert "join=1.5" in repr(timeout)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), timedelta(0), "x", True])
@pytest.mark.parametrize("name", ["join", "last_call", "close", "heartbeat"])
def test_timeout_must_be_positive(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=f"^{name}="):
        RendezvousTimeout(**{name: value})


@pytest.mark.parametrize("name", ["join", "last_call", "close", "heartbeat"])
def test_both_spellings(name: str) -> None:
    for key in (name, f"{name}_timeout"):
        found = getattr(make(**{key: "0.5"}).timeout, name)
        assert found == timedelta(seconds=0.5)
    assert getattr(make(**{name: 2, f"{name}_timeout": "2.0"}).timeout, name).seconds == 2
    with pytest.raises(ParameterError, match=f"{name}_timeout=3"):
        RendezvousTimeout.from_params(make(**{name: 2, f"{name}_timeout": 3}))


def test_from_params() -> None:
    params = make(join=5, heartbeat=timedelta(seconds=9))
    assert RendezvousTimeout.from_params(params) == RendezvousTimeout(5, heartbeat=9)
