"""How is a whole data set converted? Found, checked as a whole, shared among workers, reported.

What can be known to fail is refused before any work starts: outputs that collide, a folder that cannot be written. After
that a case that fails is one failed case.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from mlarray.errors import IntegrityError, MLArrayError, UsageError
from mlarray.formats.registry import module_of
from mlarray.layout import PatchSize
from mlarray.machine import Machine, this_machine
from mlarray.storage.leftovers import remove_leftovers
from mlarray.storage.publish import PendingFile, alone
from mlarray.storage.remote import is_remote
from mlarray_convert.discovery import Case, Discovery, discover, group_of
from mlarray_convert.executor import Advanced, Broken, Done, Executor, Lost, Started, Work
from mlarray_convert.interrupts import sigterm_as_interrupt
from mlarray_convert.outcome import Failure, Job, Outcome, Status, died, failed
from mlarray_convert.places import size_of
from mlarray_convert.pool import Pool
from mlarray_convert.report import Report
from mlarray_convert.request import LOCAL_SCHEDULER, IfExists, Request, make_request
from mlarray_convert.run import run_case
from mlarray_convert.share import Share, share_out


@dataclass(frozen=True, slots=True)
class Found:
    """The run begins.

    Parameters
    ----------
    discovery : Discovery
        What was found.
    share : Share
        Workers, threads and memory.
    sizes : tuple of int
        Bytes of each case's source file.
    removed : tuple of Path
        Unfinished files of dead writers that were removed.
    elsewhere : int
        Cases that other parts of the data set have.
    """

    discovery: Discovery
    share: Share
    sizes: tuple[int, ...]
    removed: tuple[Path, ...] = ()
    elsewhere: int = 0


@dataclass(frozen=True, slots=True)
class Began:
    """A case was given to the worker process ``pid`` of a host; of this one when its name is empty."""

    index: int
    case: Case
    pid: int
    host: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """A case reports the share of its work that is done, from 0 to 1."""

    index: int
    share: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A case is decided."""

    index: int
    outcome: Outcome


Event: TypeAlias = Found | Began | Moved | Ended


