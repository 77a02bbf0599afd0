from rallypoint.rendezvous import timing


def test_heartbeats_silence_and_pauses() -> None:
    assert timing.heartbeat_seconds(3.0) == 1.0
    assert timing.heartbeat_seconds(600.0) == timing.LONGEST_HEARTBEAT_SECONDS
    assert timing.silence_seconds(15.0, several=False) == 15.0
    assert timing.silence_seconds(15.0, several=True) == 5.0
    assert timing.heartbeat_seconds(600.0, several=True) == 3.0
    assert timing.silence_seconds(3.0, several=True) == 3.0
    assert timing.is_gone(3.1, 0.0, 3.0)
    assert not timing.is_gone(3.0, 0.0, 3.0)
    assert not timing.is_gone(9.0, 5.0, 3.0), "a paused process has not listened"
    assert timing.is_gone(11.0, 5.0, 3.0)
    assert timing.next_pause(0.05) == 0.1
    assert timing.next_pause(1.5) == timing.LONGEST_PAUSE_SECONDS


def test_an_absence_is_a_lease_a_heartbeat_an_attempt_and_a_pause() -> None:
    assert timing.absence_seconds(15.0) == 15.0 + 5.0 + 5.0 + 3.0
    assert timing.absence_seconds(3.0) == 3.0 + 1.0 + 5.0 + 3.0


def test_pauses_grow_and_are_shorter_when_a_standby_server_answers() -> None:
    pause, pauses = timing.FIRST_PAUSE_SECONDS, []
    for _ in range(8):
        pause = timing.next_pause(pause)
        pauses.append(pause)
    assert pauses == sorted(pauses)
    assert pauses[-1] == timing.LONGEST_PAUSE_SECONDS
    assert timing.next_pause(pause, standby=True) == timing.STANDBY_PAUSE_SECONDS
