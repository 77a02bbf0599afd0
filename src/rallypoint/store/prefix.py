"""A part of another store, under a prefix.

Every key and group name of a request is rewritten on its way to the wrapped store, and `list`
removes the prefix from the result. `_RULES` has one rule for each kind of request, so a new kind
without a rule fails instead of reaching the other keys of the wrapped store. Errors of the
wrapped store show the full key.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from rallypoint.net import protocol as p
from rallypoint.store.api import Key, Store, as_key


def _one(request: Any, prefix: str) -> Any:
    return msgspec.structs.replace(request, key=prefix + request.key)


def _keys(request: Any, prefix: str) -> Any:
    return msgspec.structs.replace(request, keys=[prefix + key for key in request.keys])


def _range(request: Any, prefix: str) -> Any:
    return msgspec.structs.replace(request, prefix=prefix + request.prefix)


def _pairs(request: p.MultiSet, prefix: str) -> p.MultiSet:
    return p.MultiSet([(prefix + key, value) for key, value in request.pairs])


def _group(request: p.Gather, prefix: str) -> p.Gather:
    kind, name = request.name[:2], request.name[2:]  # the "b:" of a barrier stays in front
    return msgspec.structs.replace(request, name=kind + prefix + name)


def _each(request: p.Pipeline, prefix: str) -> p.Pipeline:
    return p.Pipeline([_RULES[type(each)](each, prefix) for each in request.requests])


_RULES: dict[type, Callable[[Any, str], Any]] = {
    p.Set: lambda request, prefix: p.Set(prefix + request.key, request.value),
    p.Get: lambda request, prefix: p.Get(prefix + request.key, request.timeout),
    p.Peek: _one,
    p.Add: _one,
    p.CompareSet: _one,
    p.CompareSwap: _one,
    p.Check: _keys,
    p.Wait: _keys,
    p.Delete: _one,
    p.NumKeys: _range,
    p.List: _range,
    p.MultiGet: _keys,
    p.MultiSet: _pairs,
    p.Append: _one,
    p.QueuePush: _one,
    p.QueuePop: _one,
    p.QueueLen: _one,
    p.Watch: _one,
    p.Gather: _group,
    p.Pipeline: _each,
}


class PrefixStore(Store):
    """The keys of `store` that begin with `prefix` and a slash, without that prefix.

    It starts with the wrapped store's timeout; `set_timeout` changes this handle only.

    Args:
        prefix: text before the slash.
        store: the store with the keys; `close` leaves it open.
    """

    def __init__(self, prefix: Key, store: Store) -> None:
        self._prefix = as_key(prefix) + "/"
        self._store = store
        self._timeout_seconds = store._timeout_seconds

    @property
    def underlying_store(self) -> Store:
        """The wrapped store."""
        return self._store

    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        result = self._store._call(_RULES[type(request)](request, self._prefix), timeout)
        if isinstance(request, p.List):
            return [key[len(self._prefix) :] for key in result]
        return result

    def clone(self) -> "PrefixStore":
        other = PrefixStore(self._prefix[:-1], self._store.clone())
        other._timeout_seconds = self._timeout_seconds
        return other
