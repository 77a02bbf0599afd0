"""Checks of options whose value would have no effect, with the nearest valid value."""

import difflib
import ipaddress
import re
import signal
from collections.abc import Collection, Mapping
from typing import Any

from rallypoint.agent.config import SignalPlan, Supervision
from rallypoint.agent.policy.membership_change import MembershipRules
from rallypoint.core.state import Newcomers
from rallypoint.errors import ParameterError
from rallypoint.net.addresses import LOOPBACK
from rallypoint.net.endpoints import Endpoint, parse_rendezvous_endpoint
from rallypoint.rendezvous import defaults

OURS = ("core", "static", "file", "etcd", "redis")  # a plug-in's backend has settings of its own
_INSTEAD = {  # settings of other launchers, and settings with an option of their own
    "node_rank": "give --node-rank",
    "max_restarts": "give --max-restarts",
    "admit": "give --admit",
    "admit_grace": "give --admit-grace",
    "stop_grace": "give --stop-grace",
    "health_check_timeout": "give --health-check-timeout",
    "hang_timeout": "give --hang-timeout",
    "timeout": "give join_timeout",
    "read_timeout": "leave it out: requests have no separate limit",
    "store_type": "give --backend instead",
}
_NEVER_PASSED_ON = {
    "SIGKILL": "it cannot be caught",
    "SIGSTOP": "it cannot be caught",
    "SIGCHLD": "it reports that a child has ended",
    "SIGTERM": "it ends the agent and its workers",
    "SIGINT": "it ends the agent and its workers",
}
_NEVER_PREEMPTS = ("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGINT")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")


def supervision(options: Mapping[str, Any]) -> Supervision:
    """Return how the agent watches its node and workers. Raises ParameterError."""
    return Supervision(
        signals=signal_plan(options),
        health_check=options["health_check"],
        health_check_seconds=options["health_check_timeout"],
        hang_seconds=options["hang_timeout"],
        events_file=options["events"],
        health=health_place(options["health_port"]),
    )


def check(options: Mapping[str, Any], conf: Mapping[str, str], most: int) -> None:
    """Check options that need no other information. Raises ParameterError."""
    if options["standalone"] and options["endpoint"]:
        raise ParameterError(
            f"--standalone with --endpoint {options['endpoint']}: a standalone node meets no other "
            "node; give only one of them"
        )
    if options["monitor_interval"] < 0:
        raise ParameterError(f"--monitor-interval {options['monitor_interval']}: give 0 or more")
    check_conf(conf, options["backend"])
    check_node_rank(options["node_rank"], most)
    check_local_addr(options["local_addr"])


def health_place(given: str | None) -> Endpoint | None:
    """Return the address of `--health-port`, None if not given. Raises ParameterError."""
    text = (given or "").strip()
    if not text:
        return None
    if text[0].isdecimal() and not text.isdecimal() and not {".", ":"}.intersection(text):
        raise ParameterError(
            f"--health-port {text}: the port is not a number; give PORT or HOST:PORT"
        )
    try:
        host, port = parse_rendezvous_endpoint(
            f"{LOOPBACK}:{text}" if text.isdecimal() else text, -1
        )
    except ParameterError as error:
        raise ParameterError(f"--health-port {text}: give PORT or HOST:PORT: {error}") from error
    if port == -1:
        raise ParameterError(f"--health-port {text}: the port is missing; give PORT or HOST:PORT")
    return host, port


def nearest(word: str, known: Collection[str]) -> str:
    """Return "; did you mean X?", or "" if no known word is similar."""
    found = difflib.get_close_matches(word, sorted(known), 1)
    return f"; did you mean {found[0]}?" if found else ""


def check_conf(conf: Mapping[str, str], backend: str) -> None:
    """Check the keys of `--rdzv-conf`. Raises ParameterError for a key that nothing reads."""
    if backend not in OURS:
        return
    known = defaults.parameters()
    for key in conf:
        if key not in known or key in _INSTEAD:
            hint = f"; {_INSTEAD[key]}" if key in _INSTEAD else nearest(key, known)
            raise ParameterError(
                f"--rdzv-conf {key}: backend {backend!r} has no such setting"
                f"{hint or '; docs/defaults.md lists them'}"
            )


def check_node_rank(node_rank: int | None, most: int) -> None:
    """Check that the rank exists. Raises ParameterError."""
    if node_rank is not None and not 0 <= node_rank < most:
        raise ParameterError(
            f"--node-rank {node_rank}: with at most {most} {'node' if most == 1 else 'nodes'} "
            f"(--nnodes) ranks are 0 to {most - 1}"
        )


def rank_of_a_seat(node_rank: int, most: int) -> int | None:
    """Return the rank that a scheduler gives, None for a spare node."""
    return node_rank if node_rank < most else None


def check_local_addr(address: str | None) -> None:
    """Check for an IP address or a host name. Raises ParameterError."""
    if not address:
        return
    try:
        ipaddress.ip_address(address)
    except ValueError:
        numeric = re.fullmatch(r"[0-9.]+", address) or ":" in address
        if numeric or not _HOST.fullmatch(address):
            raise ParameterError(
                f"--local-addr {address}: neither an IP address nor a host name; give the address "
                "by which other nodes reach this one, without a port"
            ) from None


def signal_plan(options: Mapping[str, Any]) -> SignalPlan:
    """Return the plan of `--forward-signals` and `--preempt-signal`. Raises ParameterError."""
    names = filter(None, (name.strip() for name in options["forward_signals"].split(",")))
    passed_on = tuple(_signal("--forward-signals", name) for name in names)
    for name in passed_on:
        if why := _NEVER_PASSED_ON.get(name):
            raise ParameterError(f"--forward-signals {name}: cannot be forwarded: {why}")
    preempt = options["preempt_signal"].strip()
    if not preempt:
        return SignalPlan(passed_on)
    preempt = _signal("--preempt-signal", preempt)
    if preempt in _NEVER_PREEMPTS:
        raise ParameterError(
            f"--preempt-signal {preempt}: this signal cannot announce a preemption"
        )
    if preempt in passed_on:
        raise ParameterError(
            f"{preempt}: give it to only one of --forward-signals and --preempt-signal"
        )
    return SignalPlan(passed_on, preempt)


def rules(options: Mapping[str, Any]) -> MembershipRules:
    """Return the rules of `--admit` and related options. Raises ParameterError."""
    admit = Newcomers(options["admit"])
    if admit is not Newcomers.NOW and options["backend"] == "static":
        raise ParameterError(
            f"--admit {admit} with --backend static: its rounds never change; leave out --admit"
        )
    return MembershipRules(admit, options["monitor_interval"], options["admit_grace"])


def admit_signal(options: Mapping[str, Any]) -> str:
    """Return the name of the signal of `--admit-signal`, "" for none. Raises ParameterError."""
    given = options["admit_signal"].strip()
    name = _signal("--admit-signal", given) if given else ""
    if why := _NEVER_PASSED_ON.get(name):
        raise ParameterError(f"--admit-signal {name}: cannot be used: {why}")
    return name


def _signal(option: str, text: str) -> str:
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    known = {one.name for one in signal.Signals}
    if name not in known:
        raise ParameterError(f"{option} {text}: no such signal{nearest(name, known)}")
    return name
