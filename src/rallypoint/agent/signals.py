"""Signals as events, without losing one.

A Python signal handler runs only when the main thread returns from a blocking call, and a
signal just before that call would not end it. So the Python handlers do nothing here: the
interpreter's C handler writes each signal's number to a socket (`signal.set_wakeup_fd`), and a
thread reads it from there.
"""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Replace the default handler; the thread that reads the socket acts."""


@contextlib.contextmanager
def signals_to(
    sink: Callable[[signal.Signals], None], wanted: tuple[signal.Signals, ...]
) -> Iterator[None]:
    """Call `sink` with each signal of `wanted`, in a thread, while the block runs.

    A signal that was ignored before (nohup) stays ignored. Outside the main thread, where
    Python allows no handlers, this has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def read() -> None:
        while numbers := receiver.recv(64):
            for number in numbers:
                sink(signal.Signals(number))

    reader = threading.Thread(target=read, name="rallypoint-signals", daemon=True)
    reader.start()
    former_fd = signal.set_wakeup_fd(sender.fileno())
    former = {
        number: signal.signal(number, _do_nothing)
        for number in wanted
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(former_fd)
        sender.close()
        reader.join()
        receiver.close()
