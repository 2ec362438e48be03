"""What of blosc2 does not survive a fork?

blosc2 keeps one pool of threads per number of threads. A forked child has the parent's pools without their threads, and the
first use waits for ever (seen with blosc2 4.14.1). A forked process therefore uses one thread, which needs no pool.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

_STARTED_IN = os.getpid()


def is_forked() -> bool:
    """Tell whether this process was forked after the package was imported."""
    return os.getpid() != _STARTED_IN


def with_safe_threads(params: Any) -> Any:
    """Return compression or decompression parameters that ask for one thread in a forked process."""
    plain = dict(params) if isinstance(params, Mapping) else params
    if not is_forked():
        return plain
    return {**plain, "nthreads": 1} if isinstance(plain, dict) else replace(plain, nthreads=1)
