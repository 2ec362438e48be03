"""What does a worker process do? It answers jobs, one after the other, until nobody asks any more.

It does not hear Ctrl-C, which reaches every process of a terminal: whoever gave the job decides. SIGTERM ends it by an
exception, so that a file that is being written is removed on the way out.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from mlarray_convert.executor import Work

AGAIN_SECONDS = 0.01
_REPORT_SECONDS = 0.1
# Numerical libraries start one thread per processor each unless told otherwise.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS",
)


class Channel(Protocol):
    """Carries objects both ways."""

    def send(self, message: Any, /) -> None:
        """Send an object; OSError when nobody listens."""

    def recv(self) -> Any:
        """Wait for an object; EOFError or OSError when none will come."""


def serve(channel: Channel, work: Work[Any, Any]) -> None:
    """Answer jobs until the other side is gone; runs in the worker process.

    What is sent: ``("ready", None)``, then for each job any number of ``("share", fraction)`` and one ``("result", ...)``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    sys.unraisablehook = _leave_later
    said = _say(channel, ("ready", None))
    while said:
        try:
            job = channel.recv()
        except (EOFError, OSError):
            return
        said = _say(channel, ("result", work(job, _reporter(channel))))


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment that tells numerical libraries how many threads they may use."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def _say(channel: Channel, message: object) -> bool:
    """Send a message; False when nobody listens, which is no error of this process."""
    try:
        channel.send(message)
    except OSError:
        return False
    return True


def _reporter(channel: Channel) -> Callable[[float], None]:
    last = [0.0]

    def report(share: float) -> None:
        now = time.monotonic()
        if now - last[0] >= _REPORT_SECONDS:
            last[0] = now
            channel.send(("share", share))  # fails when nobody listens, which ends this process too

    return report


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _leave_later(dropped: sys.UnraisableHookArgs) -> None:
    """Give the order to leave again: it came while an object was being freed, where Python drops exceptions."""
    if isinstance(dropped.exc_value, SystemExit):
        threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        sys.__unraisablehook__(dropped)
