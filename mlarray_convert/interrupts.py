"""When may Ctrl-C and SIGTERM interrupt? Never between the start of a process and the moment its owner knows of it.

Signals arrive in the main thread only; in any other thread these functions do nothing.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM stop a run as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def born_deaf_to_interrupts() -> Iterator[None]:
    """Let a process that is started here not hear Ctrl-C while it imports: it would die with a traceback of its own.

    A new process inherits which signals are blocked. This one is not interrupted half way through the start either, which
    would leave a worker without its orders: what arrives is dealt with when the block ends.
    """
    with interrupts_held():
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            yield
            return
        resource_tracker.ensure_running()  # would end the block when it starts itself
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Keep back SIGINT and SIGTERM of this process and deliver them at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    # Blocking them is not enough: any other thread, such as those of numpy's libraries, takes them for the main one.
    before = [(number, signal.signal(number, lambda got, _: held.append(got))) for number in _INTERRUPTS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for arrived in held[:1]:
            signal.raise_signal(arrived)


@contextlib.contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C while workers are stopped: an impatient second one must not leave them behind."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
