"""What was asked for? The settings of one run of the converter, validated before any file is touched."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

from mlarray.axes import parse_axes
from mlarray.errors import UsageError
from mlarray.formats.plugins import all_formats
from mlarray.formats.registry import format_named, format_of_name, is_folder_image, is_series_folder
from mlarray.formats.series import SeriesOptions
from mlarray.formats.table import Format
from mlarray.layout import PatchSize, parse_layout_name
from mlarray.storage.remote import as_path, is_remote

CHUNK_FORMATS = ("mla", "b2nd")  # that store the same kind of chunks
_Choice = TypeVar("_Choice", bound=Enum)
PARTS_SUFFIX = ".parts"  # of the folder in which the files of cases wait to be joined
_Item = TypeVar("_Item")
_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_BINARY_UNITS = {"KI": 1024, "MI": 1024**2, "GI": 1024**3, "TI": 1024**4}
LOCAL_SCHEDULER = "local"
LEAST_MEMORY_BYTES = 40_000_000  # resident memory of a worker that has imported the converter, 36 MB as measured
_ADDRESS = re.compile(r"((?:tcp|tls|ucx|ws|wss)://\S+)|([\w.-]+|\[[0-9a-fA-F:]+\]):\d+")


class IfExists(Enum):
    """What to do where an output exists: skip it when it is up to date (and redo it when not), redo it, or refuse."""

    SKIP = "skip"
    OVERWRITE = "overwrite"
    ERROR = "error"


class Verify(Enum):
    """How an output is checked before it is published.

    ``NONE``: not at all. ``QUICK``: it opens again, its header says what it should, stored checksums are right. ``FULL``:
    besides, every voxel is read back and compared with what was read from the source.
    """

    NONE = "none"
    QUICK = "quick"
    FULL = "full"


class IrregularSlices(Enum):
    """What becomes of a series with missing or unevenly spaced slices: refused, or kept with unknown slice spacing."""

    REFUSE = "refuse"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several equal parts of a data set, for the array jobs of a batch system.

    Parameters
    ----------
    number, count : int
        Which of how many, counted from 1.

    Raises
    ------
    UsageError
        For a number that is not from 1 to ``count``.

    Examples
    --------
    >>> Shard(2, 3).of("abcdefg")
    ('b', 'e')
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise UsageError(
                f"--shard takes 1/{self.count} to {self.count}/{self.count}, got {self}.",
                hint=f"Number the jobs of the array from 1: with Slurm, --array=1-{max(1, self.count)}.",
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, cases: Sequence[_Item]) -> tuple[_Item, ...]:
        """Return every ``count``-th case, from the ``number``-th on."""
        return tuple(cases[self.number - 1 :: self.count])


@dataclass(frozen=True, slots=True)
class Request:
    """One run of the converter.

    Parameters
    ----------
    inputs : tuple of Path
        Files and folders.
    output : Path or None
        A folder, or with a single input file also a file; of a format that joins cases, one file for all. None: beside the
        input.
    target : Format
        What to write.
    suffix : str
        Suffix of every output, with its dot.
    storage : mapping
        Storage arguments for formats with chunks, such as ``patch_size`` and ``layout``.
    workers : int or None
        Worker processes; None: chosen from processors and memory.
    memory_bytes : int or None
        Limit of each worker's memory; None: chosen from what is available.
    if_exists, verify
        See the enums.
    labels : str
        ``"auto"``: files that are named like segmentations; ``"none"``: no file; else a glob pattern for their paths.
    dry_run, fail_fast : bool
        Only plan; stop at the first failure.
    item : str or None
        Which image of files that hold several; other files are not concerned.
    axes, spacing : str and tuple of float, or None
        Names of the axes (``"czyx"``) and spacing in millimetres, for files that do not state them.
    series : SeriesOptions
        How strictly the slices of a series have to form a volume, and whether private fields of their headers are kept.
    scheduler : str or None
        Address of a Dask scheduler, path of a scheduler file, or ``"local"``; None: processes of this machine.
    shard : Shard or None
        Which part of the cases to take.
    statistics : bool
        Measure images once they are written, and store minimum, maximum, mean and deviation in them for the planner.

    Raises
    ------
    UsageError
        For a target that cannot be written, or numbers below 1.
    """

    inputs: tuple[Path, ...]
    output: Path | None
    target: Format
    suffix: str
    storage: Mapping[str, object] = field(default_factory=dict)
    workers: int | None = None
    memory_bytes: int | None = None
    if_exists: IfExists = IfExists.SKIP
    verify: Verify = Verify.QUICK
    labels: str = "auto"
    dry_run: bool = False
    fail_fast: bool = False
    item: str | None = None
    axes: str | None = None
    spacing: tuple[float, ...] | None = None
    series: SeriesOptions = field(default_factory=SeriesOptions)
    scheduler: str | None = None
    shard: Shard | None = None
    statistics: bool = False

    def __post_init__(self) -> None:
        if not self.inputs:
            raise UsageError("There is no input.", hint="Name files or folders to convert.")
        if not self.target.writes:
            allowed = ", ".join(row.name for row in all_formats() if row.writes)
            raise UsageError(f"{self.target.title} can be read but not written; --to takes {allowed}.")
        codec = self.storage.get("codec")
        if codec is not None and str(codec).lower().split("-")[0] not in self.target.codecs:
            allowed = ", ".join(self.target.codecs)
            raise UsageError(
                f"{self.target.title} is not written with the codec {codec!r}; "
                + (
                    f"it has {allowed}, with a level if wanted: {self.target.codecs[0]}-6."
                    if allowed
                    else "it has no choice."
                ),
            )
        if self.statistics and self.target.name != "mla":
            raise UsageError(f"Statistics are stored in .mla files, not in {self.target.title}.", hint="Leave it out.")
        if self.axes is not None:
            parse_axes(self.axes)
        if self.output is not None and is_remote(self.output) and self.target.name != "ome-zarr":
            raise UsageError(
                f"Only OME-Zarr is written to a remote store, not {self.target.title}: got {self.output}.",
                hint="Add --to ome-zarr, or write into a folder.",
            )
        if self.shard is not None and self.store is not None:
            raise UsageError(
                f"Parts of a data set cannot all be written into {self.output}: one file has one writer.",
                hint="Write a file per case into a folder, or leave --shard out.",
            )
        if self.item == "":
            raise UsageError("The item is empty.", hint="Name an image of the file, or leave --item out.")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"At least 1 worker is needed, got {self.workers}.")
        if self.memory_bytes is not None and self.memory_bytes < LEAST_MEMORY_BYTES:
            raise UsageError(
                f"The memory limit of a worker is at least {LEAST_MEMORY_BYTES // 10**6} MB, which it takes before it opens a "
                f"file; got {self.memory_bytes} bytes.",
                hint="Small cases need about 100MB; `mla convert --dry-run` shows what each case needs.",
            )
        if self.workers is not None and self.scheduler not in (None, LOCAL_SCHEDULER):
            raise UsageError(
                f"--workers {self.workers} does not go with --scheduler {self.scheduler}: the cluster has its workers.",
                hint="Start fewer workers there, or fewer threads each: one case runs per thread.",
            )

    @property
    def output_is_file(self) -> bool:
        """Whether ``output`` names the file to write, not a folder."""
        return self.output is not None and names_file(self.output, self.inputs)

    @property
    def store(self) -> Path | None:
        """The one file into which all cases go, or None when each is written to a file of its own."""
        return self.output if self.output is not None and names_store(self.output, self.inputs) else None

    @property
    def folder(self) -> Path | None:
        """Where the files of the cases are written: the output, or the folder in which they wait to be joined."""
        store = self.store
        return self.output if store is None else store.with_name(f"{store.name}{PARTS_SUFFIX}")


def make_request(
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
) -> Request:
    """Turn what a user writes into a :class:`Request`.

    Parameters
    ----------
    inputs : path or sequence of paths
        Files and folders.
    output : path, optional
        See :class:`Request`; the suffix of an output file chooses the format.
    to : str, optional
        Name of the target format. Default: that of the output's suffix, else ``"mla"``.
    patch_size : int, sequence of int or str, optional
        Patch that the layout is made for, such as ``192`` or ``"128,160,160"``. Default: 192.
    layout : str, optional
        Name of the layout, ``"nnunet"`` or ``"small-blocks"``. Default: ``"nnunet"``.
    storage : mapping, optional
        Further storage arguments.
    workers, memory, if_exists, verify, labels, dry_run, fail_fast, item, axes, statistics
        See :class:`Request`; ``memory`` may be text such as ``"8GB"``.
    spacing : float, sequence of float or str, optional
        Millimetres, one for all spatial axes or one for each: ``"3,0.7,0.7"``.
    codec : str, optional
        The storage argument ``codec``, for formats that have a choice: ``"gzip"``, ``"blosc2-7"``.
    slice_tolerance, orientation_tolerance, irregular_slices, keep_private
        For DICOM series; see :func:`mlarray_convert.batch.convert`.
    ome_version : {"0.5", "0.4"}, optional
        Of an OME-Zarr. Default: 0.5.
    shards : str, int or sequence of int, optional
        Extents of the shards of an OME-Zarr per array axis, or ``"auto"``. Default: no shards.
    scheduler : str or path, optional
        See :class:`Request`.
    shard : str or (int, int), optional
        Which part of how many, such as ``"3/16"``.

    Raises
    ------
    UsageError
        For anything that is not understood, or a suffix that contradicts ``to``.
    """
    paths = (inputs,) if isinstance(inputs, str | Path) else tuple(inputs)
    if "" in (*paths, output):  # Path("") is the current folder
        raise UsageError("A path is empty.", hint="Name a file or a folder; the current folder is '.'.")
    places = tuple(as_path(path) for path in paths)
    place = None if output is None else as_path(output)
    target, suffix = _target(places, place, to)
    arguments = dict(storage or {})
    if codec is not None:
        arguments["codec"] = codec
    for name, value in (("ome_version", ome_version), ("shard_size", parse_shards(shards))):
        if value is not None:
            if target.name != "ome-zarr":
                raise UsageError(f"{name} is for OME-Zarr, not for {target.title}.", hint="Add --to ome-zarr.")
            arguments[name] = value
    if patch_size is not None:
        arguments["patch_size"] = parse_patch_size(patch_size)
    if layout is not None:
        arguments["layout"] = layout
    if "layout" in arguments:
        arguments["layout"] = parse_layout_name(arguments["layout"])
    return Request(
        places,
        place,
        target,
        suffix,
        arguments,
        workers,
        parse_memory(memory) if isinstance(memory, str) else memory,
        _choice(IfExists, if_exists, "--if-exists"),
        _choice(Verify, verify, "--verify"),
        labels,
        dry_run,
        fail_fast,
        item,
        axes,
        None if spacing is None else parse_spacing(spacing),
        SeriesOptions(
            slice_tolerance,
            orientation_tolerance,
            _choice(IrregularSlices, irregular_slices, "--irregular-slices") is IrregularSlices.KEEP,
            keep_private,
        ),
        None if scheduler is None else parse_scheduler(scheduler),
        None if shard is None else parse_shard(shard),
        statistics,
    )


def names_file(output: Path, inputs: Sequence[Path]) -> bool:
    """Tell whether an output path means one image: a known suffix, one input that is an image, and no folder of that name."""
    if len(inputs) != 1 or format_of_name(output) is None or (output.is_dir() and not is_folder_image(output)):
        return False
    place = inputs[0]
    return not place.is_dir() or is_folder_image(place) or is_series_folder(place)


def names_store(output: Path, inputs: Sequence[Path]) -> bool:
    """Tell whether an output path means one file for all cases: a suffix of a format that joins, and not one image."""
    row = format_of_name(output)
    return row is not None and row.joins and not output.is_dir() and not names_file(output, inputs)


def parse_memory(text: str) -> int:
    """Return the bytes that a text such as ``"8GB"``, ``"500 MiB"`` or ``"1.5G"`` stands for.

    Examples
    --------
    >>> parse_memory("8GB"), parse_memory("1.5 GiB")
    (8000000000, 1610612736)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([kKmMgGtT]?[iI]?)[bB]?\s*", text)
    unit = match.group(2).upper() if match else "?"
    factor = _UNITS.get(unit, _BINARY_UNITS.get(unit))
    if match is None or factor is None:
        raise UsageError(f"{text!r} is not an amount of memory.", hint="Write it like 8GB, 500MB or 1.5GiB.")
    amount = int(float(match.group(1)) * factor)
    if amount < 1:
        raise UsageError(f"The memory limit must be positive, got {text!r}.")
    return amount


