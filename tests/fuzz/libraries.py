"""Parsers of formats that a library reads for us: TIFF, DICOM, HDF5, MINC, OME-Zarr. Their errors must not leak."""

from __future__ import annotations

import json
import struct
from collections.abc import Hashable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.inputs import Files
from tests.fuzz.mutations import BYTES, JSON, REAL, TEXT, WIDE, token
from tests.fuzz.parser import Parser
from tests.fuzz.reading import ReadImage

RAMP = np.arange(60, dtype=np.int16).reshape(3, 4, 5)


def files_below(folder: Path) -> Files:
    """Return the files of a folder by their names in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# --- TIFF ----------------------------------------------------------------------------------------------------------------


def _tiff_seeds(folder: Path) -> list[Files]:
    import tifffile

    planes = np.arange(3 * 20 * 18, dtype=np.uint16).reshape(3, 20, 18)
    colour = np.stack([planes, planes, planes], axis=-1).astype(np.uint8)
    grey = {"photometric": "minisblack"}
    layouts: list[tuple[Any, dict[str, Any]]] = [
        (planes, grey),
        (planes, grey | {"byteorder": ">", "bigtiff": True, "tile": (16, 16), "compression": "zlib"}),
        (planes, grey | {"rowsperstrip": 5, "compression": "zlib", "predictor": 2}),
        (planes, grey | {"tile": (16, 16)}),
        (planes, grey | {"compression": "lzw", "metadata": {"axes": "ZYX"}}),
        (planes.astype(np.uint8), grey | {"compression": "packbits", "metadata": None}),
        (planes.astype(np.float32), grey | {"compression": "zlib", "predictor": 3, "tile": (16, 16)}),
        (planes, {"imagej": True, "metadata": {"axes": "ZYX", "spacing": 2.0, "unit": "um"}, "resolution": (2, 2)}),
        (planes, grey | {"ome": True, "metadata": {"axes": "ZYX", "PhysicalSizeX": 0.5, "PhysicalSizeXUnit": "mm"}}),
        (colour[0], {"photometric": "rgb", "compression": "zlib", "rowsperstrip": 9}),
        (planes[0] % 2 == 0, grey),
        (planes, grey | {"tile": (2, 16, 16), "volumetric": True, "compression": "zlib"}),
    ]
    seeds: list[Files] = []
    for array, options in layouts:
        path = folder / ("a.ome.tif" if options.get("ome") else "a.tif")
        tifffile.imwrite(path, array, **options)
        seeds.append({"a.tif": path.read_bytes()})
    return seeds


def directory(random: Random, data: bytes) -> bytes:
    """Change a tag, type, count or value of a classic TIFF's first directories."""
    order = "<" if data[:2] == b"II" else ">"
    if len(data) < 16 or data[2:4] not in (b"*\x00", b"\x00*"):
        return random.choice(BYTES)(random, data)
    at = struct.unpack_from(f"{order}I", data, 4)[0]
    for _ in range(random.randrange(3)):
        count = struct.unpack_from(f"{order}H", data, at)[0] if at + 2 <= len(data) else 0
        after = at + 2 + 12 * count
        following = struct.unpack_from(f"{order}I", data, after)[0] if after + 4 <= len(data) else 0
        at = following if 0 < following < len(data) - 14 else at
    if at + 14 > len(data):
        return data
    count = struct.unpack_from(f"{order}H", data, at)[0]
    kind = random.randrange(8)
    if kind == 0:
        return data[:at] + struct.pack(f"{order}H", random.choice((0, 1, (count + 1) % 65536, 65535))) + data[at + 2 :]
    if kind == 1 and (end := at + 2 + 12 * count) + 4 <= len(data):
        return data[:end] + struct.pack(f"{order}I", random.choice((0, at, 8, len(data), 2**32 - 1))) + data[end + 4 :]
    entry = at + 2 + 12 * random.randrange(max(1, min(count, 40)))
    offset, code = random.choice(((0, "H"), (2, "H"), (4, "I"), (8, "I"), (8, "H"), (8, "I")))
    if entry + 12 > len(data):
        return data
    limit = 1 << 8 * struct.calcsize(code)
    old = struct.unpack_from(f"{order}{code}", data, entry + offset)[0]
    tags = (
        254,
        256,
        257,
        258,
        259,
        262,
        270,
        273,
        277,
        278,
        279,
        282,
        284,
        296,
        317,
        320,
        322,
        323,
        324,
        325,
        330,
        338,
        339,
        33628,
        50838,
    )
    near = (old + 1, old - 1, old * 2, 0, len(data), random.choice(tags), random.randrange(20))
    value = random.choice((*near, random.choice(WIDE))) % limit
    return (
        data[: entry + offset] + struct.pack(f"{order}{code}", value) + data[entry + offset + struct.calcsize(code) :]
    )


