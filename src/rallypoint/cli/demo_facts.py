"""The facts of a demo, from the output of its processes: nodes, rounds, times. PURE.

The server logs why each round opened and sealed, each node its rank, the training its epochs and
accuracy. The demo stamps each line as it arrives, with one clock, and sends no requests.

Times, in seconds of that clock:

    killed      just before SIGKILL was sent
    told        the server logged the end of the round; the same step notifies the nodes
    asked       the last survivor has stopped its workers and asks for the next round
    sealed      the server logged that the round is sealed
    seated      the last participant has its seat and starts its workers
    trained     the first epoch of the round is done: all imports and 12 steps after `seated`
"""

import re
from dataclasses import dataclass, field

SERVER = 0  # source of the server's lines; the nodes count from 1
SIGKILLED = -9
LEAST_ACCURACY = 95.0

_OPENS = re.compile(r"\bround (\d+) opens: ([^;]+)")
_SEALED = re.compile(r"\bround (\d+) sealed with (\d+) nodes: ([^;]+)")
_JOINED = re.compile(r"\bpid (\d+) (joined|waits)\b")
_LABEL = re.compile(r"\S+ (?:\(\S+\) )?pid (\d+)")
_SEAT = re.compile(r"rallypoint: round (\d+): rank (\d+) of (\d+) nodes? ")
_ASKS = re.compile(
    r"rallypoint: (?:joining the next round: |(?=a worker of this node failed: ))(.+)"
)
_EPOCH = re.compile(r"round (\d+) +world size (\d+) +epoch +(\d+) .*accuracy ([\d.]+)%")
_FINAL = re.compile(r"final accuracy ([\d.]+)%")


@dataclass(frozen=True)
class Line:
    """A process wrote a line, which was read at `at`; `error`: on stderr."""

    at: float
    source: int
    text: str
    error: bool = False


@dataclass(frozen=True)
class Ended:
    """A process, and all that it started, has ended; `code` as Popen gives it."""

    at: float
    source: int
    code: int


@dataclass
class NodeFacts:
    """One node: its agent's pid, its place, its last round, its exit code once it has ended."""

    number: int
    pid: int
    place: str = "starting"
    round: int = 0
    rank: int | None = None
    code: int | None = None
    came_at: float | None = None
    killed_at: float | None = None
    ended_at: float | None = None


@dataclass
class RoundFacts:
    """One round: why it opened and sealed, with how many nodes, and when what happened."""

    number: int
    opened_because: str = ""
    sealed_because: str = ""
    size: int = 0
    told_at: float | None = None
    asked_at: float | None = None
    sealed_at: float | None = None
    seated: dict[int, int] = field(default_factory=dict)  # rank -> node
    seated_at: float | None = None
    trained_at: float | None = None
    epochs: int = 0


@dataclass(frozen=True)
class Check:
    """An expectation, and what was observed."""

    expected: str
    seen: str
    holds: bool


class DemoFacts:
    """The facts of one demo, from its first event to its last."""

    def __init__(self) -> None:
        self.nodes: dict[int, NodeFacts] = {}
        self.rounds: dict[int, RoundFacts] = {}
        self.epoch = 0
        self.accuracy: float | None = None
        self.final_accuracy: float | None = None
        self.mishap = ""
        self.complaints: list[str] = []

    def started(self, number: int, pid: int) -> str:
        """Note that a node's agent runs."""
        self.nodes[number] = NodeFacts(number, pid)
        return f"node {number} starts (pid {pid})"

    def killed(self, number: int, at: float) -> str:
        """Note that a node is about to be killed."""
        node = self.nodes[number]
        node.killed_at, node.place = at, "killed"
        return f"kill -9 of node {number} (rank {node.rank}), in epoch {self.epoch + 1}"

    def take(self, event: Line | Ended) -> list[str]:
        """Process an event; return lines about it for people."""
        if isinstance(event, Ended):
            return self._ended(event)
        if event.source == SERVER:
            return self._from_server(event)
        if event.error:
            return self._complain(f"node {event.source}: {event.text}")
        return self._from_node(event)

    def round(self, number: int) -> RoundFacts:
        """Return the facts of a round; a new round has none."""
        return self.rounds.setdefault(number, RoundFacts(number))

    def sealed_sizes(self) -> list[int]:
        """Return how many nodes each sealed round had, in order."""
        return [r.size for _, r in sorted(self.rounds.items()) if r.sealed_at is not None]

    def running(self) -> list[int]:
        """Return the nodes that have not ended."""
        return [n.number for n in self.nodes.values() if n.code is None]

    def named(self, text: str) -> str:
        """Return a text with "node N" for each label of a node of this demo."""
        numbers = {node.pid: node.number for node in self.nodes.values()}

        def name(match: re.Match[str]) -> str:
            number = numbers.get(int(match[1]))
            return match[0] if number is None else f"node {number}"

        return _LABEL.sub(name, text)

    def _complain(self, text: str) -> list[str]:
        self.complaints.append(text)
        return [text]

    # -- the server ---------------------------------------------------------------------

    def _from_server(self, event: Line) -> list[str]:
        if " INFO " not in event.text:
            return self._complain(f"server: {event.text}")
        told = []
        for pid, what in _JOINED.findall(event.text):
            self._came(
                int(pid), event.at, "waits for the next round" if what == "waits" else "has joined"
            )
        for number, why in _OPENS.findall(event.text):
            opened = self.round(int(number))
            opened.opened_because, opened.told_at = self.named(why), event.at
            told.append(f"round {number} opens: {opened.opened_because}")
        for number, size, why in _SEALED.findall(event.text):
            sealed = self.round(int(number))
            sealed.size, sealed.sealed_because = int(size), self.named(why)
            sealed.sealed_at = event.at
            told.append(f"round {number} is sealed with {size} nodes: {sealed.sealed_because}")
        return told

    def _came(self, pid: int, at: float, place: str) -> None:
        for node in self.nodes.values():
            if node.pid == pid and node.place in ("starting", "has joined"):
                node.place, node.came_at = place, at

    # -- the nodes ----------------------------------------------------------------------

    def _from_node(self, event: Line) -> list[str]:
        node = self.nodes[event.source]
        if match := _SEAT.match(event.text):
            number, rank = int(match[1]), int(match[2])
            seats = self.round(number)
            seats.seated[rank], seats.seated_at = node.number, event.at
            node.round, node.rank, node.place = number, rank, f"in round {number}"
            return []
        if match := _ASKS.match(event.text):
            asked = self.round(node.round + 1)
            asked.asked_at = event.at
            # the server's log merges simultaneous events; the nodes log the reason too
            asked.opened_because = asked.opened_because or self.named(match[1])
            node.rank, node.place = None, "asks for the next round"
            return []
        if match := _EPOCH.match(event.text):
            return [self._epoch(event, int(match[1]), int(match[3]), float(match[4]))]
        if match := _FINAL.match(event.text):
            self.final_accuracy = float(match[1])
        return [f"node {event.source}: {event.text}"]

    def _epoch(self, event: Line, number: int, epoch: int, accuracy: float) -> str:
        trained = self.round(number)
        trained.epochs += 1
        if trained.trained_at is None:
            trained.trained_at = event.at
        self.epoch, self.accuracy = epoch, accuracy
        return f"epoch {epoch:2d}, accuracy {accuracy:.1f}%, by {trained.size} nodes"

    def _ended(self, event: Ended) -> list[str]:
        if event.source == SERVER:
            self.mishap = self.mishap or f"the server ended ({how_ended(event.code)})"
            return [self.mishap]
        node = self.nodes[event.source]
        node.code, node.ended_at, node.rank = event.code, event.at, None
        if node.killed_at is not None:
            took = milliseconds(node.killed_at, event.at)
            return [f"node {node.number} and its worker are gone, {took} after the kill"]
        node.place = "finished" if event.code == 0 else how_ended(event.code)
        if event.code != 0:
            self.mishap = self.mishap or f"node {node.number} ended ({how_ended(event.code)})"
        return [f"node {node.number} has ended ({how_ended(event.code)})"]


