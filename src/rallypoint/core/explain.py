"""A state in one sentence for users. PURE.

Log, status, errors and tests use the same sentence: which nodes are there, what the run waits
for, and which setting ends the wait.
"""

from collections.abc import Collection
from itertools import islice

import msgspec

from rallypoint.core.ranks import natural_key
from rallypoint.core.state import (
    PLACES,
    Closed,
    Gathering,
    LastCall,
    Member,
    Node,
    RunState,
    Sealed,
    Settings,
)

NAMES_SHOWN = 5
_COMPARED = [  # settings in which a new node may differ (the bounds may not: J6)
    name for name in Settings.__struct_fields__ if name not in ("min_nodes", "max_nodes", "admit")
]
_PHASE_NAMES = {
    Gathering: "gathering",
    LastCall: "last call",
    Sealed: "sealed",
    Closed: "closed",
}


def names(members: Collection[Member], shown: int = NAMES_SHOWN) -> str:
    """Return the labels of a few members in natural order, and how many more there are."""
    few = islice(members, shown)  # sorting ten thousand names at each step would be the step's cost
    labels = sorted((m.node.label for m in few), key=natural_key)
    more = len(members) - shown
    return ", ".join(labels) + (f" and {more} more" if more > 0 else "")


def describe(state: RunState) -> str:
    """Return one sentence: the phase of the run and what it waits for."""
    phase = state.phase
    if isinstance(phase, Closed):
        return closed_sentence(state.run_id, phase)
    if isinstance(phase, Sealed):
        return _sealed(state, phase) + _news(state)
    return _gathering(state, phase) + _news(state)


def closed_sentence(run_id: str, phase: Closed) -> str:
    """Return by whom, when and why a run was closed."""
    when = f" at {phase.at}" if phase.at else ""
    how = "finished" if phase.finished else "was closed"
    return f"run {run_id!r} {how}{when} by {phase.by}: {phase.why}"


def _news(state: RunState) -> str:
    text = "".join(
        f"; {n.label} will leave: {n.why}" for n in islice(state.notices.values(), NAMES_SHOWN)
    )
    excluded = ", ".join(f"{x.aspect} {x.name} (by {x.by})" for x in state.exclusions[:NAMES_SHOWN])
    return text + (f"; excluded: {excluded}" if excluded else "")


def _sealed(state: RunState, phase: Sealed) -> str:
    record = phase.record
    text = f"round {record.number} is running with {nodes(len(record.seats))}"
    if phase.done:
        text += f"; {have_finished(len(phase.done))}"
        text += f", still working: {names(state.participants.values())}"
    if state.waiting:
        text += f"; {len(state.waiting)} wait for the next round"
    if state.spares:
        text += f"; {len(state.spares)} spare"
    return text


def _gathering(state: RunState, phase: Gathering | LastCall) -> str:
    settings = state.settings
    if settings is None:
        return f"run {state.run_id!r} has not been opened: no node has joined"
    have, least = len(state.candidates), settings.min_nodes
    text = f"{have} of at least {nodes(least)} have joined round {phase.round}"
    if state.opening:
        text += f" (opened because {state.opening})"
    if state.participants:
        text += f"; waiting for {names(state.participants.values())} to join again"
        return text + f" (rejoin_timeout={settings.rejoin_timeout_seconds:g} s)"
    if have < least:
        text += f"; waiting for {least - have} more"
        if state.candidates:
            text += f"; here: {names(state.candidates.values())}"
        if state.finished:
            text += f"; {have_finished(len(state.finished))} and will not return"
        return text
    disconnected = [m for m in state.candidates.values() if not m.connected]
    if disconnected:
        text += f"; waiting for {names(disconnected)} to reconnect"
        return text + f" (disconnect_grace={settings.disconnect_grace_seconds:g} s)"
    if isinstance(phase, LastCall):
        text += f"; last call for up to {goal_of(settings) - have} more"
        return text + f" (last_call={settings.last_call_seconds:g} s)"
    return (
        text
        + f"; waiting for a replacement (replacement_wait={settings.replacement_wait_seconds:g})"
    )


def differences(held: Settings, asked: Settings) -> str:
    """Return the settings that a new node gave but do not hold, "" if all agree."""
    if held == asked:
        return ""
    known, given = (msgspec.structs.asdict(each) for each in (held, asked))
    other = [
        f"{name.removesuffix('_seconds')}={_shown(known[name])} (not {_shown(given[name])})"
        for name in _COMPARED
        if known[name] != given[name]
    ]
    texts = [", ".join(other) + ", which holds for all nodes"] if other else []
    if held.rejoin_timeout_seconds < asked.rejoin_timeout_seconds:  # its own covers its stop grace
        texts.append("a node whose workers take longer to stop is lost in each change")
    if held.admit and asked.admit and held.admit is not asked.admit:
        own = "each node goes by its own, so give all nodes the same"
        texts.append(f"admit={held.admit} (not {asked.admit}): {own}")
    return "; ".join(texts)


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def goal_of(settings: Settings) -> int:
    """Return the number of nodes wanted: with them a round seals at once (J3), and is full."""
    wanted = settings.target_nodes or settings.max_nodes
    return max(settings.min_nodes, min(wanted, settings.max_nodes))  # a client may send anything


def goal_setting(settings: Settings) -> str:
    """Return the setting that gives the goal, with its value."""
    name = "target_nodes" if settings.target_nodes else "max_nodes"
    return f"{name}={goal_of(settings)}"


def have_finished(count: int, noun: str = "") -> str:
    """Return that so many (of a noun in the singular) have finished."""
    what = f" {noun}" if noun else ""
    return f"1{what} has finished" if count == 1 else f"{count}{what and what + 's'} have finished"


def nodes(count: int) -> str:
    """Return a number of nodes in words."""
    return "1 node" if count == 1 else f"{count} nodes"


def phase_name(state: RunState) -> str:
    """Return the phase in one word or two."""
    return _PHASE_NAMES[type(state.phase)]


def missing(state: RunState) -> tuple[str, ...]:
    """Return the labels of known nodes that the round waits for."""
    if isinstance(state.phase, (Gathering, LastCall)):
        return tuple(m.node.label for m in state.participants.values())
    return ()


def rows(state: RunState) -> list[tuple[Node, str, int | None, bool]]:
    """Return every live node with its place, its rank and whether it is connected."""
    return [
        (member.node, place.removesuffix("s"), member.rank, member.connected)
        for place in PLACES
        for member in getattr(state, place).values()
    ]