def parse_patch_size(value: PatchSize | str) -> PatchSize:
    """Return a patch size from one number, numbers with commas (or ``x``), or ``"default"``.

    Examples
    --------
    >>> parse_patch_size("128,160,160")
    (128, 160, 160)
    """
    if isinstance(value, int) and value > 0:
        return value
    if value == "default":
        return "default"
    if isinstance(value, int):
        extents: tuple[int, ...] = (value,)
    elif isinstance(value, str):
        fields = re.split(r"[,x]", value.strip())
        if not all(re.fullmatch(r"\s*[0-9]+\s*", field) for field in fields):
            raise UsageError(f"{value!r} is not a patch size.", hint="Write one number, or one per axis: 128,160,160.")
        extents = tuple(int(field) for field in fields)
    else:
        extents = tuple(int(extent) for extent in value)
    if not extents or any(extent < 1 for extent in extents):
        raise UsageError(f"A patch needs at least 1 voxel along every axis, got {extents}.")
    return extents[0] if len(extents) == 1 else extents


def parse_spacing(value: float | Sequence[float] | str) -> tuple[float, ...]:
    """Return a spacing from one number or numbers with commas.

    Examples
    --------
    >>> parse_spacing("3,0.7,0.7")
    (3.0, 0.7, 0.7)
    """
    fields = value.split(",") if isinstance(value, str) else [value] if isinstance(value, (int, float)) else value
    try:
        numbers = tuple(float(field) for field in fields)
    except (TypeError, ValueError):
        numbers = ()
    if not numbers or not all(math.isfinite(number) and number > 0 for number in numbers):
        raise UsageError(
            f"{value!r} is not a spacing.", hint="Write millimetres, one number or one per axis: 3,0.7,0.7."
        )
    return numbers