# --- DICOM ---------------------------------------------------------------------------------------------------------------

_LONG = (b"OB", b"OW", b"SQ", b"UN", b"UT", b"OF", b"OD", b"OL", b"UC", b"UR")
_TYPES = (
    b"DS",
    b"IS",
    b"US",
    b"SS",
    b"UI",
    b"LO",
    b"FD",
    b"FL",
    b"CS",
    b"PN",
    b"SQ",
    b"UN",
    b"OW",
    b"OB",
    b"AT",
    b"TM",
    b"DA",
    b"??",
)


def _dicom_seeds(folder: Path) -> list[Files]:
    from pydicom import dcmread
    from pydicom.data import get_testdata_file
    from pydicom.uid import RLELossless

    from tests.conformance.dicom_files import OTHER_ORDERS, enhanced, plane, write

    paths = [
        write(folder / "explicit", plane(3), RescaleSlope="2", RescaleIntercept="-5", PatientName="A^B"),
        write(folder / "implicit", plane(3), syntax=OTHER_ORDERS["implicit"]),
        write(folder / "big", plane(3), syntax=OTHER_ORDERS["big"]),
        write(folder / "bits", plane(3, dtype="uint16"), BitsStored=12, NumberOfFrames=1, PixelPaddingValue=0),
    ]
    places = [
        {"PlanePositionSequence": {"ImagePositionPatient": [0, 0, float(z)]}, "FrameContentSequence": {"StackID": "1"}}
        for z in range(3)
    ]
    shared = {
        "PlaneOrientationSequence": {"ImageOrientationPatient": [1, 0, 0, 0, 1, 0]},
        "PixelMeasuresSequence": {"PixelSpacing": [1, 2]},
    }
    paths.append(enhanced(folder / "enhanced", np.arange(48, dtype=np.int16).reshape(3, 4, 4), places, shared))
    packed = dcmread(paths[0])
    packed.compress(RLELossless)
    packed.save_as(folder / "rle")
    paths.append(folder / "rle")
    shipped = (
        "MR_small_jp2klossless.dcm",
        "MR_small_jpeg_ls_lossless.dcm",
        "image_dfl.dcm",
        "rtdose_1frame.dcm",
        "SC_rgb_jpeg.dcm",
    )
    found = [Path(str(one)) for name in shipped if (one := get_testdata_file(name, download=False)) is not None]
    return [{"a.dcm": path.read_bytes()} for path in [*paths, *found] if path.stat().st_size < 9000]


def _dicom_series_seeds(folder: Path) -> list[Files]:
    from tests.conformance.dicom_files import stack

    stack(folder / "one" / "series", [0.0, 1.5, 3.0], RescaleSlope="2", RescaleIntercept="1")
    stack(folder / "two" / "series", [0.0, 2.0], EchoTime=("1", "2"))
    return [files_below(folder / "one"), files_below(folder / "two")]


def _elements(data: bytes) -> list[tuple[int, int, int]]:
    """Return start, place of the value and end of the elements of an explicit little-endian file, the outermost ones."""
    found: list[tuple[int, int, int]] = []
    at = 132
    while at + 8 <= len(data) and len(found) < 200:
        long = data[at + 4 : at + 6] in _LONG
        value = at + (12 if long else 8)
        if value > len(data):
            break
        length = int.from_bytes(data[at + 8 : at + 12] if long else data[at + 6 : at + 8], "little")
        end = min(len(data), value + length)
        found.append((at, value, end))
        at = end
    return found


