"""Rounds as spans, with a tracer that keeps them, and with the real API in its own process."""

import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.server.fakes import Bench

from rallypoint.core.events import Leave
from rallypoint.errors import ParameterError
from rallypoint.server import tracing as module
from rallypoint.server.server import Server
from rallypoint.server.tracing import VARIABLE, Traces, asked, traced


class Span:
    def __init__(self, name: str, start_time: int, attributes: dict[str, Any]) -> None:
        self.name, self.start, self.attributes = name, start_time, attributes
        self.events: list[tuple[str, Any, int]] = []
        self.ended = 0

    def add_event(self, name: str, attributes: Any, timestamp: int) -> None:
        self.events.append((name, attributes, timestamp))

    def end(self, end_time: int) -> None:
        self.ended = end_time


class Told:
    """A server with one run, and what its tracer was told."""

    def __init__(self) -> None:
        self.bench, self.spans = Bench(), list[Span]()
        server = SimpleNamespace(
            runs={"run": self.bench.host}, loop=self.bench.loop, watchers=set()
        )
        self.server = cast(Server, server)
        self.traces = Traces(self.server, self)
        self.bench.host.observe = lambda _: self.traces.changed("run")

    def start_span(self, name: str, start_time: int, attributes: dict[str, Any]) -> Span:
        self.spans.append(Span(name, start_time, attributes))
        return self.spans[-1]


def test_ended_round_is_a_span() -> None:
    told = Told()
    told.bench.seal("a", "b", "c")
    assert told.spans == []
    told.bench.loop.advance(10)
    told.bench.ask("c", 7, Leave("c", "done here"))
    told.bench.loop.turn()
    (span,) = told.spans
    assert span.name == "round 1"
    assert span.attributes["rallypoint.run"] == "run"
    assert span.attributes["rallypoint.nodes"] == 3
    assert len(span.attributes["rallypoint.members"]) == 3
    assert "done here" in span.attributes["rallypoint.ended_because"]
    assert len(span.attributes["rallypoint.lost"]) == 1
    (name, why, at), *rest = span.events
    assert (name, rest) == ("sealed", [])
    assert why["rallypoint.sealed_because"]
    assert span.start < at < span.ended
    assert 39e9 < span.ended - span.start < 43e9


def test_open_round_becomes_a_span_when_the_server_ends() -> None:
    told = Told()
    told.bench.seal("a", "b")
    told.traces.end()
    (span,) = told.spans
    assert "still on" in span.attributes["rallypoint.ended_because"]
    told.server.runs.clear()
    told.traces.changed("run")  # forgotten meanwhile


def test_nothing_is_traced_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    for said in ({}, {VARIABLE: "0"}, {VARIABLE: "no"}):
        with traced(told.server, said):
            assert told.server.watchers == set()
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ParameterError, match=r"rallypoint\[otel\]"):
        asked({VARIABLE: "1"})


SCRIPT = """
import threading
from types import SimpleNamespace
from opentelemetry import trace
from rallypoint.server.tracing import traced
server = SimpleNamespace(watchers=set(), runs={}, loop=SimpleNamespace(time=lambda: 1.0))
with traced(server, {"RALLYPOINT_TRACES": "1"}):
    (watcher,) = server.watchers
    watcher("run")
print(server.watchers)
"""


@pytest.mark.skipif(find_spec("opentelemetry") is None, reason="needs rallypoint[otel]")
def test_sqlite_reads_the_file() -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (ended.stdout, ended.stderr) == ("set()\n", "")
