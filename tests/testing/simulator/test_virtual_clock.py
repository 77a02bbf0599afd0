import pytest

from rallypoint.testing.simulator.virtual_clock import Process, VirtualClock, finish


def a_process() -> tuple[VirtualClock, Process, list[str]]:
    clock = VirtualClock(1)
    return clock, Process(clock, "p", 1000.0), []


def test_callbacks_come_in_order_of_time() -> None:
    clock, process, seen = a_process()
    process.call_later(2.0, seen.append, "late")
    process.call_later(1.0, seen.append, "early")
    process.call_soon(seen.append, "now").cancel()
    clock.run_until(1.5)
    assert (seen, clock.now, process.time()) == (["early"], 1.5, 1001.5)
    clock.run_until(2.0)
    assert seen == ["early", "late"]


def test_paused_process_catches_up_in_order() -> None:
    clock, process, seen = a_process()
    process.call_later(1.0, seen.append, "a")
    process.call_later(2.0, seen.append, "b")
    process.pause()
    process.pause()
    clock.run_until(3.0)
    process.resume()
    clock.run_until(4.0)
    assert seen == [], "two have stopped it, one has let it go on"
    assert process.paused_seconds() == 4.0
    process.resume()
    clock.run_until(4.0)
    assert seen == ["a", "b"]
    assert process.paused_seconds() == 4.0


def test_killed_process_does_nothing() -> None:
    clock, process, seen = a_process()
    process.on_death.append(lambda: seen.append("died"))
    process.call_later(1.0, seen.append, "never")
    process.kill()
    process.kill()
    clock.run_until(2.0)
    assert seen == ["died"]


def test_clock_jump_fires_its_own_timers() -> None:
    clock, process, seen = a_process()
    process.call_later(10.0, seen.append, "timer")
    clock.add(process, 10.0, False, seen.append, "message")
    process.jump(8.0)
    assert process.time() == 1008.0
    clock.run_until(3.0)
    assert seen == ["timer"]


def test_simulation_ends_on_request() -> None:
    clock, process, seen = a_process()
    for at in range(5):
        process.call_later(at, seen.append, "x")
    clock.run_until(10.0, lambda: len(seen) == 2)
    assert (len(seen), clock.now) == (2, 1.0)


def test_waiting_coroutine_is_refused() -> None:
    class Waits:
        def __await__(self):  # type: ignore[no-untyped-def]
            yield

    with pytest.raises(RuntimeError, match="the coroutine waited"):
        finish(Waits())