def parse_shards(value: str | int | Sequence[int] | None) -> str | int | tuple[int, ...] | None:
    """Return the extents of shards from one number, numbers with commas (or ``x``), or ``"auto"``.

    Examples
    --------
    >>> parse_shards("1,256,512,512"), parse_shards("auto")
    ((1, 256, 512, 512), 'auto')
    """
    if value is None or value == "auto":
        return value if value is None else "auto"
    extents = parse_patch_size(value)
    return extents if isinstance(extents, (int, str)) else tuple(extents)


def parse_scheduler(value: str | Path) -> str:
    """Return where a Dask scheduler is: ``"local"``, an address, or the path of its scheduler file.

    Examples
    --------
    >>> parse_scheduler("tcp://10.0.0.4:8786"), parse_scheduler("node7:8786")
    ('tcp://10.0.0.4:8786', 'tcp://node7:8786')
    """
    text = str(value)
    if text == LOCAL_SCHEDULER or ("://" in text and _ADDRESS.fullmatch(text)):
        return text
    if Path(text).is_file():
        return text
    if _ADDRESS.fullmatch(text):
        return f"tcp://{text}"
    raise UsageError(
        f"--scheduler takes the address of a Dask scheduler, the path of its scheduler file, or local; got {text!r}.",
        hint="An address looks like tcp://host:8786; the scheduler prints it when it starts.",
    )


