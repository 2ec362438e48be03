"""What does ``Save`` write, and when is what it wrote used again?

A chain is cut at its last ``Save``. Where the file is there and carries the fingerprint of what would be written now (of the
source, and of the stages before it), the rest of the chain reads it. Otherwise the rest is planned on what the file will be,
which headers tell, and the file is written when voxels are first needed: in one piece or not at all, by one process at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mlarray.errors import FormatError, MLArrayError, UsageError
from mlarray.formats.registry import format_of_name, open_source
from mlarray.region import Region
from mlarray.sources.base import NDArray, Source, SourceInfo
from mlarray.storage.leftovers import remove_leftovers
from mlarray.storage.publish import alone
from mlarray.storage.remote import as_path
from mlarray.streaming.fingerprint import fingerprint
from mlarray.streaming.plan import Plan
from mlarray.streaming.plan_source import write_result
from mlarray.streaming.volume_source import Stored, VolumeSource
from mlarray.transforms.base import Transform
from mlarray.transforms.save import Save
from mlarray.transforms.volume import Attributes

_KEY = "saved"
_RAW = ("mha", "nrrd")
"""Formats that are read in parts only where they are not compressed."""
_NOTHING = object()


class Planner(Protocol):
    """How chains are planned on the stored group, as by :func:`mlarray.streaming.plan`."""

    def __call__(
        self,
        transforms: Sequence[Transform],
        *,
        saved: Callable[[Sequence[Transform]], Stored] | None = None,
        measure: bool = True,
    ) -> Plan:
        """Return the plan of a chain."""


@dataclass(frozen=True, slots=True)
class Saved:
    """An entry that a ``Save`` writes.

    Parameters
    ----------
    path : Path
        The file.
    result : Plan
        What is written, planned on the source alone; only its headers are used.
    prefix : callable
        Returns the plan that computes it, after earlier entries of the chain have been written.
    mark : str or None
        The fingerprint that the file must carry; None where it cannot be told, then the file is written anew by every stream.
    storage : mapping
        Storage arguments.
    """

    path: Path
    result: Plan
    prefix: Callable[[], Plan]
    mark: str | None
    storage: Mapping[str, object]

    @property
    def in_parts(self) -> bool:
        """Whether the file can be read in parts."""
        row = format_of_name(self.path)
        return row is not None and row.regions.startswith("yes") and not self.path.name.endswith(".gz")

    def opened(self) -> VolumeSource | None:
        """Return the volume in the file, with the attributes of its case; None where there is none, or an old one."""
        if self.mark is None or not self.path.exists():
            return None
        try:
            source = open_source(self.path)
            kept = source.info.record.get(_KEY)
            if isinstance(kept, Mapping) and kept.get("mark") == self.mark:
                return self._volume(source, _restored(kept.get("attributes")))
            source.close()
        except (MLArrayError, OSError):  # damaged, or vanished meanwhile: it is written again
            pass
        return None

    def write(self) -> VolumeSource:
        """Write the file unless another process does meanwhile, and return what :meth:`opened` does."""
        prefix = self.prefix()  # earlier entries are written before the lock is taken: they may lie in the same folder
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"Save cannot write {self.path}: {error.strerror}.", hint="Save into another folder."
            ) from error
        with alone(self.path.parent):
            remove_leftovers([self.path.parent])
            found = self.opened()
            if found is None:
                record = {_KEY: {"mark": self.mark, "attributes": _plain(prefix.attributes)}}
                write_result(prefix, self.path, storage=self.storage, record=record)
                found = self._volume(open_source(self.path), prefix.attributes)
        prefix.close()
        return found

    def _volume(self, source: Source, attributes: Attributes) -> VolumeSource:
        return VolumeSource(source, case=self.result.chain.stored.case, attributes=attributes)


class PromisedVolume:
    """A volume that will be in a file: everything about it but its voxels.

    Parameters
    ----------
    saved : Saved
        The entry.
    """

    info = SourceInfo()
    spatial_blocks = None
    held_bytes = 0

    def __init__(self, saved: Saved) -> None:
        self.volume = saved.result.result
        self.saved = saved
        self.reads = 0
        self.bytes_read = 0

    @property
    def in_parts(self) -> bool:
        """Whether the file will be readable in parts."""
        return self.saved.in_parts

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return self.volume.case or str(self.saved.path)

    def bytes_of_read(self, region: Region) -> int:
        """Return how many bytes a read of a region will hold."""
        return self.volume.bytes_of(region)

    def read(self, region: Region) -> NDArray:
        """Raise: the file is not there."""
        raise FormatError(f"{self.saved.path} has not been written.", hint="Write it with a PatchStream.")

    def prefetch(self, regions: Any) -> None:
        """Nothing can be announced."""

    def release(self) -> None:
        """Let go of what the stages before hold."""
        self.saved.result.release()

    def close(self) -> None:
        """Close the files of the stages before."""
        self.saved.result.close()


@dataclass(frozen=True, slots=True)
class Saving:
    """How a chain with ``Save`` is planned for one group of a case.

    Parameters
    ----------
    planner : Planner
        How chains are planned on it.
    case, group : str
        Names of the entry.
    storage : mapping
        Storage arguments of what is written.
    root : Path, optional
        See :func:`mlarray.streaming.fingerprint`.
    """

    planner: Planner
    case: str
    group: str
    storage: Mapping[str, object]
    root: Path | None = None

    def plan(self, transforms: Sequence[Transform]) -> Plan:
        """Return the plan that serves a chain: of what its last ``Save`` wrote or will write, or of the stored group.

        The source of a plan whose file is not there is a :class:`PromisedVolume`.
        """

        def promised(saved: Saved, rest: Sequence[Transform]) -> Stored:
            found = saved.opened()
            if found is None and any(one.beforehand(saved.result.result) for one in rest):
                found = saved.write()  # the shape of the result depends on its voxels
            return PromisedVolume(saved) if found is None else found

        return self._served(transforms, promised)

    def written(self, transforms: Sequence[Transform]) -> Plan:
        """Write what is missing and return the plan that serves a chain."""
        return self._served(transforms, lambda saved, _: saved.opened() or saved.write())

    def _served(self, transforms: Sequence[Transform], stored: Callable[[Saved, Sequence[Transform]], Stored]) -> Plan:
        place = max((i for i, one in enumerate(transforms) if isinstance(one, Save)), default=-1)
        if place < 0:
            return self.planner(transforms)
        saved = self._saved(transforms[: place + 1])
        volume = stored(saved, transforms[place + 1 :])
        plan = self.planner(transforms, saved=lambda _: volume)
        plan.origin = saved.result
        return plan

    def _saved(self, before: Sequence[Transform]) -> Saved:
        """Return the entry of a chain that ends with a ``Save``."""
        save = before[-1]
        assert isinstance(save, Save)
        bare = [one for one in before if not isinstance(one, Save)]
        if save.format == "mhd":
            raise UsageError(f"Save({save.dataset!r}): detached headers are read, not written.", hint="Save as mha.")
        headers = self.planner(bare, measure=False)
        measured = any(one.beforehand(headers.chain.stored) for one in bare)
        result = self.planner(bare) if measured else headers
        path = as_path(save.place(self.case, self.group))
        storage = {**self.storage, "codec": "none"} if save.format in _RAW else self.storage
        return Saved(path, result, lambda: self.written(before[:-1]), fingerprint(headers, root=self.root), storage)


def _plain(attributes: Attributes) -> dict[str, list[object]]:
    """Return the attributes that JSON holds exactly; others stay behind."""
    found = {}
    for key, stack in attributes.stacks.items():
        values = [_plain_value(value) for value in stack]
        if all(value is not _NOTHING for value in values):
            found[key] = values
    return found


def _plain_value(value: object) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (tuple, list)):
        parts = [_plain_value(part) for part in value]
        return _NOTHING if any(part is _NOTHING for part in parts) else parts
    return value if value is None or isinstance(value, (bool, int, float, str)) else _NOTHING


def _restored(stored: object) -> Attributes:
    if not isinstance(stored, Mapping):
        return Attributes()
    return Attributes({str(key): _as_tuple(stack) for key, stack in stored.items() if isinstance(stack, list)})


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(part) for part in value) if isinstance(value, list) else value
