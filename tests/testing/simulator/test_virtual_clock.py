import pytest

from rallypoint.testing.simulator.virtual_clock import Clockwork, Process, finish


def a_process() -> tuple[Clockwork, Process, list[str]]:
    clockwork = Clockwork(1)
    return clockwork, Process(clockwork, "p", 1000.0), []


def test_callbacks_come_in_order_of_time() -> None:
    clockwork, process, seen = a_process()
    process.call_later(2.0, seen.append, "late")
    process.call_later(1.0, seen.append, "early")
    process.call_soon(seen.append, "now").cancel()
    clockwork.run_until(1.5)
    assert (seen, clockwork.now, process.time()) == (["early"], 1.5, 1001.5)
    clockwork.run_until(2.0)
    assert seen == ["early", "late"]


def test_a_paused_process_catches_up_in_order() -> None:
    clockwork, process, seen = a_process()
    process.call_later(1.0, seen.append, "a")
    process.call_later(2.0, seen.append, "b")
    process.pause()
    process.pause()
    clockwork.run_until(3.0)
    process.go_on()
    clockwork.run_until(4.0)
    assert seen == [], "two have stopped it, one has let it go on"
    assert process.paused_seconds() == 4.0
    process.go_on()
    clockwork.run_until(4.0)
    assert seen == ["a", "b"]
    assert process.paused_seconds() == 4.0


def test_a_killed_process_does_nothing_any_more() -> None:
    clockwork, process, seen = a_process()
    process.on_death.append(lambda: seen.append("died"))
    process.call_later(1.0, seen.append, "never")
    process.kill()
    process.kill()
    clockwork.run_until(2.0)
    assert seen == ["died"]


def test_a_jump_of_the_clock_brings_its_own_timers_forward() -> None:
    clockwork, process, seen = a_process()
    process.call_later(10.0, seen.append, "timer")
    clockwork.add(process, 10.0, False, seen.append, "message")
    process.jump(8.0)
    assert process.time() == 1008.0
    clockwork.run_until(3.0)
    assert seen == ["timer"]


def test_running_ends_when_told_so() -> None:
    clockwork, process, seen = a_process()
    for at in range(5):
        process.call_later(at, seen.append, "x")
    clockwork.run_until(10.0, lambda: len(seen) == 2)
    assert (len(seen), clockwork.now) == (2, 1.0)


def test_a_coroutine_that_would_wait_is_refused() -> None:
    class Waits:
        def __await__(self):  # type: ignore[no-untyped-def]
            yield

    with pytest.raises(RuntimeError, match="the coroutine waited"):
        finish(Waits())
