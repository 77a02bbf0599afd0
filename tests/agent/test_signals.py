import os
import queue
import signal
import threading

from rallypoint.agent.signals import signals_to

LIMIT_SECONDS = 10.0
WANTED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def test_signals_arrive_while_the_main_thread_waits() -> None:
    seen: queue.SimpleQueue[signal.Signals] = queue.SimpleQueue()
    with signals_to(seen.put, WANTED):
        for _ in range(200):  # also one just before the wait begins
            asker = threading.Thread(target=os.kill, args=[os.getpid(), signal.SIGTERM])
            asker.start()
            assert seen.get(timeout=LIMIT_SECONDS) is signal.SIGTERM
            asker.join()


def test_handlers_and_the_wakeup_fd_are_restored() -> None:
    before = [signal.getsignal(number) for number in WANTED]
    with signals_to(lambda _number: None, WANTED):
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in WANTED] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_ignored_signals_stay_ignored() -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        seen: list[signal.Signals] = []
        with signals_to(seen.append, WANTED):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert seen == []
    finally:
        signal.signal(signal.SIGHUP, former)


def test_no_effect_outside_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    inside: list[object] = []

    def body() -> None:
        with signals_to(lambda _number: None, WANTED):
            inside.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert inside == [before]
