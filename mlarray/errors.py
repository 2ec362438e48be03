"""What can go wrong, as one small tree.

Every error a caller can cause is an :class:`MLArrayError` and also a builtin exception, so that code which knows
nothing of this package can still catch it::

    MLArrayError
    ├── UsageError            (ValueError, RuntimeError)  an argument or a combination of arguments is not allowed
    │   ├── LayoutError                                   chunk, block or patch sizes that cannot be stored
    │   ├── TransformError                                a transform that cannot take its input, or breaks its declaration
    │   └── PlanError                                     a chain that cannot be planned as asked
    ├── DTypeError            (TypeError)                 a dtype or a cast that would lose the meaning of values
    ├── MetadataError         (ValueError)                metadata that breaks the schema; lists every problem
    ├── FormatError           (ValueError)                a file whose content is damaged, contradictory or unsupported
    │   ├── UnknownFormatError                            no format recognises the file
    │   ├── UnfinishedError                               its writer did not finish it
    │   └── IntegrityError                                stored checksums do not match the stored bytes
    ├── MissingFileError      (FileNotFoundError, RuntimeError)  there is no such file
    ├── MissingDependencyError (ImportError)              the format is known, its package is not installed
    ├── MemoryLimitError      (MemoryError)               the work cannot be done within the memory limit
    └── WorkerError           (RuntimeError)              a worker process ended, or failed in a way that cannot be passed on

A message says what was given and what is allowed; ``hint`` says what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable


class MLArrayError(Exception):
    """Root of every error raised on purpose by this package.

    Parameters
    ----------
    message : str
        What was given and what is allowed.
    hint : str, optional
        The next action, as a short sentence.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders in the converter; the default pickling would lose the hint.
        return (_rebuild, (type(self), self.__dict__.copy(), self.args))


def _rebuild(kind: type[MLArrayError], state: dict[str, object], args: tuple[object, ...]) -> MLArrayError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(MLArrayError, ValueError, RuntimeError):
    """An argument, or a combination of arguments, is not allowed."""


class LayoutError(UsageError):
    """Chunk, block or patch sizes that cannot be stored."""


class TransformError(UsageError):
    """A transform that cannot take its input, or breaks what it declared; names the stage."""


class PlanError(UsageError):
    """A chain that cannot be planned as asked."""


class DTypeError(MLArrayError, TypeError):
    """A dtype, or a cast, that would lose the meaning of values."""


class MetadataError(MLArrayError, ValueError):
    """Metadata that breaks the schema.

    Parameters
    ----------
    problems : iterable of str
        Every problem found, one sentence each; all of them are part of the message.
    hint : str, optional
        The next action.
    """

    def __init__(self, problems: Iterable[str], *, hint: str | None = None) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems), hint=hint)


class FormatError(MLArrayError, ValueError):
    """A file whose content is damaged, contradictory or unsupported."""


class UnknownFormatError(FormatError):
    """No format recognises the file."""


class UnfinishedError(FormatError):
    """The writer of the file did not finish it."""


class IntegrityError(FormatError):
    """Stored checksums do not match the stored bytes."""


class MissingFileError(MLArrayError, FileNotFoundError, RuntimeError):
    """There is no such file. Also a RuntimeError, which 0.0.x raised."""


class MissingDependencyError(MLArrayError, ImportError):
    """The format is known, but the package that reads it is not installed."""


class MemoryLimitError(MLArrayError, MemoryError):
    """The work cannot be done within the memory limit; the message prints both figures.

    Parameters
    ----------
    message, hint
        See :class:`MLArrayError`.
    needed_bytes : int
        What the smallest piece of the work takes.
    """

    def __init__(self, message: str, *, hint: str | None = None, needed_bytes: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.needed_bytes = needed_bytes


class WorkerError(MLArrayError, RuntimeError):
    """A worker process ended, or failed in a way that cannot be passed on; the message names it."""


class MetadataWarning(UserWarning):
    """Stored metadata could not be read, or was refused because reading it could do harm; the voxels are not affected."""


class FormatWarning(UserWarning):
    """A format that another package adds cannot be used, or claims a name or a suffix that is taken."""
