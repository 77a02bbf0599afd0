from rallypoint.rendezvous.reports.history import Entry, Loss, Noted
from rallypoint.server.counters import Histogram, Tally


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 9.0):
        histogram.add(seconds)
    assert histogram.cumulative() == [("1", 2.0), ("2", 3.0), ("+Inf", 4.0)]
    assert histogram.total == 12.0


def test_rounds_and_losses_are_counted() -> None:
    tally = Tally()
    tally.note(Noted(Entry(1, 1, 10.0, sealed_at=10.4)))
    tally.note(Noted(None, (Loss("n1", "lease", 15.0), Loss("n2", "lease", 16.0))))
    assert tally.rounds == 1
    assert tally.losses == {"lease": 2}
    assert tally.seal.cumulative()[3] == ("0.5", 1.0)
    assert tally.detect.total == 31.0
