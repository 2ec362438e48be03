"""A Dask scheduler and workers as processes of their own, for tests that kill them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from tests.cli.samples import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


class DaskCluster:
    """Starts and ends processes; everything they write stands below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "scheduler.json"
        self.address = ""
        self.workers: list[subprocess.Popen] = []
        self._registered = 0
        self._changed = threading.Condition()
        arguments = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(self.file))
        self.scheduler = self._started("scheduler", *arguments, output=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._wait_for(lambda: bool(self.address))

    def with_workers(self, count: int) -> DaskCluster:
        """Start workers until ``count`` of them live, and wait until the scheduler knows them."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        expected = self._registered + max(0, count - len(self.workers))
        while len(self.workers) < count:
            self._start_worker(())
        self._wait_for(lambda: self._registered >= expected)
        return self

    def start_worker(self, *, before: tuple[str, ...]) -> None:
        """Start one worker more, with ``before`` in front of its command."""
        expected = self._registered + 1
        self._start_worker(before)
        self._wait_for(lambda: self._registered >= expected)

    def _start_worker(self, before: tuple[str, ...]) -> None:
        options = ("--nthreads", "1", "--no-nanny", "--local-directory", str(self._folder))
        self.workers.append(self._started("worker", self.address, *options, output=subprocess.DEVNULL, before=before))

    def end_worker(self) -> None:
        """End the worker that was started last."""
        worker = self.workers.pop()
        worker.kill()
        worker.wait()

    def close(self) -> None:
        """End everything."""
        processes = (*self.workers, self.scheduler)
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        self._reader.join()
        assert self.scheduler.stdout is not None
        self.scheduler.stdout.close()

    def _started(self, kind: str, *arguments: str, output: int, before: tuple[str, ...] = ()) -> subprocess.Popen:
        command = [*before, sys.executable, "-m", f"distributed.cli.dask_{kind}", "--no-dashboard", *arguments]
        return subprocess.Popen(
            command, cwd=self._folder, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT, text=True
        )

    def _read(self) -> None:
        """Read what the scheduler says until it ends; a pipe that nobody reads would stop it."""
        assert self.scheduler.stdout is not None
        for line in self.scheduler.stdout:
            with self._changed:
                found = re.search(r"Scheduler at:\s+(\S+)", line)
                self.address = found.group(1) if found else self.address
                self._registered += "Register worker" in line
                self._changed.notify_all()

    def _wait_for(self, condition) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout=60)
