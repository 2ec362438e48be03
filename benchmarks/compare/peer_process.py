"""The other end of a reader process: a line of JSON in, a line of JSON out."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# One thread each: what is compared is one reader.
ONE_THREAD = {
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "RAYON")},
    "BLOSC_NTHREADS": "1",
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": "1",
}


class Peer:
    """A process that answers; a context manager.

    Parameters
    ----------
    python : Path
        Interpreter of its environment.
    script : Path
        What it runs.
    arguments : sequence of str
        Of the script.
    environment : mapping, optional
        Variables that differ from those of one thread each.
    threads : mapping
        Variables that say how many threads libraries start; an empty one leaves that to them.
    """

    def __init__(
        self,
        python: Path,
        script: Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        *,
        threads: Mapping[str, str] = ONE_THREAD,
    ) -> None:
        self.name = " ".join(arguments)
        variables = {**os.environ, **threads, "PYTHONWARNINGS": "ignore", **(environment or {})}
        self._process = subprocess.Popen(
            [str(python), str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def tell(self, **message: Any) -> None:
        """Send a message without waiting."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to a message."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"The process of {self.name} ended with code {self._process.wait()}; see its error above.")
        return dict(json.loads(line))

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a message and wait for the answer."""
        self.tell(**message)
        return self.answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def together(peers: Sequence[Peer], messages: Sequence[dict[str, Any]]) -> float:
    """Let several readers work at once; return the seconds until all are done."""
    began = time.perf_counter()
    for peer, message in zip(peers, messages, strict=True):
        peer.tell(**message)
    for peer in peers:
        peer.answer()
    return time.perf_counter() - began
