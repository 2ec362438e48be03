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

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from mlarray.errors import UsageError
from mlarray.streaming.case_plans import GroupChain
from mlarray.streaming.config import augmentations_of, chain_of, load_yaml, made, nearest, short
from mlarray.streaming.plan import is_path
from mlarray.streaming.samplers import ForegroundPatches, GridPatches, RandomPatches, Sampler
from mlarray.transforms.augmentations import Augmentation
from mlarray.transforms.base import Transform
from mlarray.transforms.save import Save

_Made = TypeVar("_Made", Transform, Augmentation)
_PATCH_KEYS = ("patch_size", "overlap", "extend_slice")
_GROUP_KEYS = ("transforms", "patch_transforms")
_LEAST = {"batch_size": 1, "lanes": 1, "shuffle_window": 1, "workers": 0, "extend_slice": 0, "seed": None}
"""Whole numbers, and the least that each may be."""
_SWITCHES = ("shuffle", "inline_augmentations", "squeeze", "strict")
_TEXTS = ("mode", "part")
_CHOICES = ("subset", "validation")
_PLAIN_KEYS = (
    *_CHOICES,
    *_TEXTS,
    *_SWITCHES,
    *(key for key in _LEAST if key != "extend_slice"),
    "memory_budget",
    "cost_limit",
)
_KEYS = ("dataset_filenames", "Dataset", "groups_src", "groups", "augmentations", "Patch", "sampler", *_PLAIN_KEYS)
_SAMPLERS: dict[str, type[Any]] = {kind.__name__: kind for kind in (GridPatches, RandomPatches, ForegroundPatches)}
_ELSEWHERE = {
    **dict.fromkeys(_PATCH_KEYS, "It stands under Patch: `Patch: {{{}: ...}}`."),
    **dict.fromkeys(_GROUP_KEYS, "It stands under a group: `groups: {{CT: {{{}: [...]}}}}`."),
    "groups_dest": "It stands under a group: `groups_src: {{CT: {{{}: ...}}}}`.",
    **dict.fromkeys(("rank", "world_size", "keep"), "It is of the run: PatchStream.from_config(path, {}=...)."),
}
"""Where a key belongs that does not belong at the top."""
_YAML_FORM = (
    "Write `key: value` on each line, what belongs to a key further to the right, and close every bracket and quote."
)
_SAMPLER_FORM = "Write `sampler: {RandomPatches: {per_case: 8}}`."
_PATCH_FORM = "Write `Patch: {patch_size: [64, 64, 64]}`; 0 is a free axis, null the whole volume."
_GROUP_FORM = (
    "Write `groups_src: {CT: {groups_dest: {CT: {transforms: [Canonical]}}}}`, or `groups: {CT: [Canonical]}`."
)


def load_stream(path: str | Path) -> dict[str, Any]:
    """Return the arguments of a :class:`mlarray.streaming.PatchStream` that a YAML file describes.

    Relative paths are taken from the folder of the file: those of data sets and of ``Save``; those of masks, references and lists
    of cases where such a file is there, else from where the program runs.

    Parameters
    ----------
    path : str or Path
        The file.

    Raises
    ------
    UsageError
        The file is missing, too large or no YAML, or names what does not exist; the message says where.
    """
    return stream_of(load_yaml(path, hint=_YAML_FORM), where=str(path), folder=Path(path).parent)


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
    misplaced = next((key for key in given if key in _ELSEWHERE), None)
    if misplaced is not None:
        raise UsageError(f"{where}: {misplaced!r} does not stand here.", hint=_ELSEWHERE[misplaced].format(misplaced))
    _known(given, _KEYS, where)
    if "dataset_filenames" not in given:
        raise UsageError(
            f"{where} names no data set.", hint="Write `Dataset: path`, or `dataset_filenames: path` under Dataset."
        )
    patch = _mapping(given.get("Patch"), f"{where}, Patch")
    _known(patch, _PATCH_KEYS, f"{where}, Patch")
    if "patch_size" not in patch:
        raise UsageError(f"{where}, Patch: patch_size is missing.", hint=_PATCH_FORM)
    arguments: dict[str, Any] = {key: given[key] for key in _PLAIN_KEYS if given.get(key) is not None}
    for key, one in arguments.items():
        _check(key, one, where)
    _check_patch(patch, f"{where}, Patch")
    arguments["dataset"] = _datasets(given["dataset_filenames"], where, folder)
    for key in (one for one in _CHOICES if one in arguments):
        arguments[key] = _placed_choice(arguments[key], folder)
    groups = _groups(given, where, patch.get("extend_slice") or 0)
    arguments["groups"] = {name: _placed_chain(chain, folder) for name, chain in groups.items()}
    arguments["patch_size"] = patch["patch_size"]
    arguments["overlap"] = patch.get("overlap")
    lists = augmentations_of(given.get("augmentations"), where=f"{where}, augmentations")
    arguments["augmentations"] = {
        name: replace(one, augmentations=[_placed(entry, folder) for entry in one.augmentations])
        for name, one in lists.items()
    }
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
    entries = {value: None} if isinstance(value, str) else value
    if not isinstance(entries, Mapping) or len(entries) != 1:
        raise UsageError(
            f"{where} is a name, or a mapping of it to parameters, got {short(value)}.", hint=_SAMPLER_FORM
        )
    ((name, parameters),) = entries.items()
    sampler: Sampler = made(name, parameters, _SAMPLERS, "sampler", where)
    return sampler


