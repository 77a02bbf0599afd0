"""`RendezvousSettings`: the configuration that all nodes of a run must agree on.

The lease is the one figure behind all liveness: a node beats every third of it and is lost
after as much silence. The field's older pair, `keep_alive_interval` and
`keep_alive_max_attempt`, means the same: given explicitly, their product is the lease.

Who is told of a new round stops its workers first, for as long as its own `stop_grace`, and is
lost after the run's `rejoin_timeout` (rule G1). So no node asks for a rejoin timeout that its
workers may outlast: one that is given is refused, one that is not follows from the stop grace.
A node that stops longer than what the run was opened with allows has thus asked for more than
that, and is told so like of any setting that differs (`core.explain.differences`).
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from rallypoint.core.state import Newcomers, Settings
from rallypoint.errors import ParameterError
from rallypoint.net.protocol import run_problem
from rallypoint.rendezvous import defaults
from rallypoint.rendezvous.parameters import (
    RendezvousParameters,
    RendezvousTimeout,
    as_int,
    as_seconds,
    is_text,
    wrong,
)

Duration = float | timedelta | None
RETURN_SECONDS = 1.0
"""What coming back takes at least, beside the workers' stopping: to be told, to kill, to join."""
AMPLE_SECONDS = 30.0
"""The same with much to spare: large processes are slow to go even when they are killed."""


def _duration(name: str, value: Duration, *, zero: bool = False) -> timedelta:
    given = defaults.value(name) if value is None else as_seconds(name, value, zero=zero)
    return timedelta(seconds=given)


def _lease(
    timeout: RendezvousTimeout, interval: Duration, attempts: int | None, lease: Duration
) -> timedelta:
    """Return the lease: what is given explicitly, else the heartbeat timeout."""
    given = None if lease is None else _duration("lease", lease)
    if interval is None and attempts is None:
        return given or timeout.heartbeat
    step = _duration("keep_alive_interval", interval)
    count = int(defaults.value("keep_alive_max_attempt"))
    product = step * (count if attempts is None else as_int("keep_alive_max_attempt", attempts, 1))
    if given is not None and given != product:
        raise ParameterError(
            f"lease={given.total_seconds():g} s, but keep_alive_interval x keep_alive_max_attempt"
            f" is {product.total_seconds():g} s; allowed is one of the two, or equal values"
        )
    return product


def _check_run(run_id: str) -> None:
    if not is_text(run_id):
        raise wrong("run_id", run_id, "a text that is not empty")
    if problem := run_problem(run_id):
        raise ParameterError(f"run_id={run_id[:40]!r}: {problem}")


def _sizes(least: int, most: int, wanted: int | None) -> tuple[int, int, int | None]:
    """Return min_nodes, max_nodes and target_nodes, if they fit together."""
    least, most = as_int("min_nodes", least, 1), as_int("max_nodes", most)
    if most < least:
        raise wrong("max_nodes", most, f"min_nodes ({least}) or more")
    target = None if wanted is None else as_int("target_nodes", wanted)
    if target is not None and not least <= target <= most:
        raise wrong("target_nodes", wanted, f"{least} (min_nodes) to {most} (max_nodes)")
    return least, most, target


def least_rejoin(stop_seconds: float) -> float:
    """Return the shortest rejoin timeout, in seconds, for workers that take so long to stop."""
    return stop_seconds + RETURN_SECONDS


def ample_rejoin(stop_seconds: float) -> float:
    """Return the rejoin timeout, in seconds, where none is given."""
    return max(defaults.value("rejoin_timeout"), stop_seconds + AMPLE_SECONDS)


def _rejoin(given: Duration, stop_grace: timedelta | None) -> timedelta:
    """Return the rejoin timeout, if this node's workers can stop within it."""
    stop_seconds = 0.0 if stop_grace is None else stop_grace.total_seconds()
    if given is None:
        return timedelta(seconds=ample_rejoin(stop_seconds))
    rejoin, least = _duration("rejoin_timeout", given), least_rejoin(stop_seconds)
    if stop_grace is not None and rejoin < timedelta(seconds=least):
        raise ParameterError(
            f"rejoin_timeout={rejoin.total_seconds():g} s, but stop_grace={stop_seconds:g} s: a "
            "node whose workers take that long to stop would be lost in each change; give "
            f"--rejoin-timeout {least:g} or more (without it, it follows from the stop grace), or "
            "a shorter --stop-grace"
        )
    return rejoin


def _newcomers(value: object) -> Newcomers | None:
    if value is None:
        return None
    allowed = [each.value for each in Newcomers]
    if value not in allowed:
        raise wrong("admit", value, ", ".join(allowed))
    return Newcomers(value)


