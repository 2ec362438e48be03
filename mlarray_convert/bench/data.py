"""What is read in the measurement? A file, files of a folder, or volumes that are made up, as large as the time allows.

Every volume becomes one uncompressed ``.npy`` file in the scratch folder: what the candidates are written from, and the floor
that they are compared with. Volumes that are too large are cut around their centre, never scaled: voxels stay as they are.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mlarray.errors import MissingFileError, UsageError
from mlarray.formats.raw_sink import RawSink
from mlarray.formats.registry import format_of_name, open_source
from mlarray.layout import DEFAULT_PATCH_SIZE, PatchSize
from mlarray.region import Region
from mlarray.sources.base import NDArray, Source
from mlarray.sources.memory import GeneratedSource
from mlarray.sources.raw import RawLayout
from mlarray.sources.tiles import plan_tiles
from mlarray.spec import ArraySpec
from mlarray.storage.publish import named_errors

SYNTHETIC = ("ct", "mr", "labels")
MOST_VOLUMES = 4
PATCHES_PER_AXIS = 2  # fewer, and random patches lie nearly in one place
_SHRINK = 0.94
_SHAPES = {"ct": (400, 512, 512), "mr": (240, 320, 320), "labels": (400, 512, 512)}
_DTYPES = {"ct": np.int16, "mr": np.float32, "labels": np.uint8}
_SEED = 20


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a volume comes from.

    Parameters
    ----------
    name : str
        Of the file, or of the kind of synthetic data.
    source : Source
        Its voxels.
    """

    name: str
    source: Source


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume in the scratch folder.

    Parameters
    ----------
    name : str
        Of its origin.
    path : Path
        An ``.npy`` file.
    spec : ArraySpec
        Of what was kept.
    full_shape : tuple of int
        Of the origin.
    """

    name: str
    path: Path
    spec: ArraySpec
    full_shape: tuple[int, ...]

    def voxels(self) -> NDArray:
        """Return the voxels as a read-only memory map."""
        mapped: NDArray = np.load(self.path, mmap_mode="r")
        return mapped


def find_origins(inputs: Path | None, synthetic: str | None) -> tuple[tuple[Origin, ...], tuple[str, ...]]:
    """Open what is to be measured, and return it with what should be known about the choice.

    Of a folder at most four images of one dtype are taken, spread over the sorted names.

    Raises
    ------
    UsageError
        Neither or both are given, an unknown kind, or a folder without images.
    MissingFileError
        There is no such file.
    """
    if (inputs is None) == (synthetic is None):
        raise UsageError(
            "One of a file, a folder and synthetic data is needed.", hint="For example `mla bench --synthetic ct`."
        )
    if synthetic is not None:
        return (Origin(f"synthetic {synthetic}", synthetic_source(synthetic)),), ()
    assert inputs is not None
    if not inputs.exists():
        raise MissingFileError(f"There is no file or folder {inputs}.")
    row = format_of_name(inputs)
    if inputs.is_file() or (row is not None and row.folders):
        return (Origin(inputs.name, open_source(inputs)),), ()
    files = sorted(
        path
        for path in inputs.rglob("*")
        if path.is_file() and not path.name.startswith(".") and format_of_name(path) is not None
    )
    if not files:
        raise UsageError(f"{inputs} holds no image of a format that can be read.", hint="`mla formats` lists them.")
    count = min(MOST_VOLUMES, len(files))
    picked = [files[index * len(files) // count] for index in range(count)]
    origins = [Origin(str(path.relative_to(inputs)), open_source(path)) for path in picked]
    first = origins[0].source.spec
    same = tuple(o for o in origins if o.source.spec.dtype == first.dtype and o.source.spec.ndim == first.ndim)
    notes = [f"{len(same)} of the {len(files)} images of the folder are measured: {', '.join(o.name for o in same)}."]
    if len(same) < count:
        notes.append(f"Images of other types than {first.dtype} or with other axes were left out; measure them apart.")
    return same, tuple(notes) if len(files) > 1 else ()


def patch_extent(spec: ArraySpec, patch_size: PatchSize) -> tuple[int, ...]:
    """Return the extent of one read per array axis: the patch, cut to the array, and 1 along axes that are not spatial."""
    spatial = [axis for axis, flag in enumerate(spec.spatial) if flag]
    if isinstance(patch_size, int):
        patch = [patch_size] * len(spatial)
    elif patch_size is None or isinstance(patch_size, str):
        patch = [DEFAULT_PATCH_SIZE] * len(spatial)
    else:
        patch = [1] * (len(spatial) - len(patch_size)) + list(patch_size)
    placed = dict(zip(spatial, patch, strict=False))
    return tuple(min(extent, placed.get(axis, 1)) for axis, extent in enumerate(spec.shape))


def fitted_shape(spec: ArraySpec, patch: Sequence[int], budget_bytes: int) -> tuple[int, ...]:
    """Return the largest shape within a budget, axes that hold most patches cut first and none below two patches.

    Examples
    --------
    >>> fitted_shape(ArraySpec((400, 512, 512), np.dtype(np.int16)), (64, 64, 64), 2**24)
    (199, 197, 210)
    """
    floor = [min(extent, PATCHES_PER_AXIS * p) for extent, p in zip(spec.shape, patch, strict=True)]
    shape = list(spec.shape)
    while math.prod(shape) * spec.dtype.itemsize > budget_bytes:
        longest = max(range(len(shape)), key=lambda axis: shape[axis] / floor[axis])
        if shape[longest] <= floor[longest]:
            break
        shape[longest] = max(floor[longest], int(shape[longest] * _SHRINK))
    return tuple(shape)


def store_volumes(
    origins: Sequence[Origin],
    folder: Path,
    patch_size: PatchSize,
    *,
    budget_bytes: int,
    progress: Callable[[float], None],
) -> tuple[Volume, ...]:
    """Write the centre of every origin into ``folder``, within a budget of bytes for all of them together.

    Parameters
    ----------
    origins : sequence of Origin
        What to take.
    folder : Path
        Exists.
    patch_size : int, sequence of int or "default"
        No axis is cut below two patches, also where the budget is exceeded.
    budget_bytes : int
        For all volumes together.
    progress : callable
        Called with the share that is done, from 0 to 1.
    """
    volumes = []
    for number, origin in enumerate(origins):
        spec = origin.source.spec
        dtype = spec.dtype.newbyteorder("=")
        shape = fitted_shape(spec, patch_extent(spec, patch_size), budget_bytes // len(origins))
        corner = tuple((n - kept) // 2 for n, kept in zip(spec.shape, shape, strict=True))
        kept_spec = replace(spec, shape=shape, dtype=dtype, geometry=None)
        path = folder / f"raw_{number}.npy"
        header = io.BytesIO()
        fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, fields)
        stored = RawSink(path, kept_spec, RawLayout.in_order(shape, dtype), header.getvalue())
        tiles = plan_tiles(kept_spec, None, access=origin.source.access, order=origin.source.order)
        done = 0
        try:
            with named_errors(path):
                for region in tiles:
                    stored.write(region, origin.source.read(region.translate(corner)))
                    done += region.size
                    progress((number + done / max(1, kept_spec.size)) / len(origins))
                stored.publish()
        except BaseException:
            stored.abort()
            raise
        volumes.append(Volume(origin.name, path, kept_spec, spec.shape))
    return tuple(volumes)


def close_all(origins: Sequence[Origin]) -> None:
    """Release the files of origins."""
    for origin in origins:
        with closing(origin.source):
            pass


def synthetic_source(kind: str) -> Source:
    """Return a made-up volume that compresses like what it stands for.

    Parameters
    ----------
    kind : {"ct", "mr", "labels"}
        ``"ct"``: int16 Hounsfield units 400 x 512 x 512, organs with noise inside a circular field of view. ``"mr"``: float32
        240 x 320 x 320, z-scored, resampled, constant outside the head. ``"labels"``: uint8 400 x 512 x 512, 20 structures.

    Raises
    ------
    UsageError
        For another kind.
    """
    if kind not in SYNTHETIC:
        raise UsageError(f"Synthetic data is one of {', '.join(SYNTHETIC)}; got {kind!r}.")
    spec = ArraySpec(_SHAPES[kind], np.dtype(_DTYPES[kind]))
    return GeneratedSource(spec, _Phantom(kind, spec).fill)


class _Phantom:
    """Planes of smooth structures in an ellipsoid, with noise from a pool that is shifted from plane to plane."""

    def __init__(self, kind: str, spec: ArraySpec) -> None:
        self._kind = kind
        self._shape = spec.shape
        rng = np.random.default_rng(_SEED)
        depth, *plane = spec.shape
        coarse = rng.normal(0, 1, (depth // 16 + 2, *(n // 16 + 2 for n in plane))).astype(np.float32)
        self._knots = _stretched(_stretched(coarse, 1, plane[0]), 2, plane[1])
        noise = rng.normal(0, 1, (16, *plane)).astype(np.float32)
        if kind == "mr":  # neighbours of a resampled image are no longer independent
            noise = (noise + np.roll(noise, 1, 1) + np.roll(noise, 1, 2)) / np.float32(math.sqrt(3))
        self._noise = noise

    def fill(self, region: Region, target: NDArray) -> None:
        for depth in range(region.start[0], region.stop[0]):
            target[depth - region.start[0]] = self._plane(depth, *region.slices[1:])

    def _plane(self, depth: int, rows: slice, columns: slice) -> NDArray:
        below, weight = divmod(depth / 16, 1)
        low, high = self._knots[int(below), rows, columns], self._knots[int(below) + 1, rows, columns]
        knots = low + (high - low) * np.float32(weight)
        shift = (depth // 16) * 37
        rolled = (np.arange(columns.start, columns.stop) + shift) % self._shape[2]
        z, y, x = (np.linspace(-1, 1, n, dtype=np.float32) for n in self._shape)
        y, x = y[rows, None], x[None, columns]
        inside = (y / 0.75) ** 2 + (x / 0.85) ** 2 < 1 - (z[depth] / 1.2) ** 2
        if self._kind == "labels":
            return np.where(inside & (knots > 0.25), np.clip(knots * 8, 1, 20), 0).astype(np.uint8)
        noise = self._noise[depth % 16, rows].take(rolled, axis=1)
        if self._kind == "mr":
            return np.where(inside, knots * 0.8 + noise * 0.15 + 1.2, np.float32(-0.6)).astype(np.float32)
        hounsfield = np.where(inside, knots * 60 + 40, np.float32(-1000)) + noise * 18
        return np.where(y**2 + x**2 < 1, np.clip(np.rint(hounsfield), -1024, 3071), -1024).astype(np.int16)


def _stretched(values: NDArray, axis: int, extent: int) -> NDArray:
    position = np.linspace(0, values.shape[axis] - 1, extent)
    low = np.minimum(position.astype(int), values.shape[axis] - 2)
    weight = (position - low).astype(np.float32).reshape([-1 if i == axis else 1 for i in range(values.ndim)])
    stretched: NDArray = values.take(low, axis) * (1 - weight) + values.take(low + 1, axis) * weight
    return stretched


def draw_patches(
    volumes: Sequence[Volume], patch_size: PatchSize, count: int, rng: np.random.Generator
) -> Iterator[tuple[int, Region]]:
    """Yield ``count`` random reads: the number of a volume, and a region of the patch's extent anywhere inside it."""
    for _ in range(count):
        number = int(rng.integers(len(volumes)))
        spec = volumes[number].spec
        extent = patch_extent(spec, patch_size)
        start = tuple(int(rng.integers(n - p + 1)) for n, p in zip(spec.shape, extent, strict=True))
        yield number, Region.at(start, extent)
