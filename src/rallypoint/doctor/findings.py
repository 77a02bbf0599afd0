"""Judges what the probe saw at each step.

A finding has a verdict, an observation and, if something is wrong, a remedy. The functions judge
values and ask no network, so tests can cover every broken setup.
"""

import datetime
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rallypoint.net import protocol as p
from rallypoint.net.protocol import speaks_tls, who_speaks
from rallypoint.rendezvous.reports.status import RunStatus, ServerStatus, no_such_run

SLOW_SECONDS = 0.2
LAG_SECONDS = 0.5
CLOCK_SECONDS = 60.0
ANSWERED = (errno.ECONNREFUSED, errno.ECONNRESET)
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
CERTIFICATE_DAYS = 30


class Verdict(StrEnum):
    """How a step ended, from best to worst."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The result of one step.

    Args:
        step: its name.
        verdict: how it ended.
        text: what was observed.
        remedy: what to do, "" if nothing is wrong.
    """

    step: str
    verdict: Verdict
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Attempt:
    """A connection attempt: seconds it took, and its errno (0: connected)."""

    address: str
    port: int
    seconds: float
    code: int

    @property
    def is_silent(self) -> bool:
        """Whether no answer came: a firewall drops packets, or there is no such host."""
        return self.code == errno.ETIMEDOUT


class Answer(StrEnum):
    """What answers a hello message."""

    OURS = "ours"
    SILENT = "silent"
    CLOSED = "closed"
    OTHER = "other"
    VERSION = "version"
    REFUSED = "refused"
    CERTIFICATE = "certificate"


@dataclass(frozen=True)
class Greeting:
    """The answer to a hello message.

    Args:
        answer: its kind.
        text: details for people; from a Rallypoint server, why it refuses this node for other
            reasons than a missing or different token.
        first: the first bytes, from another program.
        asks_token: whether the server has a token.
        knows_token: whether both sides have the same token, None if unknown.
    """

    answer: Answer
    text: str = ""
    first: bytes = b""
    asks_token: bool = False
    knows_token: bool | None = None


def names(host: str, addresses: Sequence[str], error: str, seconds: float) -> Finding:
    """Judge the resolution of the host name, which took `seconds` seconds."""
    if addresses:
        shown = ", ".join(addresses)
        verdict = Verdict.WARN if seconds > 2 else Verdict.OK
        remedy = "the name service is slow; give an IP address instead" if seconds > 2 else ""
        return Finding(
            "name", verdict, f"{host} resolves to {shown} ({seconds * 1e3:.0f} ms)", remedy
        )
    remedy = "check the spelling, give an IP address, or wait until the name is registered"
    return Finding("name", Verdict.FAIL, f"{host} does not resolve: {error}", remedy)


def address(addresses: Sequence[str], own: Sequence[str], nodes: int, loopback: bool) -> Finding:
    """Judge whether the endpoint belongs to this machine, and whether others can reach it."""
    mine = [a for a in addresses if a in own]
    if loopback and nodes > 1:
        text = f"the endpoint is a loopback address, but {nodes} nodes should meet there"
        remedy = (
            "on each machine, loopback is that machine itself: give all nodes an address of the "
            f"machine that runs the server ({', '.join(_outer(own)) or 'here: only loopback'})"
        )
        return Finding("address", Verdict.WARN, text, remedy)
    if mine:
        text = f"{', '.join(mine)}: an address of this machine"
        return Finding("address", Verdict.OK, text)
    text = f"another machine (this one has {', '.join(_outer(own)) or 'only loopback'})"
    return Finding("address", Verdict.OK, text)


def _outer(own: Sequence[str]) -> list[str]:
    return [a for a in own if not a.startswith(("127.", "fe80:")) and a != "::1"]


def reached(places: Sequence[Attempt], own: Sequence[str]) -> Finding:
    """Judge the connections to all addresses of the endpoint."""
    good = [place for place in places if place.code == 0]
    bad = [place for place in places if place.code != 0]
    text = "; ".join(_attempt(place) for place in places)
    if good and not bad:
        return Finding("connect", Verdict.OK, text)
    if good:
        remedy = (
            "not all addresses of the name lead to the server (IPv4 or IPv6?): nodes try them all, "
            "which takes longer; give the working address instead of the name"
        )
        return Finding("connect", Verdict.WARN, text, remedy)
    return Finding("connect", Verdict.FAIL, text, _why_not(bad, own))


