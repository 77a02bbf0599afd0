import threading
import time

import pytest
from tests.agent.test_loop import FakeHandler

from rallypoint.agent.join import departures
from rallypoint.agent.join.departures import Farewell
from rallypoint.core.state import Failure
from rallypoint.errors import RendezvousConnectionError

FAILURE = Failure("node", 0, 0, 7, "", "noon", "", round=1)


class Silent(FakeHandler):
    """A coordinator that is gone without a trace: nothing is answered."""

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


def test_each_word_is_said_once_and_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    handler = FakeHandler()
    words = Farewell(handler)
    words.finish()
    words.leave("done")
    words.leave("again")
    assert handler.log == ["finish", "leave: done"]
    assert capsys.readouterr() == ("", "")


def test_what_is_waited_for_is_told_and_has_a_limit(
    silent: Silent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(departures, "SAY_AFTER_SECONDS", 0.01)
    words = Farewell(silent, finish_seconds=0.1)
    began = time.monotonic()
    words.finish()
    words.leave("its agent ends")  # nobody has answered: there is no waiting again
    assert time.monotonic() - began < 4.0
    out, err = capsys.readouterr()
    assert "telling the coordinator that its work is done: no answer yet, up to 0.1 s" in out
    assert "the coordinator did not answer (--close-timeout)" in err
    silent.over.set()


def test_a_signal_cuts_the_wait_short(silent: Silent, capsys: pytest.CaptureFixture[str]) -> None:
    words = Farewell(silent, finish_seconds=60.0)
    words.hurry()  # the one before the wait asked for it, and does not count
    threading.Timer(0.1, words.hurry).start()
    began = time.monotonic()
    words.finish()
    assert time.monotonic() - began < 15.0
    assert "did not answer" in capsys.readouterr().err
    silent.over.set()


def test_errors_are_told_and_others_raised(capsys: pytest.CaptureFixture[str]) -> None:
    class Refusing(FakeHandler):
        def leave(self, why: str) -> None:
            raise RendezvousConnectionError("refused")

    handler = Refusing()
    handler.finish_error = RendezvousConnectionError("refused")
    Farewell(handler).leave("x")
    assert "left without a word to the coordinator: refused" in capsys.readouterr().out
    Farewell(handler).finish()
    assert "work is done, but the coordinator could not be told: refused" in capsys.readouterr().err
    handler.finish_error = ValueError("a fault of ours")
    with pytest.raises(ValueError, match="a fault of ours"):
        Farewell(handler).finish()


def test_a_failure_that_nobody_hears_is_told_in_time(
    silent: Silent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(departures, "SAY_AFTER_SECONDS", 0.01)
    words = Farewell(silent)
    assert not words.fail(FAILURE, 0.1)
    out, err = capsys.readouterr()
    assert "telling the coordinator of the failure: no answer yet, up to 0.1 s" in out
    assert "the others could not be told of a failed worker: no answer" in err
    silent.over.set()
    words.leave("later")  # is asked all the same
    assert silent.log == ["leave asked"]
    assert Farewell(FakeHandler()).fail(FAILURE, 5.0)
