"""What is said of nodes, beside the places that they are in: notices, exclusions, strikes. PURE."""

from enum import StrEnum

import msgspec

NO_REASON = "no reason was given"


class _Value(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of these values, which are part of the state."""


class Notice(_Value, frozen=True):
    """Word that a live node will leave: its machine is to be taken away, or someone says so.

    Args:
        node: who will leave.
        label: its label.
        why: for people.
        by: who says so.
        seconds: how long it has from when it was given, None if that is not known.
    """

    node: str
    label: str
    why: str
    by: str
    seconds: float | None = None

    @property
    def sentence(self) -> str:
        """The notice as people read it."""
        when = "" if self.seconds is None else f", in {self.seconds:g} s"
        return f"{self.label} will leave: {self.why}{when}"


class Aspect(StrEnum):
    """By what nodes are named in an exclusion."""

    NODE = "node"  # id, host name or label
    ADDRESS = "address"
    SLOT = "slot"


class Exclusion(_Value, frozen=True):
    """Nodes that are kept out (rule H1).

    Args:
        number: counts the exclusions of a run; tells their timers apart.
        aspect: what `name` is.
        name: of the nodes that are meant.
        why: for people.
        by: who wants it so.
        at: when (a text), "" if that is not known.
        seconds: for how long, None: until they are admitted.
        nodes: ids of those that were put out; refused whatever else they say of themselves.
        slots: of those named by id or label; whoever comes for their slots is refused, too.
    """

    number: int
    aspect: Aspect
    name: str
    why: str
    by: str
    at: str = ""
    seconds: float | None = None
    nodes: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The exclusion as people read it."""
        since = f" at {self.at}" if self.at else ""
        long = "until it is admitted" if self.seconds is None else f"for {self.seconds:g} s"
        return f"{self.aspect} {self.name} was excluded by {self.by}{since} {long}: {self.why}"


class Strike(_Value, frozen=True):
    """A round that a node has ended by failing workers (rule H1)."""

    aspect: Aspect
    name: str
    round: int