def convert(
    inputs: str | Path | Sequence[str | Path],
    output: str | Path | None = None,
    *,
    to: str | None = None,
    patch_size: PatchSize | str | None = None,
    layout: str | None = None,
    storage: Mapping[str, object] | None = None,
    workers: int | None = None,
    memory: int | str | None = None,
    if_exists: str = "skip",
    verify: str = "quick",
    labels: str = "auto",
    dry_run: bool = False,
    fail_fast: bool = False,
    item: str | None = None,
    codec: str | None = None,
    axes: str | None = None,
    spacing: float | Sequence[float] | str | None = None,
    slice_tolerance: float = 0.01,
    orientation_tolerance: float = 1e-4,
    irregular_slices: str = "refuse",
    keep_private: bool = False,
    ome_version: str | None = None,
    shards: str | int | Sequence[int] | None = None,
    scheduler: str | Path | None = None,
    shard: str | tuple[int, int] | None = None,
    statistics: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> Report:
    """Convert files and folders.

    Cases run in worker processes: a script calls this below ``if __name__ == "__main__":``.

    Parameters
    ----------
    inputs : path or sequence of paths
        Files and folders; below a folder, every file of a known format.
    output : path, optional
        A folder, or for one input file also a file. A name in ``.h5`` for several inputs is one file for all cases, each in
        a group of its name. Default: beside the input; for a folder ``data`` the folder
        ``data_mla``.
    to : str, optional
        Target format: ``"mla"``, ``"b2nd"``, ``"nifti"``, ``"nrrd"``, ``"metaimage"``, ``"hdf5"``, ``"ome-zarr"``. Default:
        by the suffix of ``output``, else ``"mla"``.
    patch_size : int, sequence of int or str, optional
        The patch that will be read, per spatial axis; chunks and blocks follow from it. Default: 192.
    layout : {"nnunet", "small-blocks"}, optional
        Limits of blocks and chunks by name: 128 KiB and 6 MiB (default), or 16 KiB and 1.5 MiB.
    storage : mapping, optional
        Further storage arguments of ``MLArray``.
    workers : int, optional
        Processes. Default: by processors and memory.
    memory : int or str, optional
        Limit of each worker, in bytes or like ``"8GB"``. Default: 80 % of what is available, divided by the workers.
    if_exists : {"skip", "overwrite", "error"}
        ``skip`` keeps outputs that are up to date and makes stale ones again.
    verify : {"none", "quick", "full"}
        How an output is checked before it gets its name.
    labels : str
        ``"auto"``, ``"none"`` or a glob pattern: which files are segmentations.
    dry_run : bool
        Read headers and plan; write nothing.
    fail_fast : bool
        Start no further case after a failure.
    item : str, optional
        Which image of files that hold several, such as a dataset of an HDF5 file; also ``"data.h5@/group/ct"`` as an input.
    codec : str, optional
        Compression, for formats that have a choice, with a level if wanted: ``"gzip-6"``, ``"blosc2"``.
    axes : str, optional
        Names of the axes, such as ``"czyx"``, for files that do not state them.
    spacing : float, sequence of float or str, optional
        Millimetres, one for all spatial axes or one for each in array order, for files that do not state it.
    slice_tolerance : float
        DICOM: how far a step between two slices may be from the median step, as a part of it.
    orientation_tolerance : float
        DICOM: how far the direction cosines of two slices of one volume may differ.
    irregular_slices : {"refuse", "keep"}
        DICOM: ``keep`` converts series with missing or unevenly spaced slices. Their slice spacing is then marked unknown, and
        the position of every slice is in the metadata.
    keep_private : bool
        DICOM: keep every header field in the metadata, also those that identify a person.
    ome_version : {"0.5", "0.4"}, optional
        Version of OME-Zarr to write. Default: 0.5.
    shards : str, int or sequence of int, optional
        Extents of the shards of an OME-Zarr per array axis, or ``"auto"``: 64 MiB. Default: no shards.
    scheduler : str or path, optional
        Do the work on a Dask cluster: address of its scheduler, path of its scheduler file, or ``"local"`` for one on this
        machine that ends with the run. Default: processes of this machine, without Dask.
    shard : str or (int, int), optional
        Take one part of the cases: ``"3/16"`` is every sixteenth, from the third on, in the order of their names.
    statistics : bool
        Measure images once they are written, and store minimum, maximum, mean and deviation in them: ``mlarray.streaming`` then
        takes those. ``.mla`` only; segmentations are left out.
    on_event : callable, optional
        Called with what happens, in this process.

    Returns
    -------
    Report
        With one outcome per case. A case that failed does not raise.

    Raises
    ------
    UsageError
        When the request cannot be carried out as a whole; also when a scheduler is given that does not answer, whose workers
        cannot do the work, or without Dask installed.
    KeyboardInterrupt
        On Ctrl-C or SIGTERM, after every worker has stopped and its partial files are gone.
    """
    request = make_request(
        inputs,
        output,
        to=to,
        patch_size=patch_size,
        layout=layout,
        storage=storage,
        workers=workers,
        memory=memory,
        if_exists=if_exists,
        verify=verify,
        labels=labels,
        dry_run=dry_run,
        fail_fast=fail_fast,
        item=item,
        codec=codec,
        axes=axes,
        spacing=spacing,
        slice_tolerance=slice_tolerance,
        orientation_tolerance=orientation_tolerance,
        irregular_slices=irregular_slices,
        keep_private=keep_private,
        ome_version=ome_version,
        shards=shards,
        scheduler=scheduler,
        shard=shard,
        statistics=statistics,
    )
    return run_request(request, on_event=on_event)


def run_request(
    request: Request,
    *,
    on_event: Callable[[Event], None] | None = None,
    work: Work[Job, Outcome] = run_case,
    machine: Machine | None = None,
) -> Report:
    """Carry out a request; see :func:`convert`.

    Parameters
    ----------
    request : Request
        What to do.
    on_event : callable, optional
        Called with what happens.
    work : callable, optional
        What a worker does with a case.
    machine : Machine, optional
        What may be used. Default: found out.
    """
    with sigterm_as_interrupt():
        return _carry_out(request, on_event if on_event is not None else _ignore, work, machine)


def _carry_out(
    request: Request, tell: Callable[[Event], None], work: Work[Job, Outcome], machine: Machine | None
) -> Report:
    began = time.perf_counter()
    discovery = discover(request)
    cases = discovery.cases if request.shard is None else request.shard.of(discovery.cases)
    elsewhere = len(discovery.cases) - len(cases)
    if request.if_exists is IfExists.ERROR:
        _refuse_existing(cases, request.store)
    if request.store is not None:
        _store_module(request).refuse_foreign_store(request.store)
    _refuse_unwritable(cases, dry_run=request.dry_run)
    folders = {case.output.parent for case in cases if not is_remote(case.output)}
    folders |= {request.store.parent} if request.store is not None else set()
    outcomes: dict[int, Outcome] = {}
    lost = ""
    with _executor(request, cases, work, machine) as executor:
        share = executor.share
        removed = () if request.dry_run else remove_leftovers(folders)
        sizes = tuple(_size(case) for case in cases)
        tell(Found(replace(discovery, cases=cases), share, sizes, removed, elsewhere))
        jobs = [Job(case, request, share.memory_bytes, share.threads) for case in cases]
        # Largest first: a large case that starts last would keep one worker busy while the others have nothing left.
        order = sorted(range(len(cases)), key=lambda index: -sizes[index]) if share.workers > 1 else None
        try:
            with contextlib.closing(executor.run(jobs, order)) as happenings:  # type: ignore[type-var]
                for event in happenings:
                    if isinstance(event, Broken):
                        lost = event.reason
                        break
                    told = _translated(event, cases)
                    if isinstance(told, Ended):
                        outcomes[told.index] = told.outcome
                    tell(told)
                    if request.fail_fast and any(o.status is Status.FAILED for o in outcomes.values()):
                        break
            if request.store is not None and not request.dry_run:
                for told in _joined(request, request.store, outcomes):
                    outcomes[told.index] = told.outcome
                    tell(told)
        finally:
            if not request.dry_run:
                remove_leftovers(folders, dead=executor.owners)
    not_started = tuple(case.name for index, case in enumerate(cases) if index not in outcomes)
    ordered = tuple(outcomes[index] for index in sorted(outcomes))
    seconds = time.perf_counter() - began
    return Report(ordered, seconds, request.dry_run, not_started, lost=lost, shard=request.shard, elsewhere=elsewhere)


@contextlib.contextmanager
def _executor(
    request: Request, cases: Sequence[Case], work: Work[Job, Outcome], machine: Machine | None
) -> Iterator[Executor[Job, Outcome]]:
    """Open what does the work: processes of this machine, or a Dask cluster."""
    if request.scheduler is None or not cases:
        yield Pool(work, _share(request, cases, machine))
        return
    from mlarray_convert.cluster import Places, open_cluster  # Dask is imported only by those who use it

    outputs = {_nearest_existing(case.output.parent) for case in cases}
    places = Places(tuple(case.source for case in cases), tuple(sorted(outputs)), request.dry_run)
    local = _share(request, cases, machine) if request.scheduler == LOCAL_SCHEDULER else None
    with open_cluster(
        work, request.scheduler, places=places, local=local, memory_bytes=request.memory_bytes
    ) as executor:
        yield executor


def _share(request: Request, cases: Sequence[Case], machine: Machine | None) -> Share:
    available = machine if machine is not None else this_machine()
    return share_out(available, cases=len(cases), workers=request.workers, memory_bytes=request.memory_bytes)


def _translated(event: Started | Advanced | Done[Outcome] | Lost, cases: Sequence[Case]) -> Began | Moved | Ended:
    if isinstance(event, Started):
        return Began(event.index, cases[event.index], event.pid, event.host)
    if isinstance(event, Advanced):
        return Moved(event.index, event.share)
    if isinstance(event, Done):
        return Ended(event.index, event.result)
    return Ended(event.index, died(cases[event.index], event.exit_code, event.told))


def _store_module(request: Request) -> Any:
    return module_of(request.target)


def _joined(request: Request, store: Path, outcomes: Mapping[int, Outcome]) -> list[Ended]:
    """Join the files of all cases; where that fails, return the cases that still wait, as failed."""
    try:
        _join(request, store, outcomes.values())
    except (MLArrayError, OSError) as error:
        is_plain = isinstance(error, OSError) and error.errno
        told = f"{os.strerror(error.errno)}." if is_plain else str(error)  # type: ignore[union-attr,arg-type]
        why = f"It could not be put into {store}: {told} It waits in {request.folder}; run the same command again."
        kind = Failure.VERIFICATION if isinstance(error, IntegrityError) else Failure.INPUT
        return [
            Ended(index, failed(outcome.case, why, kind))
            for index, outcome in outcomes.items()
            if outcome.status is not Status.FAILED and outcome.case.output.exists()
        ]
    return []


def _join(request: Request, store: Path, outcomes: Iterable[Outcome]) -> None:
    """Put the files of all cases that are done into the one file for all, and remove them.

    Until then they stay, so that a run that was stopped goes on where it was. What the file holds of a case that failed stays.
    Two runs that join into one file do so one after the other: each would replace what the other one adds.
    """
    done = [outcome.case for outcome in outcomes if outcome.status is not Status.FAILED]
    with alone(store.parent):
        parts = {group_of(case, request): case.output for case in done if case.output.exists()}
        if not parts:
            return
        _store_module(request).join(store, parts)
        for part in parts.values():
            part.unlink(missing_ok=True)
    assert request.folder is not None
    below = [path for path in request.folder.rglob("*") if path.is_dir()]
    for folder in [*sorted(below, key=lambda path: len(path.parts), reverse=True), request.folder]:
        with contextlib.suppress(OSError):  # others still wait there
            folder.rmdir()


def _refuse_existing(cases: Iterable[Case], store: Path | None) -> None:
    outputs = [store] if store is not None else [case.output for case in cases]
    present = [str(output) for output in outputs if output.exists()]
    if present:
        raise UsageError(
            f"{len(present)} outputs exist: {', '.join(present)}.",
            hint="Use --if-exists skip or overwrite, or another output folder.",
        )


def _refuse_unwritable(cases: Iterable[Case], *, dry_run: bool) -> None:
    """Refuse output folders that cannot be written, before hours of work end in an error."""
    nearest = {_nearest_existing(case.output.parent) for case in cases if not is_remote(case.output)}
    for folder in sorted(nearest):
        if not folder.is_dir():
            raise UsageError(
                f"{folder} is a file, so no output folder can be made there.", hint="Choose another with -o."
            )
        try:
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(f"no permission to write into {folder}")
            if not dry_run:
                probe = PendingFile(
                    folder / "any"
                )  # its name tells the next run to remove it, should this one die here
                try:
                    probe.path.touch()
                finally:
                    probe.abort()
        except OSError as error:
            raise UsageError(
                f"The output folder {folder} cannot be written: {error.strerror or error}.",
                hint="Choose another with -o.",
            ) from error


def _nearest_existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _size(case: Case) -> int:
    if case.volume is not None:
        return int(case.volume.nbytes_in)
    try:
        return size_of(case.source)
    except OSError:
        return 0


def _ignore(event: Event) -> None:
    """Take an event and do nothing."""
