"""Examines the way to a server step by step; each step needs the one before.

name -> address -> connect -> answer -> token -> round trip, clock, server, run -> peers
"""

import datetime
import ipaddress
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rallypoint.doctor import findings
from rallypoint.doctor.findings import Answer, Finding, Verdict
from rallypoint.doctor.probe import Probe, ServerConnection
from rallypoint.errors import StoreConnectionError
from rallypoint.net.connection import ConnectionConfig
from rallypoint.net.dialer import AddressInfo
from rallypoint.net.endpoints import parse_endpoints
from rallypoint.net.protocol import DEFAULT_PORT
from rallypoint.net.tls import NO_TLS, TLS
from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.reports.status import run_status

ROUND_TRIPS = 5
PEERS_SHOWN = 64
_ORDER = list(Verdict)


@dataclass(frozen=True)
class Question:
    """What to examine.

    Args:
        host, port: of the endpoint.
        run_id: "" to examine only the server.
        token: shared secret, b"" for none.
        nodes: how many should meet, 0 if unknown.
        tls: files for TLS; without any, plain TCP.
        expects_run: whether the absence of the run is a failure while the server has others.
    """

    host: str
    port: int
    run_id: str = ""
    token: bytes = field(default=b"", repr=False)
    nodes: int = 0
    tls: TLS = NO_TLS
    expects_run: bool = False

    @classmethod
    def each(cls, endpoint: str, *rest: Any) -> "list[Question]":
        """Return one question per server of an endpoint. Raises ParameterError."""
        return [cls(*place, *rest) for place in parse_endpoints(endpoint)]

    @property
    def target(self) -> ConnectionConfig:
        """The configuration for a client connection."""
        return ConnectionConfig(self.host, self.port, self.run_id, self.token, tls=self.tls)


def examine(question: Question, probe: Probe) -> Iterator[Finding]:
    """Yield the findings, step by step."""
    infos, found = look_up(question.host, question.port, probe)
    yield found
    if not infos:
        return
    own, addresses = probe.own(), addresses_of(infos)
    loopback = all(_is_loopback(address) for address in addresses)
    yield findings.address(addresses, own, question.nodes, loopback)
    tried = [probe.connect(info) for info in infos]
    yield findings.reached([place for place, _ in tried], own)
    for _, sock in tried:
        if sock is not None:
            sock.close()
    good = [info for info, (place, _) in zip(infos, tried, strict=True) if place.code == 0]
    if not good:
        yield from _other_port(question, probe)
        return
    greeting, connection = probe.greet(good[0], question.target)
    yield findings.answers(greeting)
    if greeting.answer is Answer.OURS:
        yield findings.token(greeting, bool(question.token))
    if connection is not None:
        yield from _within(question, probe, connection)
        connection.close()


def look_up(host: str, port: int, probe: Probe) -> tuple[list[AddressInfo], Finding]:
    """Return the addresses of a name, and the finding on its resolution."""
    begun = time.monotonic()
    try:
        infos, trouble = probe.resolve(host, port), ""
    except OSError as error:
        infos, trouble = [], error.strerror or str(error)
    return infos, findings.names(host, addresses_of(infos), trouble, time.monotonic() - begun)


def addresses_of(infos: Sequence[AddressInfo]) -> list[str]:
    """Return the distinct addresses as text."""
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def examine_all(questions: Sequence[Question], probe: Probe) -> Iterator[Finding]:
    """Yield the findings for several servers; failures become warnings if one server works."""
    if len(questions) == 1:
        yield from examine(questions[0], probe)
        return
    each = [(question.target.where, list(examine(question, probe))) for question in questions]
    enough = any(worst(found) is not Verdict.FAIL for _, found in each)
    for where, found in each:
        for finding in found:
            lesser = enough and finding.verdict is Verdict.FAIL
            verdict = Verdict.WARN if lesser else finding.verdict
            yield replace(finding, verdict=verdict, text=f"{where}: {finding.text}")


def _other_port(question: Question, probe: Probe) -> Iterator[Finding]:
    """Yield a finding if a server listens on the default port instead of the given one."""
    if question.port == DEFAULT_PORT:
        return
    usual = replace(question, port=DEFAULT_PORT)
    for info in probe.resolve(question.host, DEFAULT_PORT):
        place, sock = probe.connect(info)
        if sock is not None:
            sock.close()
        if place.code == 0:
            greeting, connection = probe.greet(info, usual.target)
            if connection is not None:
                connection.close()
            if greeting.answer is Answer.OURS:
                yield findings.elsewhere(question.port, DEFAULT_PORT)
                return


def _within(question: Question, probe: Probe, connection: ServerConnection) -> Iterator[Finding]:
    try:
        yield findings.round_trip([connection.round_trip() for _ in range(ROUND_TRIPS)])
        if ends := connection.certificate_ends():
            yield findings.certificate(ends, datetime.datetime.now(datetime.UTC))
        begun = time.time()
        server = connection.server()
        if server is not None:
            yield findings.clocks(server.wall_time - (begun + time.time()) / 2)
            yield findings.load(server)
        report = connection.report() if question.run_id else None
    except StoreConnectionError as error:
        yield Finding("server", Verdict.FAIL, str(error), "look at the server's log")
        return
    if report is not None:
        yield findings.run_state(run_status(report), server, question.expects_run)
        yield findings.peers(probe.peers(ports(report)))


def ports(report: Report) -> list[tuple[str, str, int]]:
    """Return the ports at which the workers of a round meet, rank 0's first."""
    seated = [m for m in report.members if m.place in ("participant", "candidate") and m.node.port]
    seated.sort(key=lambda m: (m.rank is None, m.rank or 0))
    return [(m.node.label, m.node.address, m.node.port) for m in seated[:PEERS_SHOWN]]


def worst(found: Sequence[Finding]) -> Verdict:
    """Return the worst verdict."""
    return max((finding.verdict for finding in found), key=_ORDER.index, default=Verdict.OK)


def cause(found: Sequence[Finding]) -> Finding | None:
    """Return the most likely reason why nodes do not meet, None if there is none."""
    for verdict in (Verdict.FAIL, Verdict.WARN):
        for finding in found:
            if finding.verdict is verdict:
                return finding
    return None


def in_short(questions: Sequence[Question], seconds: float) -> str:
    """Return the likely cause in one line, "" if there is none, for a join that takes long.

    Args:
        seconds: limit of each step.
    """
    found = cause(list(examine_all(questions, Probe(seconds))))
    if found is None:
        return ""
    return f"doctor: {found.step}: {found.text}; {found.remedy}"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.split("%")[0]).is_loopback
    except ValueError:
        return False
