"""How is a chain written down? A YAML list, or a mapping, of transform names with their parameters, in the order they run.

    - Canonical
    - ResampleToResolution: {spacing: [1, 1, 1]}
    - Clip: {min_value: -200, max_value: 400}
    - Standardize

A file is data from anywhere: it is read with YAML's safe types only, without anchors and aliases, and up to a size.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlarray import transforms
from mlarray.errors import UsageError
from mlarray.transforms.base import Transform

CONFIG_LIMIT_BYTES = 1 << 20
"""Largest file that is read."""


def known_transforms() -> dict[str, type[Transform]]:
    """Return every transform of :mod:`mlarray.transforms` by its name."""
    found = {name: getattr(transforms, name) for name in transforms.__all__}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, type) and issubclass(value, Transform) and value is not Transform
    }


def load_chain(path: str | Path) -> list[Transform]:
    """Return the transforms that a YAML file lists.

    Raises
    ------
    UsageError
        The file is missing, too large or no YAML, or names what does not exist; the message says where.
    """
    return chain_of(load_yaml(path), where=str(path))


def chain_of(value: object, *, where: str = "The chain") -> list[Transform]:
    """Return the transforms that plain values list.

    Parameters
    ----------
    value : list or mapping
        Of names, or of mappings of one name to its parameters; a mapping of names to parameters.
    where : str
        What to call it in messages.

    Raises
    ------
    UsageError
        An entry of another form, an unknown name or parameter, or a value that the transform refuses.

    Examples
    --------
    >>> chain_of([])
    []
    """
    if isinstance(value, Mapping):
        entries: list[tuple[object, object]] = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        entries = [entry for index, one in enumerate(value) for entry in _entries(one, f"{where}, entry {index + 1}")]
    elif value is None:
        entries = []
    else:
        raise UsageError(f"{where} is {value!r}, not a list of transforms.", hint=_FORM)
    known = known_transforms()
    return [_made(name, parameters, known, f"{where}, entry {i + 1}") for i, (name, parameters) in enumerate(entries)]


def load_yaml(path: str | Path) -> Any:
    """Return the plain values of a YAML file; mappings keep their order, and a key that stands twice is an error."""
    place = Path(path)
    if not place.is_file():
        raise UsageError(f"There is no file {place}.")
    with place.open("rb") as file:
        text = file.read(CONFIG_LIMIT_BYTES + 1)
    if len(text) > CONFIG_LIMIT_BYTES:
        raise UsageError(f"{place} is larger than {CONFIG_LIMIT_BYTES} bytes, which no chain is.")
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.composer.ComposerError(None, None, "aliases are not read", None)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  as YAML calls it
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            doubled = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
            if doubled is not None:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{doubled!r} stands twice; write a list instead", node.start_mark
                )
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(text, Loader)  # a subclass of SafeLoader
    except yaml.YAMLError as error:
        raise UsageError(f"{place} cannot be read as YAML: {' '.join(str(error).split())}.") from error
    except (UnicodeDecodeError, RecursionError, ValueError, TypeError) as error:
        raise UsageError(f"{place} cannot be read as YAML: {type(error).__name__}.") from error


_FORM = "Write `- Clip: {min_value: -200}` for each, in the order they run."


def _entries(entry: object, where: str) -> list[tuple[object, object]]:
    if isinstance(entry, str):
        return [(entry, None)]
    if isinstance(entry, Mapping) and len(entry) == 1:
        return list(entry.items())
    raise UsageError(f"{where} is {entry!r}, not a name or a name with its parameters.", hint=_FORM)


def _made(name: object, parameters: object, known: Mapping[str, type[Transform]], where: str) -> Transform:
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(sorted(known))}."
        raise UsageError(f"{where}: there is no transform {name!r}.", hint=hint)
    kind = known[str(name)]
    given: Any = {} if parameters is None else parameters
    if not isinstance(given, Mapping):
        raise UsageError(f"{where} ({name}): its parameters are {given!r}, not a mapping.", hint=_FORM)
    takes = list(inspect.signature(kind).parameters)
    unknown = next((key for key in given if key not in takes), None)
    if unknown is not None:
        near = difflib.get_close_matches(str(unknown), takes, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"It takes {', '.join(takes) or 'none'}."
        raise UsageError(f"{where} ({name}): there is no parameter {unknown!r}.", hint=hint)
    try:
        return kind(**given)
    except UsageError as error:
        error.message = f"{where} ({name}): {error.message}"
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where} ({name}): {error}.") from error
