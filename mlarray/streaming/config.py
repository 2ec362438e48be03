"""How is a chain written down? A YAML list, or a mapping, of transform names with their parameters, in the order they run.

    - Canonical
    - ResampleToResolution: {spacing: [1, 1, 1]}
    - Clip: {min_value: -200, max_value: 400}
    - Standardize

Or both sections of a *recipe*, the chain and the lists of augmentations that make copies of each case:

    transforms: [Canonical, Standardize]
    augmentations:
      shape: {nb: 4, augmentations: [Flip, Rotate: {a_max: 15, prob: 0.5}]}

A file is data from anywhere: it is read with YAML's safe types only, without anchors and aliases, and up to a size.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mlarray import transforms
from mlarray.errors import UsageError
from mlarray.limits import YAML_BYTES
from mlarray.streaming.arguments import path_of
from mlarray.transforms import augmentations
from mlarray.transforms.augmentations import Augmentation, AugmentationList
from mlarray.transforms.base import Transform

_LONGEST_NUMBER = 1000  # characters
_SECTIONS = ("transforms", "augmentations")
_LIST_KEYS = ("nb", "augmentations")
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a file says is done to each case.

    Parameters
    ----------
    transforms : tuple of Transform
        The chain.
    augmentations : mapping of str to AugmentationList
        Lists that make copies, by name, in order.
    """

    transforms: tuple[Transform, ...] = ()
    augmentations: Mapping[str, AugmentationList] = field(default_factory=dict)

    @property
    def copies(self) -> int:
        """How many copies of a case there are besides itself."""
        return sum(one.nb for one in self.augmentations.values())


def known_transforms() -> dict[str, type[Transform]]:
    """Return every transform of :mod:`mlarray.transforms` by its name."""
    return _known(transforms, Transform)


def known_augmentations() -> dict[str, type[Augmentation]]:
    """Return every augmentation of :mod:`mlarray.transforms.augmentations` by its name."""
    return _known(augmentations, Augmentation)


def load_chain(path: str | Path) -> list[Transform]:
    """Return the transforms that a YAML file lists.

    Raises
    ------
    UsageError
        The file is missing, too large or no YAML, or names what does not exist; the message says where. Also where it has
        augmentations, which :func:`load_recipe` reads.
    """
    recipe = load_recipe(path)
    if recipe.augmentations:
        raise UsageError(f"{path} has augmentations besides a chain.", hint="load_recipe reads both.")
    return list(recipe.transforms)


def load_recipe(path: str | Path) -> Recipe:
    """Return the transforms and the lists of augmentations of a YAML file.

    Raises
    ------
    UsageError
        As for :func:`load_chain`.
    """
    return recipe_of(load_yaml(path), where=str(path))


def recipe_of(value: object, *, where: str = "The recipe") -> Recipe:
    """Return the recipe of plain values: a chain as for :func:`chain_of`, or a mapping of ``transforms`` and ``augmentations``.

    Raises
    ------
    UsageError
        As for :func:`chain_of` and :func:`augmentations_of`.
    """
    if not isinstance(value, Mapping) or not any(key in value for key in _SECTIONS):
        return Recipe(tuple(chain_of(value, where=where)))
    other = next((key for key in value if key not in _SECTIONS), None)
    if other is not None:
        raise UsageError(
            f"{where}: there is no section {other!r} beside {' and '.join(_SECTIONS)}.",
            hint="Write the chain below `transforms:`.",
        )
    chain = chain_of(value.get("transforms"), where=f"{where}, transforms")
    lists = augmentations_of(value.get("augmentations"), where=f"{where}, augmentations")
    return Recipe(tuple(chain), lists)


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
    return _listed(value, known_transforms(), "transform", where)