def _check(key: str, value: object, where: str) -> None:
    """Raise where a value is of another kind than its key takes."""
    if key in _LEAST:
        least = _LEAST[key]
        fits = _is_whole(value) and (least is None or value >= least)  # type: ignore[operator]
        wanted = "a whole number" if least is None else f"a whole number from {least} on"
    elif key in _SWITCHES:
        fits, wanted = isinstance(value, bool), "true or false"
    elif key in _TEXTS:
        fits, wanted = isinstance(value, str), "a word"
    elif key in _CHOICES:
        entries = value if isinstance(value, list) else [value]
        fits = all(isinstance(one, str) or _is_whole(one) for one in entries)
        fits = fits or (key == "validation" and isinstance(value, float))
        wanted = "names, numbers, 'first:last', '~name' or a file of names" + ", or a share" * (key == "validation")
    elif key == "cost_limit":
        fits, wanted = (_is_whole(value) or isinstance(value, float)) and value > 0, "a number above 0"  # type: ignore[operator]
    else:  # memory_budget has many forms, which its own errors list
        return
    if not fits:
        raise UsageError(f"{where}: {key} is {wanted}, got {short(value)}.")


def _check_patch(patch: Mapping[str, Any], where: str) -> None:
    size = patch["patch_size"]
    sizes = size if isinstance(size, list) else [size]
    if size is not None and not (sizes and all(_is_whole(one) and one >= 0 for one in sizes)):
        raise UsageError(
            f"{where}: patch_size is a whole number from 0 on, or one for each spatial axis, got {short(size)}.",
            hint=_PATCH_FORM,
        )
    overlap = patch.get("overlap")
    overlaps = overlap if isinstance(overlap, list) else [overlap]
    if overlap is not None and not all(
        isinstance(one, (int, float, str)) and not isinstance(one, bool) for one in overlaps
    ):
        raise UsageError(
            f"{where}: overlap is voxels, a share of the patch, or one for each spatial axis, got {short(overlap)}.",
            hint="Write `overlap: 16`, `overlap: 0.25` or `overlap: 25%`; null spreads patches with the least overlap.",
        )
    if patch.get("extend_slice") is not None:
        _check("extend_slice", patch["extend_slice"], where)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _datasets(value: object, where: str, folder: Path) -> list[str]:
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list) or not entries or not all(isinstance(one, str) for one in entries):
        raise UsageError(f"{where}: the data set is a path or a list of paths, got {short(value)}.")
    return [_joined(folder, one) for one in entries]


def _joined(folder: Path, path: str) -> str:
    """Return a path of a file: from its folder, where it is relative."""
    return path if "://" in path or Path(path).is_absolute() or folder == Path() else str(folder / path)


def _placed_chain(chain: GroupChain, folder: Path) -> GroupChain:
    return replace(chain, transforms=[_placed(one, folder) for one in chain.transforms])


def _placed(made: _Made, folder: Path) -> _Made:
    """Return a transform or augmentation whose paths are taken from a folder: that of a Save, and those of files there."""
    changes: dict[str, Any] = {}
    for name in getattr(made, "__dataclass_fields__", ()):
        value = getattr(made, name)
        if not isinstance(value, str):
            continue
        writes = isinstance(made, Save) and name == "dataset"
        if writes or (is_path(value) and (folder / value).exists()):
            changes[name] = _joined(folder, value)
    return replace(made, **changes) if changes else made  # type: ignore[type-var]


def _placed_choice(choice: Any, folder: Path) -> Any:
    """Return which cases are meant, lists of them in files taken from a folder where they are there."""
    if isinstance(choice, list):
        return [_placed_choice(one, folder) for one in choice]
    if not isinstance(choice, str):
        return choice
    without = "~" if choice.startswith("~") else ""
    path = choice.removeprefix("~")
    return f"{without}{_joined(folder, path)}" if (folder / path).is_file() else choice


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} is a mapping, got {short(value)}.")
    return value


def _known(given: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    unknown = next((key for key in given if key not in keys), None)
    if unknown is not None:
        raise UsageError(f"{where}: there is no key {short(unknown)}.", hint=nearest(unknown, keys, "Known are"))
