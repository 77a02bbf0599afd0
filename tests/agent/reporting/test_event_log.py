import json
from importlib.metadata import EntryPoint
from pathlib import Path

import jsonschema
import pytest

from rallypoint.agent.policy import events as e
from rallypoint.agent.policy.decisions import AgentState, begin, decide
from rallypoint.agent.reporting import records
from rallypoint.agent.reporting.event_log import GROUP, EventLog, installed
from rallypoint.core.events import Assignment
from rallypoint.errors import ParameterError

SEAT = Assignment(2, 7, 0, 1, 0, 1, 0, 1, "h", 1, 0, "all came")
STORY: list[e.Event] = [
    e.Sealed(SEAT),
    e.WorkerExited(7, 0, 3, "", "noon", ("oh dear",)),
    e.WorkersStopped(),
    e.JoinFailed(e.JoinError.TIMEOUT, "1 of 2"),
]


def play(journal: EventLog) -> None:
    decision = begin(AgentState("node-a", 1))
    journal.record(None, decision)
    for event in STORY:
        decision = decide(decision.state, event)
        journal.record(event, decision)


def test_lines_are_appended_in_the_documented_format(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for _ in range(2):
        with EventLog(str(path), "run", "node-a", dict, lambda: 12.5) as journal:
            play(journal)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        jsonschema.validate(line, records.json_schema())
    half = lines[: len(lines) // 2]
    assert half == lines[len(lines) // 2 :]
    assert [line["kind"] for line in half] == [
        "join", "sealed", "started", "worker-exited", "worker-failed", "stopping", "stopped",
        "join", "join-failed", "exit",
    ]  # fmt: skip
    assert [line["sequence"] for line in half] == list(range(1, 11))
    assert (half[0]["incarnation"], half[0]["round"]) == (0, 0)
    assert {(line["incarnation"], line["round"]) for line in half[1:]} == {(2, 7)}
    assert {(line["run_id"], line["node"], line["at"]) for line in half} == {
        ("run", "node-a", 12.5)
    }


def test_broken_handler_is_called_only_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told: list[records.Record] = []

    def broken(_record: records.Record) -> None:
        raise ValueError("no")

    with EventLog("", "run", "n", lambda: {"good": told.append, "bad": broken}) as journal:
        play(journal)
    assert len(told) == 10
    assert capsys.readouterr().err.count("'bad' failed") == 1


def test_without_file_and_handlers_no_record_is_made() -> None:
    with EventLog("", "run", "n", dict, pytest.fail) as journal:
        play(journal)


def test_unwritable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"--events .*: Is a directory"):
        EventLog(str(tmp_path), "run", "n", dict).__enter__()


def test_full_disk_ends_the_log_but_not_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with EventLog("/dev/full", "run", "n", dict) as journal:
        play(journal)
    assert capsys.readouterr().err == (
        "rallypoint: --events /dev/full: No space left on device; going on without it\n"
    )


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


def test_handlers_of_installed_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rallypoint.agent.reporting.event_log.entry_points",
        lambda group: [entry("x", "json:dumps")],
    )
    assert installed() == {"x": json.dumps}
    broken = [entry("x", "no.such:thing")]
    monkeypatch.setattr("rallypoint.agent.reporting.event_log.entry_points", lambda group: broken)
    with pytest.raises(
        ParameterError, match=r"'x' .*no.such:thing.* failed to load: ModuleNotFound"
    ):
        installed()
