"""How is one case converted? Runs in a worker process; nothing is seen under the final name before it is complete.

Open, compare with what exists, plan, decode into a temporary file if the plan says so, copy, finish, verify, publish.
Whatever goes wrong, the temporary files are removed and the case is reported; other cases go on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from warnings import catch_warnings, simplefilter

import xxhash

from mlarray.errors import DTypeError, FormatError, FormatWarning, IntegrityError, MLArrayError, UsageError
from mlarray.formats.dicom import open_volume
from mlarray.formats.items import join_item
from mlarray.formats.raw_sink import RawSink
from mlarray.formats.registry import companions, format_named, module_of, open_as, open_source
from mlarray.region import Region
from mlarray.sources.base import Access, ChunkSink, NDArray, Note, Sink, SinkOptions, Source
from mlarray.sources.bytes import FileBytes
from mlarray.sources.copy import TileDigest, copy, digest
from mlarray.sources.raw import LONGEST_RUN_BYTES, RawLayout, RawSource
from mlarray.sources.stated import with_stated
from mlarray.storage.filters import sample_region
from mlarray.storage.leftovers import remove_leftovers
from mlarray.storage.publish import NO_SPACE, no_space, this_host
from mlarray.storage.remote import is_remote
from mlarray_convert.discovery import Case, group_of
from mlarray_convert.grids import differences
from mlarray_convert.labels import IntegerSource, is_narrow, scan_labels
from mlarray_convert.outcome import LOWER, Failure, Job, Outcome, Status, died, failed
from mlarray_convert.places import size_of, version_of
from mlarray_convert.plan import (
    DECODER_BYTES,
    CasePlan,
    Limits,
    Memory,
    Target,
    cache_bytes,
    choose_tiles,
    info_for,
    is_one_pass,
    kept_layout,
    plan_case,
    spool_tiles,
)
from mlarray_convert.record import is_ours, make_record, target_item, why_stale
from mlarray_convert.request import CHUNK_FORMATS, IfExists, Request, Verify
from mlarray_convert.verify import check_written, refuse_damaged

_PIECE_BYTES = 1 << 22
_HARMLESS = frozenset({"unit-converted", "axis-dropped"})  # notes that no one needs to act on
_H5PY_BYTES = 25_000_000  # likewise, with 3.16
_BLOSC2_BYTES = 30_000_000  # resident memory of the imported package, 27 MB as measured with 4.14.1
_ZARR_BYTES = 20_000_000  # likewise, 15 MB as measured with zarr 3.1.6
Progress = Callable[[float], None]


def run_case(job: Job, progress: Progress) -> Outcome:
    """Convert one case, or only plan it in a dry run; every error becomes part of the outcome.

    Parameters
    ----------
    job : Job
        The case.
    progress : callable
        Called with the share of the work that is done, from 0 to 1.
    """
    began = time.perf_counter()
    try:
        with catch_warnings():
            simplefilter("ignore", FormatWarning)  # the process that shares out the work has said it
            outcome = _run(job, progress)
    except IntegrityError as error:
        outcome = failed(job.case, str(error), Failure.VERIFICATION)
    except MLArrayError as error:
        outcome = failed(job.case, str(error), Failure.INPUT)
    except MemoryError:
        outcome = failed(job.case, f"Out of memory. {LOWER}", Failure.WORKER)
    except OSError as error:
        outcome = failed(job.case, _told(error, job), Failure.INPUT)
    except Exception as error:
        # What no reader or writer foresaw ends this case and no other; the traceback goes with the outcome.
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        outcome = replace(failed(job.case, told, Failure.UNEXPECTED), trace=traceback.format_exc())
    return replace(outcome, seconds=time.perf_counter() - began)


def _run(job: Job, progress: Progress) -> Outcome:
    case, request = job.case, job.request
    with closing(open_case(case)) as opened:
        source = with_stated(opened, axes=request.axes, spacing=request.spacing)
        warnings = _messages(source.info.notes) + grid_warnings(case, source)
        limits = Limits(job.memory_bytes, job.threads, _base_bytes(request, source))
        reason = ""
        place = _present(case, request) if request.if_exists is IfExists.SKIP else None
        if place is not None:
            up_to_date, reason, remarks = _existing(place, case, request, source)
            if up_to_date:
                outcome = _outcome(case, Status.SKIPPED, source, reason, (*warnings, *remarks))
                return replace(outcome, bytes_out=size_of(case.output) if case.output.exists() else 0)
        if request.dry_run:
            plan = plan_case(case, request, source, limits)
            warnings += _messages(plan.notes[len(source.info.notes) :])
            status = Status.WARNED if warnings else Status.OK
            outcome = _outcome(case, status, source, reason, tuple(warnings))
            return replace(outcome, dtype=str(plan.spec.dtype), bytes_out=plan.estimated_bytes, plan=plan)
        return _convert(job, source, limits, _Work(source, request, case, progress), reason, warnings)


def open_case(case: Case) -> Source:
    """Open a case; headers that discovery has read are not read again."""
    if case.volume is not None:
        return open_volume(case.volume)
    return open_source(case.source, item=case.item or None, mapped=False)


def _is_series(source: Source) -> bool:
    return bool(source.info.format) and format_named(source.info.format).series


def _convert(job: Job, source: Source, limits: Limits, work: _Work, reason: str, warnings: list[str]) -> Outcome:
    case, request = job.case, job.request
    before = _versions(source)
    if request.verify is not Verify.NONE and source.info.files and kept_layout(case, request, source) is None:
        refuse_damaged(source)  # chunks that are kept are checked as they are copied
    values = _as_integers(source, limits, work) if _is_scanned(case, request, source) else source
    plan = plan_case(case, request, values, limits, dtype=values.spec.dtype.newbyteorder("="))
    warnings += _messages(plan.notes[len(source.info.notes) :])
    record = make_record(case, request, plan.files, plan.notes, series=_is_series(source))
    case.output.parent.mkdir(parents=True, exist_ok=True)
    _refuse_full_disk(plan)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_leaving_nothing(case.output))
        memory = Memory.of(values, plan.spec, plan.target, request, limits)
        readable = values
        if plan.spool:
            readable = stack.enter_context(_spooled(values, plan, memory, work))
            memory = memory.after_spooling()
        options = SinkOptions(
            request.storage,
            record,
            job.threads,
            _sample(readable, plan, request),
            min(memory.hold_bytes, plan.spec.nbytes),
            target_item(case, request),
            values if plan.as_stored else None,
            memory.at_once,
        )
        sink = module_of(request.target).open_sink(case.output, plan.spec, info_for(case, source), options)
        try:
            tiles, spool = plan.tiles, False
            if _is_unplanned(sink, plan.target):
                actual = Target(sink.access, tuple(sink.order), sink.chunks)
                tiles, spool = choose_tiles(readable, plan.spec, actual, memory)
            if spool:
                readable = stack.enter_context(_spooled(readable, plan, memory, work))
            cache = cache_bytes(readable, plan)
            if cache is not None:
                cast("Any", readable).resize_cache(cache)
            if plan.as_stored:
                digests = _take_chunks(values, cast("ChunkSink", sink), tiles, request, work)
            else:
                is_centre_first = is_one_pass(readable) and request.target.name in CHUNK_FORMATS
                ordered = tiles.from_centre() if is_centre_first else tiles
                digests = copy(readable, sink, ordered, progress=work.done, read_ahead=plan.read_ahead)
            if _versions(source) != before:
                raise FormatError(f"{case.source} was changed while it was read.", hint="Convert it again.")
            sink.finish()
            if request.statistics and not case.is_label:
                warnings += _with_statistics(sink, work)
            if request.verify is not Verify.NONE:
                checked = digests if request.verify is Verify.FULL else ()
                check_written(sink.path, request.target, plan.spec, digests=checked, progress=work.done)
            checksum, size = file_checksum(sink.path), size_of(sink.path)
            sink.publish()
        except BaseException as error:  # also when the worker is told to stop: no partial file stays
            told = no_space(error, case.output)
            with contextlib.suppress(*() if told is None else (Exception,)):  # closing a library's file fails again
                sink.abort()
            if told is not None:
                raise told from error
            raise
    outcome = _outcome(case, Status.WARNED if warnings else Status.OK, source, reason, tuple(dict.fromkeys(warnings)))
    return replace(outcome, dtype=str(sink.spec.dtype), bytes_out=size, checksum=checksum)


def _with_statistics(sink: Sink, work: _Work) -> list[str]:
    """Measure what was written and store the result in it; return why not where that has no meaning."""
    from mlarray.streaming import record_statistics  # only runs that ask for it load the planner

    work.add_pass()
    try:
        with closing(open_as(format_named("mla"), sink.path, mapped=False)) as written:
            record_statistics(written)
    except UsageError as error:
        return [f"No statistics were stored: {error.message}"]
    work.done(sink.spec.nbytes)
    return []


@contextlib.contextmanager
def _leaving_nothing(output: Path) -> Iterator[None]:
    """Remove what this process has left unfinished beside ``output``, should the block be left by an exception.

    A sink removes what it wrote, but an order to stop may come while it is being made, when nobody has it yet.
    """
    try:
        yield
    except BaseException:
        if not is_remote(output):
            remove_leftovers([output.parent], dead=[(this_host(), os.getpid())])
        raise


def _take_chunks(
    source: Source, sink: ChunkSink, tiles: Iterable[Region], request: Request, work: _Work
) -> tuple[TileDigest, ...]:
    """Copy chunks as they are; return what they hold where all of it will be read back."""
    sink.take_chunks(checked=request.verify is not Verify.NONE, progress=work.done)
    if request.verify is not Verify.FULL:
        return ()
    work.add_pass()
    found = []
    for region in tiles:
        block = source.read(region)
        found.append(TileDigest(region, digest(block)))
        work.done(block.nbytes)
    return tuple(found)


def _is_scanned(case: Case, request: Request, source: Source) -> bool:
    """Tell whether the smallest type of a segmentation has to be found."""
    return case.is_label and not is_narrow(source.spec.dtype) and kept_layout(case, request, source) is None


def _sample(source: Source, plan: CasePlan, request: Request) -> NDArray | None:
    """Return the voxels by which a chunked target chooses its filter, where they can be had without decoding twice."""
    if (
        plan.as_stored
        or is_one_pass(source)  # the sink decides by what it gets first, the centre
        or source.access is not Access.REGION
        or request.target.name not in CHUNK_FORMATS
        or plan.spec.size == 0
    ):
        return None
    return source.read(sample_region(plan.spec.shape, plan.target.chunks))


def _is_unplanned(sink: Sink, target: Target) -> bool:
    """Tell whether a sink needs other tiles than those planned; any tiles suit one without chunks that takes any order."""
    if sink.chunks is None and sink.access is Access.REGION:
        return False
    return sink.chunks != target.chunks or (sink.access is Access.SLAB and tuple(sink.order) != target.order)


class _Work:
    """Counts the bytes of all passes over a case and reports the share that is done."""

    def __init__(self, source: Source, request: Request, case: Case, progress: Progress) -> None:
        self._passes = 1.0
        if _is_scanned(case, request, source):
            self._passes += 1
        if request.verify is Verify.FULL:
            self._passes += 1
        self._unit = max(1, source.spec.size)
        self._itemsize = source.spec.dtype.itemsize
        self._done = 0.0
        self._report = progress

    def add_pass(self) -> None:
        """Count one pass more: the source is decoded into a file first."""
        self._passes += 1

    def scanned(self, count: int) -> None:
        """Count bytes of the type that the source has."""
        self._count(count / self._itemsize)

    def stored_as(self, itemsize: int) -> None:
        """Count from here on bytes of the type that is stored."""
        self._itemsize = itemsize

    def done(self, count: int) -> None:
        """Count bytes of the type that is stored."""
        self._count(count / self._itemsize)

    def _count(self, voxels: float) -> None:
        self._done += voxels / self._unit
        self._report(min(1.0, self._done / self._passes))


def _as_integers(source: Source, limits: Limits, work: _Work) -> Source:
    """Return a segmentation in the smallest integer type that holds it."""
    target = Target(Access.REGION, source.order)
    fixed = limits.base_bytes + DECODER_BYTES + min(LONGEST_RUN_BYTES, source.spec.nbytes)
    memory = Memory(fixed, 3.0, limits.memory_bytes)  # a tile, its stored form, and the masks of the check
    tiles, _ = choose_tiles(source, source.spec, target, memory)
    try:
        found = scan_labels(source, tiles, progress=work.scanned)
    except DTypeError as error:
        source_name = source.info.files[0] if source.info.files else ""
        raise DTypeError(f"{source_name}: {error.message}", hint=error.hint) from error
    kind = found.dtype
    work.stored_as(kind.itemsize)
    return IntegerSource(source, kind)


@contextlib.contextmanager
def _spooled(source: Source, plan: CasePlan, memory: Memory, work: _Work) -> Iterator[Source]:
    """Decode a source once into a raw file beside the output; any region of that can be read. Always removed."""
    work.add_pass()
    order = source.order if source.access is Access.SLAB else plan.target.order
    shape = tuple(source.spec.shape[axis] for axis in order)
    layout = RawLayout(shape, source.spec.dtype.newbyteorder("="), order)
    beside = plan.case.output
    if is_remote(beside):
        beside = Path(tempfile.gettempdir(), beside.name)
    store = RawSink(beside.with_name(f"{beside.name}.spool"), source.spec, layout, b"")
    try:
        copy(source, store, spool_tiles(source, memory), progress=work.done)
        store.finish()
        with RawSource(FileBytes(store.path), layout, source.spec, access=Access.REGION, info=source.info) as raw:
            yield raw
    finally:
        store.abort()


def _present(case: Case, request: Request) -> Path | None:
    """Return the output that exists already: a file of its own, or a part of the one file for all."""
    if case.output.exists() or request.store is None or not request.store.exists():
        return case.output if case.output.exists() else None
    place = join_item(request.store, f"/{group_of(case, request)}/{target_item(case, request) or 'image'}")
    try:
        open_source(place, mapped=False).close()
    except (MLArrayError, OSError):
        return None
    return place


def _existing(place: Path, case: Case, request: Request, source: Source) -> tuple[bool, str, tuple[str, ...]]:
    """Tell whether to keep an existing output, why, and what to warn of."""
    try:
        with closing(open_source(place, mapped=False)) as present:
            record = present.info.record
    except (MLArrayError, OSError) as error:
        return False, f"converted again: the existing file cannot be opened ({error})", ()
    if not is_ours(record):
        remark = f"{case.output} exists and was not made by this converter; --if-exists overwrite replaces it."
        return True, "exists, made by another program", (remark,)
    stale = why_stale(record, case, request, source.info.files, series=_is_series(source))
    lost = [path.name for path in companions(request.target, case.output, info_for(case, source)) if not path.exists()]
    stale = stale or (f"{lost[0]} is missing beside it" if lost else None)
    return (True, "up to date", ()) if stale is None else (False, f"converted again: {stale}", ())


def grid_warnings(case: Case, source: Source) -> list[str]:
    """Return what differs between the grid of a case and those of the images that it belongs to."""
    found: list[str] = []
    for image in case.images:
        try:
            with closing(open_source(image, mapped=False)) as other:
                told = differences(source.spec, other.spec)
        except (MLArrayError, OSError):
            continue  # it is a case of its own and fails there
        if told:
            found.append(
                f"{case.place.name} does not lie on the grid of {image.name}: {'; '.join(told)}. "
                "Find out which header is wrong, or resample one onto the other; nothing was changed."
            )
        elif not case.every_image:
            return []
    return found if case.every_image else found[:1]


def file_checksum(path: Path) -> str:
    """Return ``xxh3:`` and the XXH3-64 checksum of a file (of all files of a folder, in the order of their names).

    Of a remote store there is none: it would have to be read back.
    """
    if is_remote(path):
        return ""
    state = xxhash.xxh3_64()
    for part in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        with part.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                state.update(piece)
    return f"xxh3:{state.hexdigest()}"


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    if sys.platform == "linux":
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    import psutil

    return int(psutil.Process().memory_info().rss)


def _base_bytes(request: Request, source: Source) -> int:
    """Return what this worker uses before the first voxel: what it has now, and the libraries that it will load."""
    needed = {
        ("blosc2", _BLOSC2_BYTES): request.target.name in CHUNK_FORMATS,
        ("h5py", _H5PY_BYTES): request.target.name == "hdf5",
        ("zarr", _ZARR_BYTES): "ome-zarr" in (request.target.name, source.info.format),
    }
    expected = sum(size for (module, size), used in needed.items() if used and module not in sys.modules)
    return resident_bytes() + expected


def _versions(source: Source) -> list[tuple[int, int]]:
    return [version_of(path) for path in source.info.files]


def _refuse_full_disk(plan: CasePlan) -> None:
    if is_remote(plan.case.output):
        return
    free = shutil.disk_usage(plan.case.output.parent).free
    # The spool file is certain; the size of a compressed output is an estimate that may be twice the truth.
    needed = (plan.source_spec.nbytes if plan.spool else 0) + plan.estimated_bytes // 2
    if needed > free:
        raise OSError(
            errno.ENOSPC, f"About {needed} bytes are needed and {free} are free", str(plan.case.output.parent)
        )


def _told(error: OSError, job: Job) -> str:
    if error.errno in NO_SPACE:
        told = os.strerror(error.errno or 0)  # HDF5 puts addresses and times into its own
        return f"No space left for {job.case.output}: {told}. Free some, or choose another place with -o."
    return str(error) if error.errno is None else f"{error.strerror}: {error.filename or job.case.source}"


def _outcome(case: Case, status: Status, source: Source, reason: str, warnings: tuple[str, ...]) -> Outcome:
    size = sum(map(size_of, source.info.files))
    notes = tuple(note.message for note in source.info.notes if note.code in _HARMLESS)
    return Outcome(case, status, reason, warnings, notes, str(source.spec.dtype), source.spec.shape, bytes_in=size)


def _messages(notes: Iterable[Note]) -> list[str]:
    return [note.message for note in notes if note.code not in _HARMLESS]


__all__ = ["Failure", "Job", "Outcome", "Progress", "Status", "died", "run_case"]