def _attempt(place: Attempt) -> str:
    if place.code == 0:
        return f"{place.address} connected ({place.seconds * 1e3:.1f} ms)"
    if place.is_silent:
        return f"{place.address} did not answer ({place.seconds:.1f} s)"
    return f"{place.address}: {os.strerror(place.code).lower()}"


def _why_not(bad: Sequence[Attempt], own: Sequence[str]) -> str:
    port = bad[0].port
    if all(place.code in _NO_ROUTE for place in bad):
        only = "IPv6 " if all(":" in place.address for place in bad) else ""
        other = "IPv4" if only else "another"
        return (
            f"this machine has no route to the endpoint's {only}addresses: give the endpoint an "
            f"address of {other} kind, or configure {only or 'the network '}on this machine"
        )
    if any(place.is_silent for place in bad):
        return (
            f"packets are dropped: open port {port} in the firewalls and security groups between, "
            "or check that the host is up and the address is right"
        )
    if any(place.address in own for place in bad):
        return (
            f"nothing listens on port {port} here: start `rallypoint serve --bind ADDRESS:{port}`, "
            "let `rallypoint run` host the server (--rdzv-conf is_host=true), or correct the port"
        )
    return (
        f"the host is up, but nothing listens on its port {port}: start `rallypoint serve` "
        "there (bound to that address, not to 127.0.0.1), or correct the port"
    )


def elsewhere(port: int, found: int) -> Finding:
    """Report that a Rallypoint server listens on another port of the host."""
    text = f"a Rallypoint server answers on port {found} of that host, not on {port}"
    return Finding("port", Verdict.WARN, text, f"did you mean port {found}?")


def answers(greeting: Greeting) -> Finding:
    """Judge what listens on the port."""
    match greeting.answer:
        case Answer.OURS:
            more = f"; {greeting.text}" if greeting.knows_token and greeting.text else ""
            text = f"a Rallypoint server with the same protocol version{more}"
            return Finding("answer", Verdict.OK, text)
        case Answer.VERSION:
            remedy = "install the same version of rallypoint on all nodes and the server"
            return Finding("answer", Verdict.FAIL, greeting.text, remedy)
        case Answer.REFUSED:
            return Finding("answer", Verdict.FAIL, greeting.text, "see the server's message")
        case Answer.CERTIFICATE:
            remedy = "set RALLYPOINT_TLS_CA here, or give the server a certificate for this name"
            return Finding("certificate", Verdict.FAIL, greeting.text, remedy)
        case Answer.SILENT:
            text = f"it accepts connections but sends nothing {greeting.text}"
            remedy = (
                "the server is stopped or overloaded (check its process: state T or D, CPU), a "
                "proxy stands in front of a dead server, or this is not a Rallypoint server"
            )
            return Finding("answer", Verdict.FAIL, text, remedy)
        case Answer.CLOSED:
            text = "it closed the connection without an answer: not a Rallypoint server"
            return Finding("answer", Verdict.FAIL, text, "give the port of a Rallypoint server")
        case Answer.OTHER:
            return _other(greeting)


def _other(greeting: Greeting) -> Finding:
    kind = who_speaks(greeting.first)
    text = f"another program listens there: {kind or f'it sent {greeting.first[:24]!r}'}"
    remedy = "give the port of a Rallypoint server, or another port to both"
    if speaks_tls(greeting.first):
        text = "the port uses TLS, but this node does not"
        remedy = "turn TLS on (or off) on both sides, or give a port without TLS"
    return Finding("answer", Verdict.FAIL, text, remedy)


def token(greeting: Greeting, has_token: bool) -> Finding:
    """Judge whether both sides have the same token."""
    if greeting.knows_token:
        text = "accepted" if greeting.asks_token else "not required"
        return Finding("token", Verdict.OK, text)
    if greeting.text:
        remedy = "give this node a token with that permission, and the run it is for (--run-id)"
        return Finding("token", Verdict.FAIL, greeting.text, remedy)
    if greeting.asks_token and not has_token:
        text = "the server requires a token, but this node has none"
    elif greeting.asks_token:
        text = "the server and this node have different tokens"
    else:
        text = "this node has a token, but the server has none"
    name = "RALLYPOINT_TOKEN or --token-file"
    return Finding(
        "token", Verdict.FAIL, text, f"give the same token to the server and all nodes ({name})"
    )


