"""How do overlapping predicted patches become a volume on the grid of the stored file, without ever being in memory as a whole?

The volume is cut into tiles. A tile holds the weighted sum of the patches that touch it, and the sum of their weights; when
every patch of the plan's grid that touches it has come, it is divided and written to an ``.mla``, and forgotten. Patches
that come in the order of the grid so keep a band of tiles in memory. In any other order tiles are put aside in a scratch
file when there are too many. At the end the result is carried back through the inverse chain, again region by region.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mlarray.axes import Axis, default_axes
from mlarray.errors import UsageError
from mlarray.formats import mla
from mlarray.formats.registry import open_source
from mlarray.region import Region
from mlarray.sources.base import NDArray, SinkOptions, Source, SourceInfo
from mlarray.sources.memory import GeneratedSource
from mlarray.spec import ArraySpec
from mlarray.storage.leftovers import remove_leftovers
from mlarray.storage.publish import part_path, remove_tree
from mlarray.streaming.arguments import flag, instance, path_of, whole
from mlarray.streaming.chain import checked
from mlarray.streaming.grid import extents_of
from mlarray.streaming.plan import Plan
from mlarray.streaming.plan_source import check_writing, format_to_write, write_result
from mlarray.streaming.planning import plan as plan_of
from mlarray.transforms.base import Transform, rounded_to
from mlarray.transforms.casting import number_type

HELD_BYTES = 256 << 20
"""Default of ``memory``: sums of unfinished tiles that are held."""
GAUSSIAN_SIGMA = 0.125
"""Of the Gaussian weights, as a share of the patch: 1/8, as in nnU-Net."""
_TILE, _BLOCK = 64, 32
_LEAST_WEIGHT = 1e-4


class PatchWriter:
    """Collects predicted patches of one case and writes them on the stored grid.

    Parameters
    ----------
    path : str or Path
        The file to write; its suffix names the format. It appears when the writer is closed, complete, or not at all.
    plan : Plan
        What the patches were read with; its grid says which patches there are.
    channels : int
        Of a predicted patch.
    dtype : numpy dtype
        Of what is stored before ``finish``: the mean of the patches. In an integer type it is rounded half to even, and what lies
        beyond an end of the type becomes that end; in bool it is whether the mean is above 1/2. In a float type, what is too
        large becomes the largest finite number, NaN and infinities stay.
    weights : str or ndarray
        ``"uniform"``, ``"gaussian"`` (a voxel counts less towards the border of its patch), or an array of the patch's shape.
    back : bool
        Carry the result back to the stored grid through the inverse chain; False: write it on the grid of the result.
    finish : sequence of Transform
        Done last, on the grid that is written: ``[Argmax()]`` stores labels.
    memory : int
        Bytes of unfinished tiles to hold; more are put aside on disk, beside ``path``.
    storage : mapping, optional
        Storage arguments of the file.

    Raises
    ------
    UsageError
        An argument of another kind, storage arguments that the format does not take, or a file that it cannot hold.
    PlanError
        A stage of the chain cannot be undone.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from mlarray import MLArray, open_source, transforms as T
    >>> from mlarray.streaming import PatchWriter, plan
    >>> folder = tempfile.mkdtemp()
    >>> MLArray(np.ones((9, 10, 11), np.float32), axes="zyx", spacing=(2, 1, 1), patch_size=8).save(f"{folder}/ct.mla")
    >>> p = plan(open_source(f"{folder}/ct.mla"), [T.ResampleToResolution([1, 1, 1])], patch_size=8)
    >>> with PatchWriter(f"{folder}/seg.mha", p, channels=2, finish=[T.Argmax()]) as writer:
    ...     for target in p.grid:
    ...         patch = p.read(target)
    ...         writer.add(target, np.concatenate([1 - patch, patch]))
    >>> open_source(f"{folder}/seg.mha").spec.shape
    (9, 10, 11)
    """

    def __init__(
        self,
        path: str | Path,
        plan: Plan,
        *,
        channels: int,
        dtype: npt.DTypeLike = np.float32,
        weights: str | NDArray = "gaussian",
        back: bool = True,
        finish: Sequence[Transform] = (),
        memory: int = HELD_BYTES,
        storage: Mapping[str, object] | None = None,
    ) -> None:
        self.path = path_of("path", path)
        format_to_write(self.path)  # what cannot be written is said before anything is predicted
        self.plan = instance(
            "plan", plan, Plan, "stream.plan(case, group) is one, and so is mlarray.streaming.plan(...)."
        )
        self.channels, self.back = whole("channels", channels, 1), flag("back", back)
        self.finish, self.storage = tuple(checked(finish)), storage
        self._weights = _checked_weights(weights, plan.grid.patch_size)
        self._window: dict[tuple[int, ...], NDArray] = {}
        shape = plan.result.shape
        if 0 in shape:
            raise UsageError(f"The result of the plan has the shape {shape}: there is no voxel to predict.")
        axes = (Axis("c", "channel"), *default_axes(len(shape)))
        self._spec = ArraySpec((self.channels, *shape), _stored_type(dtype), axes, plan.result.geometry)
        self._tile = tuple(min(_TILE, n) for n in shape)
        memory = whole("memory", memory, 1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers([self.path.parent])
        self._scratch = part_path(self.path)
        self._scratch.mkdir()
        try:
            check_writing(
                self._placed(GeneratedSource(self._spec, _nothing)), self.path, self._scratch, storage=storage
            )
            self._collected = self._scratch / "collected.mla"
            block = (1, *(min(_BLOCK, n) for n in self._tile))
            layout = {"patch_size": None, "chunk_size": (self.channels, *self._tile), "block_size": block}
            self._sink = mla.open_sink(self._collected, self._spec, SourceInfo(), SinkOptions(layout))
        except BaseException:
            remove_tree(self._scratch)
            raise
        self._sums = _Tiles((self.channels + 1, *self._tile), memory, self._scratch / "sums.raw")
        self._missing = self._patches_per_tile()
        self._seen = np.zeros([len(line) for line in plan.grid.starts], np.bool_)
        self._done = False

    def add(self, target: Region, prediction: NDArray) -> None:
        """Add one patch.

        Parameters
        ----------
        target : Region
            Of ``plan.grid``, each once.
        prediction : ndarray or Tensor, shape (channels, spatial...)
            At least as large as the target; what was filled up at the far side is cut off. A tensor of torch is taken from its
            graph and its device; bfloat16 becomes float32.

        Raises
        ------
        UsageError
            Another number of channels, a patch smaller than its target, one that is not of the grid or came before, what is no
            real number, or, for an integer type, NaN and infinities.
        """
        if self._done:
            raise UsageError(f"The writer of {self.path.name} is closed.", hint="Make another one.")
        shape = instance("target", target, Region, "Take it from plan.grid, or sample.region of a batch.").shape
        values = _as_array(prediction)
        if (
            values.ndim != len(shape) + 1
            or values.shape[0] != self.channels
            or any(n < wanted for n, wanted in zip(values.shape[1:], shape, strict=True))
        ):
            raise UsageError(f"A patch of {(self.channels, *shape)} was expected, got {values.shape}.")
        weights = self._weights_of(shape)
        values = values[(slice(None), *(slice(0, n) for n in shape))]
        if self._spec.dtype.kind in "biu" and values.dtype.kind == "f" and not np.isfinite(values).all():
            wrong = values.size - int(np.isfinite(values).sum())
            raise UsageError(
                f"{wrong} of {values.size} values of the patch {target.start}..{target.stop} are NaN or infinite, which is no "
                f"{self._spec.dtype}.",
                hint="Look at the network, or store a float type: dtype=np.float32.",
            )
        self._note(target)
        for index, tile in self._tiles_of(target):
            inside = target.intersect(tile)
            cut = inside.relative_to(target).slices
            place = inside.relative_to(tile).slices
            *sums, total = self._sums[index]
            with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs are NaN together
                for channel, value in zip(sums, values, strict=True):
                    channel[place] += value[cut] * weights[cut]
            total[place] += weights[cut]
            self._missing[index] -= 1
            if not self._missing[index]:
                self._write(index, tile)

    def close(self) -> None:
        """Write what is left and give the file its name.

        Raises
        ------
        UsageError
            Patches of the grid are missing: parts of the volume would not be known.
        """
        if self._done:
            return
        try:
            missing = self._seen.size - int(np.count_nonzero(self._seen))
            if missing:
                raise UsageError(
                    f"{missing} of {self._seen.size} patches of {self.path.name} are missing.",
                    hint="Add every patch of plan.grid, then close the writer.",
                )
            self._sink.publish()
            with open_source(self._collected) as collected:
                write_result(self._placed(collected), self.path, storage=self.storage)
        finally:
            self.abort()

    def abort(self) -> None:
        """Remove everything; after :meth:`close` there is nothing to remove but scratch files."""
        if not self._done:
            self._done = True
            self._sink.abort()
            self._sums.close()
            remove_tree(self._scratch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close() if kind is None else self.abort()

    def _placed(self, collected: Source) -> Plan:
        """Return the plan of what is written, from what the patches gave together."""
        return (self.plan.inverse(collected) if self.back else plan_of(collected, ())).extended(self.finish)

    def _note(self, target: Region) -> None:
        """Mark a patch of the grid as seen."""
        grid = self.plan.grid
        try:
            place: tuple[int, ...] | None = tuple(
                line.index(low) for line, low in zip(grid.starts, target.start, strict=True)
            )
        except ValueError:
            place = None
        if place is None or grid[int(np.ravel_multi_index(place, self._seen.shape))] != target:
            raise UsageError(f"The patch {target.start}..{target.stop} is not of the plan's grid.")
        if self._seen[place]:
            raise UsageError(f"The patch {target.start}..{target.stop} came before.", hint="Add every patch once.")
        self._seen[place] = True

    def _write(self, index: tuple[int, ...], tile: Region) -> None:
        sums = self._sums.take(index)[(slice(None), *(slice(0, n) for n in tile.shape))]
        with np.errstate(invalid="ignore"):
            mean = sums[:-1] / sums[-1]
        place = Region((0, *tile.start), (self.channels, *tile.stop))
        self._sink.write(place, np.ascontiguousarray(_stored(mean, self._spec.dtype)))

    def _tiles_of(self, region: Region) -> Iterator[tuple[tuple[int, ...], Region]]:
        lines = [range(a // t, -(-b // t)) for a, b, t in zip(region.start, region.stop, self._tile, strict=True)]
        for index in itertools.product(*lines):
            start = tuple(i * t for i, t in zip(index, self._tile, strict=True))
            stop = tuple(min(a + t, n) for a, t, n in zip(start, self._tile, self.plan.result.shape, strict=True))
            yield index, Region(start, stop)

    def _patches_per_tile(self) -> dict[tuple[int, ...], int]:
        """Return how many patches of the grid touch each tile: along each axis on its own, then their product."""
        grid = self.plan.grid
        lines = []
        for starts, size, extent, tile in zip(grid.starts, grid.patch_size, grid.shape, self._tile, strict=True):
            counts = [0] * -(-extent // tile)
            for start in starts:
                for index in range(start // tile, -(-min(start + size, extent) // tile)):
                    counts[index] += 1
            lines.append(counts)
        indices = itertools.product(*(range(len(line)) for line in lines))
        return {index: math.prod(line[i] for line, i in zip(lines, index, strict=True)) for index in indices}

    def _weights_of(self, shape: tuple[int, ...]) -> NDArray:
        if isinstance(self._weights, np.ndarray):
            return self._weights[tuple(slice(0, n) for n in shape)]
        if shape not in self._window:
            self._window[shape] = patch_weights(shape, self._weights)
        return self._window[shape]


def patch_weights(shape: Sequence[int], kind: str) -> NDArray:
    """Return how much each voxel of a patch counts.

    Parameters
    ----------
    shape : sequence of int
        Spatial.
    kind : str
        ``"uniform"``: 1. ``"gaussian"``: product of one Gaussian per axis about the middle, sigma 1/8 of the extent, at most 1
        and at least 0.0001.

    Raises
    ------
    UsageError
        Another kind.
    """
    if not isinstance(kind, str) or kind not in ("uniform", "gaussian"):
        raise UsageError(f'weights are "uniform", "gaussian" or an array, got {kind!r}.')
    shape = extents_of("shape", shape)
    if kind == "uniform":
        return np.ones(tuple(shape))
    found = np.ones((1,) * len(shape))
    for axis, n in enumerate(shape):
        offset = (np.arange(n) - (n - 1) / 2) / (GAUSSIAN_SIGMA * n)
        line = np.exp(-0.5 * offset * offset)
        found = found * line.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    weights: NDArray = np.maximum(found / found.max(), _LEAST_WEIGHT)
    return weights


def _checked_weights(weights: object, patch: Sequence[int]) -> str | NDArray:
    """Return the word, or float64 weights that cover a patch."""
    if isinstance(weights, str):
        patch_weights((1,), weights)
        return weights
    found = _as_array(weights).astype(np.float64)
    if found.ndim != len(patch) or any(n < m for n, m in zip(found.shape, patch, strict=True)):
        raise UsageError(f"Weights of shape {found.shape} do not cover a patch of {tuple(patch)}.")
    if not (found.min() > 0 and np.isfinite(found).all()):
        raise UsageError(f"Weights are finite numbers above 0, these are from {found.min()} to {found.max()}.")
    return found


def _stored_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype, in native byte order; a word may name another byte order."""
    with contextlib.suppress(TypeError):
        dtype = np.dtype(dtype).name
    return number_type(dtype)


