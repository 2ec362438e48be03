"""What does a user see and set as ``image.meta``?

:class:`Meta` and its parts are plain mutable objects. Assigning to a field coerces (tuples, arrays and numpy scalars become
lists and numbers) and refuses at once what can be known to be wrong; what is changed inside a list or dict is found by
``validation.py`` before a file is written. Names, order of fields and methods are those of the 0.0.x releases.

Fields that describe how the array is stored (``blosc2``, ``_has_array``, ``spatial.shape`` and so on) belong to the array,
not to the user: they can be given when an object is made, and later only change through :func:`update_managed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self, TypeAlias

from mlarray.metadata import schema
from mlarray.metadata.base import BaseMeta, FreeMeta, MetadataValueError, SingleKeyBaseMeta
from mlarray.metadata.schema import AxisLabelEnum, CoordSystemEnum
from mlarray.metadata.values import unstorable

Number: TypeAlias = int | float


@dataclass(slots=True, eq=False)
class MetaSource(FreeMeta):
    """The header of the file an image came from; a dict of anything ``values.py`` can store."""

    _NAMESPACE: ClassVar[str] = "source"


@dataclass(slots=True, eq=False)
class MetaExtra(FreeMeta):
    """Whatever else a user wants to keep; a dict of anything ``values.py`` can store."""

    _NAMESPACE: ClassVar[str] = "extra"


@dataclass(slots=True, eq=False)
class MetaSpatial(BaseMeta):
    """Where the voxels lie in space.

    Parameters
    ----------
    spacing, origin : list of float, optional
        One per spatial axis, in array-axis order; millimetres unless ``axis_units`` says otherwise.
    direction : list of list of float, optional
        Direction cosines, spatial x spatial; column i is the world direction of spatial array axis i.
    affine : list of list of float, optional
        Array index to world, (spatial + 1) x (spatial + 1); excludes the three above.
    shape : list of int, optional
        Shape of the array, all axes. Managed by the array.
    axis_labels : list of str, optional
        One per axis; None means that all axes are spatial.
    coord_system : str, optional
        The world frame, such as ``"LPS"``.
    axis_units : list of str, optional
        One per axis.
    """

    _NAMESPACE: ClassVar[str] = "spatial"
    _MANAGED: ClassVar[frozenset[str]] = frozenset({"shape"})
    AxisLabel: ClassVar[type[AxisLabelEnum]] = AxisLabelEnum
    CoordSystem: ClassVar[type[CoordSystemEnum]] = CoordSystemEnum

    spacing: list[Number] | None = None
    origin: list[Number] | None = None
    direction: list[list[Number]] | None = None
    affine: list[list[Number]] | None = None
    shape: list[int] | None = None
    axis_labels: list[str] | None = None
    coord_system: str | None = None
    axis_units: list[str] | None = None
    _num_spatial_axes: int | None = None
    _num_non_spatial_axes: int | None = None

    def _settle(self, values: Mapping[str, object]) -> None:
        problems = schema.spatial_problems(values)
        if problems:
            raise MetadataValueError(problems)
        spatial, other = schema.axis_counts(values["axis_labels"])
        object.__setattr__(self, "_num_spatial_axes", spatial)
        object.__setattr__(self, "_num_non_spatial_axes", other)


@dataclass(slots=True, eq=False)
class MetaStatistics(BaseMeta):
    """Numbers that summarise the voxels; the percentile keys say which percentiles were taken, such as 0.005."""

    _NAMESPACE: ClassVar[str] = "stats"

    min: Number | None = None
    max: Number | None = None
    mean: Number | None = None
    median: Number | None = None
    std: Number | None = None
    percentile_min: Number | None = None
    percentile_max: Number | None = None
    percentile_mean: Number | None = None
    percentile_median: Number | None = None
    percentile_std: Number | None = None
    percentile_min_key: Number | None = None
    percentile_max_key: Number | None = None


@dataclass(slots=True, eq=False)
class MetaBbox(BaseMeta):
    """Boxes around things in the image.

    Parameters
    ----------
    bboxes : list, optional
        Shape (boxes, axes, 2): ``[min, max]`` per axis, in voxels.
    scores, labels : list, optional
        One number, one text or number, per box.
    """

    _NAMESPACE: ClassVar[str] = "bbox"

    bboxes: list[list[list[Number]]] | None = None
    scores: list[Number] | None = None
    labels: list[str | Number] | None = None

    @classmethod
    def ensure(cls, x: Any) -> Self:
        """Return `x` itself if it is of this class, else an object made from a mapping or from the boxes alone."""
        return super(MetaBbox, cls).ensure(x) if x is None or isinstance(x, (cls, Mapping)) else cls(bboxes=x)


@dataclass(slots=True, eq=False)
class MetaIsSeg(SingleKeyBaseMeta):
    """Whether the voxels are labels; None when unknown."""

    _NAMESPACE: ClassVar[str] = "is_seg"

    is_seg: bool | None = None


@dataclass(slots=True, eq=False)
class MetaBlosc2(BaseMeta):
    """How the array is stored; all of it is managed by the array."""

    _NAMESPACE: ClassVar[str] = "blosc2"
    _MANAGED: ClassVar[frozenset[str]] = frozenset(schema.FIELDS["blosc2"])

    chunk_size: list[int] | None = None
    block_size: list[int] | None = None
    patch_size: list[int] | None = None
    cparams: dict[str, Any] | None = None
    dparams: dict[str, Any] | None = None


@dataclass(slots=True, eq=False)
class MetaHasArray(SingleKeyBaseMeta):
    """Whether there is an array beside the metadata; managed by the array."""

    _NAMESPACE: ClassVar[str] = "_has_array"
    _MANAGED: ClassVar[frozenset[str]] = frozenset({"has_array"})

    has_array: bool = False


@dataclass(slots=True, eq=False)
class MetaImageFormat(SingleKeyBaseMeta):
    """Which format the header in ``source`` is of, such as ``"nifti"``; managed by the array."""

    _NAMESPACE: ClassVar[str] = "_image_meta_format"
    _MANAGED: ClassVar[frozenset[str]] = frozenset({"image_meta_format"})

    image_meta_format: str | None = None


@dataclass(slots=True, eq=False)
class MetaVersion(SingleKeyBaseMeta):
    """The version mark of the metadata; managed by the array."""

    _NAMESPACE: ClassVar[str] = "_mlarray_version"
    _MANAGED: ClassVar[frozenset[str]] = frozenset({"mlarray_version"})

    mlarray_version: str | None = None


class _Keep(Enum):
    KEEP = "keep"


KEEP: Final = _Keep.KEEP
"""Says that a field stays as it is, where None is a value."""


@dataclass(slots=True, eq=False)
class Meta(BaseMeta):
    """All metadata of one image; every part takes an object, a mapping, or the bare value where it has one field.

    Examples
    --------
    >>> meta = Meta(source={"Modality": "CT"}, is_seg=False)
    >>> meta.spatial.spacing = (2.5, 1, 1)
    >>> print(meta)
    {'source': {'Modality': 'CT'}, 'spatial': {'spacing': [2.5, 1, 1]}, 'is_seg': False}
    >>> meta.is_seg == False
    True
    """

    _MANAGED: ClassVar[frozenset[str]] = frozenset({"blosc2", "_has_array", "_image_meta_format", "_mlarray_version"})

    source: Any = field(default_factory=MetaSource)
    extra: Any = field(default_factory=MetaExtra)
    spatial: Any = field(default_factory=MetaSpatial)
    stats: Any = field(default_factory=MetaStatistics)
    bbox: Any = field(default_factory=MetaBbox)
    is_seg: Any = field(default_factory=MetaIsSeg)
    blosc2: Any = field(default_factory=MetaBlosc2)
    _has_array: Any = field(default_factory=MetaHasArray)
    _image_meta_format: Any = field(default_factory=MetaImageFormat)
    _mlarray_version: Any = field(default_factory=MetaVersion)

    def _coerced(self, name: str, value: object) -> object:
        return _PARTS[name].ensure(value)

    def _path(self, name: str) -> str:
        return f"meta.{name}"

    @classmethod
    def _field_names(cls) -> tuple[str, ...]:
        return tuple(schema.FIELDS)

    def set_source(self, value: MetaSource | Mapping[str, Any]) -> Meta:
        """Replace ``source`` and return this object."""
        self.source = value
        return self

    def set_extra(self, value: MetaExtra | Mapping[str, Any]) -> Meta:
        """Replace ``extra`` and return this object."""
        self.extra = value
        return self

    def set_spatial(self, value: MetaSpatial | Mapping[str, Any]) -> Meta:
        """Replace ``spatial`` and return this object."""
        self.spatial = value
        return self

    def set_stats(self, value: MetaStatistics | Mapping[str, Any]) -> Meta:
        """Replace ``stats`` and return this object."""
        self.stats = value
        return self

    def set_bbox(self, value: MetaBbox | Mapping[str, Any] | Sequence[Any]) -> Meta:
        """Replace ``bbox``, given as object, mapping or list of boxes, and return this object."""
        self.bbox = value
        return self

    def set_is_seg(self, value: MetaIsSeg | bool | None) -> Meta:  # noqa: FBT001
        """Replace ``is_seg`` and return this object."""
        self.is_seg = value
        return self

    def update_source(self, value: Mapping[str, Any]) -> Meta:
        """Add or replace items of ``source`` and return this object."""
        return self._update("source", value)

    def update_extra(self, value: Mapping[str, Any]) -> Meta:
        """Add or replace items of ``extra`` and return this object."""
        return self._update("extra", value)

    def _update(self, name: str, value: Mapping[str, Any]) -> Meta:
        if not isinstance(value, Mapping):
            raise MetadataValueError([f"meta.{name} is updated with a mapping, {type(value).__name__} was given"])
        problems = unstorable(value, path=f"meta.{name}")
        if problems:
            raise MetadataValueError(problems)
        getattr(self, name).data.update(value)
        return self

    def add_bbox(
        self, bbox: Sequence[Sequence[Number]], score: Number | None = None, label: str | Number | None = None
    ) -> Meta:
        """Append one box and return this object.

        Parameters
        ----------
        bbox : array-like, shape (axes, 2)
            ``[min, max]`` per axis, in voxels.
        score : number, optional
            Needed exactly if the boxes before have scores.
        label : str or number, optional
            Needed exactly if the boxes before have labels.

        Raises
        ------
        MetadataError
            The box, score or label does not fit; nothing was changed.
        """
        old: MetaBbox = self.bbox
        boxes = list(old.bboxes or [])
        new: dict[str, list[Any]] = {"bboxes": [*boxes, bbox]}
        for name, item, values in (("score", score, old.scores), ("label", label, old.labels)):
            if (values is not None) and item is None:
                raise MetadataValueError([f"the boxes before have {name}s, so this one needs a {name} too"])
            if values is None and item is not None and boxes:
                raise MetadataValueError([f"the boxes before have no {name}s, so this one cannot have one"])
            if item is not None:
                new[f"{name}s"] = [*(values or []), item]
        self.bbox = MetaBbox(**new)
        return self


_PARTS: Final[Mapping[str, type[BaseMeta]]] = MappingProxyType(
    {
        "source": MetaSource,
        "extra": MetaExtra,
        "spatial": MetaSpatial,
        "stats": MetaStatistics,
        "bbox": MetaBbox,
        "is_seg": MetaIsSeg,
        "blosc2": MetaBlosc2,
        "_has_array": MetaHasArray,
        "_image_meta_format": MetaImageFormat,
        "_mlarray_version": MetaVersion,
    }
)


def meta_of_checked(mapping: Mapping[str, Mapping[str, Any]]) -> Meta:
    """Return metadata of all namespaces and fields, values as the rules of ``schema.py`` return them, checked already."""
    return Meta._from_checked({name: part._from_checked(mapping[name]) for name, part in _PARTS.items()})


def update_managed(
    meta: Meta,
    *,
    shape: Sequence[int] | _Keep | None = KEEP,
    blosc2: MetaBlosc2 | Mapping[str, Any] | _Keep | None = KEEP,
    has_array: bool | _Keep = KEEP,
    image_meta_format: str | _Keep | None = KEEP,
    mlarray_version: str | _Keep | None = KEEP,
) -> None:
    """Set fields that belong to the array; what is not given stays.

    Parameters
    ----------
    meta : Meta
        Changed in place.
    shape : sequence of int or None, optional
        Full array shape.
    blosc2 : MetaBlosc2 or mapping or None, optional
        How the array is stored; None for the defaults.
    has_array : bool, optional
        Whether there is an array beside the metadata.
    image_meta_format, mlarray_version : str or None, optional
        Format of the header in ``source``; version mark.

    Raises
    ------
    MetadataError
        A value does not fit its field, or the shape contradicts labels or geometry.
    """
    if shape is not KEEP:
        meta.spatial._assign("shape", shape)
    for name, value in (
        ("blosc2", blosc2),
        ("_has_array", has_array),
        ("_image_meta_format", image_meta_format),
        ("_mlarray_version", mlarray_version),
    ):
        if value is not KEEP:
            meta._assign(name, value)
