"""Generates the diagram of a run's phases in docs/state-machine.md from the core itself.

    python docs/diagram.py

Explores the real `advance` breadth first, on a few small runs of up to three nodes, and records
which events lead from which phase to which. tests/test_state_diagram.py fails if the page is not
current.
"""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rallypoint.core.advance import TIMER_SETTINGS, advance, timers
from rallypoint.core.events import (
    Cause,
    Close,
    Disconnected,
    Event,
    Exclude,
    Fail,
    Finish,
    Join,
    LastCallOver,
    Leave,
    Lost,
    Notify,
    Reconnected,
)
from rallypoint.core.state import (
    PLACES,
    Aspect,
    Closed,
    Failure,
    Gathering,
    LastCall,
    Node,
    RunState,
    Sealed,
    Settings,
    find,
    round_number,
)

PAGE = Path(__file__).resolve().parent / "state-machine.md"
BEGIN, END = "<!-- generated: diagram -->", "<!-- end: diagram -->"
DEPTH = 7  # events; a test checks that one more adds nothing
CASES = (
    Settings(min_nodes=1, max_nodes=1),
    Settings(min_nodes=1, max_nodes=2, max_restarts=0),
    Settings(min_nodes=2, max_nodes=3),
    Settings(min_nodes=1, max_nodes=3, target_nodes=2, replacement_wait_seconds=1.0),
)
SLOTS = ("node1", "node2", "node3")
PHASES = ("Gathering", "LastCall", "Sealed", "Closed")

Transition = tuple[str, str]


def explore() -> dict[Transition, dict[str, str]]:
    """Return for each change of phase its events, each with the first reason found."""
    found: dict[Transition, dict[str, str]] = {}
    for settings in CASES:
        queue = deque([(RunState(run_id="demo"), 0)])
        seen = {key(queue[0][0])}
        while queue:
            state, depth = queue.popleft()
            for word, event in events(state, settings):
                step = advance(state, event)
                change = (name(state), name(step.state))
                if change[0] != change[1] or number(state) != number(step.state):
                    found.setdefault(change, {}).setdefault(word, step.reason.split("; ")[0])
                # a new process may join again
                after = msgspec.structs.replace(step.state, fenced={}, exclusions=())
                if depth + 1 < DEPTH and key(after) not in seen:
                    seen.add(key(after))
                    queue.append((after, depth + 1))
    return found


def name(state: RunState) -> str:
    """Return the name of a state's phase."""
    return type(state.phase).__name__


def number(state: RunState) -> int:
    """Return the number of a state's round."""
    return round_number(state.phase)


def key(state: RunState) -> tuple[object, ...]:
    """Return what distinguishes states with different futures; counters do not matter."""
    phase = state.phase
    flags: tuple[object, ...] = ()
    if isinstance(phase, Gathering):
        flags = (phase.lost, phase.former, phase.patience_over, phase.charged)
    elif isinstance(phase, LastCall):
        flags = (phase.over,)
    elif isinstance(phase, Sealed):
        flags = (len(phase.record.seats), phase.done)
    members = tuple(
        (place, member.node.slot, member.standing, member.connected)
        for place in PLACES
        for member in sorted(getattr(state, place).values(), key=lambda m: m.node.address)
    )
    return (name(state), number(state) > 1, flags, members, state.restarts)


def events(state: RunState, settings: Settings) -> Iterator[tuple[str, Event]]:
    """Yield the events that can happen in a state, each with its name in the diagram."""
    incarnation, current = state.incarnation, number(state)
    due = current if isinstance(state.phase, Sealed) else current - 1
    for slot in SLOTS:
        first, second = (Node(id=slot + letter, address=slot, slot=slot) for letter in "ab")
        live = [node for node in (first, second) if find(state, node.id)]
        live.sort(key=lambda node: node.id in state.finished)  # who works before who is done
        node = live[0] if live else None
        if isinstance(state.phase, Closed):
            yield "join (new incarnation)", Join(first, settings, new_incarnation=True)
        elif node is None:
            yield "join", Join(first, settings)
        else:
            same = "join" if node.id in state.finished else "join (same slot)"
            yield same, Join(second if node is first else first, settings)
            if node.id in state.participants:
                yield "join again", Join(node, settings, incarnation, due)
            yield "leave", Leave(node.id)
            yield "lost", Lost(node.id, Cause.LEASE)
            yield "exclude", Exclude(Aspect.NODE, node.id, "bad", "a user")
            yield "notify", Notify(node.id, "it will be taken away")
            if node.id in state.candidates:  # elsewhere a cut connection holds up nothing
                yield "cut", Disconnected(node.id)
                yield "back", Reconnected(node.id)
            yield "finish", Finish(node.id, incarnation, due)
            yield "fail", Fail(node.id, incarnation, due, Failure(slot, 0, 0, 1))
    if not isinstance(state.phase, Closed):
        yield "close", Close("a user", "enough")
    for timer in timers(state):
        ends_last_call = isinstance(timer, LastCallOver)
        yield "last call over" if ends_last_call else TIMER_SETTINGS[type(timer)], timer


def diagram() -> str:
    """Return the diagram and the table below it."""
    found = explore()
    changes = sorted(found, key=lambda c: (PHASES.index(c[0]), PHASES.index(c[1])))
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> Gathering"]
    for change in changes:
        lines.append(f"    {change[0]} --> {change[1]} : {', '.join(sorted(found[change]))}")
    lines += ["```", "", "| from | to | event | for example |", "|---|---|---|---|"]
    for change in changes:
        for word, reason in sorted(found[change].items()):
            lines.append(f"| {change[0]} | {change[1]} | {word} | {reason} |")
    return "\n".join(lines)


def renewed() -> str:
    """Return the page with a current diagram."""
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE} has no place for the diagram: {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{diagram()}\n\n{END}{after}"


def main() -> None:
    """Write the diagram."""
    PAGE.write_text(renewed(), "utf-8")


if __name__ == "__main__":
    main()