def _stored(mean: NDArray, dtype: np.dtype[Any]) -> NDArray:
    """Return means as they are stored, see ``dtype`` of :class:`PatchWriter`."""
    if dtype.kind == "b":
        return np.asarray(mean > 0.5)
    if dtype.kind in "iu":
        return rounded_to(mean, dtype)
    with np.errstate(over="ignore"):
        values = mean.astype(dtype)
    beyond = np.isinf(values) & np.isfinite(mean)
    if beyond.any():
        values[beyond] = np.copysign(np.finfo(dtype).max, mean[beyond])
    return values


def _as_array(prediction: object) -> NDArray:
    """Return a patch as an array of real numbers, wherever a tensor of torch lies, and whatever it is part of."""
    tensor: Any = prediction
    if hasattr(tensor, "detach") and hasattr(tensor, "numpy"):
        tensor = tensor.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            tensor = tensor.float()
    try:
        values = np.asarray(tensor)
        if values.dtype.name == "bfloat16":  # of another package
            values = values.astype(np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"A patch is an array of numbers, {type(prediction).__name__} gives none: {error}.",
            hint="Pass a numpy array, or a dense tensor.",
        ) from error
    if values.dtype.kind not in "biuf":
        raise UsageError(
            f"A patch holds real numbers, got {values.dtype} from {type(prediction).__name__}.",
            hint="Pass float32, or the magnitude of complex numbers.",
        )
    return values


