"""Makes server-sent events for viewers: `server`, `run`, `rounds`.

A change of a run wakes its viewers at once; changes within `REST_SECONDS` are sent together.
Without a change, durations and load are sent every `QUIET_SECONDS`, less often for large runs.
The node names of each round are sent only when a round begins or ends.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec

from rallypoint.rendezvous.coordinator import RoundLine
from rallypoint.rendezvous.reports.status import run_status
from rallypoint.server.server import Server

REST_SECONDS = 0.1
QUIET_SECONDS = 2.0
MANY_MEMBERS, MANY_QUIET_SECONDS = 200, 6.0


class Feed:
    """Makes the events of all viewers.

    Args:
        server: the server to show.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = False
        self._wakes: set[asyncio.Event] = set()
        self.viewers = 0

    def end(self) -> None:
        """End the streams of all viewers."""
        self._over = True
        for wake in self._wakes:
            wake.set()

    async def events(self, run_id: str | None) -> AsyncIterator[bytes]:
        """Yield events until the viewer goes; with `run_id`, also those of that run."""
        wake, changed = asyncio.Event(), True

        def watcher(which: str) -> None:
            nonlocal changed
            changed = changed or which == run_id
            wake.set()

        self.viewers += 1
        self._wakes.add(wake)
        self._server.watchers.add(watcher)
        try:
            sent: object = None
            members, run_at = 0, float("-inf")
            keyring = (
                self._server.keyring
            )  # when the tokens change, viewers must authenticate again
            while not self._over and self._server.keyring is keyring:
                wake.clear()
                now = self._server.loop.time()
                yield event("server", self._server.status())
                quiet = MANY_QUIET_SECONDS if members > MANY_MEMBERS else QUIET_SECONDS
                run = self._server.runs.get(run_id) if run_id is not None else None
                if run is not None and (changed or now - run_at >= quiet):
                    changed, run_at = False, now
                    shown = run_status(run.report())
                    members = len(shown.members)
                    yield event("run", msgspec.structs.replace(shown, rounds=_bare(shown.rounds)))
                    key = tuple((r.number, r.sealed_seconds is None, r.ended_seconds is None)
                                for r in shown.rounds[-2:])  # fmt: skip
                    if key != sent:
                        sent = key
                        yield event("rounds", shown.rounds)
                await asyncio.sleep(REST_SECONDS)
                await _first(wake, QUIET_SECONDS)
        finally:
            self.viewers -= 1
            self._wakes.discard(wake)
            self._server.watchers.discard(watcher)


async def _first(wake: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(wake.wait(), seconds)
    except TimeoutError:
        return  # send the durations and the load without a change


def _bare(rounds: tuple[RoundLine, ...]) -> tuple[RoundLine, ...]:
    return tuple(msgspec.structs.replace(line, nodes=()) for line in rounds)


def event(name: str, value: object) -> bytes:
    """Return one server-sent event; the JSON contains no line breaks."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"
