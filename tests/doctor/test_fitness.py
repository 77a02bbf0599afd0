import pytest

from rallypoint.doctor import fitness
from rallypoint.doctor.findings import Finding, Verdict
from rallypoint.doctor.fitness import GIB, Gpu, Pair


def link(source: str, target: str, seconds: float | None = 0.001, trouble: str = "") -> Pair:
    return Pair(source, target, seconds, trouble)


def mesh(*nodes: str, bad: str = "", seconds: float | None = None, trouble: str = "") -> list[Pair]:
    """Return all pairs of some nodes; those to and from `bad` are bad."""
    return [
        link(a, b, seconds, trouble) if bad in (a, b) else link(a, b)
        for a in nodes
        for b in nodes
        if a != b
    ]


@pytest.mark.parametrize(
    ("finding", "verdict", "text"),
    [
        (fitness.disk("/tmp", 3 * GIB, GIB), Verdict.OK, "/tmp has 3.0 GiB free"),
        (fitness.disk("/tmp", GIB // 2, GIB), Verdict.FAIL, "/tmp has 0.5 GiB free"),
        (fitness.no_disk("/data", "No such file"), Verdict.FAIL, "/data: No such file"),
        (fitness.memory(2 * GIB, GIB), Verdict.OK, "2.0 GiB of memory is free"),
        (fitness.memory(GIB, 2 * GIB), Verdict.FAIL, "1.0 GiB of memory is free"),
        (fitness.clock(0.001, 1.0), Verdict.OK, "the wall clock ran evenly for 1 s"),
        (fitness.clock(-3600.0, 1.0), Verdict.WARN, "stepped by -3600.00 s within 1 s"),
        (fitness.gpus([], "did not answer in 5 s"), Verdict.FAIL, "nvidia-smi did not answer"),
        (fitness.gpus([Gpu(0, "A"), Gpu(1, "A", 0)], ""), Verdict.OK, "GPUs: 2 A"),
        (fitness.gpus([Gpu(0, "A"), Gpu(3, "A", 7)], ""), Verdict.FAIL, "GPU 3 (7)"),
        (fitness.gpus([], ""), Verdict.WARN, "GPUs: none"),
    ],
)
def test_findings_of_measurements(finding: Finding, verdict: Verdict, text: str) -> None:
    assert finding.verdict is verdict
    assert text in finding.text
    assert bool(finding.remedy) == (verdict is Verdict.FAIL or "stepped" in finding.text)


def test_good_links() -> None:
    found = fitness.links(mesh("a", "b", "c"))
    assert found.verdict is Verdict.OK
    assert found.text == "6 pairs, median round trip 1 ms, worst a -> b (1 ms)"


def test_dead_links_name_the_worst_offender() -> None:
    pairs = mesh("a", "b", "c", "d", bad="c", trouble="no answer in 5 s")
    found = fitness.links(pairs)
    assert found.verdict is Verdict.FAIL
    assert found.text.startswith("6 of 12 pairs are dead: a -> c (no answer in 5 s), ")
    assert found.text.endswith("; worst offender: c")


def test_slow_links_name_the_worst_offender() -> None:
    found = fitness.links(mesh("a", "b", "c", "d", bad="b", seconds=0.05))
    assert found.verdict is Verdict.WARN
    assert "worst offender: b" in found.text
    assert "slow: a -> b (50 ms)" in found.text


def test_one_bad_pair_blames_no_node() -> None:
    pairs = [*mesh("a", "b", "c"), link("a", "b", None, "refused")]
    assert fitness.offender(pairs[-1:], pairs) == ""
    assert "offender" not in fitness.links(pairs).text


def test_only_few_pairs_are_listed() -> None:
    text = fitness.links(mesh("a", "b", "c", "d", bad="c", trouble="x")).text
    assert "and 1 more" in text


def test_absent_nodes_are_counted() -> None:
    assert fitness.links([], 2).text == "2 of the nodes did not come to be measured"
    assert fitness.links([]).verdict is Verdict.NOTE


def test_all_pairs_are_listed_up_to_the_limit() -> None:
    pairs = [link("a", f"b{i}", None, "refused") for i in range(fitness.SHOWN)]
    assert " more" not in fitness.links(pairs).text


def test_worst_pair_has_the_longest_round_trip() -> None:
    pairs = [link("a", "b", 0.001), link("b", "a", 0.002), link("a", "c", 0.0015)]
    assert "worst b -> a (2 ms)" in fitness.links(pairs).text
