"""Does a file hold what it should? Checked on its own, against what was copied, or against its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlarray.creation import READABLE_SUFFIXES, SUFFIX
from mlarray.errors import FormatError, IntegrityError, MLArrayError, UnknownFormatError, UsageError
from mlarray.formats.items import split_item
from mlarray.formats.registry import (
    format_named,
    format_of,
    items_of,
    module_of,
    open_as,
    open_source,
    refuse_irregular,
)
from mlarray.formats.table import Format
from mlarray.sources.base import NDArray, Source
from mlarray.sources.copy import TileDigest, digest
from mlarray.sources.tiles import TilePlan, plan_tiles
from mlarray.spec import ArraySpec
from mlarray.storage.integrity import check_file as check_stored
from mlarray.storage.salvage import Salvaged, salvage
from mlarray_convert.grids import AxisMap, axis_map, differences
from mlarray_convert.request import CHUNK_FORMATS

_HINT = "Convert it again; if it happens again, check the disk."


@dataclass(frozen=True, slots=True)
class FileCheck:
    """What checking one file showed.

    Parameters
    ----------
    path : Path
        The file.
    how : str
        What was checked: ``"checksums"``, or ``"decoded"`` for files that have none.
    problems : tuple of str
        Sentences; none when all is well.
    remarks : tuple of str
        What could not be checked.
    """

    path: Path
    how: str
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def check_written(
    path: Path,
    target: Format,
    spec: ArraySpec,
    *,
    digests: Iterable[TileDigest] = (),
    progress: Callable[[int], None] | None = None,
) -> None:
    """Open a file that was just written and compare it with what it should be.

    Parameters
    ----------
    path : Path
        The file, under any name.
    target : Format
        Its format.
    spec : ArraySpec
        What was to be stored.
    digests : iterable of TileDigest, optional
        What was copied; with them every voxel is read back.
    progress : callable, optional
        Called with the number of bytes after each tile read back.

    Raises
    ------
    IntegrityError
        When something differs; the message says what.
    """
    try:
        with closing(open_as(target, path, mapped=False)) as source:
            mapped = axis_map(spec, source.spec)
            if mapped is None:
                told = "; ".join(differences(spec, source.spec)) or f"shape {spec.shape} and {source.spec.shape}"
                raise IntegrityError(
                    f"The header that was read back differs from what was written: {told}.", hint=_HINT
                )
            problems = _stored_checksums(path, target)
            if problems:
                raise IntegrityError(" ".join(problems), hint=_HINT)
            for region, block in _read_back(source, mapped, digests):
                if digest(np.ascontiguousarray(block, spec.dtype)) != region.digest:
                    raise IntegrityError(
                        f"Voxels read back from {region.region.start} to {region.region.stop} are not those written.",
                        hint=_HINT,
                    )
                if progress is not None:
                    progress(block.nbytes)
    except IntegrityError:
        raise
    except (MLArrayError, OSError) as error:
        raise IntegrityError(f"The file that was written cannot be read back: {error}", hint=_HINT) from error


def refuse_damaged(source: Source) -> None:
    """Raise where a source does not match the checksums that were stored with it; one without checksums is taken as it is.

    Neither blosc2 nor zarr notices a flipped bit in what it decodes, and zarr takes a chunk that is missing for the fill value.

    Raises
    ------
    FormatError
        Naming what differs.
    """
    path, row = source.info.files[0], format_named(source.info.format)
    if row.name in CHUNK_FORMATS:
        problems = _differing_chunks(path)
    else:
        problems = _checked_by_format(path, row, item=source.info.item) or ()
    if problems:
        raise FormatError(" ".join(problems), hint="Restore it from a copy, or take it as it is with --verify none.")


def check_file(path: Path, *, progress: Callable[[int], None] | None = None) -> FileCheck:
    """Check a file by its stored checksums, or by decoding all of it (every image, unless one is named) when it has none.

    A file of no known format does not pass, and neither do a pipe and a link that leads nowhere.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    """
    if path.is_symlink() and not path.exists():
        return FileCheck(path, "not read", (f"{path} is a link that leads to no file.",))
    try:
        path, item = split_item(path)
        row = format_of(path)
    except (UnknownFormatError, PermissionError) as error:  # of many files it is one, too
        return FileCheck(path, "not read", (str(error),))
    how = "checksums" if row.name in CHUNK_FORMATS else "decoded"
    try:
        found = _checked_by_format(path, row) if item is None else None
        if found is not None:
            return FileCheck(path, "checksums", found)
        if row.name in CHUNK_FORMATS:
            refuse_irregular(path)
            report = check_stored(path)
            return FileCheck(path, "decoded" if report.decoded else "checksums", report.problems)
        items: list[str | None] = [item] if item is not None else [*(one.name for one in items_of(path))]
        for one in items or [None]:
            with closing(open_as(row, path, item=one, mapped=False)) as source:
                for region in _tiles(source):
                    source.read(region)
                    if progress is not None:
                        progress(region.size * source.spec.dtype.itemsize)
    except (MLArrayError, OSError, MemoryError) as error:  # one bad file of many is one line
        return FileCheck(path, how, (str(error) or "out of memory",))
    return FileCheck(path, how)


def salvaged(path: Path, target: Path) -> Salvaged:
    """Write what is intact of a damaged or unfinished ``.mla`` to a new file, see :func:`mlarray.storage.salvage.salvage`.

    Raises
    ------
    UsageError
        The file is of another format, or there is something at ``target``.
    FormatError
        Nothing can be saved.
    """
    if path.suffix not in READABLE_SUFFIXES or target.suffix != SUFFIX:
        raise UsageError(
            f"An .mla is saved as another .mla, got {path.name} and {target.name}.",
            hint="Files of other formats have no checksums by which parts could be told.",
        )
    return salvage(path, target)


def check_against(path: Path, original: Path, *, progress: Callable[[int], None] | None = None) -> FileCheck:
    """Compare the voxels of a file, and where they lie, with those of the file it was made from.

    Values are compared, not types: a segmentation stored in a smaller type is equal. Axes may stand in another order or run
    the other way, as long as every value keeps its place in the world.
    """
    how = f"compared with {original}"
    try:
        with closing(open_source(path, mapped=False)) as copy, closing(open_source(original, mapped=False)) as source:
            mapped = axis_map(source.spec, copy.spec)
            if mapped is None:
                told = "; ".join(differences(source.spec, copy.spec)) or _shapes(source, copy)
                return FileCheck(path, how, (f"The voxels do not lie where those of {original} do: {told}.",))
            problem = _first_difference(source, copy, mapped, progress)
            remarks = () if source.spec.geometry and copy.spec.geometry else ("Positions are unknown on one side.",)
            return FileCheck(path, how, (problem,) if problem else (), remarks)
    except (MLArrayError, OSError, MemoryError) as error:  # one bad file of many is one line
        return FileCheck(path, how, (str(error) or "out of memory",))


def _first_difference(
    source: Source, copy: Source, mapped: AxisMap, progress: Callable[[int], None] | None
) -> str | None:
    wrong, told = 0, ""
    for region in _tiles(source):
        expected = source.read(region)
        found = mapped.back(copy.read(mapped.region(region, copy.spec.shape)))
        unequal = expected != found
        if expected.dtype.kind in "fc" and found.dtype.kind in "fc":
            unequal &= ~(np.isnan(expected) & np.isnan(found))
        count = int(np.count_nonzero(unequal))
        if count and not wrong:
            place = tuple(int(i) for i in np.unravel_index(int(unequal.argmax()), unequal.shape))
            index = tuple(i + low for i, low in zip(place, region.start, strict=True))
            told = f"the first at index {index} of the source, {expected[place]} there and {found[place]} here"
        wrong += count
        if progress is not None:
            progress(expected.nbytes)
    return f"{wrong} of {source.spec.size} voxels differ, {told}." if wrong else None


def _read_back(source: Source, mapped: AxisMap, digests: Iterable[TileDigest]) -> Iterator[tuple[TileDigest, NDArray]]:
    for expected in digests:
        block = source.read(mapped.region(expected.region, source.spec.shape))
        yield expected, mapped.back(block)


def _stored_checksums(path: Path, target: Format) -> tuple[str, ...]:
    if target.name in CHUNK_FORMATS:
        return check_stored(path).problems
    return _checked_by_format(path, target) or ()


def _checked_by_format(path: Path, row: Format, *, item: str | None = None) -> tuple[str, ...] | None:
    """Return what does not match the checksums that a format stores in a way of its own; None where there are none."""
    check = getattr(module_of(row), "check_stored", None)
    found: tuple[str, ...] | None = None if check is None else check(path, item=item)
    return found


def _differing_chunks(path: Path) -> tuple[str, ...]:
    """Return what does not match the checksums of a file whose checksums hold for it; others are decoded as they are read."""
    from mlarray.storage.blosc import open_store
    from mlarray.storage.integrity import check, is_current

    store = open_store(path, mmap_mode=None)
    try:
        return check(store).problems if is_current(store) else ()
    finally:
        store.close()


def _tiles(source: Source) -> TilePlan:
    chunks = getattr(source, "chunks", None)
    return plan_tiles(source.spec, chunks, access=source.access, order=source.order)


def _shapes(source: Source, copy: Source) -> str:
    return f"shape is {source.spec.shape} and {copy.spec.shape}"
