"""How does a Dask worker have a case done apart from itself? By a process that it starts, which answers as those of the pool do.

Dask's workers are daemonic processes, and Python forbids those to have children of ``multiprocessing``. So this is a plain
subprocess; jobs and answers are pickles on its standard streams. When the worker dies, the streams end, and the process removes
what it was writing and ends too.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from mlarray_convert.executor import Work
from mlarray_convert.serving import serve, thread_variables

STOP_SECONDS = 2.0


class Child:
    """A process that does one job after the other.

    Parameters
    ----------
    work : callable
        What it does, importable by name.
    threads : int
        Threads that numerical libraries may use.
    folder : str
        Its working directory; empty for that of this process.
    """

    def __init__(self, work: Work[Any, Any], *, threads: int, folder: str) -> None:
        environment = {**thread_variables(threads), **os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        # -P: a file in the working directory must not stand in for a module. A session of its own: Ctrl-C in the terminal of
        # a worker is for the worker, which tells us.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder or None,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stream = Stream(self._process.stdout, self._process.stdin)
        with contextlib.suppress(OSError):  # it died already, which the first job will see
            self._stream.send(work)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def answers(self, job: Any) -> Iterator[tuple[str, Any]]:
        """Give it a job and yield what it says, the last of which is ``("result", ...)``.

        Raises
        ------
        EOFError, OSError
            When it died.
        """
        self._stream.send(job)
        kind = ""
        while kind != "result":
            kind, value = self._stream.recv()
            yield kind, value

    def kill(self) -> None:
        """Kill it, whatever it does: who waits for its answer sees that it died."""
        self._process.kill()

    def end(self) -> int:
        """End it, asked first and killed when it takes longer than two seconds; return its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return code

    def exit_code(self) -> int:
        """Return the exit code of a process that ended by itself; one that hangs on its way out is ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        return self.end()

    def close(self) -> None:
        """End it and close the streams to it."""
        self.end()
        self._stream.close()


class Watch:
    """Calls a function once, in a thread of its own, when nothing was heard for so many seconds.

    Parameters
    ----------
    give_up : callable
        What to call.
    seconds : float
        From the start, and from each :meth:`heard`.

    Attributes
    ----------
    is_over : bool
        Whether it was called.
    """

    def __init__(self, give_up: Callable[[], None], seconds: float) -> None:
        self.is_over = False
        self._give_up, self._seconds = give_up, seconds
        self._last, self._closed = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def heard(self) -> None:
        """Begin to count anew."""
        self._last = time.monotonic()

    def close(self) -> None:
        """Stop counting."""
        self._closed.set()
        self._thread.join()

    def _wait(self) -> None:
        while not self._closed.wait(max(0.01, self._last + self._seconds - time.monotonic())):
            if time.monotonic() - self._last >= self._seconds:
                self.is_over = True
                self._give_up()
                return


class Stream:
    """Sends and receives objects over two binary streams."""

    def __init__(self, incoming: BinaryIO | Any, outgoing: BinaryIO | Any) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def send(self, message: Any, /) -> None:
        """Send an object."""
        pickle.dump(message, self._outgoing)
        self._outgoing.flush()

    def recv(self) -> Any:
        """Wait for an object."""
        try:
            return pickle.load(self._incoming)  # what the other half of this program wrote
        except pickle.UnpicklingError as error:  # cut off in the middle
            raise EOFError from error

    def close(self) -> None:
        """Close both."""
        for stream in (self._incoming, self._outgoing):
            with contextlib.suppress(OSError):
                stream.close()


def main() -> None:
    """Answer on what are standard input and output now; a library that prints must not write between the answers."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    stream = Stream(incoming, outgoing)
    try:
        work = stream.recv()
    except EOFError:
        return
    serve(stream, work)
    with contextlib.suppress(OSError):  # what is left in the buffer has no reader
        stream.close()


if __name__ == "__main__":
    main()
