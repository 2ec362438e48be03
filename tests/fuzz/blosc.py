"""Parsers of ``.mla``: the frame with its chunks, and the records beside the array."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import numpy as np

from mlarray import MLArray
from mlarray.errors import MLArrayError
from mlarray.formats.nnunet_case import restored_locations
from mlarray.metadata import encode
from mlarray.storage import integrity
from mlarray.storage.allocate import LAYOUT_RECORD, layout_of
from mlarray.storage.blosc import BloscStore, open_store
from mlarray.storage.contents import AXES_RECORD, CONVERSION_RECORD, LOCATIONS_RECORD, stored_axes, stored_metadata
from mlarray.storage.measured import statistics_of
from mlarray.storage.salvage import salvage
from mlarray_convert.verify import check_file
from tests.fuzz.inputs import Files
from tests.fuzz.mutations import BYTES, fields, tree, unzipped
from tests.fuzz.parser import Parser
from tests.fuzz.pickles import operations
from tests.fuzz.reading import ReadImage, WrongVoxels

_SHAPE = (12, 11, 10)
# The header of a contiguous frame, and behind it the metalayer of the array with its shape, chunks and blocks.
_HEADER = (
    *(
        (0, ">B"),
        (1, ">B"),
        (10, ">B"),
        (11, ">i"),
        (15, ">B"),
        (16, ">Q"),
        (24, ">B"),
        (25, ">B"),
        (26, ">B"),
        (27, ">B"),
    ),
    *(
        (28, ">B"),
        (29, ">B"),
        (30, ">q"),
        (38, ">B"),
        (39, ">q"),
        (47, ">B"),
        (48, ">i"),
        (52, ">B"),
        (53, ">i"),
        (57, ">B"),
    ),
    *((58, ">i"), (62, ">B"), (63, ">h"), (65, ">B"), (66, ">h"), (68, ">B"), *((at, ">B") for at in range(69, 110))),
)
_RECORDS = (
    integrity.METADATA_RECORD,
    AXES_RECORD,
    CONVERSION_RECORD,
    LOCATIONS_RECORD,
    LAYOUT_RECORD,
    "mla_integrity",
    "mla_statistics",
)


def _seeds(folder: Path) -> list[Files]:
    noise = np.random.default_rng(0).integers(-999, 999, _SHAPE, dtype=np.int16)
    arrays: list[tuple[Any, dict[str, Any]]] = [
        (noise, {"chunk_size": (6, 6, 6), "block_size": (4, 4, 4), "spacing": (3, 1, 1), "meta": {"k": "v" * 50}}),
        (np.arange(1320, dtype=np.float32).reshape(_SHAPE), {"patch_size": 8, "axes": "zyx"}),
        (np.zeros((2, 20, 20, 20), np.uint8), {"chunk_size": (1, 10, 10, 10), "block_size": (1, 5, 5, 5)}),
        (np.arange(30), {}),
        (noise, {"cparams": {"codec": 1, "clevel": 1}, "chunk_size": (12, 11, 10), "block_size": (3, 11, 10)}),
        (noise[:3], {"cparams": {"clevel": 0}, "chunk_size": (3, 4, 4), "block_size": (1, 4, 4)}),
    ]
    seeds: list[Files] = []
    for number, (array, options) in enumerate(arrays):
        MLArray(array, **options).save(folder / f"{number}.mla")
        seeds.append({"a.mla": (folder / f"{number}.mla").read_bytes()})
    return seeds


def _save_rest(path: Path, target: Path) -> None:
    """Salvage a file; what comes of that is a file that can be read."""
    try:
        salvage(path, target)
        MLArray.load(target)
    except MLArrayError:
        if target.exists():
            raise WrongVoxels("what was salvaged cannot be read") from None
    finally:
        target.unlink(missing_ok=True)


_WAYS: Any = (("r", None), (None, "lazy"), ("r", "full"))


def _read_all(folder: Path, files: Files) -> Hashable:
    """Read a file as a source, as an array mapped and not, and check it."""
    path = folder / "a.mla"
    refused: MLArrayError | None = None
    kind: Hashable = None
    try:
        kind = ReadImage("a.mla")(folder, files)
        for mapped, verify in _WAYS:
            with MLArray.open(path, mmap_mode=mapped, verify=verify) as array:
                assert array.shape is not None
                if array.size * array.dtype.itemsize <= 1 << 21:
                    array.to_numpy()
                array[tuple(n // 2 for n in array.shape)]
                array[..., -1:]
        MLArray.load(path, compressed=True)
    except MLArrayError as error:
        refused = error
    checked = check_file(path).ok
    if not checked or len(files["a.mla"]) % 8 == 0:
        _save_rest(path, folder / "rest.mla")
    if refused is not None:
        raise refused
    return kind, checked


def _frame_fields(random: Random, data: bytes) -> bytes:
    """Change a number of the array's metalayer: as msgpack writes it, behind a byte that tells its type."""
    places = [at for at in range(87, min(len(data) - 9, 350)) if data[at] in (0xD2, 0xD3)]
    if not places:
        return data
    at = random.choice(places)
    code = ">i" if data[at] == 0xD2 else ">q"
    value = random.choice(
        (0, 1, -1, 2, 5, 6, 7, 12, 13, 24, 2**31 - 1, -(2**31), *(() if code == ">i" else (2**40, 2**63 - 1)))
    )
    return data[: at + 1] + struct.pack(code, value) + data[at + 1 + struct.calcsize(code) :]


