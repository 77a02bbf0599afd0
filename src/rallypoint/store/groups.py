"""The semantics of `Gather`: barrier, all_gather and broadcast. PURE.

The first member opens a group, which is known by its name. The group is complete when `size`
members are in it at the same time; then every member is answered and the name is free again. A
member that times out or disconnects is removed and no longer counts, because its call fails; it
may come back with a new call. The group remembers such ranks, so that the timeout errors of the
others tell them from ranks that never came. A group without members is dropped.

Either all members of a group give a rank or none does: a mixed group could be complete in
number with a rank missing.
"""

from collections.abc import Hashable, Iterable

from rallypoint.errors import StoreValueError
from rallypoint.net import protocol as p

SHOWN = 20  # names or ranges listed in an error before "and n more"
_CALLS = {"b:": "barrier", "g:": "all_gather", "c:": "broadcast"}
TIMED_OUT = "timed out"
DISCONNECTED = "disconnected"


def group_title(name: str) -> str:
    """Return the user's name of a group from its wire name: `barrier 'x'`."""
    call = _CALLS.get(name[:2])
    return f"{call} {name[2:]!r}" if call else f"group {name!r}"


def shown(items: list[str]) -> str:
    """Return a list for people, cut at `SHOWN` entries."""
    more = len(items) - SHOWN
    return ", ".join(items[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def rank_ranges(ranks: Iterable[int]) -> str:
    """Return ranks as short text: `0, 3-7, 9`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return _spans_text(spans)


def missing_ranges(present: Iterable[int], size: int) -> str:
    """Return the ranks below `size` that are not present, as short text; "" for none.

    The cost depends on the present ranks only, whatever size a client gives.
    """
    spans, start = [], 0
    for rank in sorted(present):
        if rank > start:
            spans.append([start, rank - 1])
        start = rank + 1
    if start < size:
        spans.append([start, size - 1])
    return _spans_text(spans)


def _spans_text(spans: list[list[int]]) -> str:
    return shown([str(a) if a == b else f"{a}-{b}" for a, b in spans])


class _Group:
    """The members of one open group."""

    __slots__ = ("gone", "members", "ranked", "ranks", "size")

    def __init__(self, size: int, ranked: bool) -> None:
        self.size = size
        self.ranked = ranked
        self.members: dict[Hashable, p.Gather] = {}
        self.ranks: dict[int, Hashable] = {}
        self.gone: dict[int, str] = {}

    def answers(self) -> list[tuple[Hashable, list[bytes] | None]]:
        """Return the answer of each member; members share lists."""
        values = [self.members[self.ranks[rank]].value for rank in sorted(self.ranks)]
        first = values[:1]
        return [
            (token, (first if member.only_first else values) if member.collect else None)
            for token, member in self.members.items()
        ]


class Groups:
    """All open groups of a keyspace, by name."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def join(
        self, request: p.Gather, token: Hashable
    ) -> list[tuple[Hashable, list[bytes] | None]] | None:
        """Add a member; return all answers if that completes the group, else None.

        Raises StoreValueError when the request does not fit the group; nothing is changed.
        """
        group = self._groups.get(request.name)
        if group is None:
            group = _Group(request.size, request.rank is not None)
        self._check(request, group)
        group.members[token] = request
        if request.rank is not None:
            group.ranks[request.rank] = token
            group.gone.pop(request.rank, None)
        if len(group.members) < group.size:
            self._groups[request.name] = group
            return None
        self._groups.pop(request.name, None)
        return group.answers()

    @staticmethod
    def _check(request: p.Gather, group: _Group) -> None:
        title, size, rank = group_title(request.name), request.size, request.rank
        if size < 1:
            raise StoreValueError(f"{title}: size is {size}, must be 1 or more")
        if size != group.size:
            raise StoreValueError(f"{title}: size is {size}, but it was opened with {group.size}")
        if rank is None and request.collect:
            raise StoreValueError(f"{title}: values are collected by rank, but none was given")
        if (rank is not None) != group.ranked:
            with_rank, without = ("others", "this") if group.ranked else ("this", "others")
            raise StoreValueError(f"{title}: {with_rank} came with a rank, {without} without")
        if rank is None:
            return
        if not 0 <= rank < size:
            raise StoreValueError(f"{title}: rank {rank} is not in 0..{size - 1}")
        if rank in group.ranks:
            raise StoreValueError(
                f"{title}: rank {rank} is in it already, by another call; "
                "two members have the same rank, or one called twice at the same time"
            )

    def leave(self, request: p.Gather, token: Hashable, why: str) -> None:
        """Remove a member; `why` is `TIMED_OUT` or `DISCONNECTED`."""
        group = self._groups[request.name]
        del group.members[token]
        if request.rank is not None:
            del group.ranks[request.rank]
            group.gone[request.rank] = why
        if not group.members:
            del self._groups[request.name]

    def members(self, name: str) -> list[Hashable]:
        """Return the tokens of the members, in order of arrival."""
        group = self._groups.get(name)
        return list(group.members) if group else []

    def departed(self) -> dict[str, dict[int, str]]:
        """Return for each open group the ranks that left, and why."""
        return {name: dict(group.gone) for name, group in self._groups.items() if group.gone}

    def restore_departed(self, departed: dict[str, dict[int, str]]) -> None:
        """Restore what `departed` returned, once the same groups are open again."""
        for name, gone in departed.items():
            self._groups[name].gone = dict(gone)

    def describe(self, request: p.Gather) -> str:
        """Return which members are present and which are missing, for people."""
        group = self._groups.get(request.name)
        members = len(group.members) if group else 0
        ranks = set(group.ranks) if group else set()
        gone = group.gone if group else {}
        if request.rank is None:
            return f"{members} of {request.size} members are here"
        missing = missing_ranges(ranks | set(gone), request.size)
        parts = [f"{members} of {request.size} members are here"]
        if missing:
            parts.append(f"missing ranks: {missing}")
        for why in (TIMED_OUT, DISCONNECTED):
            left = [rank for rank, reason in gone.items() if reason == why]
            if left:
                parts.append(f"came but {why}: {rank_ranges(left)}")
        return "; ".join(parts)
