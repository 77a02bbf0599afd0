"""What was seen at each step, and what it means.

A finding is a verdict, a sentence of what was seen, and, where something is wrong, what to do
about it. Nothing here asks the network: each function judges values, so that every broken
set-up can be shown in a test without one.
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
    """How a step ended, mildest first."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One step.

    Args:
        step: its name.
        verdict: how it ended.
        text: what was seen.
        remedy: what to do, "" if nothing is wrong.
    """

    step: str
    verdict: Verdict
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Place:
    """An address that was tried: how long it took, and the errno it ended with (0: connected)."""

    address: str
    port: int
    seconds: float
    code: int

    @property
    def is_silent(self) -> bool:
        """Whether nothing at all came back: a firewall that drops, or no such host."""
        return self.code == errno.ETIMEDOUT


class Answer(StrEnum):
    """What answers a hello."""

    OURS = "ours"
    SILENT = "silent"
    CLOSED = "closed"
    OTHER = "other"
    VERSION = "version"
    REFUSED = "refused"
    CERTIFICATE = "certificate"


@dataclass(frozen=True)
class Greeting:
    """What came back on a hello.

    Args:
        answer: of which kind.
        text: what it said or sent, for people; of ours, why it is not to be, but for tokens
            that are missing on one side or differ.
        first: the first bytes, of something else.
        asks_token: whether the server has a token.
        knows_token: whether both have the same, None if that was not found out.
    """

    answer: Answer
    text: str = ""
    first: bytes = b""
    asks_token: bool = False
    knows_token: bool | None = None


def names(host: str, addresses: Sequence[str], error: str, seconds: float) -> Finding:
    """Judge the look-up of a name."""
    if addresses:
        shown = ", ".join(addresses)
        verdict = Verdict.WARN if seconds > 2 else Verdict.OK
        remedy = "the name service is slow; an IP address needs none" if seconds > 2 else ""
        return Finding("name", verdict, f"{host} is {shown} ({seconds * 1e3:.0f} ms)", remedy)
    remedy = "check the spelling, give an IP address, or wait until the name service knows it"
    return Finding("name", Verdict.FAIL, f"{host} does not resolve: {error}", remedy)


def whose(addresses: Sequence[str], own: Sequence[str], nodes: int, loopback: bool) -> Finding:
    """Judge whether the endpoint is this machine's, and whether others can reach it."""
    mine = [a for a in addresses if a in own]
    if loopback and nodes > 1:
        text = f"the endpoint is loopback, and {nodes} nodes shall meet there"
        remedy = (
            "nodes on other machines meet themselves at it: give all the same address of the "
            f"machine that hosts ({', '.join(_outer(own)) or 'it has none but loopback'})"
        )
        return Finding("whose", Verdict.WARN, text, remedy)
    if mine:
        text = f"{', '.join(mine)}: this machine's; it hosts, or runs the server"
        return Finding("whose", Verdict.OK, text)
    text = f"another machine's (this one has {', '.join(_outer(own)) or 'only loopback'})"
    return Finding("whose", Verdict.OK, text)


def _outer(own: Sequence[str]) -> list[str]:
    return [a for a in own if not a.startswith(("127.", "fe80:")) and a != "::1"]


def reached(places: Sequence[Place], own: Sequence[str]) -> Finding:
    """Judge the connections to all addresses of the endpoint."""
    good = [place for place in places if place.code == 0]
    bad = [place for place in places if place.code != 0]
    text = "; ".join(_place(place) for place in places)
    if good and not bad:
        return Finding("connect", Verdict.OK, text)
    if good:
        remedy = (
            "not all addresses of the name lead to the server (IPv4 against IPv6?): nodes find "
            "the good one by themselves, a little later; an address instead of the name is quicker"
        )
        return Finding("connect", Verdict.WARN, text, remedy)
    return Finding("connect", Verdict.FAIL, text, _why_not(bad, own))


def _place(place: Place) -> str:
    if place.code == 0:
        return f"{place.address} connects ({place.seconds * 1e3:.1f} ms)"
    if place.is_silent:
        return f"{place.address} says nothing ({place.seconds:.1f} s)"
    return f"{place.address}: {os.strerror(place.code).lower()}"