def _nothing(region: Region, target: NDArray) -> None:
    """Fill in nothing: only what the file would be is asked."""


class _Tiles:
    """Sums per tile: as many in memory as fit, the others in slots of a scratch file."""

    def __init__(self, shape: tuple[int, ...], memory: int, path: Path) -> None:
        self._shape = shape
        self._bytes = math.prod(shape) * 8
        self._most = max(1, memory // self._bytes)
        self._path = path
        self._held: OrderedDict[tuple[int, ...], NDArray] = OrderedDict()
        self._slots: dict[tuple[int, ...], int] = {}
        self._free: list[int] = []
        self._file: Any = None

    def __getitem__(self, index: tuple[int, ...]) -> NDArray:
        if index in self._held:
            self._held.move_to_end(index)
            return self._held[index]
        while len(self._held) >= self._most:
            self._put_aside(*self._held.popitem(last=False))
        self._held[index] = self._fetched(index) if index in self._slots else np.zeros(self._shape)
        return self._held[index]

    def take(self, index: tuple[int, ...]) -> NDArray:
        """Return the sums of a tile and forget them."""
        sums = self[index]
        del self._held[index]
        return sums

    def close(self) -> None:
        self._held.clear()
        if self._file is not None:
            self._file.close()

    def _put_aside(self, index: tuple[int, ...], sums: NDArray) -> None:
        if self._file is None:
            self._file = self._path.open("w+b")
        slot = self._free.pop() if self._free else len(self._slots)
        self._slots[index] = slot
        self._file.seek(slot * self._bytes)
        self._file.write(sums.data)

    def _fetched(self, index: tuple[int, ...]) -> NDArray:
        slot = self._slots.pop(index)
        self._file.seek(slot * self._bytes)
        sums: NDArray = np.frombuffer(bytearray(self._file.read(self._bytes)), np.float64).reshape(self._shape)
        self._free.append(slot)
        return sums
