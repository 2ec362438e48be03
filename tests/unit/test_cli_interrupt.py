"""An interrupt that arrives while Python frees an object is not lost."""

import subprocess
import sys

import pytest

CODE = """
import os, signal, sys
import mlarray_convert.cli as cli

class Freed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(1000))

def work(arguments):
    Freed()
    try:
        signal.pause()
    except KeyboardInterrupt:
        return 130
    return 0

cli.run = work
cli.main([])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")
def test_an_interrupt_during_the_freeing_of_an_object_still_ends_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")
