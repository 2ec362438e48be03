"""How does nnU-Net train from ``.mla`` files? A dataset class with the interface of its own.

:class:`NNUNetDataset` has the constructor, attributes and methods of ``nnUNetBaseDataset`` as nnU-Net 2.8.1 defines them and
reads what ``mla convert`` made of a preprocessed folder: ``CASE.mla`` with the properties of the case inside, and
``CASE_seg.mla``. This module imports neither nnU-Net nor torch; only :func:`register`, which a caller of nnU-Net calls, does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from mlarray.array import MLArray
from mlarray.axes import parse_axes
from mlarray.errors import FormatError, MissingFileError, UsageError
from mlarray.formats import mla, nnunet_case
from mlarray.formats.nnunet_geometry import placed
from mlarray.metadata import decode
from mlarray.region import Region
from mlarray.sources.base import NDArray, SinkOptions, SourceInfo
from mlarray.spec import ArraySpec
from mlarray.storage.blosc import BloscStore
from mlarray.storage.contents import LOCATIONS_RECORD
from mlarray.storage.integrity import METADATA_RECORD
from mlarray.storage.options import COMPRESSION_LEVEL
from mlarray.streaming.arguments import instance, listed, mapping, path_of, whole

_SUFFIX = ".mla"
_SEG_SUFFIX = f"{nnunet_case.SEG_MARK}{_SUFFIX}"


class NNUNetDataset:
    """Cases of a folder of ``.mla`` files, as nnU-Net's data loaders and trainers take them.

    Parameters
    ----------
    folder : str or Path
        With ``CASE.mla`` and ``CASE_seg.mla`` for every case.
    identifiers : list of str, optional
        Names of the cases to use. Default: all of the folder.
    folder_with_segs_from_previous_stage : str or Path, optional
        With the segmentations that the first stage of a cascade predicted.

    Attributes
    ----------
    source_folder, folder_with_segs_from_previous_stage
        As given.
    identifiers : list of str
        Sorted.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> image, labels = np.ones((1, 8, 8, 8), np.float32), np.zeros((1, 8, 8, 8), np.int16)
    >>> NNUNetDataset.save_case(image, labels, {"spacing": [1.0, 1.0, 2.0], "class_locations": {1: []}}, f"{folder}/case_1")
    >>> dataset = NNUNetDataset(folder)
    >>> data, seg, seg_prev, properties = dataset["case_1"]
    >>> dataset.identifiers, data[:, 2:4, :3, :3].shape, seg_prev, properties["spacing"]
    (['case_1'], (1, 2, 3, 3), None, [1.0, 1.0, 2.0])
    """

    def __init__(
        self,
        folder: str | Path,
        identifiers: list[str] | None = None,
        folder_with_segs_from_previous_stage: str | Path | None = None,
    ) -> None:
        path_of("folder", folder)
        if folder_with_segs_from_previous_stage is not None:
            path_of("folder_with_segs_from_previous_stage", folder_with_segs_from_previous_stage)
        self.source_folder = folder
        self.folder_with_segs_from_previous_stage = folder_with_segs_from_previous_stage
        found = self.get_identifiers(folder) if identifiers is None else identifiers
        self.identifiers = sorted(listed("identifiers", found, str, "Name cases: ['case_1']."))

    def __getitem__(self, identifier: str) -> tuple[MLArray, MLArray, MLArray | None, dict[str, object]]:
        return self.load_case(identifier)

    def load_case(self, identifier: str) -> tuple[MLArray, MLArray, MLArray | None, dict[str, object]]:
        """Open a case; voxels are read when the arrays are indexed.

        Parameters
        ----------
        identifier : str
            Name of the case.

        Returns
        -------
        data : MLArray, shape (channels, z, y, x)
            The image; slicing gives a numpy array.
        seg : MLArray, shape (1, z, y, x)
            The segmentation.
        seg_prev : MLArray or None
            The segmentation of the previous stage, where a folder with such was given.
        properties : dict
            As nnU-Net wrote them.

        Raises
        ------
        MissingFileError
            There is no such case; also a ``FileNotFoundError``.
        FormatError
            A file is damaged, or holds no properties of nnU-Net.
        """
        instance("identifier", identifier, str, "dataset.identifiers lists them.")
        folder = Path(self.source_folder)
        data = MLArray.open(folder / f"{identifier}{_SUFFIX}")
        seg = MLArray.open(folder / f"{identifier}{_SEG_SUFFIX}")
        previous = self.folder_with_segs_from_previous_stage
        seg_prev = None if previous is None else _previous_stage(Path(previous), identifier)
        return data, seg, seg_prev, case_properties(data)

    @staticmethod
    def save_case(
        data: NDArray,
        seg: NDArray,
        properties: Mapping[str, object],
        output_filename_truncated: str | Path,
        chunks: Sequence[int] | None = None,
        blocks: Sequence[int] | None = None,
        chunks_seg: Sequence[int] | None = None,
        blocks_seg: Sequence[int] | None = None,
        clevel: int = COMPRESSION_LEVEL,
        codec: object = None,
        filters: Sequence[object] | None = None,
        filters_seg: Sequence[object] | None = None,
    ) -> None:
        """Write a preprocessed case as ``.mla`` files.

        Parameters
        ----------
        data : ndarray, shape (channels, z, y, x)
            The image.
        seg : ndarray, shape (1, z, y, x)
            The segmentation.
        properties : mapping
            As nnU-Net makes them.
        output_filename_truncated : str or Path
            Path without suffix.
        chunks, blocks, chunks_seg, blocks_seg : sequence of int, optional
            Layout of image and segmentation; that of the segmentation defaults to that of the image. Default: the one for
            patches of 192 voxels.
        clevel, codec, filters, filters_seg
            As blosc2 takes them. Default: level 5 of LZ4HC, the filters by trial.

        Raises
        ------
        FormatError
            When the properties cannot be kept.
        """
        path = _stem(output_filename_truncated)
        for name, array in (("data", data), ("seg", seg)):
            _check_array(name, array)
        mapping("properties", properties, "Pass what nnU-Net made.")
        transpose, _ = nnunet_case.transpose_of(path.parent)
        placement = placed(properties, data.shape, transpose)
        seg_storage = _storage(
            chunks if chunks_seg is None else chunks_seg,
            blocks if blocks_seg is None else blocks_seg,
            clevel,
            codec,
            filters_seg,
        )
        # The image last: a case that has one is complete.
        for array, suffix, storage in (
            (seg, _SEG_SUFFIX, seg_storage),
            (data, _SUFFIX, _storage(chunks, blocks, clevel, codec, filters)),
        ):
            is_image = suffix == _SUFFIX
            header, locations = nnunet_case.header_of(properties, array.shape, with_locations=is_image)
            spec = ArraySpec(array.shape, array.dtype, placement.axes, placement.geometry)
            info = SourceInfo("nnunet", header=header, is_seg=None if is_image else True, locations=locations)
            _write(path.with_name(path.name + suffix), np.asarray(array), spec, info, storage)

    @staticmethod
    def save_seg(
        seg: NDArray,
        output_filename_truncated: str | Path,
        chunks_seg: Sequence[int] | None = None,
        blocks_seg: Sequence[int] | None = None,
    ) -> None:
        """Write one segmentation, as a stage of a cascade does for the next. Parameters as for :meth:`save_case`."""
        path = _stem(output_filename_truncated)
        _check_array("seg", seg)
        axes = parse_axes("czyx"[-seg.ndim :]) if 1 < seg.ndim <= 4 else ()
        spec = ArraySpec(seg.shape, seg.dtype, axes) if axes else ArraySpec(seg.shape, seg.dtype)
        info = SourceInfo("nnunet", is_seg=True)
        _write(path.with_name(path.name + _SUFFIX), seg, spec, info, _storage(chunks_seg, blocks_seg))

    @staticmethod
    def get_identifiers(folder: str | Path) -> list[str]:
        """Return the names of the cases in a folder: of every ``.mla`` file that is not a segmentation."""
        place = path_of("folder", folder)
        if not place.is_dir():
            raise MissingFileError(
                f"There is no folder {place}.", hint="Convert the preprocessed folder with `mla convert`."
            )
        names = os.listdir(place)
        return [
            name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and not name.endswith(_SEG_SUFFIX)
        ]

    @staticmethod
    def unpack_dataset(folder: str | Path, *_: object, **__: object) -> None:
        """Do nothing: patches are read from the compressed files."""


def case_properties(image: MLArray) -> dict[str, object]:
    """Return the properties that nnU-Net keeps for a case, from its opened image.

    Raises
    ------
    FormatError
        When there are none, or the locations of the labels were lost.
    """
    store = image._array()
    locations = store.record(LOCATIONS_RECORD) if isinstance(store, BloscStore) else None
    properties = nnunet_case.properties_of(_header(image), locations)
    if properties is None:
        raise FormatError(
            f"{image.filepath or 'The array'} holds no properties of nnU-Net.",
            hint="Convert the folder that nnU-Net has preprocessed with `mla convert`; the .pkl files must lie in it.",
        )
    return properties


def _header(image: MLArray) -> Mapping[str, object]:
    """Return ``meta.source``; where nobody has asked for the metadata yet, without making all of it, in half the time."""
    if image._meta is None and isinstance(image._store, BloscStore):
        try:
            payload = image._store.record(METADATA_RECORD)
            source = decode(payload).get("source") if isinstance(payload, bytes) else None
        except FormatError:
            source = None
        if isinstance(source, Mapping) and isinstance(source.get("data"), Mapping):
            return cast("Mapping[str, object]", source["data"])
    return cast("Mapping[str, object]", image.meta.source.data)


def register() -> None:
    """Make nnU-Net take :class:`NNUNetDataset` for folders of ``.mla`` files, in this process.

    Raises
    ------
    ImportError
        When nnU-Net is not installed.
    """
    from nnunetv2.training.dataloading import nnunet_dataset

    nnunet_dataset.file_ending_dataset_mapping["mla"] = NNUNetDataset


def _previous_stage(folder: Path, identifier: str) -> MLArray:
    """Open a segmentation of the previous stage, which may have been made with nnU-Net's own class."""
    try:
        return MLArray.open(folder / f"{identifier}{_SUFFIX}")
    except MissingFileError:
        own = folder / f"{identifier}.b2nd"
        if not own.exists():
            raise
        return MLArray.open(own)


