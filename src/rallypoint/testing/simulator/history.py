"""Whether a history of store calls is linearizable (Wing & Gong, with Lowe's memoization). PURE.

Each call must appear to take effect at one moment between its request and its answer. A call
without an answer may have taken effect at any moment after its request, or not at all. Keys are
checked one by one: a history is linearizable if the history of each key is.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from rallypoint.net import protocol as p

NEVER = float("inf")


class _Unknown(Enum):
    UNKNOWN = "unknown"


UNKNOWN: Final = _Unknown.UNKNOWN
"""The result of a call without an answer."""

Value = bytes | tuple[bytes, ...] | None
"""What a key holds: a value, a queue, or nothing."""


class Call(msgspec.Struct, frozen=True):
    """One call of a client.

    Args:
        client: its name.
        request: a store request.
        asked: when it was sent, in seconds.
        answered: when it was answered; `NEVER` without an answer.
        result: the answer; `UNKNOWN` without one.
    """

    client: str
    request: Any
    asked: float
    answered: float = NEVER
    result: Any = UNKNOWN

    def line(self) -> str:
        """Return the call as text."""
        when = f"{self.asked:.4f} to {self.answered:.4f}"
        return f"{when} {self.client}: {self.request} -> {self.result}"


def key_of(request: Any) -> str:
    """Return the key that a request is about."""
    key: str = request.key
    return key


def apply(value: Value, call: Call) -> tuple[bool, Value]:
    """Return whether the call fits this value, and the value after it."""
    after, result = _effect(value, call.request)
    if result is _IMPOSSIBLE:
        return False, value
    return call.result is UNKNOWN or call.result == result, after


_IMPOSSIBLE = object()


def _effect(value: Value, request: Any) -> tuple[Value, Any]:
    match request:
        case p.Set(value=new):
            return new, None
        case p.Peek():
            return value, value
        case p.Get():
            return value, _IMPOSSIBLE if value is None else value
        case p.Add(amount=amount):
            total = int(value or b"0") + amount if not isinstance(value, tuple) else amount
            return str(total).encode(), total
        case p.CompareSwap(expected=expected, desired=desired):
            return (desired, [True, desired]) if value == expected else (value, [False, value])
        case p.Delete():
            return None, value is not None
        case p.Append(value=more):
            old = value if isinstance(value, bytes) else b""
            return old + more, None
        case p.QueuePush(value=item):
            queue = value if isinstance(value, tuple) else ()
            return (*queue, item), None
        case p.QueuePop():
            if not isinstance(value, tuple) or not value:
                return value, _IMPOSSIBLE
            return value[1:] or None, value[0]
    raise TypeError(f"no model of {request!r}")


def explain(calls: Iterable[Call]) -> str:
    """Return why no order explains the history, "" if one does."""
    by_key: dict[str, list[Call]] = {}
    for call in calls:
        by_key.setdefault(key_of(call.request), []).append(call)
    for key, history in by_key.items():
        if not is_linearizable(history):
            listed = "\n    ".join(call.line() for call in sorted(history, key=lambda c: c.asked))
            return f"no order of the calls about {key!r} explains their results:\n    {listed}"
    return ""


def is_linearizable(history: Sequence[Call]) -> bool:
    """Return whether some order of the calls about one key explains all their results."""
    calls = sorted(history, key=lambda call: call.asked)
    wanted = sum(1 << i for i, call in enumerate(calls) if call.result is not UNKNOWN)
    seen: set[tuple[int, Value]] = set()
    stack: list[tuple[int, Value]] = [(0, None)]
    while stack:
        done, value = stack.pop()
        if done & wanted == wanted:
            return True
        if (done, value) in seen:
            continue
        seen.add((done, value))
        first_answer = min(c.answered for i, c in enumerate(calls) if not done >> i & 1)
        for i, call in enumerate(calls):
            if call.asked > first_answer:
                break
            if not done >> i & 1:
                fits, after = apply(value, call)
                if fits:
                    stack.append((done | 1 << i, after))
    return False