def _tail(random: Random, data: bytes) -> bytes:
    """Change bytes at the end of a file: the index of chunks, the trailer and its records."""
    at = max(0, len(data) - random.choice((60, 400, 1500)))
    return data[:at] + random.choice(BYTES)(random, data[at:])


# --- records -------------------------------------------------------------------------------------------------------------


def _record_seeds(folder: Path) -> list[Files]:
    from mlarray.formats.nnunet_case import header_of
    from mlarray.streaming.recorded import record_statistics

    array = MLArray(
        np.arange(1320, dtype=np.int16).reshape(_SHAPE),
        chunk_size=(6, 6, 6),
        block_size=(4, 4, 4),
        axes="zyx",
        meta={"k": [1.5]},
    )
    array.save(folder / "a.mla")
    from mlarray.formats.registry import open_source

    with open_source(folder / "a.mla") as source:
        record_statistics(source)
    store = open_store(folder / "a.mla")
    files = {name: store.record_bytes(name) or b"\x80" for name in store.record_names()}
    voxels = np.array([[0, 1, 2, 3], [0, 2, 2, 2]], np.int64)
    _, locations = header_of(
        {"spacing": [1, 1, 1], "class_locations": {1: voxels, (1, 2): voxels, 3: []}}, (1, *_SHAPE)
    )
    files[LOCATIONS_RECORD] = msgpack.packb(locations)
    files[CONVERSION_RECORD] = msgpack.packb('{"tool": "mlarray", "sources": [], "settings": {}}')
    return [files, {name: data for name, data in files.items() if name != "mla_integrity"}]


@cache
def _store() -> BloscStore:
    array = MLArray(np.arange(1320, dtype=np.int16).reshape(_SHAPE), chunk_size=(6, 6, 6), block_size=(4, 4, 4))
    assert isinstance(array._store, BloscStore)
    return array._store


def _tried(call: Callable[[], object]) -> object:
    try:
        return call()
    except MLArrayError as error:
        return type(error)


def _read_records(folder: Path, files: Files) -> Hashable:
    store = _store()
    for name in store.record_names():
        store.drop_record(name)
    for name, data in files.items():
        store._schunk.vlmeta.set_vlmeta(name, data or b"\xc0", typesize=1)
    meta = stored_metadata(store)
    encode(meta)
    axes = stored_axes(store)
    locations = _tried(lambda: restored_locations(store.record(LOCATIONS_RECORD)))
    layout = _tried(lambda: layout_of(store, None))
    statistics = _tried(lambda: statistics_of(store, proven=True))
    state = integrity.check(store).state
    return (
        *(state, type(axes), type(locations) if not isinstance(locations, type) else locations, type(layout)),
        *(type(statistics), meta.spatial.spacing is None, len(meta.extra.data)),
    )


def _read_records_of_file(folder: Path, files: Files) -> Hashable:
    """Read records from a file, as the formats and the converter do."""
    kind = _read_records(folder, files)
    if len(b"".join(files.values())) % 8:  # a file takes ten times as long as records in memory
        return kind
    path = folder / "a.mla"
    path.write_bytes(_store().frame_bytes())
    try:
        return kind, ReadImage("a.mla")(folder, files), check_file(path).ok
    finally:
        path.unlink()


def packed_tree(random: Random, data: bytes) -> bytes:
    """Change a node of a msgpack value."""
    try:
        value = msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogatepass")
        return bytes(msgpack.packb(tree(random, _plain(value)), unicode_errors="surrogatepass"))
    except (ValueError, OverflowError, TypeError, RecursionError):
        return random.choice(BYTES)(random, data)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def packed_pickle(random: Random, data: bytes) -> bytes:
    """Change the pickle inside of the metadata record."""
    try:
        return bytes(msgpack.packb(unzipped((operations, *BYTES))(random, msgpack.unpackb(data))))
    except (ValueError, TypeError):
        return random.choice(BYTES)(random, data)


_META: Mapping[str, Any] = {integrity.METADATA_RECORD: (packed_pickle,), "": (packed_tree,)}

PARSERS = (
    Parser("mla", _read_all, _seeds, {"": (fields(_HEADER), _frame_fields, _frame_fields, _tail, _tail)}, 400),
    Parser("mla-records", _read_records_of_file, _record_seeds, _META, 1500),
)