@dataclass(frozen=True, init=False)
class RendezvousSettings:
    """What the state machine of a run is opened with.

    Durations are seconds or timedelta; they come back as timedelta.

    Args:
        run_id: name of the run, not empty.
        min_nodes: fewest nodes of a round.
        max_nodes: most nodes of a round.
        timeout: join, last call, close, heartbeat.
        keep_alive_interval: time between signs of life (a third of the lease).
        keep_alive_max_attempt: signs of life that a lease holds (3).
        target_nodes: size at which a round seals at once, between min_nodes and max_nodes.
        max_restarts: rounds that failing workers may open; None is no limit.
        lease: silence after which a node is lost (15 s).
        disconnect_grace: time for a cut connection to come back (1 s).
        replacement_wait: wait for a replacement after a loss (0 s).
        rejoin_timeout: how long a node that was told to join again may take (60 s, or 30 s more
            than `stop_grace`).
        steady_after: how long a round must work to end a row of failing ones (300 s).
        quarantine_failures: rounds that one node may end by failing workers, of the last
            `QUARANTINE_ROUNDS`, before it is kept out; 0: any number.
        quarantine_time: how long it is kept out then (600 s).
        stop_grace: how long this node's workers may take to stop, None if that is not known;
            its own, and not shared.
        admit: what this node's agent does about newcomers ("now", "checkpoint", "never"), None if
            it does not say; its own, and compared.

    Raises:
        ParameterError: names the parameter, its value and what is allowed.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int
    target_nodes: int | None
    max_restarts: int | None
    lease: timedelta
    disconnect_grace: timedelta
    replacement_wait: timedelta
    rejoin_timeout: timedelta
    steady_after: timedelta
    quarantine_failures: int
    quarantine_time: timedelta
    stop_grace: timedelta | None
    admit: Newcomers | None

    def __init__(
        self,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: Duration = None,
        keep_alive_max_attempt: int | None = None,
        *,
        target_nodes: int | None = None,
        max_restarts: int | None = None,
        lease: Duration = None,
        disconnect_grace: Duration = None,
        replacement_wait: Duration = None,
        rejoin_timeout: Duration = None,
        steady_after: Duration = None,
        quarantine_failures: int | None = None,
        quarantine_time: Duration = None,
        stop_grace: Duration = None,
        admit: str | None = None,
    ) -> None:
        _check_run(run_id)
        least, most, target = _sizes(min_nodes, max_nodes, target_nodes)
        limits = timeout or RendezvousTimeout()
        held = _lease(limits, keep_alive_interval, keep_alive_max_attempt, lease)
        attempts = keep_alive_max_attempt or int(defaults.value("keep_alive_max_attempt"))
        restarts = None if max_restarts is None else as_int("max_restarts", max_restarts, 0)
        grace = _duration("disconnect_grace", disconnect_grace, zero=True)
        stop = None if stop_grace is None else _duration("stop_grace", stop_grace, zero=True)
        values: dict[str, object] = {
            "run_id": run_id,
            "min_nodes": least,
            "max_nodes": most,
            "timeout": limits,
            "keep_alive_interval": held / attempts,
            "keep_alive_max_attempt": attempts,
            "target_nodes": target,
            "max_restarts": restarts,
            "lease": held,
            "disconnect_grace": min(grace, held),  # L1: never longer than the lease
            "replacement_wait": _duration("replacement_wait", replacement_wait, zero=True),
            "rejoin_timeout": _rejoin(rejoin_timeout, stop),
            "steady_after": _duration("steady_after", steady_after),
            "quarantine_failures": as_int("quarantine_failures", quarantine_failures or 0, 0),
            "quarantine_time": _duration("quarantine_time", quarantine_time),
            "stop_grace": stop,
            "admit": _newcomers(admit),
        }
        self.__dict__.update(values)
        self.__dict__["_core"] = self._settings()  # not a field: nobody gives it

    @classmethod
    def from_params(cls, params: RendezvousParameters) -> Self:
        """Return the settings that parameters ask for (ParameterError)."""
        interval = params.get("keep_alive_interval")
        return cls(
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            params.timeout,
            None if interval is None else as_seconds("keep_alive_interval", interval),
            params.get_as_int("keep_alive_max_attempt"),
            target_nodes=params.get_as_int("target_nodes"),
            max_restarts=params.get_as_int("max_restarts"),
            lease=params.get_as_seconds("lease"),
            disconnect_grace=params.get_as_seconds("disconnect_grace", zero=True),
            replacement_wait=params.get_as_seconds("replacement_wait", zero=True),
            rejoin_timeout=params.get_as_seconds("rejoin_timeout"),
            steady_after=params.get_as_seconds("steady_after"),
            quarantine_failures=params.get_as_int("quarantine_failures"),
            quarantine_time=params.get_as_seconds("quarantine_time"),
            stop_grace=params.get_as_seconds("stop_grace", zero=True),
            admit=params.get("admit"),
        )

    def core(self) -> Settings:
        """Return the part that is stored in the run's state."""
        core: Settings = self.__dict__["_core"]
        return core

    def _settings(self) -> Settings:
        return Settings(
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            target_nodes=self.target_nodes,
            max_restarts=self.max_restarts,
            last_call_seconds=self.timeout.last_call.total_seconds(),
            rejoin_timeout_seconds=self.rejoin_timeout.total_seconds(),
            replacement_wait_seconds=self.replacement_wait.total_seconds(),
            lease_seconds=self.lease.total_seconds(),
            disconnect_grace_seconds=self.disconnect_grace.total_seconds(),
            steady_after_seconds=self.steady_after.total_seconds(),
            quarantine_failures=self.quarantine_failures,
            quarantine_time_seconds=self.quarantine_time.total_seconds(),
            admit=self.admit,
        )
