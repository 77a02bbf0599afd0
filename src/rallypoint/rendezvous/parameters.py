"""`RendezvousParameters`: what a handler is made from, and `RendezvousTimeout`.

Values come from code, from `key=value` texts or from the environment, so a number may be a text.
A wrong one is refused with the parameter, the value, and what is allowed.
"""

import math
from datetime import timedelta
from typing import Any, Self

from rallypoint.deadline import seconds
from rallypoint.engines.url import redacted
from rallypoint.errors import ParameterError
from rallypoint.rendezvous import defaults

_TRUE = frozenset(("1", "true", "t", "yes", "y"))
_FALSE = frozenset(("0", "false", "f", "no", "n"))


def wrong(name: str, value: object, allowed: str) -> ParameterError:
    """Return the error that names a parameter, its value and what is allowed."""
    return ParameterError(f"{name}={value!r}: allowed is {allowed}")


def is_text(value: object) -> bool:
    """Return whether a value is a text that is not empty."""
    return isinstance(value, str) and value != ""


def as_int(name: str, value: object, least: int | None = None) -> int:
    """Return a whole number given as int or text.

    Raises:
        ParameterError: it is something else, or below `least`.
    """
    allowed = "a whole number" + ("" if least is None else f" of at least {least}")
    if isinstance(value, bool) or not isinstance(value, int | str | float):
        raise wrong(name, value, allowed)
    try:
        number = int(value)
    except (ValueError, OverflowError) as error:
        raise wrong(name, value, allowed) from error
    if (isinstance(value, float) and number != value) or (least is not None and number < least):
        raise wrong(name, value, allowed)
    return number


def as_seconds(name: str, value: object, *, zero: bool = False) -> float:
    """Return a duration given as seconds (number or text) or timedelta, in seconds.

    Raises:
        ParameterError: not a finite number above zero (`zero`: or zero).
    """
    allowed = "a finite number of seconds " + ("of at least 0" if zero else "above 0")
    if isinstance(value, bool) or not isinstance(value, int | float | str | timedelta):
        raise wrong(name, value, allowed)
    try:
        number = float(value) if isinstance(value, str) else seconds(value)
    except (ValueError, OverflowError) as error:
        raise wrong(name, value, allowed) from error
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise wrong(name, value, allowed)
    return number


class RendezvousParameters:
    """All that is needed to make a handler.

    Args:
        backend: name of the backend ("core", "static", "file", or a plug-in's).
        endpoint: host:port of the server, or several with commas of which one leads (backend
            "file": a path).
        run_id: name of the run.
        min_nodes: fewest nodes of a round.
        max_nodes: most nodes of a round; min_nodes if not given.
        local_addr: this node's address for its peers; detected if empty.
        node_rank: the rank this node asks for.
        local_world_size: workers that this node starts.
        config: parameters of the backend, settings and timeouts (docs/defaults.md).
        **kwargs: the same; they take precedence over `config`.

    Raises:
        ParameterError: names the parameter, its value and what is allowed.
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int = 1,
        max_nodes: int | None = None,
        local_addr: str | None = None,
        node_rank: int | None = None,
        local_world_size: int = 1,
        config: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not is_text(backend):
            raise wrong("backend", backend, "the name of a backend, such as 'core'")
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = as_int("min_nodes", min_nodes, 1)
        most = self.min_nodes if max_nodes is None else max_nodes
        self.max_nodes = as_int("max_nodes", most)
        if self.max_nodes < self.min_nodes:
            raise wrong("max_nodes", max_nodes, f"min_nodes ({self.min_nodes}) or more")
        self.local_addr = local_addr or None
        self.node_rank = None if node_rank is None else as_int("node_rank", node_rank, 0)
        self.local_world_size = as_int("local_world_size", local_world_size, 1)
        self.config: dict[str, Any] = {**(config or {}), **kwargs}

    def __repr__(self) -> str:
        return (
            f"RendezvousParameters(backend={self.backend!r}, "
            f"endpoint={redacted(self.endpoint)!r}, run_id={self.run_id!r}, "
            f"nodes={self.min_nodes}:{self.max_nodes})"
        )

    def get(self, key: str, default: Any = None) -> Any:
        """Return the parameter `key`, or `default`."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """Return the parameter as a bool (1/0, true/false, t/f, yes/no, y/n, in any case).

        Raises:
            ParameterError: it is something else.
        """
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | str):
            text = str(value).strip().lower()
            if text in _TRUE or text in _FALSE:
                return text in _TRUE
        raise wrong(key, value, "1, true, t, yes or y; 0, false, f, no or n (in any case)")

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Return the parameter as an int (ParameterError if it is no whole number)."""
        value = self.get(key, default)
        return None if value is None else as_int(key, value)

    def get_as_seconds(self, name: str) -> float | None:
        """Return the duration `name` of the defaults table in seconds, None if not given.

        Raises:
            ParameterError: wrong, or given under two spellings with different values.
        """
        zero = defaults.row(name).zero
        keys = [key for key in defaults.spellings(name) if self.config.get(key) is not None]
        given = {key: as_seconds(key, self.config[key], zero=zero) for key in keys}
        if len(set(given.values())) > 1:
            texts = ", ".join(f"{key}={self.config[key]!r}" for key in given)
            raise ParameterError(f"{texts}: these are one parameter; allowed is one value")
        return next(iter(given.values()), None)

    @property
    def timeout(self) -> "RendezvousTimeout":
        """The timeouts in these parameters; else the defaults."""
        return RendezvousTimeout.from_params(self)


class RendezvousTimeout:
    """How long the parts of a rendezvous may take.

    Given as seconds or timedelta, each above zero; read as timedelta.

    Args:
        join: for a round to be complete (600 s).
        last_call: extra wait once min_nodes are there (30 s).
        close: for closing, leaving and shutting down (30 s).
        heartbeat: the lease: silence after which a node is lost (15 s).

    Raises:
        ParameterError: names the argument, its value and what is allowed.
    """

    __slots__ = ("_close", "_heartbeat", "_join", "_last_call")

    def __init__(
        self,
        join: float | timedelta | None = None,
        last_call: float | timedelta | None = None,
        close: float | timedelta | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> None:
        def read(name: str, value: float | timedelta | None, row: str) -> timedelta:
            found = defaults.value(row) if value is None else as_seconds(name, value)
            return timedelta(seconds=found)

        self._join = read("join", join, "join")
        self._last_call = read("last_call", last_call, "last_call")
        self._close = read("close", close, "close")
        self._heartbeat = read("heartbeat", heartbeat, "lease")

    @classmethod
    def from_params(cls, params: RendezvousParameters) -> Self:
        """Return the timeouts of parameters, by any of their names; else the defaults."""
        return cls(
            params.get_as_seconds("join"),
            params.get_as_seconds("last_call"),
            params.get_as_seconds("close"),
            params.get_as_seconds("lease"),
        )

    @property
    def join(self) -> timedelta:
        """For a round to be complete."""
        return self._join

    @property
    def last_call(self) -> timedelta:
        """Extra wait once min_nodes are there."""
        return self._last_call

    @property
    def close(self) -> timedelta:
        """For closing, leaving and shutting down."""
        return self._close

    @property
    def heartbeat(self) -> timedelta:
        """The lease: silence after which a node is lost."""
        return self._heartbeat

    def _values(self) -> tuple[timedelta, ...]:
        return (self._join, self._last_call, self._close, self._heartbeat)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RendezvousTimeout) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        join, last_call, close, heartbeat = (v.total_seconds() for v in self._values())
        return f"RendezvousTimeout({join=}, {last_call=}, {close=}, {heartbeat=})"