def elements(random: Random, data: bytes) -> bytes:
    """Drop, double or swap elements, or give one another value, type or length."""
    found = _elements(data)
    if len(found) < 4:
        return random.choice(BYTES)(random, data)
    start, value, end = random.choice(found)
    kind = random.randrange(8)
    if kind == 0:
        return data[:start] + data[end:]
    if kind == 1:
        other = random.choice(found)[0]
        return data[:other] + data[start:end] + data[other:]
    if kind == 2:
        return data[: start + 4] + random.choice(_TYPES) + data[start + 6 :]
    if kind == 3:
        at = value - (4 if data[start + 4 : start + 6] in _LONG else 2)
        return (
            data[:at]
            + random.choice((bytes(value - at), b"\xff" * (value - at), random.randbytes(value - at)))
            + data[value:]
        )
    if kind == 4:
        new = random.choice((struct.pack("<d", random.choice(REAL)), struct.pack("<Q", random.choice(WIDE)), b""))[
            : random.choice((2, 4, 8))
        ]
    elif kind == 5:
        new = b"\\".join(token(random)[:40] for _ in range(random.choice((1, 2, 3, 6, 7))))
    elif kind == 6:
        new = data[value:end] * 2
    else:
        new = token(random)[:3000]
    new += b" " * (len(new) % 2)
    width = 4 if data[start + 4 : start + 6] in _LONG else 2
    return data[: value - width] + (len(new) % (1 << 8 * width)).to_bytes(width, "little") + new + data[end:]


# --- HDF5 and MINC -------------------------------------------------------------------------------------------------------


def _hdf5_seeds(folder: Path) -> list[Files]:
    import h5py

    from mlarray.axes import parse_axes
    from mlarray.formats import hdf5
    from mlarray.geometry import Geometry
    from mlarray.sources.base import SinkOptions, SourceInfo
    from mlarray.spec import ArraySpec
    from tests.conformance.text_header_files import fill

    seeds: list[Files] = []
    for number, options in enumerate(
        ({}, {"chunks": (2, 2, 5), "compression": "gzip", "shuffle": True}, {"chunks": (1, 4, 5), "fletcher32": True})
    ):
        path = folder / f"{number}.h5"
        with h5py.File(path, "w") as file:
            dataset = file.create_dataset("raw", data=RAMP, **options)
            dataset.attrs["element_size_um"] = [3.0, 1.0, 1.0]
            dataset.attrs["DIMENSION_LABELS"] = np.array(["z", "y", "x"], h5py.string_dtype())
            file.create_dataset("text", data="hello")
        seeds.append({"a.h5": path.read_bytes()})
    spec = ArraySpec(RAMP.shape, RAMP.dtype, parse_axes("zyx"), Geometry(np.diag([3.0, 2.0, 1.0, 1.0]), "LPS"))
    sink = hdf5.open_sink(
        folder / "ours.h5", spec, SourceInfo(), SinkOptions({"codec": "gzip"}, record={"tool": "mlarray"})
    )
    fill(sink, RAMP)
    return [*seeds, {"a.h5": (folder / "ours.h5").read_bytes()}]


def _attribute_seeds(folder: Path) -> list[Files]:
    import h5py

    found: list[Files] = []
    for number, files in enumerate(_hdf5_seeds(folder)):
        path = folder / f"seed{number}.h5"
        path.write_bytes(files["a.h5"])
        with h5py.File(path) as file:
            for name in file:
                found.append(
                    {"a.json": json.dumps({key: _listed(value) for key, value in file[name].attrs.items()}).encode()}
                )
    return [
        *found,
        {"a.json": json.dumps(_AXIS_TAGS).encode()},
    ]


_AXIS_TAGS = {"axistags": json.dumps({"axes": [{"key": "z", "typeFlags": 2, "resolution": 2}]}), "CLASS": "IMAGE"}


def _listed(value: Any) -> Any:
    value = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return [_listed(one) for one in value] if isinstance(value, list) else value


_read_hdf5 = ReadImage("a.h5", items=True)