def _check_array(name: str, array: object) -> None:
    if isinstance(array, type) or not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise UsageError(f"{name} is an array, got {type(array).__name__}.")


def _stem(path: str | Path) -> Path:
    """Return the path of a case without its suffix."""
    found = path_of("output_filename_truncated", path)
    if not found.name:
        raise UsageError(f"output_filename_truncated names no file: {path!r}.")
    return found


def _storage(
    chunks: Sequence[int] | None,
    blocks: Sequence[int] | None,
    clevel: int = COMPRESSION_LEVEL,
    codec: object = None,
    filters: Sequence[object] | None = None,
) -> dict[str, object]:
    """Return the storage arguments that stand for those of nnU-Net's class."""
    storage: dict[str, object] = {}
    if filters is not None:
        filters = listed("filters", filters, object, "As blosc2 takes them: [Filter.SHUFFLE].")
    chunks, blocks = _sizes("chunks", chunks), _sizes("blocks", blocks)
    if chunks is not None and blocks is not None:
        storage = {"patch_size": None, "chunk_size": list(chunks), "block_size": list(blocks)}
    if whole("clevel", clevel, 0) != COMPRESSION_LEVEL or codec is not None or filters is not None:
        given = {"codec": codec, "filters": None if filters is None else list(filters)}
        storage["cparams"] = {"clevel": clevel} | {name: value for name, value in given.items() if value is not None}
    return storage


def _sizes(name: str, sizes: Sequence[int] | None) -> tuple[int, ...] | None:
    if sizes is None:
        return None
    return tuple(whole(f"An extent of {name}", one, 1) for one in listed(name, sizes, object, "One for each axis."))


def _write(path: Path, array: NDArray, spec: ArraySpec, info: SourceInfo, storage: Mapping[str, object]) -> None:
    sample = array[mla.sample_region(spec, storage).slices] if spec.size else None
    sink = mla.open_sink(path, spec, info, SinkOptions(storage, sample=sample))
    try:
        sink.write(Region.full(array.shape), array)
        sink.publish()
    except BaseException:
        sink.abort()
        raise