def augmentations_of(value: object, *, where: str = "The augmentations") -> dict[str, AugmentationList]:
    """Return the lists of augmentations that plain values describe.

    Parameters
    ----------
    value : mapping of str to mapping
        Per list its ``augmentations``, as the transforms of :func:`chain_of`, and ``nb``, how many copies it makes (default 10).
        Each augmentation takes ``prob`` beside its parameters.
    where : str
        What to call it in messages.

    Raises
    ------
    UsageError
        As for :func:`chain_of`.

    Examples
    --------
    >>> augmentations_of({"mirrored": {"nb": 2, "augmentations": ["Flip"]}})["mirrored"].nb
    2
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: {short(value)} is no mapping of lists.", hint=_LIST_FORM)
    known, found = known_augmentations(), {}
    for name, given in value.items():
        here = f"{where}, list {name!r}"
        if not isinstance(given, Mapping) or "augmentations" not in given:
            raise UsageError(f"{here} is {short(given)}, not a mapping with augmentations.", hint=_LIST_FORM)
        other = next((key for key in given if key not in _LIST_KEYS), None)
        if other is not None:
            raise UsageError(f"{here}: there is no key {other!r}; it has {' and '.join(_LIST_KEYS)}.", hint=_LIST_FORM)
        entries = _listed(given["augmentations"], known, "augmentation", here)
        try:
            found[str(name)] = AugmentationList(entries, given.get("nb", 10))
        except UsageError as error:
            error.message = f"{here}: {error.message}"
            raise
    return found


def load_yaml(path: str | Path, *, hint: str | None = None) -> Any:
    """Return the plain values of a YAML file; mappings keep their order, and a key that stands twice is an error.

    Parameters
    ----------
    path : str or Path
        The file.
    hint : str, optional
        How such a file is written, for the error of one that is no YAML. Default: how a chain is.
    """
    place = path_of("The YAML file", path)
    if not place.is_file():
        raise UsageError(f"There is no file {place}.")
    with place.open("rb") as file:
        text = file.read(YAML_BYTES + 1)
    if len(text) > YAML_BYTES:
        raise UsageError(f"{place} is larger than {YAML_BYTES} bytes, which no configuration is.", hint=YAML_BYTES.hint)
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                alias: Any = self.peek_event()  # type: ignore[no-untyped-call]
                raise yaml.composer.ComposerError(None, None, "aliases are not read", alias.start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  as YAML calls it
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            seen: set[Any] = set()
            doubled = None
            for position, key in enumerate(keys):
                if not isinstance(key, Hashable):
                    break  # which is told below
                if key in seen:
                    doubled = position
                    break
                seen.add(key)
            if doubled is not None:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"{keys[doubled]!r} stands twice; write a list instead",
                    node.value[doubled][0].start_mark,
                )
            return super().construct_mapping(node, deep=deep)

        def construct_yaml_int(self, node: Any) -> Any:
            if len(node.value) > _LONGEST_NUMBER:
                raise yaml.constructor.ConstructorError(None, None, "a number is too long", node.start_mark)
            return super().construct_yaml_int(node)

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    try:
        return yaml.load(text, Loader)  # a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise UsageError(
            f"{place}{line}: this is no YAML: {error.problem or error.context}.", hint=hint or _FORM
        ) from error
    except yaml.YAMLError as error:
        raise UsageError(f"{place} cannot be read as YAML: {' '.join(str(error).split())}.") from error
    except (UnicodeDecodeError, RecursionError, ValueError, TypeError) as error:
        raise UsageError(f"{place} cannot be read as YAML: {type(error).__name__}.") from error


_FORM = "Write `- Clip: {min_value: -200}` for each, in the order they run."
_LIST_FORM = "Write `NAME: {nb: 10, augmentations: [Flip, Rotate: {prob: 0.5}]}` for each list."


def _known(module: Any, base: type[_Made]) -> dict[str, type[_Made]]:
    found = {name: getattr(module, name) for name in module.__all__}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    }


def _listed(value: object, known: Mapping[str, type[_Made]], what: str, where: str) -> list[_Made]:
    """Return what a list, or a mapping, of names with parameters describes."""
    if isinstance(value, Mapping):
        entries: list[tuple[object, object]] = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        entries = [entry for index, one in enumerate(value) for entry in _entries(one, f"{where}, entry {index + 1}")]
    elif value is None:
        entries = []
    else:
        raise UsageError(f"{where}: {short(value)} is no list of {what}s.", hint=_FORM)
    return [made(name, given, known, what, f"{where}, entry {i + 1}") for i, (name, given) in enumerate(entries)]


def _entries(entry: object, where: str) -> list[tuple[object, object]]:
    if isinstance(entry, str):
        return [(entry, None)]
    if isinstance(entry, Mapping) and len(entry) == 1:
        return list(entry.items())
    hint = _FORM
    if isinstance(entry, Mapping) and entry:
        hint = f"Parameters of {next(iter(entry))} stand further to the right than its name, or in braces behind it."
    raise UsageError(f"{where} is {short(entry)}, not a name or a name with its parameters.", hint=hint)


def made(name: object, parameters: object, known: Mapping[str, type[_Made]], what: str, where: str) -> _Made:
    """Return the one of the known classes that has a name, made with the parameters of a file."""
    if name not in known:
        raise UsageError(f"{where}: there is no {what} {short(name)}.", hint=nearest(name, known, "Known are"))
    kind = known[str(name)]
    given: Any = {} if parameters is None else parameters
    if not isinstance(given, Mapping):
        raise UsageError(f"{where} ({name}): its parameters are {short(given)}, not a mapping.", hint=_FORM)
    takes = list(inspect.signature(kind).parameters)
    unknown = next((key for key in given if key not in takes), None)
    if unknown is not None:
        hint = nearest(unknown, takes, "It takes")
        raise UsageError(f"{where} ({name}): there is no parameter {short(unknown)}.", hint=hint)
    needed = [one.name for one in inspect.signature(kind).parameters.values() if one.default is one.empty]
    missing = [key for key in needed if key not in given]
    if missing:
        raise UsageError(f"{where} ({name}): it needs {' and '.join(missing)}.", hint=f"It takes {', '.join(takes)}.")
    try:
        return kind(**given)
    except UsageError as error:
        error.message = f"{where} ({name}): {error.message}"
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where} ({name}): {error}.", hint=f"It takes {', '.join(takes) or 'none'}.") from error


def nearest(name: object, known: Sequence[str] | Mapping[str, object], otherwise: str) -> str:
    """Return which names were probably meant: those that it begins, and the most similar ones."""
    given = str(name).lower()
    alike = {one: difflib.SequenceMatcher(None, given, one.lower()).ratio() for one in known}
    best = max(alike.values(), default=0.0)
    near = [one for one in known if given and one.lower().startswith(given)]
    near = near or [one for one in known if alike[one] >= max(0.6, 0.9 * best)]
    near = sorted(near, key=lambda one: -alike[one])[:3]
    return f"Did you mean {' or '.join(near)}?" if near else f"{otherwise} {', '.join(sorted(known)) or 'none'}."


def short(value: object) -> str:
    """Return a value as it is shown in a message: its beginning, where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