def _read_attributes(folder: Path, files: Files) -> Hashable:
    """Write the attributes that JSON lists beside an array, and read the file."""
    import h5py

    try:
        given = json.loads(files["a.json"].decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return "no JSON"
    path = folder / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("raw", data=RAMP)
        for key, value in given.items() if isinstance(given, dict) else ():
            try:
                dataset.attrs[key] = value
            except (TypeError, ValueError, OverflowError, RuntimeError, OSError, KeyError):
                continue  # of what HDF5 cannot hold
    try:
        return _read_hdf5(folder, files)
    finally:
        path.unlink()


def _minc_seeds(folder: Path) -> list[Files]:
    import nibabel

    from tests.conformance.test_minc import write_minc2

    data = Path(nibabel.__file__).parent / "tests" / "data"
    seeds: list[Files] = [
        {"a.mnc": (data / name).read_bytes()} for name in ("tiny.mnc", "minc1_1_scale.mnc", "minc1-no-att.mnc")
    ]
    write_minc2(folder / "two.mnc", RAMP, np.arange(3.0), np.arange(3.0) + 5)
    return [*seeds, {"a.mnc": (folder / "two.mnc").read_bytes()}]


# --- OME-Zarr ------------------------------------------------------------------------------------------------------------


def _zarr_seeds(folder: Path) -> list[Files]:
    import zarr
    from numcodecs import Blosc

    from tests.conformance.zarr_files import multiscale, write_array, write_image

    entry = multiscale("zyx", [2.0, 1.0, 1.0], [0.0, 1.0, 2.0], paths=("0", "1"))
    levels = {"levels": [RAMP[:, ::2, ::2]], "chunks": (2, 2, 5)}
    options: list[dict[str, Any]] = [
        {"version": "0.5"} | levels,
        {"version": "0.4", "compressors": Blosc("lz4")} | levels,
        {"version": "0.5", "compressors": zarr.codecs.BloscCodec(cname="lz4")} | levels,
        {"version": "0.5", "compressors": zarr.codecs.GzipCodec(), "shards": (4, 4, 10)} | levels,
        {"version": "0.4", "compressors": None, "fill_value": 3} | levels,
    ]
    seeds: list[Files] = []
    for number, one in enumerate(options):
        path = folder / f"{number}" / "a.ome.zarr"
        write_image(path, RAMP, entry, **one)
        seeds.append(files_below(path.parent))
    labelled = folder / "labels" / "a.ome.zarr"
    write_image(
        labelled,
        RAMP,
        multiscale("zyx"),
        chunks=(3, 4, 5),
        extra={"omero": {"channels": [{"window": {"start": 0, "end": 9}}]}},
    )
    labels = zarr.open_group(labelled / "labels", mode="w")
    labels.attrs["ome"] = {"labels": ["a"]}
    write_image(labelled / "labels" / "a", RAMP, multiscale("zyx"), chunks=(3, 4, 5))
    seeds.append(files_below(labelled.parent))
    plain = folder / "plain"
    write_array(zarr.open_group(plain / "a.ome.zarr", mode="w"), "x", RAMP, chunks=(3, 4, 5))
    return [*seeds, files_below(plain)]


_ZARR = dict.fromkeys(("zarr.json", ".zattrs", ".zarray", ".zgroup", ".zmetadata"), JSON)

PARSERS = (
    Parser("tiff", ReadImage("a.tif", items=True), _tiff_seeds, {"": (directory, directory, *TEXT[:1])}, 800),
    Parser("dicom", ReadImage("a.dcm", items=True), _dicom_seeds, {"": (elements,)}, 400),
    Parser("dicom-series", ReadImage("series", items=True), _dicom_series_seeds, {"": (elements,)}, 200),
    Parser("hdf5", ReadImage("a.h5", items=True), _hdf5_seeds, {}, 250),
    Parser("hdf5-attributes", _read_attributes, _attribute_seeds, {"": JSON}, 300),
    Parser("minc", ReadImage("a.mnc"), _minc_seeds, {"": BYTES}, 800),
    Parser("ome-zarr", ReadImage("a.ome.zarr", items=True), _zarr_seeds, _ZARR, 150),
)
