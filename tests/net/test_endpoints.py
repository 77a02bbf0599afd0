"""Places: lists of servers, and which of them to ask first (single ones: test_endpoint)."""

import pytest

from rallypoint.errors import ParameterError
from rallypoint.net.endpoints import (
    Route,
    is_list,
    join_place,
    one_host,
    parse_place,
    parse_places,
    servers,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", (("a", 1),)),
        ("a:1,b:2", (("a", 1), ("b", 2))),
        ("a, b:2 ,[::1]:3", (("a", 29400), ("b", 2), ("::1", 3))),
        ("a:1,a:1", (("a", 1),)),
        ("", (("localhost", 29400),)),
        (None, (("localhost", 29400),)),
    ],
)
def test_reads_lists(text: str | None, expected: tuple[tuple[str, int], ...]) -> None:
    assert parse_places(text) == expected
    assert is_list(text) == (text is not None and "," in text)


@pytest.mark.parametrize("text", ["a:1,", ",a:1", "a,,b", "a:1,b:x", "a:1,b:99999", "a b,c"])
def test_refuses_lists_that_are_none(text: str) -> None:
    with pytest.raises(ParameterError, match=r"endpoint=.*allowed"):
        parse_places(text)


def test_one_place_is_not_a_list() -> None:
    with pytest.raises(ParameterError, match="several endpoints where one is meant"):
        parse_place("a:1,b:2")
    one_host("a:1")
    with pytest.raises(ParameterError, match=r"start `rallypoint serve --state URL` at each"):
        one_host("a:1,b:2")


def test_a_host_that_is_a_list_brings_its_ports() -> None:
    assert servers("::1", 5) == (("::1", 5),)
    assert servers("a,b:2", 5) == (("a", 5), ("b", 2))
    with pytest.raises(ParameterError, match=r"endpoint=\['a', 'b'\]: not a text; several servers"):
        servers(["a", "b"], 5)  # type: ignore[arg-type]


def test_text_of_a_place() -> None:
    assert [join_place("a", 1), join_place("::1", 2)] == ["a:1", "[::1]:2"]


def test_a_route_asks_the_leader_first_as_long_as_it_leads() -> None:
    a, b, elsewhere = ("a", 1), ("b", 2), ("c", 3)
    route = Route((a, b))
    assert route.order() == (a, b)
    route.found(b)
    assert [route.leader, *route.order()] == [b, b, a]
    route.failed(a)
    assert route.leader == b
    route.failed(b)
    assert [route.leader, *route.order()] == [None, a, b]
    route.failed(a)
    assert route.order() == (b, a), "who failed last is asked last"
    route.found(elsewhere)
    assert route.order() == (elsewhere, b, a)
    route.found(a)
    assert route.order() == (a, b)
    route.failed(None)
    assert route.order() == (a, b)


def test_one_server_that_sends_us_elsewhere_is_several() -> None:
    route = Route((("a", 1),))
    seen = [route.several]
    for place in (("a", 1), ("b", 2)):
        route.found(place)
        seen.append(route.several)
    assert seen == [False, False, True]
    assert Route((("a", 1), ("b", 2))).several
