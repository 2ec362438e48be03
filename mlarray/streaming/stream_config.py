"""How is a patch stream written down? As YAML, with the keys of KonfAI's data sets.

    Dataset:
      dataset_filenames: Dataset/
      groups_src:
        CT:
          groups_dest:
            CT: {transforms: [Canonical, Standardize], patch_transforms: []}
      augmentations:
        shape: {nb: 4, augmentations: [Flip]}
      Patch: {patch_size: [64, 64, 64], overlap: null}
      memory_budget: auto
      batch_size: 2

What stands under ``Dataset`` may stand at the top as well, and ``Dataset`` may then be the path. A group that is not renamed
needs no ``groups_dest``: ``groups: {CT: {transforms: [...]}}``, or ``groups: {CT: [Canonical]}``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlarray.errors import UsageError
from mlarray.streaming.case_plans import GroupChain
from mlarray.streaming.config import augmentations_of, chain_of, load_yaml
from mlarray.streaming.samplers import ForegroundPatches, GridPatches, RandomPatches, Sampler

_PATCH_KEYS = ("patch_size", "overlap", "extend_slice")
_GROUP_KEYS = ("transforms", "patch_transforms")
_PLAIN_KEYS = (
    "subset", "validation", "part", "memory_budget", "shuffle", "shuffle_window", "lanes", "batch_size", "workers", "seed",
    "mode", "inline_augmentations", "squeeze", "strict", "cost_limit",
)  # fmt: skip
_KEYS = (
    "dataset_filenames", "Dataset", "groups_src", "groups", "augmentations", "Patch", "sampler", *_PLAIN_KEYS,
)  # fmt: skip
_SAMPLERS: dict[str, type[Any]] = {kind.__name__: kind for kind in (GridPatches, RandomPatches, ForegroundPatches)}
_GROUP_FORM = (
    "Write `groups_src: {CT: {groups_dest: {CT: {transforms: [Canonical]}}}}`, or `groups: {CT: [Canonical]}`."
)


def load_stream(path: str | Path) -> dict[str, Any]:
    """Return the arguments of a :class:`mlarray.streaming.PatchStream` that a YAML file describes.

    Relative paths of data sets are taken from the folder of the file.

    Parameters
    ----------
    path : str or Path
        The file.

    Raises
    ------
    UsageError
        The file is missing, too large or no YAML, or names what does not exist; the message says where.
    """
    return stream_of(load_yaml(path), where=str(path), folder=Path(path).parent)


def stream_of(value: object, *, where: str = "The stream", folder: Path = Path()) -> dict[str, Any]:
    """Return the arguments of a stream from plain values.

    Parameters
    ----------
    value : mapping
        As in the module's description.
    where : str
        What to call it in messages.
    folder : Path
        From which relative paths are taken.

    Raises
    ------
    UsageError
        An unknown key, with the nearest known one, or a value of another kind.
    """
    given = dict(_mapping(value, where))
    inner = given.pop("Dataset", None)
    if isinstance(inner, Mapping):
        doubled = next((key for key in inner if key in given), None)
        if doubled is not None:
            raise UsageError(f"{where}: {doubled!r} stands twice, under Dataset and beside it.")
        given.update(inner)
    elif inner is not None:
        given["dataset_filenames"] = inner
    _known(given, _KEYS, where)
    if "dataset_filenames" not in given:
        raise UsageError(
            f"{where} names no data set.", hint="Write `Dataset: path`, or `dataset_filenames: path` under Dataset."
        )
    patch = _mapping(given.get("Patch"), f"{where}, Patch")
    _known(patch, _PATCH_KEYS, f"{where}, Patch")
    if "patch_size" not in patch:
        raise UsageError(f"{where}, Patch: patch_size is missing.", hint="Write `Patch: {patch_size: [64, 64, 64]}`.")
    arguments: dict[str, Any] = {key: given[key] for key in _PLAIN_KEYS if key in given}
    arguments["dataset"] = _datasets(given["dataset_filenames"], where, folder)
    arguments["groups"] = _groups(given, where, int(patch.get("extend_slice") or 0))
    arguments["patch_size"] = patch["patch_size"]
    arguments["overlap"] = patch.get("overlap")
    arguments["augmentations"] = augmentations_of(given.get("augmentations"), where=f"{where}, augmentations")
    if given.get("sampler") is not None:
        arguments["sampler"] = _sampler(given["sampler"], f"{where}, sampler")
    return arguments


def _groups(given: Mapping[str, Any], where: str, extend_slice: int) -> dict[str, GroupChain]:
    if ("groups" in given) == ("groups_src" in given):
        raise UsageError(f"{where} needs the groups, once: groups_src or groups.", hint=_GROUP_FORM)
    found: dict[str, GroupChain] = {}
    if "groups" in given:
        for name, chain in _mapping(given["groups"], f"{where}, groups").items():
            found[str(name)] = _chain(chain, f"{where}, groups.{name}", None, extend_slice)
        return found
    for source, inner in _mapping(given["groups_src"], f"{where}, groups_src").items():
        here = f"{where}, groups_src.{source}"
        entries = _mapping(inner, here)
        _known(entries, ("groups_dest",), here)
        for name, chain in _mapping(entries.get("groups_dest"), f"{here}.groups_dest").items():
            if name in found:
                raise UsageError(f"{here}.groups_dest: there are two groups {name!r}.", hint="Give one another name.")
            found[str(name)] = _chain(chain, f"{here}.groups_dest.{name}", str(source), extend_slice)
    return found


def _chain(value: object, where: str, source: str | None, extend_slice: int) -> GroupChain:
    if not isinstance(value, Mapping) or not set(value) <= set(_GROUP_KEYS):
        if isinstance(value, Mapping) and set(value) & set(_GROUP_KEYS):
            _known(value, _GROUP_KEYS, where)
        return GroupChain(chain_of(value, where=where), (), source, extend_slice)
    chain = chain_of(value.get("transforms"), where=f"{where}.transforms")
    patches = chain_of(value.get("patch_transforms"), where=f"{where}.patch_transforms")
    return GroupChain(chain, patches, source, extend_slice)


def _sampler(value: object, where: str) -> Sampler:
    """Return a sampler from its name, or from a mapping of its name to its parameters."""
    if isinstance(value, str):
        value = {value: {}}
    entries = _mapping(value, where)
    if len(entries) != 1 or next(iter(entries)) not in _SAMPLERS:
        raise UsageError(f"{where} is one of {', '.join(_SAMPLERS)} with its parameters, got {value!r}.")
    name, parameters = next(iter(entries.items()))
    try:
        made: Sampler = _SAMPLERS[name](**_mapping(parameters, f"{where}, {name}"))
    except TypeError as error:
        raise UsageError(f"{where}, {name}: {error}.") from error
    return made


def _datasets(value: object, where: str, folder: Path) -> list[str]:
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list) or not entries or not all(isinstance(one, str) for one in entries):
        raise UsageError(f"{where}: the data set is a path or a list of paths, got {value!r}.")
    return [one if "://" in one or Path(one).is_absolute() else str(folder / one) for one in entries]


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} is a mapping, got {value!r}.")
    return value


def _known(given: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    unknown = next((key for key in given if key not in keys), None)
    if unknown is not None:
        near = difflib.get_close_matches(str(unknown), keys, n=1)
        raise UsageError(
            f"{where}: there is no key {unknown!r}.",
            hint=f"Did you mean {near[0]}?" if near else f"Known are {', '.join(keys)}.",
        )
