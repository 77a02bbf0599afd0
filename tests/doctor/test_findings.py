import datetime
import errno

import msgspec
import pytest
from tests.core.builders import a_settings

from rallypoint.doctor import findings
from rallypoint.doctor.findings import Answer, Attempt, Greeting, Verdict
from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.reports.status import Durability, ServerStatus, run_status


def place(address: str, code: int = 0) -> Attempt:
    return Attempt(address, 29400, 0.002, code)


def server(lag_seconds: float) -> ServerStatus:
    return ServerStatus("h:1", "1", 1, 2, 3.0, 4.0, 5, 6, 7, lag_seconds, lag_seconds, 8, 9, 1, ())


def test_slow_dns_is_a_warning() -> None:
    assert findings.names("h", ["10.0.0.1"], "", 0.1).verdict is Verdict.OK
    assert findings.names("h", ["10.0.0.1"], "", 3.0).verdict is Verdict.WARN


def test_owner_of_an_address() -> None:
    own = ["127.0.0.1", "::1", "10.0.0.1"]
    assert ": an address of this machine" in findings.address(["10.0.0.1"], own, 2, False).text
    assert "another machine (this one has 10.0.0.1)" in (
        findings.address(["10.0.0.2"], own, 2, False).text
    )
    assert findings.address(["127.0.0.1"], own, 1, True).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("places", "verdict", "remedy"),
    [
        ([place("10.0.0.1")], Verdict.OK, ""),
        ([place("::2", errno.ECONNREFUSED), place("10.0.0.1")], Verdict.WARN, "IPv4 or IPv6"),
        ([place("10.0.0.9", errno.ECONNREFUSED)], Verdict.FAIL, "the host is up"),
        ([place("10.0.0.1", errno.ECONNREFUSED)], Verdict.FAIL, "on port 29400 here"),
        ([place("10.0.0.9", errno.ETIMEDOUT)], Verdict.FAIL, "open port 29400 in the firewall"),
        ([place("10.0.0.9", errno.EHOSTUNREACH)], Verdict.FAIL, "no route to"),
        ([place("2001:db8::1", errno.ENETUNREACH)], Verdict.FAIL, "an address of IPv4 kind"),
    ],
)
def test_causes_of_a_failed_connection(
    places: list[Attempt], verdict: Verdict, remedy: str
) -> None:
    finding = findings.reached(places, ["127.0.0.1", "10.0.0.1"])
    assert finding.verdict is verdict
    assert remedy in finding.remedy


@pytest.mark.parametrize("answer", list(Answer))
def test_every_answer_has_a_finding(answer: Answer) -> None:
    finding = findings.answers(Greeting(answer, "text"))
    assert (finding.verdict is Verdict.OK) == (answer is Answer.OURS)
    assert bool(finding.remedy) == (answer is not Answer.OURS)


def test_slow_network_or_server_is_a_warning() -> None:
    assert findings.round_trip([0.001, 0.002]).verdict is Verdict.OK
    assert findings.round_trip([0.3, 0.4]).verdict is Verdict.WARN
    assert findings.load(server(0.0)).verdict is Verdict.OK
    assert findings.load(server(2.0)).verdict is Verdict.WARN


def test_server_without_a_token_is_reported() -> None:
    access = "INSECURE: no token: open to every process of this machine"
    assert access in findings.load(msgspec.structs.replace(server(0.0), access=access)).text
    assert "no token" not in findings.load(server(0.0)).text


def test_missing_permission_is_reported_in_the_servers_words() -> None:
    refused = Greeting(Answer.OURS, "it is for run 'x'", asks_token=True, knows_token=False)
    finding = findings.token(refused, has_token=True)
    assert (finding.verdict, finding.text) == (Verdict.FAIL, "it is for run 'x'")
    assert "--run-id" in finding.remedy


def test_full_server_is_the_cause() -> None:
    full = Durability("directory /data", 1, 1, 0.1, 0.1, "directory /data has no room")
    finding = findings.load(msgspec.structs.replace(server(0.0), durable=full))
    assert finding.verdict is Verdict.FAIL
    assert finding.text.startswith("directory /data has no room")
    assert "free space" in finding.remedy


def test_clock_difference_is_only_a_note() -> None:
    assert "0.5 s behind" in findings.clocks(0.5).text
    assert "3600.0 s ahead" in findings.clocks(-3600).text
    assert findings.clocks(-3600).verdict is Verdict.NOTE


@pytest.mark.parametrize(
    ("phase", "opened", "verdict", "remedy"),
    [
        ("sealed", True, Verdict.OK, ""),
        ("gathering", True, Verdict.NOTE, ""),
        ("gathering", False, Verdict.NOTE, "compare them"),
        ("closed", True, Verdict.FAIL, "--new-incarnation"),
    ],
)
def test_findings_about_the_run(phase: str, opened: bool, verdict: Verdict, remedy: str) -> None:
    settings = a_settings(2, 2) if opened else None
    finding = findings.run_state(run_status(Report("r", phase, 1, 1, "why", settings=settings)))
    assert finding.verdict is verdict
    assert remedy in finding.remedy


def test_silent_peers_are_named() -> None:
    fine = ("n1", place("10.0.0.1")), ("n2", place("10.0.0.2", errno.ECONNREFUSED))
    assert findings.peers(fine).verdict is Verdict.OK
    assert findings.peers(()).verdict is Verdict.NOTE
    silent = findings.peers((*fine, ("n3", place("10.0.0.3", errno.ETIMEDOUT))))
    assert silent.verdict is Verdict.WARN
    assert "n3 at 10.0.0.3:29400" in silent.text
    assert "--local-addr" in silent.remedy
    lost = findings.peers([("n4", place("10.0.0.4", errno.EHOSTUNREACH))])
    assert "no route to host" in lost.text


def test_certificate_that_expires_soon_is_reported() -> None:
    now = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)
    good = findings.certificate("2027-06-01 00:00:00", now)
    assert good.verdict is Verdict.OK
    soon = findings.certificate("2027-01-09 12:00:00", now)
    assert soon.verdict is Verdict.WARN
    assert "in 8 days" in soon.text
    assert "rallypoint certs" in soon.remedy
