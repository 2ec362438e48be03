"""Which files are damaged, and how? Samples of every kind of ``.mla``, the damages, and the parts of a file they hit."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import blosc2
import numpy as np

from mlarray import MLArray

PAGE = 4096
SMALL_BYTES = 3000  # files up to here are hit at every byte
HEADER_BYTES = 32  # of a chunk
NUMBERS = (
    0,
    1,
    2,
    7,
    0x7F,
    0x80,
    0xFF,
    2**15,
    2**16 - 1,
    2**20,
    2**31 - 33,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**63 - 1,
)
GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden" / "mla_samples"


class Damage(NamedTuple):
    """One change of a file: its kind, the byte where it begins, and a number that the kind explains."""

    kind: str
    at: int
    detail: int


def damaged(data: bytes, damage: Damage) -> bytes:
    """Return the bytes of a file after a damage."""
    kind, at, detail = damage
    page = data[at : at + PAGE]
    if kind == "bit":
        return data[:at] + bytes([data[at] ^ (1 << detail)]) + data[at + 1 :]
    if kind == "zeroed page":
        return data[:at] + bytes(len(page)) + data[at + PAGE :]
    if kind == "swapped pages":  # detail is the later one
        if detail == at:
            return data
        other = data[detail : detail + PAGE]
        return data[:at] + other + data[at + PAGE : detail] + page + data[detail + PAGE :]
    if kind == "duplicated page":
        return data[:detail] + page[: len(data) - detail] + data[detail + len(page) :]
    if kind == "missing page":
        return data[:at] + data[at + PAGE :]
    if kind == "truncated":
        return data[:at]
    if kind == "appended":
        return (
            data + random.Random(detail).randbytes(1 + detail % PAGE) if detail % 2 else data + bytes(1 + detail % PAGE)
        )
    if kind == "burst":
        source = random.Random(detail)
        length = min(source.choice((1, 2, 3, 4, 8, 32, 200)), len(data) - at)
        return data[:at] + source.randbytes(length) + data[at + length :]
    if kind == "number":  # detail: size and byte order, then which number
        size, order = (1, 2, 4, 8)[detail % 4], ("little", "big")[detail // 4 % 2]
        number = NUMBERS[detail // 8] % 2 ** (8 * size)
        return (data[:at] + number.to_bytes(size, order) + data[at + size :])[: len(data)]
    raise ValueError(kind)


def all_damages(data: bytes, parts: list[str]) -> Iterator[Damage]:
    """Every damage of a file; of one that is not small, those of single bytes only where its structure lies."""
    structure = [at for at in range(len(data)) if len(data) <= SMALL_BYTES or parts[at] != "chunk data"]
    pages = range(0, len(data), PAGE)
    yield from (Damage("bit", at, bit) for at in structure for bit in range(8))
    yield from (Damage("number", at, number) for at in structure for number in range(8 * len(NUMBERS)))
    yield from (Damage("truncated", at, 0) for at in structure)
    for at in pages:
        yield from (Damage(kind, at, 0) for kind in ("zeroed page", "missing page", "truncated"))
        yield from (Damage("swapped pages", at, other) for other in pages if other > at)
        yield from (Damage("duplicated page", at, other) for other in pages if other != at)


def random_damages(data: bytes, parts: list[str], count: int, seed: int) -> Iterator[Damage]:
    """``count`` damages of every kind, half of them where the structure of the file lies."""
    source = random.Random(seed)
    structure = [at for at, part in enumerate(parts) if part != "chunk data"]
    pages = range(0, len(data), PAGE)
    for _ in range(count):
        kind = source.choices(
            (
                "bit",
                "number",
                "burst",
                "truncated",
                "appended",
                "zeroed page",
                "missing page",
                "swapped pages",
                "duplicated page",
            ),
            (30, 30, 15, 5, 2, 5, 5, 5, 3),
        )[0]
        at = source.choice(structure) if source.random() < 0.6 else source.randrange(len(data))
        page, other = source.choice(pages), source.choice(pages)
        if kind == "bit":
            yield Damage(kind, at, source.randrange(8))
        elif kind == "number":
            yield Damage(kind, at, source.randrange(8 * len(NUMBERS)))
        elif kind in ("burst", "truncated", "appended"):
            yield Damage(kind, len(data) if kind == "appended" else at, source.randrange(2**31))
        elif kind == "swapped pages":
            yield Damage(kind, min(page, other), max(page, other))
        else:
            yield Damage(kind, page, other)


def parts_of(path: Path) -> list[str]:
    """Name the part of the file that each byte belongs to."""
    data = path.read_bytes()
    (header_bytes,) = struct.unpack_from(">i", data, 11)
    frame_bytes, _, stored = (struct.unpack_from(">q", data, place)[0] for place in (16, 30, 39))
    index_at = header_bytes + stored
    (index_bytes,) = struct.unpack_from("<i", data, index_at + 12) if stored else (0,)
    parts = ["header"] * header_bytes + ["gap"] * stored
    parts += ["index"] * index_bytes + ["trailer"] * (frame_bytes - len(parts) - index_bytes)
    parts += ["behind"] * (len(data) - len(parts))
    array = blosc2.open(str(path), mode="r", mmap_mode="r")
    blocks = -(-array.schunk.chunksize // max(1, array.schunk.blocksize))
    for place in chunk_places(data, index_at, index_bytes):
        begin = header_bytes + place
        (length,) = struct.unpack_from("<i", data, begin + 12)
        tables = min(length, HEADER_BYTES + (0 if data[begin + 2] & 2 else 4 * blocks))
        parts[begin : begin + HEADER_BYTES] = ["chunk header"] * HEADER_BYTES
        parts[begin + HEADER_BYTES : begin + tables] = ["block starts"] * (tables - HEADER_BYTES)
        parts[begin + tables : begin + length] = ["chunk data"] * (length - tables)
    return parts


def chunk_places(data: bytes, index_at: int, index_bytes: int) -> list[int]:
    """Return where the chunks that have bytes of their own begin, counted from the end of the header."""
    if not index_bytes:
        return []
    index = np.frombuffer(blosc2.decompress2(data[index_at : index_at + index_bytes]), np.int64)
    return sorted({int(place) for place in index if place >= 0})


def make_samples(folder: Path) -> list[Path]:
    """Write the sample files and return their paths, in a fixed order."""
    for name, make in SAMPLES.items():
        make(folder / f"{name}.mla")
    for name in (
        "nd1_float32",
        "metadata_only",
        "dtype_bigendian_int16",
        "mr4d_channel_first_int16",
        "ct3d_full_meta_float32",
    ):
        (folder / f"golden_{name}.mla").write_bytes((GOLDEN / f"{name}.mla").read_bytes())
    return sorted(folder.glob("*.mla"))


def _noise(shape: tuple[int, ...], dtype: str, high: int = 1000) -> np.ndarray:
    return np.random.default_rng(5).integers(0, high, shape).astype(dtype)


def _smooth(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    values: np.ndarray = np.sqrt(sum(axis.astype("f8") ** 2 for axis in np.indices(shape)))
    return (values * 10).astype(dtype)


def _special(path: Path) -> None:
    voxels = _smooth((24, 8, 8), "f4")
    voxels[:4], voxels[4:8], voxels[8:12] = 0, 3.5, np.nan
    MLArray(voxels, chunk_size=(4, 8, 8), block_size=(2, 4, 8), spacing=(3, 1, 1)).save(path)


def _rewritten(path: Path) -> None:
    MLArray(_smooth((24, 16, 16), "i2"), chunk_size=(8, 16, 16), block_size=(4, 8, 16), meta={"k": "v" * 100}).save(
        path
    )
    for begin, values in (
        (0, _noise((8, 16, 16), "i2")),
        (8, np.zeros((8, 16, 16), "i2")),
        (0, np.ones((8, 16, 16), "i2")),
    ):
        with MLArray.open(path, mmap_mode="r+") as image:
            image[begin : begin + 8] = values
            image.meta.source.data["step"] = "x" * begin


def _codec(codec: blosc2.Codec, *filters: blosc2.Filter) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        params = {
            "codec": codec,
            "clevel": 5,
            "filters": list(filters),
            "filters_meta": [0] * len(filters),
            "typesize": 2,
        }
        MLArray(_smooth((16, 16, 16), "i2"), chunk_size=(8, 16, 16), block_size=(4, 8, 16), cparams=params).save(path)

    return make


SAMPLES: dict[str, Callable[[Path], None]] = {
    "one_voxel": lambda path: MLArray(np.ones((1,), "u1")).save(path),
    "empty": lambda path: MLArray(np.zeros((3, 0, 4), "f4")).save(path),
    "line_bool": lambda path: MLArray(_noise((500,), "u1", 2).astype(bool), chunk_size=(200,), block_size=(64,)).save(
        path
    ),
    "plane_uint8": lambda path: MLArray(
        _smooth((40, 30), "u1"), chunk_size=(20, 30), block_size=(8, 15), axes="yx"
    ).save(path),
    "volume_int16": lambda path: MLArray(
        _smooth((12, 11, 10), "i2"),
        chunk_size=(6, 6, 6),
        block_size=(4, 4, 4),
        spacing=(3, 1, 1),
        meta={"Modality": "CT"},
    ).save(path),
    "series_float32": lambda path: MLArray(
        _smooth((3, 6, 9, 10), "f4"), chunk_size=(1, 6, 9, 10), block_size=(1, 3, 9, 5), axes="tzyx"
    ).save(path),
    "one_chunk": lambda path: MLArray(_smooth((16, 16, 16), "i2"), patch_size=(16, 16, 16)).save(path),
    "many_chunks": lambda path: MLArray(_noise((40, 12, 12), "u1", 3), chunk_size=(1, 4, 4), block_size=(1, 4, 4)).save(
        path
    ),
    "uncompressible": lambda path: MLArray(
        _noise((8, 20, 20), "i8", 2**63 - 1), chunk_size=(4, 20, 20), block_size=(2, 20, 20)
    ).save(path),
    "long_metadata": lambda path: MLArray(
        _smooth((8, 8, 8), "i2"), meta={f"key {i}": "value" * (i % 9) for i in range(3000)}
    ).save(path),
    "special": _special,
    "rewritten": _rewritten,
    "zstd": _codec(blosc2.Codec.ZSTD, blosc2.Filter.SHUFFLE),
    "lz4_bitshuffle": _codec(blosc2.Codec.LZ4, blosc2.Filter.BITSHUFFLE),
    "blosclz_delta": _codec(blosc2.Codec.BLOSCLZ, blosc2.Filter.DELTA, blosc2.Filter.SHUFFLE),
    "zlib": _codec(blosc2.Codec.ZLIB, blosc2.Filter.NOFILTER),
}
