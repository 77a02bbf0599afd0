"""Clients of the run's store in a simulated world; their calls are recorded and checked.

They produce the traffic of `store.tcp`, which is bound to its socket. Calls keep their number when
they are sent again after a reconnect; `low` and `acked` tell the server which results it may drop;
when the server no longer knows the client, a call that is not a read ends in doubt.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from rallypoint.errors import StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.rendezvous import timing, wire
from rallypoint.testing.simulator.client import Client
from rallypoint.testing.simulator.context import Simulation, Violation
from rallypoint.testing.simulator.history import UNKNOWN, Call, explain
from rallypoint.testing.simulator.server import SimulatedServer
from rallypoint.testing.simulator.virtual_clock import Process

_decoder = msgspec.msgpack.Decoder(wire.ServerBody)
CALLS_AT_ONCE = 3
CALLS = 40
THINK_SECONDS = 1.0
WAIT_SECONDS = 2.0
ANSWER_SECONDS = 12.0  # a call that has no answer by then has failed, in doubt


class StoreClient(Client):
    """One client object with a few threads that use it.

    Args:
        simulation: its time, network and run.
        server: where it connects.
        number: distinguishes it from the others.
    """

    def __init__(self, simulation: Simulation, server: SimulatedServer, number: int) -> None:
        clock = simulation.clock
        process = Process(clock, f"store{number}", clock.random.random() * 1e6)
        super().__init__(simulation, server, process, process.name.encode())
        self._pause = timing.FIRST_PAUSE_SECONDS
        self.name = process.name
        self.history: list[tuple[int, Call]] = []  # with the server's life that answered
        self._open: dict[int, tuple[p.StoreRequest, float]] = {}
        self._sent_to: dict[int, int] = {}
        self._acked: list[int] = []
        self._last_id = 0
        self._epoch, self._record = 0, (0, 0)
        self._life = 0
        self._resting = False

    def begin(self) -> None:
        """Connect, and begin to call."""
        self.connect()
        for _ in range(CALLS_AT_ONCE):
            self._think()

    def rest(self) -> None:
        """Begin no more calls."""
        self._resting = True

    @property
    def waits(self) -> bool:
        """Whether a call is still without an answer."""
        return bool(self._open)

    def _think(self) -> None:
        pause = self.simulation.clock.random.random() * THINK_SECONDS
        self.process.call_later(pause, self._call)

    def _call(self) -> None:
        if self._resting or self._last_id >= CALLS or not self._epoch:
            if not self._epoch and not self._resting:
                self._think()
            return
        self._last_id += 1
        number = self._last_id
        self._open[number] = (self._request(number), self.simulation.clock.now)
        self.process.call_later(ANSWER_SECONDS, self._give_up, number)
        self._send(number)

    def _give_up(self, number: int) -> None:
        if number in self._open:
            self._end(number, self._sent_to.get(number, self._life), UNKNOWN)

    def _request(self, number: int) -> p.StoreRequest:
        dice = self.simulation.clock.random
        tag = f"{self.name}-{number}".encode()
        makers: list[p.StoreRequest] = [
            p.Set("value", tag), p.Peek("value"), p.Get("value", WAIT_SECONDS),
            p.CompareSwap("value", dice.choice([None, b"x"]), tag), p.Delete("value"),
            p.Add("counter", 1), p.Add("counter", 1), p.Peek("counter"),
            p.Append("line", tag + b" "), p.Peek("line"),
            p.QueuePush("queue", tag), p.QueuePop("queue", WAIT_SECONDS),
        ]  # fmt: skip
        return dice.choice(makers)

    def _send(self, number: int) -> None:
        if self.ready:
            low = min(self._open)
            acked, self._acked = tuple(self._acked), []
            self._sent_to[number] = self._life
            self.write(p.frame(p.Call(number, low, self._open[number][0], acked)))

    def welcomed(self, welcome: p.Welcome) -> None:
        """Send unanswered calls again, or end them in doubt."""
        self._pause = timing.FIRST_PAUSE_SECONDS
        record = (welcome.since, welcome.record)
        known = welcome.resumed and record == self._record
        self._epoch, self._record = welcome.epoch, record
        if self.end is not None:
            self._life = self.server.lives[self.end.peer.process.name]
        for number in sorted(self._open):
            request = self._open[number][0]
            never_sent = number not in self._sent_to
            if known or never_sent or isinstance(request, p.REPEATABLE):
                self._send(number)
            else:
                self._end(number, self._sent_to[number], UNKNOWN)

    def retry_seconds(self, jitter: float) -> float:
        pause, self._pause = self._pause * jitter, timing.next_pause(self._pause)
        return pause

    def receive(self, data: bytes) -> None:
        body = _decoder.decode(data)
        if isinstance(body, p.Goodbye):
            raise StoreConnectionError(body.reason)
        if not isinstance(body, p.Reply | p.Failure) or body.id not in self._open:
            return
        request = self._open[body.id][0]
        if isinstance(body, p.Failure):
            self._open.pop(body.id)  # it waited in vain, or was refused: no effect
            self._think()
        else:
            self._end(body.id, self._life, body.result)
        if self._open and min(self._open) < body.id and not isinstance(request, p.REPEATABLE):
            self._acked.append(body.id)

    def _end(self, number: int, life: int, result: Any) -> None:
        request, asked = self._open.pop(number)
        answered = float("inf") if result is UNKNOWN else self.simulation.clock.now
        self.history.append((life, Call(self.name, request, asked, answered, result)))
        self._think()

    def seen(self) -> list[tuple[int, Call]]:
        """Return the history, with the calls that still have no answer."""
        still = [
            (self._sent_to[number], Call(self.name, request, asked))
            for number, (request, asked) in self._open.items()
            if number in self._sent_to
        ]
        return self.history + still


def check_histories(clients: Iterable[StoreClient]) -> None:
    """Check the calls that each life of the server has answered, whatever its restarts."""
    by_life: dict[int, list[Call]] = {}
    for client in clients:
        for life, call in client.seen():
            by_life.setdefault(life, []).append(call)
    for calls in by_life.values():
        if why := explain(calls):
            raise Violation("linearizability", why)
