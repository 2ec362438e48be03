"""How is a caller told of something that is no error? By a warning that points at their own line."""

from __future__ import annotations

import sys
import warnings

_PASSED = ("mlarray", "mlarray_convert", "concurrent", "contextlib", "functools", "threading")


def notice(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the nearest line of the stack that is not of this package, however deep in it the reason was found."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
