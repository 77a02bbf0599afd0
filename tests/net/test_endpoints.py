"""Endpoints: parsing one or a list, and which server is tried first."""

import pytest

from rallypoint.errors import ParameterError
from rallypoint.net.endpoints import (
    ServerList,
    is_list,
    join_endpoint,
    one_host,
    parse_endpoints,
    parse_rendezvous_endpoint,
    server_endpoints,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1:1234", ("node1", 1234)),
        ("node1", ("node1", 29400)),
        ("10.0.0.9:0", ("10.0.0.9", 0)),
        ("a.b-c_d.example.:65535", ("a.b-c_d.example.", 65535)),
        ("[::1]:1234", ("::1", 1234)),
        ("[2001:db8::7]", ("2001:db8::7", 29400)),
        ("2001:db8::7", ("2001:db8::7", 29400)),
        ("fe80::1%eth0", ("fe80::1%eth0", 29400)),
        (" node1:5 ", ("node1", 5)),
        (None, ("localhost", 29400)),
    ],
)
def test_valid_endpoints(text: str | None, expected: tuple[str, int]) -> None:
    assert parse_rendezvous_endpoint(text) == expected


def test_the_default_port_is_an_argument() -> None:
    assert parse_rendezvous_endpoint("node1", 7) == ("node1", 7)
    assert parse_rendezvous_endpoint("node1", default_port=8) == ("node1", 8)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "it is empty (perhaps a variable is not set)"),
        ("node1:", "is not a number"),
        ("node1:x", "'x' is not a number"),
        ("node1:-1", "is not a number"),
        ("node1:65536", "too large"),
        (":1234", "host is missing"),
        ("node 1:1234", "not a host name"),
        ("http://node1:1234", "a URL; leave out http://"),
        ("a:1:2", "no IPv6"),
        ("tcp:/x", "not a number"),
        ("[::1:1234", "brackets"),
        ("[::1]1234", "brackets"),
        ("[node1]:1234", "not an IPv6"),
        ("a:b:c", "no IPv6"),
    ],
)
def test_an_invalid_endpoint_is_named_in_the_error(text: str, what: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_rendezvous_endpoint(text)
    message = str(caught.value)
    assert repr(text) in message
    assert what in message
    assert "HOST:PORT" in message


def test_joining_is_the_reverse_of_parsing() -> None:
    for text in ("node1:1234", "[::1]:1234"):
        assert join_endpoint(*parse_rendezvous_endpoint(text)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", (("a", 1),)),
        ("a:1,b:2", (("a", 1), ("b", 2))),
        ("a, b:2 ,[::1]:3", (("a", 29400), ("b", 2), ("::1", 3))),
        ("a:1,a:1", (("a", 1),)),
        (None, (("localhost", 29400),)),
    ],
)
def test_valid_lists(text: str | None, expected: tuple[tuple[str, int], ...]) -> None:
    assert parse_endpoints(text) == expected
    assert is_list(text) == (text is not None and "," in text)


@pytest.mark.parametrize("text", ["a:1,", ",a:1", "a,,b", "a:1,b:x", "a:1,b:99999", "a b,c"])
def test_invalid_lists(text: str) -> None:
    with pytest.raises(ParameterError, match=r"endpoint=.*allowed"):
        parse_endpoints(text)


def test_a_list_is_refused_where_one_endpoint_is_needed() -> None:
    with pytest.raises(ParameterError, match="several endpoints where one is meant"):
        parse_rendezvous_endpoint("a:1,b:2")
    one_host("a:1")
    with pytest.raises(ParameterError, match=r"start `rallypoint serve --state URL` at each"):
        one_host("a:1,b:2")


def test_a_host_may_be_a_list_with_ports() -> None:
    assert server_endpoints("::1", 5) == (("::1", 5),)
    assert server_endpoints("a,b:2", 5) == (("a", 5), ("b", 2))
    with pytest.raises(ParameterError, match=r"endpoint=\['a', 'b'\]: not a text; several servers"):
        server_endpoints(["a", "b"], 5)  # type: ignore[arg-type]


def test_an_ipv6_address_gets_brackets() -> None:
    assert [join_endpoint("a", 1), join_endpoint("::1", 2)] == ["a:1", "[::1]:2"]


def test_the_leader_is_tried_first_until_it_fails() -> None:
    a, b, elsewhere = ("a", 1), ("b", 2), ("c", 3)
    servers = ServerList((a, b))
    assert servers.order() == (a, b)
    servers.found(b)
    assert [servers.leader, *servers.order()] == [b, b, a]
    servers.failed(a)
    assert servers.leader == b
    servers.failed(b)
    assert [servers.leader, *servers.order()] == [None, a, b]
    servers.failed(a)
    assert servers.order() == (b, a), "who failed last is asked last"
    servers.found(elsewhere)
    assert servers.order() == (elsewhere, b, a)
    servers.found(a)
    assert servers.order() == (a, b)
    servers.failed(None)
    assert servers.order() == (a, b)


def test_server_that_redirects_becomes_several() -> None:
    servers = ServerList((("a", 1),))
    seen = [servers.several]
    for endpoint in (("a", 1), ("b", 2)):
        servers.found(endpoint)
        seen.append(servers.several)
    assert seen == [False, False, True]
    assert ServerList((("a", 1), ("b", 2))).several
