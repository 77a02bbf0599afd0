"""The loop of a worker whose round may change at any time, without lost work."""

from collections.abc import Iterator

from rallypoint.worker.process import barrier, is_member, saved, should_save
from rallypoint.worker.progress import step as tell_step
from rallypoint.worker.state import State


def elastic(state: State, steps: int, every: int = 0) -> Iterator[int]:
    """Restore the state, and yield each step that is left, from 0 to `steps` - 1.

        state = worker.State({"weights": weights}, folder="checkpoints")
        for step in worker.elastic(state, 10_000, every=500):
            train(step, state.values["weights"])

    The state is saved when the round is about to change, at each multiple of `every`, and at
    the end. What a step does must be over when the next one is asked for. Each step is told
    to the agent too (see `rallypoint.worker.step`).

    Args:
        state: what `step` has come to; its `step` counts the steps that are done.
        steps: how many there are.
        every: save after so many steps as well, for losses that nobody announces; 0: never.
    """
    state.restore()
    while state.step < steps:
        tell_step(state.step)
        yield state.step
        state.step += 1
        if state.step == steps:
            state.save()
        elif should_save(state.step, every):
            state.save()
            saved(state.step)
    if is_member():
        barrier()  # nobody goes before the last state is safe
