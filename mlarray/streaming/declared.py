"""Does a transform keep the three rules of a declaration: read-only, no I/O, total?

Whatever a transform says about itself is asked for here, so that a broken rule is one clear error that names the stage. Of
classes of others it is watched, by Python's audit events, that they open no file and no connection; an import is no I/O.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from functools import cache
from types import FrameType
from typing import Any

from mlarray.errors import TransformError
from mlarray.transforms.base import Transform
from mlarray.transforms.locality import Locality
from mlarray.transforms.volume import Volume

_OURS = "mlarray."
_INPUT_OUTPUT = frozenset(
    {
        *(
            "open",
            "os.listdir",
            "os.scandir",
            "os.mkdir",
            "os.rename",
            "os.remove",
            "os.rmdir",
            "os.truncate",
            "mmap.__new__",
        ),
        *("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "urllib.Request", "sqlite3.connect"),
    }
)
_PASSED = ("<frozen importlib", "linecache.py")
_watch = threading.local()


def asked(transform: Transform, declaration: str, volume: Volume, where: str) -> Any:
    """Return what a transform declares about a volume.

    Parameters
    ----------
    transform : Transform
        Asked.
    declaration : str
        Name of the method: ``"locality"``, ``"outcome"``, ``"statistics"`` ...
    volume : Volume
        Its input.
    where : str
        Name of the stage, for messages.

    Raises
    ------
    TransformError
        It breaks a rule, or says that it cannot take such an input.
    """
    own = dict(getattr(transform, "__dict__", {}))
    try:
        with _without_input_output(transform) as seen:
            answer = getattr(transform, declaration)(volume)
    except TransformError as error:
        if not error.message.startswith("Stage "):
            error.message = f"{where}: {error.message}"
        raise
    except Exception as error:
        if seen_by(error):
            raise _input_output(where, declaration, seen_by(error)) from None
        raise _broken(where, declaration, error) from error
    if seen:
        raise _input_output(where, declaration, seen)
    changed = [name for name, value in own.items() if getattr(transform, name, None) is not value]
    if changed:
        raise TransformError(
            f"{where}: {declaration}() changed {', '.join(changed)} of the transform.",
            hint="A declaration is read-only: it is asked any number of times, in any order and process.",
        )
    return _of_its_kind(answer, declaration, where)


class _Refused(RuntimeError):
    """Raised inside a declaration in place of the I/O."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__(f"A declaration does no I/O: {seen[-1]}")
        self.seen = seen


def seen_by(error: BaseException | None) -> list[str]:
    """Return what I/O an error, or what it arose from, refused."""
    while error is not None:
        if isinstance(error, _Refused):
            return error.seen
        error = error.__cause__ or error.__context__
    return []


def _input_output(where: str, declaration: str, seen: list[str]) -> TransformError:
    return TransformError(
        f"{where}: {declaration}() does I/O: {seen[0]}.",
        hint="A declaration does none; read files when the transform is made, or other volumes as groups in apply().",
    )


def _broken(where: str, declaration: str, error: Exception) -> TransformError:
    told = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(".")
    frozen = isinstance(error, FrozenInstanceError) or "mappingproxy" in told or "read-only" in told
    if frozen:
        return TransformError(
            f"{where}: {declaration}() changes the volume it is given ({told}).",
            hint="A declaration is read-only: return volume.with_(...), volume.push(key, value) or volume.pop(key).",
        )
    unknown = (
        "TransformError" if declaration == "outcome" else "WholeVolume()" if declaration == "locality" else "nothing"
    )
    verb = "raise" if declaration == "outcome" else "answer"
    return TransformError(
        f"{where}: {declaration}() failed with {told}.",
        hint=f"A declaration is total: where something that it needs is not known, {verb} {unknown}.",
    )


def _of_its_kind(answer: Any, declaration: str, where: str) -> Any:
    kinds: Mapping[str, tuple[type | tuple[type, ...], str]] = {
        "locality": (
            Locality,
            "a locality: Pointwise(), Halo(...), WholeVolume() or another of mlarray.transforms.locality",
        ),
        "outcome": (Volume, "a Volume: volume, or volume.with_(...)"),
        "statistics": ((tuple, list), "a tuple of statistics, such as (Moments(),)"),
        "groups": ((tuple, list), "a tuple of names"),
        "references": (Mapping, "a mapping of names to tuples of statistics"),
        "beforehand": (Mapping, "a mapping of attributes to statistics"),
    }
    kind, allowed = kinds[declaration]
    if not isinstance(answer, kind):
        raise TransformError(f"{where}: {declaration}() returned {type(answer).__name__}.", hint=f"Return {allowed}.")
    return answer


@contextmanager
def _without_input_output(transform: Transform) -> Iterator[list[str]]:
    """Refuse I/O in this thread while a class of others is asked; what was tried is listed, also where the error was caught."""
    seen: list[str] = []
    if type(transform).__module__.startswith(_OURS):
        yield seen
        return
    _listen()
    before = getattr(_watch, "seen", None)
    _watch.seen = seen
    try:
        yield seen
    finally:
        _watch.seen = before


@cache
def _listen() -> None:
    """Hear audit events from now on, once per process: Python offers no way to stop."""
    sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    seen = getattr(_watch, "seen", None)
    if seen is None or event not in _INPUT_OUTPUT or _is_passed(sys._getframe(1)):
        return
    seen.append(f"{event}({', '.join(map(repr, arguments[:1]))})")
    raise _Refused(seen)


def _is_passed(frame: FrameType | None) -> bool:
    """Tell whether Python itself reads: a module that is imported, source lines for a warning."""
    while frame is not None:
        if any(part in frame.f_code.co_filename for part in _PASSED):
            return True
        frame = frame.f_back
    return False
