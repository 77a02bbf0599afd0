import threading
import time

import pytest
from tests.agent.test_loop import FakeHandler

from rallypoint.agent.join import coordinator_reports
from rallypoint.agent.join.coordinator_reports import CoordinatorReports
from rallypoint.core.state import Failure
from rallypoint.errors import RendezvousConnectionError

FAILURE = Failure("node", 0, 0, 7, "", "noon", "", round=1)


class Silent(FakeHandler):
    """A coordinator that never answers."""

    def finish(self) -> None:
        self.over.wait(20)

    def fail(self, failure: Failure) -> None:
        self.over.wait(20)

    def leave(self, why: str) -> None:
        self.log.append("leave asked")
        self.over.wait(20)


@pytest.fixture
def silent() -> Silent:
    return Silent()


def test_each_report_is_sent_once_and_nothing_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = FakeHandler()
    node = CoordinatorReports(handler)
    node.finish()
    node.leave("done")
    node.leave("again")
    assert handler.log == ["finish", "leave: done"]
    assert capsys.readouterr() == ("", "")


def test_wait_for_an_answer_is_announced_and_limited(
    silent: Silent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coordinator_reports, "SAY_AFTER_SECONDS", 0.01)
    node = CoordinatorReports(silent, limit_seconds=0.1)
    began = time.monotonic()
    node.finish()
    node.leave("its agent ends")  # no answer before, so no wait now
    assert time.monotonic() - began < 4.0
    out, err = capsys.readouterr()
    assert "notifying the coordinator that its work is done: no answer yet, up to 0.1 s" in out
    assert "the coordinator did not answer (--close-timeout)" in err
    silent.over.set()


def test_signal_ends_the_wait(silent: Silent, capsys: pytest.CaptureFixture[str]) -> None:
    node = CoordinatorReports(silent, limit_seconds=60.0)
    node.interrupt()  # a signal before the wait does not end it
    threading.Timer(0.1, node.interrupt).start()
    began = time.monotonic()
    node.finish()
    assert time.monotonic() - began < 15.0
    assert "did not answer" in capsys.readouterr().err
    silent.over.set()


def test_rendezvous_errors_are_printed_and_others_raised(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Refusing(FakeHandler):
        def leave(self, why: str) -> None:
            raise RendezvousConnectionError("refused")

    handler = Refusing()
    handler.finish_error = RendezvousConnectionError("refused")
    CoordinatorReports(handler).leave("x")
    assert "left without notifying the coordinator: refused" in capsys.readouterr().out
    CoordinatorReports(handler).finish()
    assert (
        "the work is done, but the coordinator could not be notified: refused"
        in capsys.readouterr().err
    )
    handler.finish_error = ValueError("a fault of ours")
    with pytest.raises(ValueError, match="a fault of ours"):
        CoordinatorReports(handler).finish()


def test_unanswered_failure_report_ends_in_time(
    silent: Silent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coordinator_reports, "SAY_AFTER_SECONDS", 0.01)
    node = CoordinatorReports(silent, limit_seconds=0.1)
    assert not node.fail(FAILURE)
    out, err = capsys.readouterr()
    assert "notifying the coordinator of the failure: no answer yet, up to 0.1 s" in out
    assert "the others could not be notified of the failed worker: no answer" in err
    silent.over.set()
    node.leave("later")  # is sent nevertheless
    assert silent.log == ["leave asked"]
    assert CoordinatorReports(FakeHandler()).fail(FAILURE)