def parse_shard(value: str | tuple[int, int]) -> Shard:
    """Return a part from text.

    Examples
    --------
    >>> parse_shard("3/16")
    Shard(number=3, count=16)
    """
    if not isinstance(value, str):
        return Shard(*value)
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", value.strip())
    if match is None:
        raise UsageError(f"{value!r} is not a part of the cases.", hint="Write it like 3/16: the third of 16 parts.")
    return Shard(int(match.group(1)), int(match.group(2)))


def _target(inputs: Sequence[Path], output: Path | None, to: str | None) -> tuple[Format, str]:
    is_file = output is not None and (names_file(output, inputs) or names_store(output, inputs))
    named = format_of_name(output) if output is not None and is_file else None
    row = format_named(to) if to is not None else named or format_named("mla")
    if named is None or output is None:
        return row, row.suffixes[0]
    if named.name != row.name:
        raise UsageError(
            f"The output {output.name} is named like {named.title}, but --to asks for {row.title}.",
            hint="Change the suffix or leave --to out.",
        )
    lower = output.name.lower()
    length = max(len(suffix) for suffix in row.suffixes if lower.endswith(suffix))
    return row, output.name[-length:]


def _choice(kind: type[_Choice], value: str, option: str) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(f"{option} takes {', '.join(str(one.value) for one in kind)}; got {value!r}.") from None