def _why_not(bad: Sequence[Place], own: Sequence[str]) -> str:
    port = bad[0].port
    if all(place.code in _NO_ROUTE for place in bad):
        only = "IPv6 " if all(":" in place.address for place in bad) else ""
        other = "IPv4" if only else "another"
        return (
            f"the endpoint has {only}addresses that this machine has no route to: give it an "
            f"address of {other} kind, or set {only or 'the network '}up here"
        )
    if any(place.is_silent for place in bad):
        return (
            f"the packets are dropped: open port {port} in the firewall (or security group) of "
            "that host and between, or check that the host is up and the address is right"
        )
    if any(place.address in own for place in bad):
        return (
            f"nobody listens on port {port} here: start `rallypoint serve --bind ADDRESS:{port}`, "
            "or let `rallypoint run` host it (--rdzv-conf is_host=true); or the port is another one"
        )
    return (
        f"that host is up, but nobody listens on its port {port}: start `rallypoint serve` "
        "there (bound to that address, not to 127.0.0.1), or correct the port"
    )


def elsewhere(port: int, found: int) -> Finding:
    """Tell that a server of ours listens on another port of the same host."""
    text = f"a Rallypoint server answers on port {found} of that host, not on {port}"
    return Finding("port", Verdict.WARN, text, f"did you mean port {found}?")


def answers(greeting: Greeting) -> Finding:
    """Judge what answers on the port."""
    match greeting.answer:
        case Answer.OURS:
            more = f"; {greeting.text}" if greeting.knows_token and greeting.text else ""
            text = f"a Rallypoint server of the same protocol{more}"
            return Finding("answer", Verdict.OK, text)
        case Answer.VERSION:
            remedy = "install the same version of rallypoint on all nodes and the server"
            return Finding("answer", Verdict.FAIL, greeting.text, remedy)
        case Answer.REFUSED:
            return Finding("answer", Verdict.FAIL, greeting.text, "see what the server says")
        case Answer.CERTIFICATE:
            remedy = "set RALLYPOINT_TLS_CA here, or give the server a certificate for this name"
            return Finding("certificate", Verdict.FAIL, greeting.text, remedy)
        case Answer.SILENT:
            text = f"it takes connections and says nothing {greeting.text}"
            remedy = (
                "the server is stopped or overloaded (look at its process: state T or D, its "
                "CPU), or a proxy stands before a server that is gone; or it is no Rallypoint"
            )
            return Finding("answer", Verdict.FAIL, text, remedy)
        case Answer.CLOSED:
            text = "it closed the connection without a word: no Rallypoint server"
            return Finding("answer", Verdict.FAIL, text, "give the port of a Rallypoint server")
        case Answer.OTHER:
            return _other(greeting)


def _other(greeting: Greeting) -> Finding:
    kind = who_speaks(greeting.first)
    text = f"another program listens there: {kind or f'it sent {greeting.first[:24]!r}'}"
    remedy = "give the port of a Rallypoint server, or another port to both"
    if speaks_tls(greeting.first):
        text = "the port speaks TLS, and this node speaks plain"
        remedy = "give the port that speaks plain, or switch TLS on (or off) on both sides"
    return Finding("answer", Verdict.FAIL, text, remedy)


def token(greeting: Greeting, has_token: bool) -> Finding:
    """Judge whether both sides know the same token."""
    if greeting.knows_token:
        text = "accepted" if greeting.asks_token else "none is asked for"
        return Finding("token", Verdict.OK, text)
    if greeting.text:
        remedy = "give this node a token that may, and name the run that it is for (--run-id)"
        return Finding("token", Verdict.FAIL, greeting.text, remedy)
    if greeting.asks_token and not has_token:
        text = "the server asks for a token, and this node has none"
    elif greeting.asks_token:
        text = "the server's token is another one than this node's"
    else:
        text = "this node has a token, and the server was started without"
    name = "RALLYPOINT_TOKEN or --token-file"
    return Finding("token", Verdict.FAIL, text, f"give the same secret to all ({name})")


