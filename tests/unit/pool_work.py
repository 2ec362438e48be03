"""What the workers of the pool tests do: small stand-ins for converting a case."""

import ctypes
import faulthandler
import os
import signal
from collections.abc import Callable
from pathlib import Path

from mlarray.storage.publish import this_host
from mlarray_convert.run import Job, Outcome, Status, run_case


def square(job: int, progress: Callable[[float], None]) -> int:
    progress(0.5)
    return job * job


def square_or_die(job: int, progress: Callable[[float], None]) -> int:
    if job == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return job * job


def crash(job: int, progress: Callable[[float], None]) -> int:
    faulthandler.disable()  # which would write a traceback of every thread to the terminal
    ctypes.string_at(0)
    return job


def exit_quietly(job: int, progress: Callable[[float], None]) -> int:
    os._exit(7)


class KilledAtStart:
    """Work whose process is killed while it starts, the first ``times`` times; marks are kept in ``folder``."""

    def __init__(self, folder: Path, times: int) -> None:
        self.folder, self.times = folder, times

    def __call__(self, job: int, progress: Callable[[float], None]) -> int:
        return job * job

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        count = len(list(self.folder.iterdir()))
        if count < self.times:
            (self.folder / str(count)).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def thread_settings(job: int, progress: Callable[[float], None]) -> str:
    return os.environ["OPENBLAS_NUM_THREADS"]


def touch_and_wait(job: str, progress: Callable[[float], None]) -> None:
    Path(job).write_text(str(os.getpid()))
    signal.pause()


def convert_or_die(job: Job, progress: Callable[[float], None]) -> Outcome:
    """Convert a case, but be killed by the system in the one called ``big``, with a file half written."""
    if job.case.name == "torn":
        os.kill(os.getpid(), signal.SIGSEGV)
    if job.case.name == "big":
        (job.case.output.parent / f".big.mla.{this_host()}-{os.getpid()}-0.part").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    return run_case(job, progress)


def fail(job: Job, progress: Callable[[float], None]) -> Outcome:
    return Outcome(job.case, Status.FAILED, "no")


class _TerminatedWhenFreed:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1000))  # the handler runs here, where Python drops what it raises


def told_to_leave_while_freeing(job: int, progress: object) -> int:
    _TerminatedWhenFreed()
    while True:
        signal.pause()


def print_and_answer(job: int, progress: object) -> str:
    os.write(1, b"a library of C says hello\n")
    print("so does Python", flush=True)
    return "in peace"
