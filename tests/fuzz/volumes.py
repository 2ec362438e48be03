"""Parsers of formats with one header and one block of voxels: NIfTI, NRRD, MetaImage, MGH, npy."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

import numpy as np

from mlarray.formats.nifti_header import encode_extensions
from tests.fuzz.inputs import Files
from tests.fuzz.mutations import BYTES, TEXT, fields, lines_of, series, unzipped
from tests.fuzz.parser import Parser
from tests.fuzz.reading import ReadImage

SHAPE = (4, 3, 5)
RAMP = np.arange(60, dtype=np.int16).reshape(SHAPE)

# The fields of nifti1.h and nifti2.h.
_NIFTI_1 = (
    *((0, "<i"), (39, "<B"), (56, "<f"), (60, "<f"), (64, "<f"), (68, "<h"), (70, "<h"), (72, "<h"), (74, "<h")),
    *(*series(40, "<h", 8), *series(76, "<f", 8), (108, "<f"), (112, "<f"), (116, "<f"), (120, "<h"), (122, "<B")),
    *(
        (123, "<B"),
        (124, "<f"),
        (128, "<f"),
        (132, "<f"),
        (136, "<f"),
        (252, "<h"),
        (254, "<h"),
        *series(256, "<f", 18),
    ),
    *((344, "<I"), (348, "<I"), (352, "<i"), (356, "<i")),
)
_NIFTI_2 = (
    *((0, "<i"), (4, "<Q"), (12, "<h"), (14, "<h"), *series(16, "<q", 8), *series(80, "<d", 3), *series(104, "<d", 8)),
    *((168, "<q"), (176, "<d"), (184, "<d"), *series(344, "<i", 2), *series(352, "<d", 18), (496, "<i"), (500, "<i")),
    *((504, "<i"), (524, "<B"), (540, "<I"), (544, "<i"), (548, "<i")),
)
_NIFTI = (fields(_NIFTI_1), fields(_NIFTI_1), fields(_NIFTI_2), *TEXT)
_MGH_FIELDS = (*series(0, ">i", 7), (28, ">h"), *series(30, ">f", 15))


def _nifti_seeds(folder: Path) -> list[Files]:
    import nibabel as nib

    seeds: list[Files] = []
    four = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    for kind in (nib.Nifti1Image, nib.Nifti2Image):
        for array in (RAMP, four, RAMP.astype(np.uint8)):
            image = kind(array, np.diag([2.0, 3.0, 4.0, 1.0]))
            image.header.set_xyzt_units("mm", "sec")
            seeds.append({"a.nii": image.to_bytes()})
    image = nib.Nifti1Image(np.zeros((2, 2, 2, 1, 3), np.float32), np.eye(4))
    image.header.set_intent("vector")
    seeds.append({"a.nii": image.to_bytes()})
    rgb = np.zeros((2, 2, 2), np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")]))
    seeds.append({"a.nii": nib.Nifti1Image(rgb, np.eye(4)).to_bytes()})
    image = nib.Nifti1Image(RAMP, np.eye(4))
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"hello"))
    image.header.set_slope_inter(2.0, 1.0)
    seeds.append({"a.nii": image.to_bytes()})
    plain = nib.Nifti1Image(RAMP, np.eye(4)).to_bytes()
    record = encode_extensions([(6, b'mlarray-record:{"tool": "mlarray", "settings": {}}')])
    moved = np.float32(352 + len(record) - 4).tobytes()
    seeds.append({"a.nii": plain[:108] + moved + plain[112:348] + record + plain[352:]})
    return seeds


def _nifti_gz_seeds(folder: Path) -> list[Files]:
    return [{"a.nii.gz": gzip.compress(files["a.nii"], 1, mtime=0)} for files in _nifti_seeds(folder)]


def _nifti_pair_seeds(folder: Path) -> list[Files]:
    import nibabel as nib

    seeds: list[Files] = []
    for kind in (nib.Nifti1Pair, nib.Nifti2Pair, nib.AnalyzeImage, nib.Spm99AnalyzeImage):
        nib.save(kind(RAMP, np.eye(4)), folder / "a.img")
        seeds.append({"a.hdr": (folder / "a.hdr").read_bytes(), "a.img": (folder / "a.img").read_bytes()})
    return seeds


_NRRD_HEAD = "NRRD0005\ntype: int16\ndimension: 3\nsizes: 5 3 4\nendian: little\n"
_NRRD_PLACE = "space: left-posterior-superior\nspace directions: (2,0,0) (0,3,0) (0,0,4)\nspace origin: (10,20,30)\n"
_NRRD_PLACE += "kinds: domain domain domain\n"
_NRRD_LINES = (
    *(
        "byte skip: 2",
        "byte skip: -1",
        "line skip: 1",
        "space dimension: 3",
        "spacings: 1 2 3",
        "axis mins: 0 0 0",
        "units: mm mm s",
    ),
    *(
        "axis maxs: 1 1 1",
        "centers: cell node ???",
        'labels: "a" "b" "c"',
        "measurement frame: (1,0,0) (0,1,0) (0,0,1)",
        "old min: 0",
    ),
    *(
        'space units: "mm" "mm" "mm"',
        "data file: a.raw",
        "data file: LIST",
        "data file: a%d.raw 1 2 1 2",
        "encoding: hex",
    ),
    *(
        "encoding: ascii",
        "encoding: gzip",
        "encoding: bzip2",
        "block size: 4",
        "type: block",
        "type: double",
        "number: 60",
    ),
    *(
        "thicknesses: 1 nan 1",
        "sample units: x",
        "space: RAST",
        "kinds: vector domain domain",
        "kinds: RGB-color space time",
        "# c",
    ),
    *(
        "Segment0_ID:=a",
        "Segment0_Layer:=0",
        "Segment0_LabelValue:=1",
        "Segment0_Extent:=0 1 0 1 0 1",
        "mlarray_record:={}",
    ),
)


def _nrrd_seeds(folder: Path) -> list[Files]:
    import bz2

    raw = RAMP.tobytes()
    texts = " ".join(map(str, RAMP.ravel())).encode()
    encoded = {
        "raw": raw,
        "gzip": gzip.compress(raw, mtime=0),
        "bzip2": bz2.compress(raw),
        "ascii": texts,
        "hex": raw.hex().encode(),
    }
    seeds = [
        {"a.nrrd": f"{_NRRD_HEAD}{_NRRD_PLACE}encoding: {name}\n\n".encode() + data} for name, data in encoded.items()
    ]
    vectors = "NRRD0004\ntype: float\ndimension: 4\nsizes: 3 5 4 1\nendian: big\nencoding: raw\n"
    vectors += "kinds: vector space space space\nspace dimension: 3\n"
    vectors += 'space directions: none (1,0,0) (0,1,0) (0,0,1)\nmlarray_record:={"tool": "mlarray"}\n\n'
    seeds.append({"a.nrrd": vectors.encode() + bytes(240)})
    return seeds


def _nrrd_detached_seeds(folder: Path) -> list[Files]:
    raw = RAMP.tobytes()
    head = f"{_NRRD_HEAD}{_NRRD_PLACE}encoding: raw\n"
    return [
        {"a.nhdr": f"{head}data file: a.raw\n".encode(), "a.raw": raw},
        {"a.nhdr": f"{head}byte skip: -1\ndata file: a.raw\n".encode(), "a.raw": b"12345678" + raw},
        {"a.nhdr": f"{head}data file: a%d.raw 1 2 1 3\n".encode(), "a1.raw": raw[:60], "a2.raw": raw[60:]},
        {"a.nhdr": f"{head}data file: LIST\na1.raw\na2.raw\n".encode(), "a1.raw": raw[:60], "a2.raw": raw[60:]},
        {
            "a.nhdr": head.replace("raw", "gzip").encode() + b"data file: a.raw.gz\n",
            "a.raw.gz": gzip.compress(raw, mtime=0),
        },
    ]


_META_HEAD = (
    "ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\nCompressedData = {}\n"
    "TransformMatrix = 1 0 0 0 1 0 0 0 1\nOffset = 1 2 3\nCenterOfRotation = 0 0 0\nAnatomicalOrientation = RAI\n"
    "ElementSpacing = 1 2 3\nDimSize = 5 3 4\nElementType = MET_SHORT\n"
)
_META_LINES = (
    *(
        "ElementNumberOfChannels = 2",
        "HeaderSize = -1",
        "HeaderSize = 3",
        "CompressedDataSize = 10",
        "ElementSize = 1 2 3",
        "ID = 1",
    ),
    *(
        "Rotation = 1 0 0 0 1 0 0 0 1",
        "Position = 1 1 1",
        "Origin = 0 0 0",
        "ElementMin = 0",
        "ElementMax = 1",
        "Modality = MET_MOD_CT",
    ),
    *(
        "BinaryData = False",
        "ElementByteOrderMSB = True",
        "CompressedData = True",
        "mlarray_record = {}",
        "mlarray_axes = []",
    ),
    *(
        "DimSize = 1 1 1 1",
        "NDims = 4",
        "ElementType = MET_DOUBLE",
        "ElementType = MET_UCHAR_ARRAY",
        "DistanceUnits = um",
        "Comment = a",
    ),
    *("Seq_Frame0000_ImageStatus = OK", "ElementToIntensityFunctionSlope = 2", "ElementToIntensityFunctionOffset = 1"),
)


def _meta_seeds(folder: Path) -> list[Files]:
    raw = RAMP.tobytes()
    packed = zlib.compress(raw)
    local = "ElementDataFile = LOCAL\n"
    plain = _META_HEAD.format(False)
    return [
        {"a.mha": f"{plain}{local}".encode() + raw},
        {"a.mha": f"{_META_HEAD.format(True)}CompressedDataSize = {len(packed)}\n{local}".encode() + packed},
        {"a.mha": f"{plain.replace('BinaryData = True', 'BinaryData = False')}{local}".encode() + b"1 2 3 4 " * 15},
        {"a.mha": f"{plain.replace('5 3 4', '5 3 2')}ElementNumberOfChannels = 2\n{local}".encode() + raw},
        {"a.mha": f'{plain}mlarray_axes = [{{"name": "z"}}, {{"name": "y"}}, {{"name": "x"}}]\n{local}'.encode() + raw},
    ]


def _meta_detached_seeds(folder: Path) -> list[Files]:
    raw = RAMP.tobytes()
    plain, packed = _META_HEAD.format(False), zlib.compress(raw)
    return [
        {"a.mhd": f"{plain}ElementDataFile = a.raw\n".encode(), "a.raw": raw},
        {"a.mhd": f"{plain}HeaderSize = -1\nElementDataFile = a.raw\n".encode(), "a.raw": b"123" + raw},
        {"a.mhd": f"{_META_HEAD.format(True)}ElementDataFile = a.zraw\n".encode(), "a.zraw": packed},
        {"a.mhd": f"{plain}ElementDataFile = LIST\na1\na2\na3\na4\n".encode()}
        | {f"a{i}": raw[30 * i - 30 : 30 * i] for i in range(1, 5)},
        {"a.mhd": f"{plain}ElementDataFile = a%d 1 4 1\n".encode()}
        | {f"a{i}": raw[30 * i - 30 : 30 * i] for i in range(1, 5)},
    ]


def _mgh_seeds(folder: Path) -> list[Files]:
    import nibabel as nib

    seeds: list[Files] = []
    for kind in (np.uint8, np.int16, np.int32, np.float32):
        image = nib.MGHImage(RAMP.astype(kind), np.diag([1.0, 2.0, 3.0, 1.0]))
        data = image.to_bytes()
        seeds += [{"a.mgh": data}]
    return seeds


def _mgz_seeds(folder: Path) -> list[Files]:
    return [{"a.mgz": gzip.compress(files["a.mgh"], 1, mtime=0)} for files in _mgh_seeds(folder)]


def _npy_seeds(folder: Path) -> list[Files]:
    seeds: list[Files] = []
    for array in (RAMP, np.asfortranarray(RAMP), RAMP.astype(">f8"), RAMP > 3, RAMP.astype("c8"), np.zeros(3, "i2,f4")):
        content = io.BytesIO()
        np.save(content, array)
        seeds.append({"a.npy": content.getvalue()})
    return seeds


def _npz_seeds(folder: Path) -> list[Files]:
    seeds: list[Files] = []
    for save in (np.savez, np.savez_compressed):
        for arrays in ({"a": RAMP}, {"a": RAMP, "b": RAMP.astype("f4"), "c": np.array("text")}):
            content = io.BytesIO()
            save(content, **arrays)
            seeds.append({"a.npz": content.getvalue()})
    return seeds


_NRRD = (*TEXT, *TEXT, lines_of(_NRRD_LINES), lines_of(_NRRD_LINES))
_META = (*TEXT, *TEXT, lines_of(_META_LINES), lines_of(_META_LINES))
_ZIPPED = (*_NIFTI, *BYTES)

PARSERS = (
    Parser("nifti", ReadImage("a.nii"), _nifti_seeds, {"": _NIFTI}, 2500),
    Parser("nifti-gz", ReadImage("a.nii.gz"), _nifti_gz_seeds, {"": (unzipped(_ZIPPED),)}, 1500),
    Parser("nifti-pair", ReadImage("a.hdr"), _nifti_pair_seeds, {".hdr": _NIFTI}, 1500),
    Parser("nrrd", ReadImage("a.nrrd"), _nrrd_seeds, {"": _NRRD}, 2500),
    Parser("nrrd-detached", ReadImage("a.nhdr"), _nrrd_detached_seeds, {".nhdr": _NRRD}, 1500),
    Parser("metaimage", ReadImage("a.mha"), _meta_seeds, {"": _META}, 2500),
    Parser("metaimage-detached", ReadImage("a.mhd"), _meta_detached_seeds, {".mhd": _META}, 1500),
    Parser("mgh", ReadImage("a.mgh"), _mgh_seeds, {"": (fields(_MGH_FIELDS),)}, 1500),
    Parser("mgz", ReadImage("a.mgz"), _mgz_seeds, {"": (unzipped((fields(_MGH_FIELDS), *BYTES)),)}, 1000),
    Parser("npy", ReadImage("a.npy"), _npy_seeds, {"": TEXT}, 2000),
    Parser("npz", ReadImage("a.npz", items=True), _npz_seeds, {"": TEXT}, 1000),
)
