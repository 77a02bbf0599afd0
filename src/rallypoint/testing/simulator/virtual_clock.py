"""Simulated time: one heap of callbacks, and processes that each see a clock of their own.

Nothing happens between two callbacks, so a run is a function of its plan. A `Process` is
what a fault acts on: a paused one gets its callbacks, in order, once it goes on; a killed one
never does. It offers what the real hosts use of an event loop (`time`, `call_later`,
`call_soon`), on its own monotonic clock, which begins anywhere and can jump forward.
"""

import heapq
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any


class Handle:
    """A callback that is due; as asyncio's, it can be cancelled."""

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
        """Let it never be called."""
        self.call = None

    def __lt__(self, other: "Handle") -> bool:
        return (self.at, self.order) < (other.at, other.order)


class Clockwork:
    """The time of a simulated world.

    Args:
        seed: of every random choice in it.
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
        """Let `call` happen in a process after `delay` seconds.

        `local`: it is a timer on the process's own clock, and comes sooner if that jumps.
        """
        self._order += 1
        handle = Handle(self.now + max(0.0, delay), self._order, process, local, call, args)
        heapq.heappush(self._heap, handle)
        return handle

    def push(self, handle: Handle) -> None:
        """Put back a callback that was held."""
        self._order += 1
        handle.at, handle.order = self.now, self._order
        heapq.heappush(self._heap, handle)

    def run_until(self, end: float, done: Callable[[], bool] | None = None) -> None:
        """Let everything happen that is due until `end`, or until `done` says so."""
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
        """Move a process's own timers, since its clock has jumped forward."""
        for handle in self._heap:
            if handle.local and handle.process is process:
                handle.at = max(self.now, handle.at - seconds)
        heapq.heapify(self._heap)


class Process:
    """One simulated process (an agent, or the server), and its event loop.

    Args:
        clockwork: the world's time.
        name: for people.
        offset: by how much its monotonic clock differs from the world's.
    """

    def __init__(self, clockwork: Clockwork, name: str, offset: float) -> None:
        self.clockwork = clockwork
        self.name = name
        self.offset = offset
        self.alive = True
        self._pauses = 0
        self.slowness = 1.0  # factor of the time that it takes to act
        self.held: list[Handle] = []
        self.rested = 0.0  # seconds during which it was paused, so far
        self._paused_at = 0.0
        self.on_death: list[Callable[[], None]] = []

    def time(self) -> float:
        """Return its monotonic clock's seconds."""
        return self.clockwork.now + self.offset

    def call_later(self, delay: float, call: Callable[..., object], *args: Any) -> Handle:
        """Call after `delay` seconds of its clock."""
        return self.clockwork.add(self, delay, True, call, *args)

    def call_soon(self, call: Callable[..., object], *args: Any) -> Handle:
        """Call once what runs now has returned."""
        return self.clockwork.add(self, 0.0, True, call, *args)

    def call_soon_threadsafe(self, call: Callable[..., object], *args: Any) -> Handle:
        """Run a call soon: the same as `call_soon`, as there is one thread."""
        return self.call_soon(call, *args)

    def soon(self, call: Callable[..., object], *args: Any) -> Handle:
        """Call after the moment that a thread takes to wake up."""
        moment = self.clockwork.random.random() * 0.002 * self.slowness
        return self.clockwork.add(self, moment, False, call, *args)

    def pause(self) -> None:
        """Stop it (SIGSTOP, a starved machine)."""
        self._pauses += 1
        if self._pauses == 1:
            self._paused_at = self.clockwork.now

    def go_on(self) -> None:
        """Let it go on; what was due meanwhile happens now, in order."""
        self._pauses -= 1
        if not self._pauses and self.alive:
            self.rested += self.clockwork.now - self._paused_at
            held, self.held = self.held, []
            for handle in held:
                self.clockwork.push(handle)

    @property
    def paused(self) -> bool:
        """Whether it stands still; pauses may overlap."""
        return self._pauses > 0

    def paused_seconds(self) -> float:
        """Return for how long it has been paused in all."""
        return self.rested + (self.clockwork.now - self._paused_at if self.paused else 0.0)

    def jump(self, seconds: float) -> None:
        """Let its monotonic clock jump forward (a machine that slept)."""
        self.offset += seconds
        self.clockwork.jumped(self, seconds)

    def kill(self) -> None:
        """End it; the kernel closes its connections (`on_death`)."""
        if self.alive:
            self.alive = False
            self.held.clear()
            for call in self.on_death:
                call()

    # -- what the real server wants of its loop beside timers -------------------------------

    def set_exception_handler(self, handler: Callable[..., object]) -> None:
        """Take the server's handler; here a failing callback ends the simulation instead."""

    async def create_server(self, factory: Callable[[], Any], **_given: Any) -> "Process":
        """Listen: the simulated network makes a connection with `factory` for each client."""
        self.factory = factory
        return self

    def close(self) -> None:
        """Stop listening."""


def finish(work: Awaitable[Any], within: Mapping[str, Any] | None = None) -> None:
    """Run a coroutine that never has to wait."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration:
        return
    raise RuntimeError(f"it had to wait: {work!r} {within or ''}")