def how_ended(code: int) -> str:
    """Return an exit code for people."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def milliseconds(start: float | None, end: float | None) -> str:
    """Return the time between two moments, "unknown" if one of them was not seen."""
    if start is None or end is None:
        return "unknown"
    return f"{(end - start) * 1000:,.0f} ms"


def figures(facts: DemoFacts, grace_seconds: float) -> list[tuple[str, str, str]]:
    """Return (name, duration, meaning) rows about the loss, none without a loss.

    Args:
        facts: of the demo.
        grace_seconds: for which a disconnected node may reconnect before it is lost.
    """
    killed = next((n.killed_at for n in facts.nodes.values() if n.killed_at is not None), None)
    if killed is None:
        return []
    after, grown = facts.rounds.get(2, RoundFacts(2)), facts.rounds.get(3, RoundFacts(3))
    came = facts.nodes[max(facts.nodes)].came_at
    grace = f"{grace_seconds * 1000:,.0f} ms of it is the grace for a reconnect"
    rows = [
        ("detection", killed, after.told_at, f"kill -> the others are notified; {grace}"),
        (
            "workers stopped",
            killed,
            after.asked_at,
            "kill -> the last survivor has stopped its worker and asks for a new round",
        ),
        (
            "new round",
            after.told_at,
            after.sealed_at,
            "notified -> sealed, including the stop of the survivors' workers",
        ),
        ("seal", after.asked_at, after.sealed_at, "the last survivor asks -> sealed"),
        (
            "back at work",
            killed,
            after.seated_at,
            "kill -> the last survivor starts its worker",
        ),
        (
            "first epoch",
            killed,
            after.trained_at,
            "kill -> first epoch done, with the imports of numpy and scikit-learn",
        ),
        (
            "new node",
            came,
            grown.sealed_at,
            "it asks -> sealed; the others wait 100 ms for more nodes, and stop their workers",
        ),
    ]
    return [(what, milliseconds(start, end), meaning) for what, start, end, meaning in rows]


def checks(facts: DemoFacts, sizes: list[int]) -> list[Check]:
    """Return the expectations of a demo, each with what was observed.

    Args:
        facts: of the demo.
        sizes: how many nodes each round was to have.
    """
    found = []
    for node in facts.nodes.values():
        wanted = SIGKILLED if node.killed_at is not None else 0
        seen = "still runs" if node.code is None else how_ended(node.code)
        found.append(Check(f"node {node.number}: {how_ended(wanted)}", seen, node.code == wanted))
    seen_sizes = facts.sealed_sizes()
    text = " -> ".join(map(str, sizes)) + " nodes"
    seen = " -> ".join(map(str, seen_sizes)) + " nodes" if seen_sizes else "none"
    found.append(Check(f"rounds: {text}", seen, seen_sizes == sizes))
    for victim in (n for n in facts.nodes.values() if n.killed_at is not None):
        why = facts.rounds.get(2, RoundFacts(2)).opened_because
        expected = f"round 2 opens because node {victim.number} was lost"
        found.append(Check(expected, why or "it did not", f"node {victim.number} was lost" in why))
    accuracy = facts.final_accuracy
    seen = "none was printed" if accuracy is None else f"{accuracy:.1f}%"
    good = accuracy is not None and accuracy > LEAST_ACCURACY
    found.append(Check(f"accuracy: over {LEAST_ACCURACY:.0f}%", seen, good))
    return found
