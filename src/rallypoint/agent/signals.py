"""Signals as events, none of them lost.

A Python signal handler runs in the main thread once that comes back from what it is waiting
in, and a signal that arrives just before the wait begins would not end it. So the handlers
do nothing here: the interpreter's C handler writes each signal's number into a socket
(`signal.set_wakeup_fd`), and a thread that reads there hands it on.
"""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType


def _ignored_here(_number: int, _frame: FrameType | None) -> None:
    """Stand as the handler; what is done about the signal is the reader's."""


@contextlib.contextmanager
def signals_to(
    sink: Callable[[signal.Signals], None], wanted: tuple[signal.Signals, ...]
) -> Iterator[None]:
    """Call `sink`, from a thread, with each signal of `wanted` while the block runs.

    What was ignored before (nohup) stays ignored. Outside of the main thread, where Python
    allows no handlers, nothing is done.
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
        number: signal.signal(number, _ignored_here)
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
