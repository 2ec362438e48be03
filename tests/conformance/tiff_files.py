"""Small TIFF files of every kind that tifffile writes, and some that it does not, made by changing bytes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from mlarray.sources.base import NDArray

SHAPE = (7, 34, 45)
BASE = np.random.default_rng(3).integers(0, 60000, SHAPE).astype(np.uint16)
BASE[2:5, 5:20, 10:30] = 7
COLOUR = (np.stack([BASE, BASE // 2, 60000 - BASE], axis=-1) >> 8).astype(np.uint8)
BITS = BASE % 2 == 0
FLOATS = (BASE.astype(np.float32) - 300) / 7

# name: (voxels as given to tifffile, arguments of imwrite)
LAYOUTS: dict[str, tuple[NDArray, dict[str, Any]]] = {
    "plain": (BASE, {}),
    "plain with a directory a page": (BASE, {"metadata": None, "contiguous": False}),
    "big-endian": (BASE.astype(">u2"), {"byteorder": ">"}),
    "bigtiff": (BASE, {"bigtiff": True}),
    "big-endian bigtiff in tiles": (BASE, {"bigtiff": True, "byteorder": ">", "tile": (16, 16), "compression": "zlib"}),
    "one page": (BASE[0], {}),
    "one row": (BASE[0, :1], {}),
    "one pixel": (BASE[:1, :1, 0], {}),
    "five dimensions": (BASE[:6].reshape(2, 3, 1, 34, 45), {}),
    "strips": (BASE, {"rowsperstrip": 5, "compression": "zlib"}),
    "strips without compression": (BASE, {"rowsperstrip": 5}),
    "strips with a predictor": (BASE, {"rowsperstrip": 7, "compression": "zlib", "predictor": 2}),
    "one strip a page": (BASE, {"rowsperstrip": 34, "compression": "zlib"}),
    "tiles": (BASE, {"tile": (16, 16), "compression": "zlib"}),
    "tiles without compression": (BASE, {"tile": (16, 32)}),
    "tiles of several planes": (BASE[:6], {"tile": (2, 16, 16), "volumetric": True, "compression": "zlib"}),
    "volume in one page": (BASE, {"volumetric": True, "tile": (4, 16, 16)}),
    "lzw": (BASE, {"compression": "lzw", "rowsperstrip": 10}),
    "lzma": (BASE, {"compression": "lzma"}),
    "zstd": (BASE, {"compression": "zstd", "tile": (32, 16)}),
    "packbits": (BASE.astype(np.uint8), {"compression": "packbits"}),
    "png": (BASE[:, :32, :32], {"compression": "png"}),
    "jpeg 2000": (
        COLOUR[0],
        {"compression": "jpeg2000", "photometric": "rgb", "tile": (32, 32), "planarconfig": "contig"},
    ),
    "jpeg xl": (COLOUR[0], {"compression": "jpegxl", "photometric": "rgb"}),
    "jpeg": (COLOUR[:, :32, :32], {"compression": "jpeg", "photometric": "rgb"}),
    "jpeg in tiles": (COLOUR, {"compression": "jpeg", "photometric": "rgb", "tile": (16, 16)}),
    "grey jpeg": (COLOUR[..., 0], {"compression": "jpeg", "tile": (16, 32)}),
    "rgb": (COLOUR, {"photometric": "rgb"}),
    "rgb in planes": (np.moveaxis(COLOUR, -1, 1), {"photometric": "rgb", "planarconfig": "separate"}),
    "rgb in planes and tiles": (
        np.moveaxis(COLOUR, -1, 1),
        {"photometric": "rgb", "planarconfig": "separate", "tile": (16, 16), "compression": "zlib"},
    ),
    "rgb in strips": (COLOUR, {"photometric": "rgb", "compression": "zlib", "rowsperstrip": 9}),
    "rgb with alpha": (np.concatenate([COLOUR, COLOUR[..., :1]], -1)[0], {"photometric": "rgb", "extrasamples": [1]}),
    "two samples": (COLOUR[..., :2], {"photometric": "minisblack", "planarconfig": "contig"}),
    "palette": (
        BASE[0].astype(np.uint8),
        {"photometric": "palette", "colormap": np.arange(768, dtype=np.uint16).reshape(3, 256)},
    ),
    "one bit": (BITS, {"photometric": "minisblack"}),
    "one bit in strips": (BITS, {"photometric": "miniswhite", "rowsperstrip": 3}),
    "int8": (BASE.astype(np.int8), {}),
    "int16": (BASE.astype(np.int16), {"compression": "zlib"}),
    "uint32": (BASE.astype(np.uint32) * 70000, {}),
    "int64": (BASE.astype(np.int64) - 2**40, {"tile": (16, 16), "compression": "zlib"}),
    "float16": (FLOATS.astype(np.float16), {}),
    "float32 with a predictor": (FLOATS, {"compression": "zlib", "predictor": 3, "tile": (16, 16)}),
    "float64": (FLOATS.astype(np.float64), {"byteorder": ">", "compression": "zlib"}),
    "complex64": (FLOATS.astype(np.complex64) * (1 - 2j), {}),
    "named axes": (BASE[:6].reshape(2, 3, 34, 45), {"metadata": {"axes": "TZYX"}}),
    "imagej": (BASE, {"imagej": True, "metadata": {"axes": "ZYX"}}),
    "imagej hyperstack": (BASE[:6].reshape(1, 3, 2, 34, 45), {"imagej": True, "metadata": {"axes": "TZCYX"}}),
    "imagej rgb": (COLOUR, {"imagej": True, "metadata": {"axes": "ZYXS"}}),
    "imagej compressed": (BASE, {"imagej": True, "compression": "zlib", "metadata": {"axes": "TYX"}}),
    "ome": (BASE[:6].reshape(2, 3, 34, 45), {"ome": True, "metadata": {"axes": "CZYX"}}),
    "ome in tiles": (BASE, {"ome": True, "metadata": {"axes": "TYX"}, "tile": (16, 16), "compression": "zlib"}),
    "ome rgb": (COLOUR, {"ome": True, "photometric": "rgb", "metadata": {"axes": "ZYXS"}}),
    "ome rgb in planes": (
        np.moveaxis(COLOUR, -1, 1),
        {"ome": True, "photometric": "rgb", "planarconfig": "separate", "metadata": {"axes": "ZSYX"}},
    ),
}


def write_layout(folder: Path, name: str) -> Path:
    """Write one of LAYOUTS."""
    array, arguments = LAYOUTS[name]
    path = folder / ("a.ome.tif" if arguments.get("ome") else "a.tif")
    details = {"photometric": "minisblack", **arguments}
    if details.get("imagej"):
        details.pop("photometric")
    if not details.pop("contiguous", True):
        with tifffile.TiffWriter(path) as writer:
            for page in array:
                writer.write(page, contiguous=False, **details)
        return path
    tifffile.imwrite(path, array, **details)
    return path


def write_pyramid(path: Path, *, ome: bool = True) -> list[NDArray]:
    """Write an image of 64 x 96 pixels of 0.5 um with two smaller levels; return the levels."""
    full = np.arange(64 * 96, dtype=np.uint16).reshape(64, 96)
    levels = [full, full[::2, ::2], full[::4, ::4]]
    scale = {"PhysicalSizeX": 0.5, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 0.5, "PhysicalSizeYUnit": "µm"}
    with tifffile.TiffWriter(path, ome=ome) as writer:
        writer.write(full, subifds=2, tile=(16, 16), metadata={"axes": "YX", **scale})
        for level in levels[1:]:
            writer.write(level, subfiletype=1, tile=(16, 16))
    return levels


def write_ome_set(folder: Path) -> tuple[NDArray, list[Path]]:
    """Write an OME-TIFF data set of one file a channel, each with the header of all."""
    channels = BASE[:6].reshape(2, 3, 34, 45)
    paths = [folder / f"set_c{number}.ome.tif" for number in range(2)]
    for number, path in enumerate(paths):
        tifffile.imwrite(
            path, channels[number], photometric="minisblack", description=ome_set_xml(number), metadata=None
        )
    return channels, paths


def ome_set_xml(own: int, names: tuple[str, str] = ("set_c0.ome.tif", "set_c1.ome.tif")) -> str:
    """The OME-XML of file ``own`` of a set of two."""
    data = "".join(
        f'<TiffData FirstC="{number}" FirstZ="0" FirstT="0" IFD="0" PlaneCount="3">'
        f'<UUID FileName="{name}">urn:uuid:{number}</UUID></TiffData>'
        for number, name in enumerate(names)
    )
    return ome_xml(data, own=own)


def ome_xml(
    data: str = '<TiffData IFD="0" PlaneCount="6"/>', *, own: int = 0, pixels: str = "", head: str = "", tail: str = ""
) -> str:
    """OME-XML of an image of 2 channels of 3 planes of 34 x 45 pixels."""
    sizes = pixels or 'SizeX="45" SizeY="34" SizeC="2" SizeZ="3" SizeT="1" DimensionOrder="XYZCT"'
    return (
        f'{head}<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:{own}">'
        f'<Image ID="Image:0" Name="i"><Pixels ID="Pixels:0" Type="uint16" {sizes}>'
        f'<Channel ID="Channel:0:0" Name="a"/><Channel ID="Channel:0:1" Name="b"/>{data}</Pixels></Image>{tail}</OME>'
    )


def first_directory(path: Path) -> int:
    """Where the first directory of a little-endian classic TIFF is."""
    return int(struct.unpack("<I", path.read_bytes()[4:8])[0])


def cut_after_first_directory(path: Path) -> None:
    """Make the first directory of a little-endian classic TIFF the last, as ImageJ writes files of more than 4 GB."""
    data = bytearray(path.read_bytes())
    offset = first_directory(path)
    tags = struct.unpack_from("<H", data, offset)[0]
    struct.pack_into("<I", data, offset + 2 + 12 * tags, 0)
    path.write_bytes(data)