def certificate(ends: str, now: datetime.datetime) -> Finding:
    """Judge how long the server's certificate is valid (`ends`: UTC)."""
    left = datetime.datetime.fromisoformat(f"{ends}+00:00") - now
    text = f"the server's certificate expires on {ends} UTC, in {left.days} days"
    if left.days < CERTIFICATE_DAYS:
        remedy = "renew it (`rallypoint certs`); the running server loads the new one"
        return Finding("certificate", Verdict.WARN, text, remedy)
    return Finding("certificate", Verdict.OK, text)


def round_trip(seconds: Sequence[float]) -> Finding:
    """Judge round-trip times, in seconds."""
    best, worst = min(seconds), max(seconds)
    text = f"{best * 1e3:.1f} to {worst * 1e3:.1f} ms"
    if best > SLOW_SECONDS:
        remedy = "the server is far away or loaded: use a longer --lease and --disconnect-grace"
        return Finding("round trip", Verdict.WARN, text, remedy)
    return Finding("round trip", Verdict.OK, text)


def clocks(difference_seconds: float) -> Finding:
    """Judge the difference of the wall clocks, which matters only for logs."""
    text = f"this machine's clock is {abs(difference_seconds):.1f} s "
    text += "behind" if difference_seconds > 0 else "ahead"
    if abs(difference_seconds) > CLOCK_SECONDS:
        return Finding("clock", Verdict.NOTE, f"{text}: harmless, but times in logs do not match")
    return Finding("clock", Verdict.OK, text)


def load(server: ServerStatus) -> Finding:
    """Judge the load of the server."""
    text = (
        f"rallypoint {server.version}, connections: {server.connections}, "
        f"runs: {server.run_count}, "
        f"event loop {server.lag_seconds * 1e3:.0f} ms late "
        f"(worst {server.worst_lag_seconds:.1f} s)"
    )
    if server.durable is not None and server.durable.trouble:
        remedy = "free space there: until then the server stores and answers nothing"
        return Finding("server", Verdict.FAIL, f"{server.durable.trouble}; {text}", remedy)
    if server.access.startswith("INSECURE"):
        text += f"; {server.access}"
    if server.lag_seconds > LAG_SECONDS:
        remedy = "the server gets too little CPU: move it, or the processes on its cores"
        return Finding("server", Verdict.WARN, text, remedy)
    return Finding("server", Verdict.OK, text)


def run_state(
    run: RunStatus, server: ServerStatus | None = None, expected: bool = False
) -> Finding:
    """Judge the run itself.

    Args:
        server: its server's status, if known.
        expected: whether its absence is a failure while the server has other runs.
    """
    missing = f"; missing: {', '.join(run.missing[:5])}" if run.missing else ""
    text = f"{run.reason}{missing}"
    if run.phase == "closed":
        remedy = "a closed run stays closed: give a new --run-id, or --new-incarnation"
        return Finding("run", Verdict.FAIL, text, remedy)
    if not run.is_there:
        remedy = "nodes meet only with the same --run-id and endpoint: compare them on all nodes"
        others = server is not None and server.run_count > 0
        verdict = Verdict.FAIL if expected and others else Verdict.NOTE
        return Finding("run", verdict, no_such_run(run, server), remedy)
    return Finding("run", Verdict.OK if run.phase == "sealed" else Verdict.NOTE, text)


def peers(places: Sequence[tuple[str, Attempt]]) -> Finding:
    """Judge whether this node reaches the bootstrap ports of the other nodes."""
    if not places:
        return Finding("peers", Verdict.NOTE, "no other node to check")
    silent = [f"{label} at {at.address}:{at.port}" for label, at in places if at.is_silent]
    lost = [
        f"{label} at {at.address}:{at.port} ({os.strerror(at.code).lower()})"
        for label, at in places
        if at.code and not at.is_silent and at.code not in ANSWERED
    ]
    if silent or lost:
        remedy = (
            "workers cannot connect there: open the ports between the nodes, or give each node "
            "an address that the others reach (--local-addr)"
        )
        text = f"cannot reach {', '.join((silent + lost)[:5])}"
        return Finding("peers", Verdict.WARN, text, remedy)
    listening = sum(at.code == 0 for _, at in places)
    hosts = f"{len(places)} host{'s' if len(places) > 1 else ''} reachable"
    ports = f"worker ports open: {listening}" if listening else "no worker port open yet"
    text = f"{hosts}; {ports}"
    return Finding("peers", Verdict.OK, text)


def goodbye(body: p.Goodbye) -> Greeting:
    """Return the meaning of a server's goodbye to a hello message."""
    kind = Answer.VERSION if body.code == p.GOODBYE_VERSION else Answer.REFUSED
    return Greeting(kind, body.reason)
