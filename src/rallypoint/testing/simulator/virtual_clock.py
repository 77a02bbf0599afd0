"""Virtual time: one heap of callbacks, and processes with a monotonic clock each.

Nothing happens between two callbacks, so a run is a function of its plan. Faults act on a
`Process`: a paused one receives its callbacks, in order, once it continues; a killed one never
does. It offers the part of an event loop that the server uses (`time`, `call_later`,
`call_soon`), on a clock of its own that starts at a random value and can jump forward.
"""

import heapq
import random
from collections.abc import Awaitable, Callable
from typing import Any


class Handle:
    """A scheduled callback, with asyncio's `cancel`."""

    __slots__ = ("args", "at", "call", "local", "order", "process")

    def __init__(
        self, at: float, order: int, process: "Process", local: bool,
        call: Callable[..., object], args: tuple[Any, ...],
    ) -> None:  # fmt: skip
        self.at = at
        self.order = order
        self.process = process
        self.local = local
        self.call: Callable[..., object] | None = call
        self.args = args

    def cancel(self) -> None:
        """Cancel the callback."""
        self.call = None

    def __lt__(self, other: "Handle") -> bool:
        return (self.at, self.order) < (other.at, other.order)


class VirtualClock:
    """The clock and scheduler of a simulated world.

    Args:
        seed: of every random choice.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.steps = 0
        self.random = random.Random(seed)
        self.on_step: Callable[[Process], None] | None = None
        self.world = Process(self, "world", 0.0)
        self._heap: list[Handle] = []
        self._order = 0

    def add(
        self, process: "Process", delay: float, local: bool,
        call: Callable[..., object], *args: Any,
    ) -> Handle:  # fmt: skip
        """Schedule `call` in a process after `delay` seconds.

        Args:
            process: which must be alive and not paused for the call.
            delay: seconds.
            local: whether the delay is measured by the process's clock, which can jump.
            call: the callback.
            args: its arguments.
        """
        self._order += 1
        handle = Handle(self.now + max(0.0, delay), self._order, process, local, call, args)
        heapq.heappush(self._heap, handle)
        return handle

    def push(self, handle: Handle) -> None:
        """Schedule a held callback now."""
        self._order += 1
        handle.at, handle.order = self.now, self._order
        heapq.heappush(self._heap, handle)

    def run_until(self, end: float, done: Callable[[], bool] | None = None) -> None:
        """Run all callbacks that are due until `end`, or until `done` returns True."""
        heap = self._heap
        while heap and heap[0].at <= end:
            handle = heapq.heappop(heap)
            call, process = handle.call, handle.process
            if call is None or not process.alive:
                continue
            if handle.at > self.now:
                self.now = handle.at
            if process.paused:
                process.held.append(handle)
                continue
            self.steps += 1
            call(*handle.args)
            if self.on_step is not None and process is not self.world:
                self.on_step(process)
            if done is not None and done():
                return
        if done is None:
            self.now = max(self.now, end)

    def jumped(self, process: "Process", seconds: float) -> None:
        """Bring a process's timers forward after its clock has jumped."""
        for handle in self._heap:
            if handle.local and handle.process is process:
                handle.at = max(self.now, handle.at - seconds)
        heapq.heapify(self._heap)


class Process:
    """One simulated process (an agent, or the server), and its event loop.

    Args:
        clock: the world's time.
        name: for people.
        offset: by how much its monotonic clock differs from the world's.
    """

    def __init__(self, clock: VirtualClock, name: str, offset: float) -> None:
        self.clock = clock
        self.name = name
        self.offset = offset
        self.alive = True
        self._pauses = 0
        self.slowness = 1.0  # factor of its delays
        self.held: list[Handle] = []
        self.rested = 0.0  # seconds of all past pauses
        self._paused_at = 0.0
        self.on_death: list[Callable[[], None]] = []

    def time(self) -> float:
        """Return its monotonic clock, in seconds."""
        return self.clock.now + self.offset

    def call_later(self, delay: float, call: Callable[..., object], *args: Any) -> Handle:
        """Schedule a call after `delay` seconds of its clock."""
        return self.clock.add(self, delay, True, call, *args)

    def call_soon(self, call: Callable[..., object], *args: Any) -> Handle:
        """Schedule a call as soon as the current one has returned."""
        return self.clock.add(self, 0.0, True, call, *args)

    def call_soon_threadsafe(self, call: Callable[..., object], *args: Any) -> Handle:
        """Run a call soon: the same as `call_soon`, as there is one thread."""
        return self.call_soon(call, *args)

    def soon(self, call: Callable[..., object], *args: Any) -> Handle:
        """Schedule a call after the delay of a thread's wake-up."""
        moment = self.clock.random.random() * 0.002 * self.slowness
        return self.clock.add(self, moment, False, call, *args)

    def pause(self) -> None:
        """Pause it, as SIGSTOP or a starved machine does."""
        self._pauses += 1
        if self._pauses == 1:
            self._paused_at = self.clock.now

    def resume(self) -> None:
        """Continue it; held callbacks run now, in order."""
        self._pauses -= 1
        if not self._pauses and self.alive:
            self.rested += self.clock.now - self._paused_at
            held, self.held = self.held, []
            for handle in held:
                self.clock.push(handle)

    @property
    def paused(self) -> bool:
        """Whether it is paused; pauses may overlap."""
        return self._pauses > 0

    def paused_seconds(self) -> float:
        """Return the seconds of all its pauses."""
        return self.rested + (self.clock.now - self._paused_at if self.paused else 0.0)

    def jump(self, seconds: float) -> None:
        """Make its clock jump forward, as after a machine's sleep."""
        self.offset += seconds
        self.clock.jumped(self, seconds)

    def kill(self) -> None:
        """Kill it; its kernel closes its connections (`on_death`)."""
        if self.alive:
            self.alive = False
            self.held.clear()
            for call in self.on_death:
                call()

    # -- the server's other uses of its event loop ------------------------------------------

    def set_exception_handler(self, handler: Callable[..., object]) -> None:
        """Do nothing: a failing callback ends the simulation."""

    async def create_server(self, factory: Callable[[], Any], **_given: Any) -> "Process":
        """Listen: the network makes a connection with `factory` for each client."""
        self.factory = factory
        return self

    def close(self) -> None:
        """Stop listening."""


def finish(work: Awaitable[Any]) -> None:
    """Run a coroutine that never waits."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration:
        return
    raise RuntimeError(f"the coroutine waited: {work!r}")
