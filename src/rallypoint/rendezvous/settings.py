"""`RendezvousSettings`: the configuration that all nodes of a run must agree on.

Liveness has one figure, the lease: a node sends a heartbeat every third of it, and is lost after
that much silence. The older pair `keep_alive_interval` and `keep_alive_max_attempt` means the
same: if they are given, their product is the lease.

A node that is notified of a new round first stops its workers, for up to its `stop_grace`, and is
lost after the run's `rejoin_timeout` (rule G1). A rejoin timeout that the workers may outlast is
refused; without one, it follows from the stop grace. A node that joins a run whose rejoin timeout
is too short for it is warned, as of any setting that differs (`core.explain.differences`).
"""

from dataclasses import dataclass, make_dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

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
_NAMES = [row.name for row in defaults.DEFAULTS if row.is_shared and row.name != "last_call"]
"""The shared settings beside `last_call`, which is in `timeout`."""
RETURN_SECONDS = 1.0
"""Least time to join again beside stopping the workers: to be notified, to kill, to connect."""
AMPLE_SECONDS = 30.0
"""The same with a wide margin: large processes end slowly even when they are killed."""


def _read(name: str, value: Duration) -> timedelta | int:
    """Return a setting as given, or its default; checked against its row of the table."""
    row = defaults.row(name)
    if row.unit == "s":
        return _duration(name, value)
    return as_int(name, row.default if value is None else value, 0 if row.zero else 1)


def _duration(name: str, value: Duration) -> timedelta:
    row = defaults.row(name)
    given = row.default if value is None else as_seconds(name, value, zero=row.zero)
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


if TYPE_CHECKING:

    class _Shared:
        """The settings that all nodes of a run share; typed access is by `core()`."""

        def __getattr__(self, name: str) -> Any: ...

else:
    _Shared = make_dataclass("_Shared", _NAMES, frozen=True)


@dataclass(frozen=True, init=False)
class RendezvousSettings(_Shared):
    """What a run is opened with.

    Durations are given as seconds or timedelta, and are attributes as timedelta.

    Args:
        run_id: name of the run, not empty.
        min_nodes: fewest nodes of a round.
        max_nodes: most nodes of a round.
        timeout: join, last call, close, heartbeat.
        keep_alive_interval: times `keep_alive_max_attempt` it is the lease; no other effect.
        keep_alive_max_attempt: see `keep_alive_interval`.
        target_nodes: size at which a round seals at once, between min_nodes and max_nodes.
        max_restarts: rounds that failing workers may open; None is no limit.
        stop_grace: how long this node's workers may take to stop, None if that is not known; not
            shared with other nodes.
        admit: what this node's agent does about newcomers ("now", "checkpoint", "never"), None if
            it does not say; not shared, but compared.
        **shared: the shared settings by name, such as `lease` or `steady_after`; see
            docs/defaults.md for all of them, their defaults and ranges.

    Raises:
        ParameterError: names the parameter, its value and what is allowed.
        TypeError: there is no setting of that name.
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
    rejoin_timeout: timedelta
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
        stop_grace: Duration = None,
        admit: str | None = None,
        **shared: Duration,
    ) -> None:
        if unknown := shared.keys() - set(_NAMES):
            raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
        _check_run(run_id)
        least, most, target = _sizes(min_nodes, max_nodes, target_nodes)
        limits = timeout or RendezvousTimeout()
        lease = _lease(limits, keep_alive_interval, keep_alive_max_attempt, shared.get("lease"))
        attempts = keep_alive_max_attempt or int(defaults.value("keep_alive_max_attempt"))
        stop = None if stop_grace is None else _duration("stop_grace", stop_grace)
        restarts = None if max_restarts is None else as_int("max_restarts", max_restarts, 0)
        grace = _duration("disconnect_grace", shared.get("disconnect_grace"))
        values: dict[str, object] = {name: _read(name, shared.get(name)) for name in _NAMES}
        values |= {
            "run_id": run_id,
            "min_nodes": least,
            "max_nodes": most,
            "timeout": limits,
            "keep_alive_interval": lease / attempts,
            "keep_alive_max_attempt": attempts,
            "target_nodes": target,
            "max_restarts": restarts,
            "lease": lease,
            "disconnect_grace": min(grace, lease),  # L1: never longer than the lease
            "rejoin_timeout": _rejoin(shared.get("rejoin_timeout"), stop),
            "stop_grace": stop,
            "admit": _newcomers(admit),
        }
        self.__dict__.update(values)
        self.__dict__["_core"] = self._settings()  # no field: nobody gives it

    @classmethod
    def from_params(cls, params: RendezvousParameters) -> Self:
        """Return the settings that parameters ask for (ParameterError)."""
        interval = params.get("keep_alive_interval")
        shared = {
            name: params.get_as_seconds(name)
            if defaults.row(name).unit == "s"
            else params.get_as_int(name)
            for name in _NAMES
        }
        return cls(
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            params.timeout,
            None if interval is None else as_seconds("keep_alive_interval", interval),
            params.get_as_int("keep_alive_max_attempt"),
            target_nodes=params.get_as_int("target_nodes"),
            max_restarts=params.get_as_int("max_restarts"),
            stop_grace=params.get_as_seconds("stop_grace"),
            admit=params.get("admit"),
            **shared,
        )

    def value(self, name: str) -> Any:
        """Return what holds for a name of the table: of these settings, or of `timeout`."""
        return getattr(self.timeout if hasattr(RendezvousTimeout, name) else self, name)

    def core(self) -> Settings:
        """Return the part that is stored in the run's state."""
        core: Settings = self.__dict__["_core"]
        return core

    def _settings(self) -> Settings:
        values: dict[str, Any] = {}
        for field in Settings.__struct_fields__:
            value = self.value(field.removesuffix("_seconds"))
            values[field] = value.total_seconds() if isinstance(value, timedelta) else value
        return Settings(**values)
