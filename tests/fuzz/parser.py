"""What is fuzzed? A parser: what it does with an input, what valid inputs are, how they are changed, and what may come of it."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from mlarray.errors import FormatWarning, MetadataWarning, MLArrayError
from tests.fuzz.inputs import Files, remove, write
from tests.fuzz.mutations import BYTES, Mutation, mutated

LONGEST_MESSAGE = 20_000


@dataclass(frozen=True, slots=True)
class Parser:
    """One parser and its inputs.

    Parameters
    ----------
    name : str
        What the command and the folder of its corpus are called.
    run : callable
        Takes the folder that the files of an input were written to, and the files. Returns what tells one kind of result
        from another; inputs of a new kind are changed further.
    seeds : callable
        Returns valid inputs, made in an empty folder. Called in a process of its own.
    mutations : mapping
        By the end of a file's name, the mutations that know what is in such a file; those of bytes are added.
    ci_count : int
        Executions in the test: some three seconds.
    on_disk : bool
        Whether ``run`` needs the files.
    """

    name: str
    run: Callable[[Path, Files], Hashable]
    seeds: Callable[[Path], Sequence[Files]]
    mutations: Mapping[str, Sequence[Mutation]] = field(default_factory=dict)
    ci_count: int = 1000
    on_disk: bool = True

    def mutate(self, random: Random, files: Files) -> Files:
        """Return an input in which one file, rarely two, is changed; now and then one is missing."""
        changed = dict(files)
        if len(files) > 1 and random.random() < 0.02:
            del changed[random.choice(list(files))]
            return changed
        for _ in range(1 if len(files) == 1 or random.random() < 0.8 else 2):
            name = random.choice(list(files))
            known = next((known for end, known in self.mutations.items() if name.endswith(end)), ())
            pool = known if known and random.random() < 0.75 else BYTES
            changed[name] = mutated(random, changed[name], pool)
        return changed


@dataclass(frozen=True, slots=True)
class Finding:
    """What must not come of an input.

    Parameters
    ----------
    kind : str
        The error's class, ``warning``, ``output``, ``signal``, ``hang``, ``descriptors`` or ``growth``.
    place : str
        Where it came from: findings of one kind and place are one.
    detail : str
        The message, or the traceback.
    """

    kind: str
    place: str
    detail: str


def outcome(parser: Parser, folder: Path, files: Files) -> Finding | Hashable:
    """Run a parser on an input and return what was wrong with that, or which kind of result it had."""
    told: list[str] = []

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
        if not issubclass(category, (MetadataWarning, FormatWarning)):
            frames = [
                f"{one.filename}:{one.lineno}"
                for one in traceback.extract_stack(limit=25)
                if "/mlarray/" in one.filename
            ]
            told.append(f"{category.__name__} from {filename}:{lineno} < {' < '.join(frames[:-4:-1])}: {message}")

    if parser.on_disk:
        write(folder, files)
    before = warnings.showwarning
    warnings.showwarning = show  # type: ignore[assignment]
    try:
        result = parser.run(folder, files)
    except MLArrayError as error:
        result = (type(error).__name__, _place(error))
        if len(text := str(error)) > LONGEST_MESSAGE:
            return Finding("message", _place(error), f"{len(text)} characters: {text[:200]}")
    except OSError as error:
        if error.errno is None and not isinstance(error, FileNotFoundError):
            return _unexpected(error)
        result = (type(error).__name__, error.errno)
    except Exception as error:
        return _unexpected(error)
    finally:
        warnings.showwarning = before
        if parser.on_disk:
            remove(folder, files)
    if told:
        return Finding("warning", told[0].split(": ")[0], told[0])
    return result


def _place(error: BaseException) -> str:
    """Return the innermost line of the package, and the innermost line of all where that is another."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    ours = [one for one in frames if "/mlarray" in one[0] and "site-packages" not in one[0]]
    chosen = [*ours[-1:], *(frames[-1:] if ours and frames[-1] != ours[-1] else [])]
    return " < ".join(f"{'/'.join(name.split('/')[-2:])}:{line}" for name, line in reversed(chosen))


def _unexpected(error: Exception) -> Finding:
    frames = [
        f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return Finding(
        type(error).__name__, _place(error), "\n".join([*frames[-8:], f"{type(error).__name__}: {str(error)[:1000]}"])
    )
