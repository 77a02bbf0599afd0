"""What people read of notices and exclusions."""

from rallypoint.core.annotations import Aspect, Exclusion, Notice


def test_a_notice_as_people_read_it() -> None:
    notice = Notice("x", "node7 pid 7", "spot machine", "alice", 25.0)
    assert notice.sentence == "node7 pid 7 will leave: spot machine, in 25 s"
    assert Notice("x", "node7", "why", "alice").sentence == "node7 will leave: why"


def test_an_exclusion_as_people_read_it() -> None:
    out = Exclusion(1, Aspect.SLOT, "pod-3", "bad memory", "alice", "noon", 60.0)
    assert out.sentence == "slot pod-3 was excluded by alice at noon for 60 s: bad memory"
    out = Exclusion(1, Aspect.NODE, "node7", "why", "alice")
    assert out.sentence == "node node7 was excluded by alice until it is admitted: why"
