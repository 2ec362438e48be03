"""Which volumes and chains are tried? Everything that fits, drawn by numpy from one number: cheap enough for thousands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlarray import transforms as T
from mlarray.errors import TransformError
from mlarray.geometry import Geometry
from mlarray.sources.base import NDArray, Source
from mlarray.streaming.volume_source import VolumeSource
from mlarray.testing.transforms import SAMPLE_DTYPES, WatchedSource, source_of
from mlarray.transforms import augmentations as A
from mlarray.transforms.augmentations.lists import Draw
from mlarray.transforms.base import Transform
from mlarray.transforms.statistics import Block, statistic_blocks
from mlarray.transforms.volume import Attributes, Volume

VOXELS = 1000
"""Most voxels of a drawn volume, with channels."""

RESULT_VOXELS = 4000
"""Most voxels after a stage, with channels."""

Rng = np.random.Generator


@dataclass
class Case:
    """A volume, what goes with it, and the chain that it is put through."""

    array: NDArray
    geometry: Geometry | None
    is_label: bool
    attributes: dict[str, object]
    chain: list[Transform] = field(default_factory=list)
    groups: dict[str, WatchedSource] = field(default_factory=dict)
    masks: list[WatchedSource] = field(default_factory=list)

    @property
    def source(self) -> Source:
        """The volume as a source."""
        return source_of(self.array, self.geometry, is_label=self.is_label)

    @property
    def volume(self) -> Volume:
        """The volume without its voxels."""
        return VolumeSource(self.source, case="drawn", attributes=Attributes.of(self.attributes)).volume

    @property
    def stored(self) -> Volume:
        """What the first stage gets: the volume with the box that one of them wants to know."""
        volume = self.volume
        for transform in self.chain:
            for key, statistic in transform.beforehand(volume).items():
                if key not in volume.attributes:
                    volume = volume.push(key, statistic.measure(lambda: cut_blocks(self.array)))
        return volume

    def group(self, rng: Rng, before: Volume, *, scalar: bool = False) -> str:
        """Name a new group of the case on the grid before a stage: a mask with few values, never 0 everywhere."""
        channels = before.channels if not scalar and before.channels > 1 and rng.random() < 0.2 else 1
        array = rng.integers(0, 3, (channels, *before.shape)).astype(rng.choice(["u1", "i2", "f4", "?"]))
        array.reshape(-1)[0] = 1
        name = f"GROUP{len(self.groups)}"
        self.groups[name] = WatchedSource(source_of(array, before.geometry if rng.random() < 0.8 else None))
        return name

    def __repr__(self) -> str:
        chain = ",\n  ".join(map(repr, self.chain))
        return (
            f"{self.array.dtype} {self.array.shape} {'labels ' if self.is_label else ''}with {self.geometry}, "
            f"{self.attributes}\n [{chain}]"
        )


def drawn_case(rng: Rng, stages: int, makers: Mapping[str, Maker]) -> Case:
    """Draw a volume, and as many of the stages as it can take."""
    ndim = int(rng.choice([2, 3, 3]))
    case = _volume(rng, ndim)
    volume = case.volume
    names = list(makers)
    forced: list[str] = []
    if "Crop" in makers and rng.random() < 0.08:
        volume = _with_box(rng, volume, case)
        forced = [["Crop"], ["Flip", "Crop"], ["Permute", "Canonical", "Crop"]][int(rng.integers(3))]
    for index in range(stages):
        for _ in range(8):  # most fit at the first or second attempt
            name = forced[index] if index < len(forced) else names[rng.integers(len(names))]
            transform, after = _fitting(makers[name], rng, volume, case)
            if transform is not None and after is not None:
                case.chain.append(transform)
                volume = after
                break
    return case


def _fitting(maker: Maker, rng: Rng, volume: Volume, case: Case) -> tuple[Transform | None, Volume | None]:
    transform = maker(rng, volume, case)
    if transform is None:
        return None, None
    try:
        after = transform.outcome(volume)
    except TransformError:
        return None, None
    too_large = after.channels * math.prod(after.shape) > RESULT_VOXELS
    return (None, None) if too_large else (transform, after)


def _volume(rng: Rng, ndim: int) -> Case:
    thin = rng.random(ndim) < 0.15
    most = {2: 30, 3: 12}[ndim]
    shape = tuple(int(n) for n in np.where(thin, rng.integers(1, 3, ndim), rng.integers(3, most, ndim)))
    channels = int(rng.choice([1, 1, 1, 2, 3, 3, 4]))
    while channels * math.prod(shape) > VOXELS:
        shape = tuple(max(1, n - 1) for n in shape)
    dtype = np.dtype(rng.choice(SAMPLE_DTYPES))
    array = drawn_values(rng, (channels, *shape), dtype)
    return Case(
        array,
        drawn_geometry(rng, ndim),
        bool(rng.random() < 0.2),
        {"number_of_channels_per_model": tuple(range(2, channels + 2))},
    )


def drawn_values(rng: Rng, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray:
    """Draw voxels: few or many values, the whole range of the type, its ends, a constant, NaN and infinities, both zeros."""
    kind = rng.choice(["narrow", "narrow", "wide", "labels", "constant"])
    if dtype.kind == "b" or kind == "labels":
        return rng.integers(0, 2 if dtype.kind == "b" else 4, shape).astype(dtype)
    if kind == "constant":
        return np.full(shape, rng.integers(0, 100), dtype)
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        low, high = (limits.min, limits.max) if kind == "wide" else (max(limits.min, -100), 100)
        return rng.integers(low, high, shape, dtype=dtype, endpoint=True)
    if kind == "wide":  # up to the ends of the type, whose differences overflow
        array = (rng.uniform(-1, 1, shape) * float(np.finfo(dtype).max)).astype(dtype)
    else:
        array = (rng.normal(size=shape) * 450).astype(dtype)
    if rng.random() < 0.15:
        array[rng.random(shape) < 0.05] = rng.choice(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0]))
    return array


def drawn_geometry(rng: Rng, ndim: int) -> Geometry | None:
    """Draw where a volume lies: unknown, straight, with axes exchanged, oblique, sheared, or with parts that are not known."""
    kind = rng.choice(["none", "identity", "permuted", "permuted", "oblique", "oblique", "sheared", "spacing"])
    if kind == "none":
        return None
    spacing = (rng.integers(1, 9, ndim) / 4).tolist()
    if kind == "spacing":
        return Geometry.from_parts(spacing=spacing)
    direction = np.eye(ndim)
    if kind == "permuted":
        direction = direction[:, rng.permutation(ndim)] * rng.choice([-1.0, 1.0], ndim)
    elif kind in ("oblique", "sheared"):
        direction = np.linalg.qr(rng.normal(size=(ndim, ndim)))[0]
    geometry = Geometry.from_parts(spacing=spacing, origin=rng.integers(-50, 50, ndim).tolist(), direction=direction)
    if kind == "sheared":
        affine = geometry.affine.copy()
        affine[:-1, 0] += 0.1 * affine[:-1, 1]
        geometry = Geometry(affine, geometry.coord_system, geometry.known)
    return geometry


def _with_box(rng: Rng, volume: Volume, case: Case) -> Volume:
    """Give the case a box, or leave it to the plan to measure it."""
    if rng.random() < 0.5:
        before = [int(rng.integers(0, n)) for n in volume.shape]
        box: Any = tuple((a, int(rng.integers(0, n - a))) for a, n in zip(before, volume.shape, strict=True))
        case.attributes["box"] = box
    else:
        box = T.Crop().beforehand(volume)["box"].measure(lambda: cut_blocks(case.array))
    return volume.push("box", box)


def cut_blocks(array: NDArray, mask: NDArray | None = None) -> Iterator[Block]:
    """Cut an array, and a mask, into the fixed blocks that statistics are folded over."""
    for region in statistic_blocks(array.shape[0], array.shape[1:]):
        part = (slice(None), *region.slices)
        yield array[part], None if mask is None else mask[part]


# --- stages ----------------------------------------------------------------------------------------------------------------

Maker = Callable[[Rng, Volume, Case], Transform | None]


def _axes(rng: Rng, ndim: int) -> list[int]:
    return [int(axis) for axis in rng.permutation(ndim)]


def _flip(rng: Rng, volume: Volume, case: Case) -> Transform:
    return T.Flip(_axes(rng, volume.ndim)[: int(rng.integers(1, volume.ndim + 1))])


def _permute(rng: Rng, volume: Volume, case: Case) -> Transform:
    return T.Permute(_axes(rng, volume.ndim))


def _resolution(rng: Rng, volume: Volume, case: Case) -> Transform:
    wanted = np.where(rng.random(volume.ndim) < 0.2, 0.0, rng.uniform(0.3, 4, volume.ndim).round(2))
    return T.ResampleToResolution(wanted.tolist(), _interpolation(rng))


def _shape(rng: Rng, volume: Volume, case: Case) -> Transform:
    wanted = [int(rng.integers(0, 2 * n + 3)) for n in volume.shape]
    return T.ResampleToShape(wanted, _interpolation(rng))


def _interpolation(rng: Rng) -> str | None:
    return (None, None, "linear", "nearest")[int(rng.integers(4))]


def _padding(rng: Rng, volume: Volume, case: Case) -> Transform:
    modes = ["constant", "constant:-3.7", "constant:1e9", "reflect", "replicate", "circular"]
    return T.Padding(rng.integers(0, 5, 2 * volume.ndim).tolist(), str(rng.choice(modes)))


def _cast(rng: Rng, volume: Volume, case: Case) -> Transform:
    kinds = ["float32", "float64", "float16", "int16", "uint8", "int8", "int32", "uint32", "int64", "uint64", "bool"]
    return T.TensorCast(str(rng.choice(kinds)))


def _clip(rng: Rng, volume: Volume, case: Case) -> Transform:
    lows: list[Any] = [-50, -0.5, 0.0, "min", "percentile:0", "percentile:5", "percentile:33.3"]
    highs: list[Any] = [40, 10.7, 1e9, "max", "percentile:99", "percentile:66.6"]
    return T.Clip(
        lows[int(rng.integers(len(lows)))],
        highs[int(rng.integers(len(highs)))],
        bool(rng.integers(2)),
        bool(rng.integers(2)),
        case.group(rng, volume) if rng.random() < 0.3 else None,
    )


def _normalize(rng: Rng, volume: Volume, case: Case) -> Transform:
    channels = [int(rng.integers(volume.channels))] if rng.random() < 0.3 else None
    return T.Normalize(bool(rng.random() < 0.2), channels, -1, float(rng.choice([1, 3.5])))


def _standardize(rng: Rng, volume: Volume, case: Case) -> Transform:
    given = lambda value: value if rng.random() < 0.25 else None  # noqa: E731
    mean = given([12.5] * volume.channels) if rng.random() < 0.5 else given(-3)
    return T.Standardize(
        bool(rng.random() < 0.2), mean, given(3), case.group(rng, volume) if rng.random() < 0.3 else None
    )


def _matching(rng: Rng, volume: Volume, case: Case) -> Transform:
    name = f"GROUP{len(case.groups)}"
    shape = (1, *rng.integers(1, 6, int(rng.integers(2, 4))).tolist())
    case.groups[name] = WatchedSource(source_of(rng.normal(100, 30, shape).astype("f4")))
    return T.HistogramMatching(name)


def _mask(rng: Rng, volume: Volume, case: Case) -> Transform:
    return T.Mask(case.group(rng, volume), float(rng.choice([0, 7, -3.6])))


def _dim(rng: Rng, volume: Volume) -> int:
    return int(rng.integers(-volume.ndim - 1, volume.ndim + 1))


def _copy(augmentation: Callable[[Rng, Volume], A.Augmentation]) -> Maker:
    def make(rng: Rng, volume: Volume, case: Case) -> Transform | None:
        try:
            return augmentation(rng, volume).drawn(volume, Draw(int(rng.integers(2**62))))
        except TransformError:
            return None

    return make


def _mask_window(rng: Rng, volume: Volume, case: Case) -> Transform:
    shape = tuple(int(n) for n in rng.integers(1, np.array(volume.shape) + 3))
    watched = WatchedSource(source_of(rng.integers(0, 2, (1, *shape)).astype("u1")))
    case.masks.append(watched)
    draw = Draw(int(rng.integers(2**62)), groups={"AUG": VolumeSource(watched)})
    return A.Mask("AUG", float(rng.choice([0, -5.5]))).drawn(volume, draw)


MAKERS: dict[str, Maker] = {
    "Flip": _flip,
    "Permute": _permute,
    "Canonical": lambda rng, volume, case: T.Canonical(interpolation=_interpolation(rng)),
    "Crop": lambda rng, volume, case: T.Crop() if "box" in volume.attributes else None,
    "ResampleToResolution": _resolution,
    "ResampleToShape": _shape,
    "Padding": _padding,
    "TensorCast": _cast,
    "Clip": _clip,
    "Normalize": _normalize,
    "Standardize": _standardize,
    "Statistics": lambda rng, volume, case: T.Statistics(),
    "UnNormalize": lambda rng, volume, case: T.UnNormalize(),
    "Percentage": lambda rng, volume, case: T.Percentage(float(rng.choice([-3.7, 250]))),
    "HistogramMatching": _matching,
    "Mask": _mask,
    "Dilate": lambda rng, volume, case: T.Dilate(int(rng.integers(0, 4))),
    "Gradient": lambda rng, volume, case: T.Gradient(bool(rng.integers(2))),
    "Argmax": lambda rng, volume, case: T.Argmax(_dim(rng, volume)),
    "Softmax": lambda rng, volume, case: T.Softmax(_dim(rng, volume)),
    "Sum": lambda rng, volume, case: T.Sum(_dim(rng, volume)),
    "OneHot": lambda rng, volume, case: T.OneHot(4) if volume.is_label or rng.random() < 0.2 else None,
    "MergeLabels": lambda rng, volume, case: T.MergeLabels(),
    "FlatLabel": lambda rng, volume, case: T.FlatLabel([None, (1, 3), (300, -2)][int(rng.integers(3))]),
    "SelectLabel": lambda rng, volume, case: T.SelectLabel(["(1,2)", "(3,1)"]),
    "Variance": lambda rng, volume, case: T.Variance(),
    "StandardDeviation": lambda rng, volume, case: T.StandardDeviation(),
    "SegmentationDisagreement": lambda rng, volume, case: T.SegmentationDisagreement(bool(rng.integers(2))),
    "Squeeze": lambda rng, volume, case: T.Squeeze(_dim(rng, volume)),
    "Norm": lambda rng, volume, case: T.Norm() if volume.ndim == 3 else None,
    "Flatten": lambda rng, volume, case: T.Flatten() if rng.random() < 0.1 else None,
    "A.Flip": _copy(lambda rng, volume: A.Flip([0.5] * volume.ndim, vector_field=bool(rng.integers(2)))),
    "A.Permute": _copy(lambda rng, volume: A.Permute((0.7, 0.7))),
    "A.Rotate": _copy(lambda rng, volume: A.Rotate(is_quarter=bool(rng.random() < 0.4))),
    "A.Translate": _copy(lambda rng, volume: A.Translate(-4, 4, is_int=bool(rng.integers(2)))),
    "A.Scale": _copy(lambda rng, volume: A.Scale(float(rng.uniform(0.1, 1.5)))),
    "A.Elastix": _copy(lambda rng, volume: A.Elastix(float(rng.uniform(2, 30)), float(rng.choice([0.5, 2, 20])))),
    "A.Noise": _copy(lambda rng, volume: A.Noise(float(rng.uniform(0, 9)))),
    "A.CutOUT": _copy(lambda rng, volume: A.CutOUT(0.8, float(rng.uniform(0, 1.2)), float(rng.uniform(-9, 9)))),
    "A.Mask": _mask_window,
    "A.Brightness": _copy(lambda rng, volume: A.Brightness(3.0)),
    "A.Contrast": _copy(lambda rng, volume: A.Contrast(0.5)),
    "A.LumaFlip": _copy(lambda rng, volume: A.LumaFlip()),
    "A.HUE": _copy(lambda rng, volume: A.HUE(0.5)),
    "A.Saturation": _copy(lambda rng, volume: A.Saturation(0.5)),
}
"""Every transform and augmentation."""
