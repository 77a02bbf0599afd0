"""What must hold in a world without a server: the same, checked on each stored state."""

from typing import TYPE_CHECKING

from rallypoint.core.advance import Step
from rallypoint.core.events import Cause, Event
from rallypoint.core.explain import describe
from rallypoint.core.state import (
    PLACES,
    Closed,
    NodeId,
    State,
    round_number,
)
from rallypoint.testing.simulator.checks import Checker, Violation, advance_now, check_core

if TYPE_CHECKING:
    from rallypoint.testing.simulator.world import World

LEEWAY_SECONDS = 0.5


class SharedChecker(Checker):
    """Checks what nodes derive, what is stored, and what they then do."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self._signs: dict[NodeId, tuple[int, float]] = {}
        self._before = State(world.run_id)

    def advance(self, state: State, *events: Event) -> Step:
        """Be `advance` for the exchanges: whether it counts is decided by the write."""
        step = advance_now(state, *events)
        self.steps += 1
        check_core(state, step)
        return step

    def stored(self, before: State, step: Step) -> None:
        """A state was written."""
        after = step.state
        check_core(before, step)
        self._losses(before, after)
        self._sealing(before, step)
        self.truth.fenced.update(after.fenced)
        self.truth.fenced.update(node for out in after.exclusions for node in out.nodes)
        self.truth.fenced.update(
            node for place in PLACES for node in getattr(before, place) if not _is_in(after, node)
        )
        if not isinstance(after.phase, Closed):
            self.truth.openings.add((after.incarnation, round_number(after.phase), after.opening))
        else:
            self.truth.closings.add((after.incarnation, after.phase.why))
        for place in PLACES:
            for node, member in getattr(after, place).items():
                if self._signs.get(node, (-1, 0.0))[0] != member.beats:
                    self._signs[node] = (member.beats, self.world.clockwork.now)
        self.world.note("store", describe(after))

    def _losses(self, before: State, after: State) -> None:
        settings, now = after.settings, self.world.clockwork.now
        for node, why in after.fenced.items():
            if node in before.fenced or Cause.LEASE.value not in why or settings is None:
                continue
            silent = now - self._signs.get(node, (0, 0.0))[1]
            jumped = sum(f.seconds for f in self.world.plan.faults if "jump" in f.kind.value)
            if silent < settings.lease_seconds - LEEWAY_SECONDS - jumped:
                raise Violation("false loss", f"{node} was lost after {silent:.2f} s of silence")


def _is_in(state: State, node: NodeId) -> bool:
    return any(node in getattr(state, place) for place in PLACES)
