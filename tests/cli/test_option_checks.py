from typing import Any

import pytest

from rallypoint.agent.config import SignalPlan
from rallypoint.agent.policy.membership_change import MembershipRules
from rallypoint.cli import option_checks
from rallypoint.core.state import Newcomers
from rallypoint.errors import ParameterError

OPTIONS: dict[str, Any] = {
    "standalone": False,
    "endpoint": None,
    "monitor_interval": 0.1,
    "backend": "core",
    "node_rank": None,
    "local_addr": None,
    "forward_signals": "",
    "preempt_signal": "",
}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"standalone": True, "endpoint": "h:1"}, "--standalone with --endpoint h:1"),
        ({"monitor_interval": -1.0}, "--monitor-interval -1.0: give 0 or more"),
        ({"node_rank": 3}, "--node-rank 3: with at most 3 nodes .* ranks are 0 to 2"),
        ({"node_rank": -1}, "--node-rank -1"),
        ({"local_addr": "10.0.0.999"}, "--local-addr 10.0.0.999: neither"),
        ({"local_addr": "h:29400"}, "without a port"),
        ({"local_addr": "a b"}, "--local-addr a b"),
        ({"local_addr": "fe80::zz"}, "--local-addr fe80::zz"),
    ],
)
def test_unknown_values_are_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        option_checks.check({**OPTIONS, **changes}, {}, 3)


@pytest.mark.parametrize("address", [None, "", "10.0.0.9", "::1", "node-7.cluster.local", "node_7"])
def test_addresses_and_names_are_accepted(address: str | None) -> None:
    option_checks.check({**OPTIONS, "local_addr": address}, {}, 3)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("last_cal", "did you mean last_call?"),
        ("join_timout", "did you mean join_timeout?"),
        ("is_hots", "did you mean is_host?"),
        ("zzz", "docs/defaults.md lists them"),
        ("node_rank", "give --node-rank"),
        ("read_timeout", "leave it out"),
    ],
)
def test_unknown_setting_suggests_the_nearest(key: str, hint: str) -> None:
    with pytest.raises(ParameterError, match=f"--rdzv-conf {key}: .*{hint.replace('?', '.')}"):
        option_checks.check_conf({key: "1"}, "core")


def test_settings_of_other_backends_are_passed_on() -> None:
    option_checks.check_conf({"zzz": "1"}, "a-plug-in")
    option_checks.check_conf(
        {"join_timeout": "1", "heartbeat": "3", "slot": "x", "tls_ca": "f"}, "core"
    )


def test_scheduler_may_count_spare_nodes() -> None:
    assert [option_checks.rank_of_a_seat(rank, 2) for rank in range(3)] == [0, 1, None]


@pytest.mark.parametrize(
    ("passed_on", "preempt", "plan"),
    [
        ("", "", SignalPlan()),
        ("USR1, sigusr2", "", SignalPlan(("SIGUSR1", "SIGUSR2"))),
        ("HUP", "TERM", SignalPlan(("SIGHUP",), "SIGTERM")),
    ],
)
def test_signals_are_accepted_in_any_spelling(
    passed_on: str, preempt: str, plan: SignalPlan
) -> None:
    given = {"forward_signals": passed_on, "preempt_signal": preempt}
    assert option_checks.signal_plan({**OPTIONS, **given}) == plan


@pytest.mark.parametrize(
    ("passed_on", "preempt", "text"),
    [
        ("USR3", "", "--forward-signals USR3: no such signal; did you mean SIGUSR[12]"),
        ("KILL", "", "--forward-signals SIGKILL: cannot be forwarded: it cannot be caught"),
        ("TERM", "", "it ends the agent"),
        ("", "INT", "--preempt-signal SIGINT: this signal cannot announce a preemption"),
        ("USR1", "USR1", "SIGUSR1: give it to only one of --forward-signals and --preempt-signal"),
    ],
)
def test_wrong_signals_are_refused(passed_on: str, preempt: str, text: str) -> None:
    given = {"forward_signals": passed_on, "preempt_signal": preempt}
    with pytest.raises(ParameterError, match=text):
        option_checks.signal_plan({**OPTIONS, **given})


ADMISSION: dict[str, Any] = {
    "admit": "checkpoint",
    "admit_grace": 20.0,
    "admit_signal": "",
    "monitor_interval": 0.5,
    "backend": "core",
}


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (None, None),
        (" ", None),
        ("8080", ("127.0.0.1", 8080)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        (" [::]:80 ", ("::", 80)),
        ("pod-1:80", ("pod-1", 80)),
    ],
)
def test_address_of_probes(given: str | None, place: tuple[str, int] | None) -> None:
    assert option_checks.health_place(given) == place


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("70000", "the port 70000 is too large"),
        ("29400x", "the port is not a number"),
        ("pod", "the port is missing"),
        ("::1", "the port is missing"),
        (":80", "the host is missing"),
        ("-1", "not a host name"),
        ("a:1,b:2", "several endpoints"),
    ],
)
def test_impossible_probe_addresses_are_refused(given: str, text: str) -> None:
    with pytest.raises(ParameterError, match=f"--health-port {given}: .*{text}"):
        option_checks.health_place(given)


def test_admission_options() -> None:
    assert option_checks.rules(ADMISSION) == MembershipRules(Newcomers.CHECKPOINT, 0.5, 20.0)
    assert (
        option_checks.rules({**ADMISSION, "admit": "now", "backend": "static"}).admit
        is Newcomers.NOW
    )
    with pytest.raises(ParameterError, match="--admit checkpoint with --backend static"):
        option_checks.rules({**ADMISSION, "backend": "static"})


@pytest.mark.parametrize(
    ("given", "name"), [("", ""), ("usr1", "SIGUSR1"), (" SIGUSR2 ", "SIGUSR2")]
)
def test_change_signal_option(given: str, name: str) -> None:
    assert option_checks.admit_signal({**ADMISSION, "admit_signal": given}) == name


@pytest.mark.parametrize(
    ("given", "text"),
    [("KILL", "--admit-signal SIGKILL: cannot be used: it cannot be caught"), ("USR7", "no such")],
)
def test_unusable_change_signals_are_refused(given: str, text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        option_checks.admit_signal({**ADMISSION, "admit_signal": given})
