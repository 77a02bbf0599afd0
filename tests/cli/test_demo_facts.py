import pytest
from tests.core.builders import Drive, a_node, sealed

from rallypoint.cli.demo_facts import SERVER, DemoFacts, Ended, Line, checks, figures, milliseconds


class Told:
    """A facts that is told line by line, each a second after the one before."""

    def __init__(self, *pids: int) -> None:
        self.facts = DemoFacts()
        self.now = 0.0
        for number, pid in enumerate(pids, start=1):
            self.facts.started(number, pid)

    def server(self, reason: str) -> list[str]:
        return self.line(SERVER, f"2026-11-30 02:33:04,287 INFO run demo: {reason}")

    def line(self, source: int, text: str, error: bool = False) -> list[str]:
        self.now += 1.0
        return self.facts.take(Line(self.now, source, text, error))

    def end(self, source: int, code: int) -> list[str]:
        self.now += 1.0
        return self.facts.take(Ended(self.now, source, code))


def test_reasons_of_the_core_are_parsed() -> None:
    told = Told(1, 2, 3)
    run = Drive(2, 3)
    for name in ("n1", "n2", "n3"):
        told.server(run.join(name).reason)
    assert told.facts.sealed_sizes() == [3]
    told.server(run.lose("n2").reason)
    assert "node 2 was lost" in told.facts.round(2).opened_because
    run.join("n1")
    told.server(run.join("n3").reason)
    assert told.facts.sealed_sizes() == [3, 2]


def test_wait_of_the_newcomer_is_seen() -> None:
    told = Told(1, 2, 3)
    told.server(sealed("n1", "n2").join("n3").reason)
    assert told.facts.nodes[3].place == "waits for the next round"


def test_labels_become_names_of_the_demo() -> None:
    facts = Told(1, 2).facts
    here = a_node("n2", host="vm").label
    assert facts.named(f"{here} was lost") == "node 2 was lost"
    assert facts.named("n1 pid 1 asked") == "node 1 asked"
    assert facts.named("n77 pid 77 asked") == "n77 pid 77 asked"


def a_whole_demo() -> Told:
    told = Told(11, 12)
    told.server("round 1 sealed with 2 nodes: all 2 nodes joined (max_nodes=2); round 1 is at work")
    for node in (1, 2):
        told.line(node, f"rallypoint: round 1: rank {node - 1} of 2 nodes (all have come)")
    told.line(1, "round 1  world size 2  epoch   1  loss 1.7  accuracy 83.1%")
    told.facts.killed(1, told.now)
    told.server(
        "round 2 opens: vm (127.0.0.1) pid 11 was lost: it disconnected and did not reconnect; 0 of"
    )
    told.line(2, "rallypoint: joining the next round: vm (127.0.0.1) pid 11 was lost: its")
    told.server("round 2 sealed with 1 nodes: all live nodes have joined; round 2 is at work")
    told.line(2, "rallypoint: round 2: rank 0 of 1 node (all have come)")
    told.line(2, "round 2  world size 1  epoch   2  loss 1.7  accuracy 96.0%")
    told.line(2, "final accuracy 96.0%")
    told.end(1, -9)
    told.end(2, 0)
    return told


def test_good_demo_meets_all_expectations() -> None:
    found = checks(a_whole_demo().facts, [2, 1])
    assert [check.expected for check in found if not check.holds] == []
    assert len(found) == 5


def test_figures_are_times_between_events() -> None:
    measured = {name: time for name, time, _ in figures(a_whole_demo().facts, 1.0)}
    assert measured == {
        "detection": "1,000 ms",
        "workers stopped": "2,000 ms",
        "new round": "2,000 ms",
        "seal": "1,000 ms",
        "back at work": "4,000 ms",
        "first epoch": "5,000 ms",
        "new node": "unknown",
    }


def test_newcomer_time_starts_with_its_join() -> None:
    told = a_whole_demo()
    told.facts.started(3, 13)
    told.server("vm (127.0.0.1) pid 13 waits: round 2 is running with 1 nodes")
    told.server("round 3 opens: vm pid 12 asked; round 3 sealed with 2 nodes: all have come")
    assert figures(told.facts, 1.0)[-1][:2] == ("new node", "1,000 ms")


def test_no_figures_without_a_loss() -> None:
    assert figures(Told(11).facts, 1.0) == []


def test_unmet_expectations_are_named() -> None:
    told = Told(11, 12)
    told.facts.killed(1, 0.0)
    told.end(1, 0)
    told.line(2, "final accuracy 94.9%")
    seen = {check.expected: check.seen for check in checks(told.facts, [2, 1]) if not check.holds}
    assert seen == {
        "node 1: signal 9": "exit code 0",
        "node 2: exit code 0": "still runs",
        "rounds: 2 -> 1 nodes": "none",
        "round 2 opens because node 1 was lost": "it did not",
        "accuracy: over 95%": "94.9%",
    }


@pytest.mark.parametrize(
    ("source", "code", "mishap"),
    [
        (1, 1, "node 1 ended (exit code 1)"),
        (1, -6, "node 1 ended (signal 6)"),
        (1, 0, ""),
        (SERVER, 0, "the server ended (exit code 0)"),
    ],
)
def test_early_end_is_a_failure(source: int, code: int, mishap: str) -> None:
    told = Told(11)
    told.end(source, code)
    assert told.facts.mishap == mishap


def test_end_of_the_killed_node_is_expected() -> None:
    told = Told(11)
    told.facts.killed(1, 0.5)
    assert told.end(1, -9) == ["node 1 and its worker are gone, 500 ms after the kill"]
    assert told.facts.mishap == ""
    assert told.facts.running() == []


def test_reason_of_a_round_may_come_from_a_node() -> None:
    told = Told(11)
    told.line(1, "rallypoint: round 2: rank 0 of 3 nodes (all have come)")
    told.line(1, "rallypoint: joining the next round: 1 node waits")
    assert told.facts.round(3).opened_because == "1 node waits"


def test_stderr_is_shown_at_the_end() -> None:
    told = Told(11)
    assert told.line(1, "no space left", error=True) == ["node 1: no space left"]
    told.line(SERVER, "2026-11-30 02:33:04,287 WARNING odd", error=True)
    assert told.facts.complaints == [
        "node 1: no space left",
        "server: 2026-11-30 02:33:04,287 WARNING odd",
    ]


def test_unseen_time_is_unknown() -> None:
    assert milliseconds(None, 1.0) == milliseconds(1.0, None) == "unknown"
    assert milliseconds(1.0, 2.5) == "1,500 ms"


def test_worker_lines_are_forwarded_and_epochs_counted() -> None:
    told = Told(11)
    assert told.line(1, "reading the data") == ["node 1: reading the data"]
    told.line(1, "rallypoint: round 1: rank 0 of 3 nodes (all have come)")
    for epoch in (1, 2):
        told.line(1, f"round 1 world size 3 epoch {epoch} accuracy 90.5%")
    assert (told.facts.round(1).epochs, told.facts.round(1).trained_at) == (2, 3.0)
