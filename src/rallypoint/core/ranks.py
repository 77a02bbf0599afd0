"""Who gets which rank (rule R1). PURE.

`assign_ranks` gives out the ranks 0..n-1 in four steps:

1. A node that asks for a rank below n (`node_rank`) gets it.
2. A node of an earlier round keeps its rank, if it is below n and free.
3. The other nodes of earlier rounds fill the gaps, in the order of their former ranks.
4. New nodes fill the remaining gaps, in `first_order`: requested ranks of n and more, then nodes
   with the same topology label together, then host names and addresses in natural order (node7
   before node66, 10.0.0.9 before 10.0.0.10).
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from rallypoint.core.state import Member, NodeId, Round, Seat, Standing

_DIGITS = re.compile(r"(\d+)")
NaturalKey = tuple[tuple[int, int, str], ...]


@lru_cache(maxsize=4096)  # reasons name the same few nodes again and again
def natural_key(text: str) -> NaturalKey:
    """Return a sort key in which runs of digits compare as numbers."""
    parts = _DIGITS.split(text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part)


def seat_order(member: Member) -> tuple[int, int]:
    """Return a sort key for claims to a seat (rule S2): members, waiting nodes, new nodes."""
    if member.standing is Standing.MEMBER:
        return (0, -1 if member.rank is None else member.rank)
    return (1 if member.standing is Standing.WAITING else 2, member.arrival)


FirstOrder = tuple[bool, int, bool, NaturalKey, NaturalKey, NaturalKey, int]


def first_order(member: Member) -> FirstOrder:
    """Return a sort key for nodes that had no rank yet."""
    node = member.node
    label = node.topology
    return (
        node.node_rank is None,
        node.node_rank or 0,
        label is None,
        natural_key(label or ""),
        natural_key(node.host),
        natural_key(node.address),  # several hosts may have one name
        member.arrival,
    )


def assign_ranks(members: Iterable[Member]) -> list[Member]:
    """Return the members in rank order, each with its rank; ranks are 0..n-1, each once."""
    left = list(members)
    size = len(left)
    taken: dict[int, Member] = {}
    for wish in (_hint, _kept):
        unplaced = []
        for member in sorted(left, key=lambda m: m.arrival):
            rank = wish(member)
            if rank is not None and rank < size and rank not in taken:
                taken[rank] = member
            else:
                unplaced.append(member)
        left = unplaced
    gaps = (rank for rank in range(size) if rank not in taken)
    movers = sorted((m for m in left if m.rank is not None), key=lambda m: m.rank or 0)
    newcomers = sorted((m for m in left if m.rank is None), key=first_order)
    taken.update(zip(gaps, movers + newcomers, strict=True))
    return [_with_rank(taken[rank], rank) for rank in range(size)]


def _hint(member: Member) -> int | None:
    return member.node.node_rank


def _kept(member: Member) -> int | None:
    return member.rank


def _with_rank(member: Member, rank: int) -> Member:
    return Member(
        node=member.node,
        arrival=member.arrival,
        rank=rank,
        standing=Standing.MEMBER,
        beats=member.beats,
        connected=member.connected,
    )


def make_round(
    incarnation: int,
    number: int,
    members: list[Member],
    restarts: int,
    reason: str,
    failing: int = 0,
) -> Round:
    """Return the sealed record of members that are in rank order."""
    role_sizes: dict[str, int] = {}
    for member in members:
        role = member.node.role
        role_sizes[role] = role_sizes.get(role, 0) + member.node.local_world_size
    seats: list[Seat] = []
    workers = 0
    role_workers = dict.fromkeys(role_sizes, 0)
    for rank, member in enumerate(members):
        node = member.node
        seats.append(Seat(node, rank, workers, role_workers[node.role], role_sizes[node.role]))
        workers += node.local_world_size
        role_workers[node.role] += node.local_world_size
    return Round(incarnation, number, tuple(seats), workers, restarts, reason, failing)


def by_id(members: Iterable[Member]) -> dict[NodeId, Member]:
    """Return members by node id, in their order."""
    return {member.node.id: member for member in members}
