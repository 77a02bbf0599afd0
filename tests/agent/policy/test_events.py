import msgspec
import pytest

from rallypoint.agent.policy import events
from rallypoint.core.state import Verdict

NOUNS = (*events.Event.__subclasses__(), *events.Action.__subclasses__())


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.__name__)
def test_events_and_actions_are_frozen_values(noun: type[msgspec.Struct]) -> None:
    assert noun.__struct_config__.frozen
    assert noun.__doc__


def test_no_type_is_both_event_and_action() -> None:
    assert len(set(NOUNS)) == len(NOUNS)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_run_closed_is_finished_only_by_its_verdict(verdict: Verdict) -> None:
    closed = events.RunClosed(1, "someone", "enough", verdict)
    assert closed.finished is (verdict is Verdict.FINISHED)