def certificate(ends: str, now: datetime.datetime) -> Finding:
    """Judge how long the server's certificate is good for (`ends`: UTC)."""
    left = datetime.datetime.fromisoformat(f"{ends}+00:00") - now
    text = f"the server's certificate ends on {ends} UTC, in {left.days} days"
    if left.days < CERTIFICATE_DAYS:
        remedy = "renew it (`rallypoint certs`); the server reads the new one by itself"
        return Finding("certificate", Verdict.WARN, text, remedy)
    return Finding("certificate", Verdict.OK, text)


def round_trip(seconds: Sequence[float]) -> Finding:
    """Judge the way to the server and back."""
    best, worst = min(seconds), max(seconds)
    text = f"{best * 1e3:.1f} to {worst * 1e3:.1f} ms"
    if best > SLOW_SECONDS:
        remedy = "a far or loaded server: leases and graces should be longer than usual"
        return Finding("round trip", Verdict.WARN, text, remedy)
    return Finding("round trip", Verdict.OK, text)


def clocks(difference_seconds: float) -> Finding:
    """Judge the difference of the wall clocks: nothing depends on it but the logs."""
    text = f"this machine's clock is {abs(difference_seconds):.1f} s "
    text += "behind" if difference_seconds > 0 else "ahead"
    if abs(difference_seconds) > CLOCK_SECONDS:
        return Finding("clock", Verdict.NOTE, f"{text}: no matter here, but logs do not compare")
    return Finding("clock", Verdict.OK, text)


def load(server: ServerStatus) -> Finding:
    """Judge how the server is."""
    text = (
        f"rallypoint {server.version}, connections: {server.connections}, "
        f"runs: {server.run_count}, "
        f"loop {server.lag_seconds * 1e3:.0f} ms late (at worst {server.worst_lag_seconds:.1f} s)"
    )
    if server.durable is not None and server.durable.trouble:
        remedy = "make room there: until then nothing changes, and nobody is answered"
        return Finding("server", Verdict.FAIL, f"{server.durable.trouble}; {text}", remedy)
    if server.access.startswith("INSECURE"):
        text += f"; {server.access}"
    if server.lag_seconds > LAG_SECONDS:
        remedy = "the server gets too little CPU: move what shares its cores, or the server"
        return Finding("server", Verdict.WARN, text, remedy)
    return Finding("server", Verdict.OK, text)


def run_state(run: RunStatus, server: ServerStatus | None = None) -> Finding:
    """Judge the run itself (`server`: where it was looked for, if it was asked for its load)."""
    missing = f"; missing: {', '.join(run.missing[:5])}" if run.missing else ""
    text = f"{run.reason}{missing}"
    if run.phase == "closed":
        remedy = "an ended run stays ended: give a new --run-id, or --new-incarnation"
        return Finding("run", Verdict.FAIL, text, remedy)
    if not run.is_there:
        remedy = "nodes with another --run-id or endpoint do not meet these: compare them"
        return Finding("run", Verdict.NOTE, no_such_run(run, server), remedy)
    return Finding("run", Verdict.OK if run.phase == "sealed" else Verdict.NOTE, text)


def peers(places: Sequence[tuple[str, Place]]) -> Finding:
    """Judge whether this node reaches the bootstrap ports of the others."""
    if not places:
        return Finding("peers", Verdict.NOTE, "no other node to look for")
    silent = [f"{label} at {at.address}:{at.port}" for label, at in places if at.is_silent]
    lost = [
        f"{label} at {at.address}:{at.port} ({os.strerror(at.code).lower()})"
        for label, at in places
        if at.code and not at.is_silent and at.code not in ANSWERED
    ]
    if silent or lost:
        remedy = (
            "workers will not meet there: open the ports between the nodes, or let each node "
            "name an address that the others reach (--local-addr)"
        )
        text = f"no way to {', '.join((silent + lost)[:5])}"
        return Finding("peers", Verdict.WARN, text, remedy)
    listening = sum(at.code == 0 for _, at in places)
    text = f"all {len(places)} hosts answer; workers listen on {listening} of their ports now"
    return Finding("peers", Verdict.OK, text)


def goodbye(body: p.Goodbye) -> Greeting:
    """Return what a server's goodbye to a hello means."""
    kind = Answer.VERSION if body.code == p.GOODBYE_VERSION else Answer.REFUSED
    return Greeting(kind, body.reason)
