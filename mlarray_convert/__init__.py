"""The converter behind the ``mla`` command, for use from Python: :func:`convert` and its :class:`Report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlarray_convert.batch import convert
    from mlarray_convert.report import ExitCode, Report

__all__ = ["ExitCode", "Report", "convert"]
_HOMES = {"convert": "batch", "ExitCode": "report", "Report": "report"}


def __getattr__(name: str) -> Any:
    # Loaded when asked for: the command line imports this package for its help, where numpy would be waste.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
