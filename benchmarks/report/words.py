"""How are the things that were measured called on the page?"""

from __future__ import annotations

from typing import Any

LIBRARIES = {
    "memmap": "numpy memmap",
    "ours": "mlarray, default layout",
    "ours small": "mlarray, small-blocks",
    "ours small x[s]": "mlarray, small-blocks, image[...]",
    "blosc2 small": "blosc2's lowest call, same file",
    "memmap aligned": "numpy memmap, on the grid",
    "ours small aligned": "mlarray, small-blocks, on the grid",
    "mla54": "mlarray 0.0.54, told the patch",
    "mla54 default": "mlarray 0.0.54, as it comes",
    "nnunet": "nnU-Net's files and class",
    "zarr": "zarr-python",
    "zarr sharded": "zarr-python, sharded",
    "zarrs": "zarrs, sharded",
    "tensorstore": "tensorstore, one thread",
    "h5py gzip": "h5py, gzip",
    "h5py blosc2": "h5py, Blosc2",
    "nibabel": "nibabel, uncompressed",
    "simpleitk": "SimpleITK, uncompressed",
}
# Rows that read the files of another row.
READERS_ONLY = ("ours small x[s]", "blosc2 small", "zarrs", "tensorstore")
DATA = {"ct_int16": "CT, int16", "ct_float32": "CT, float32", "labels": "labels, uint8", "mni": "MNI T1, float32"}
PLACES = {
    "disk": "local disk",
    "2ms": "2 ms per request",
    "10ms": "10 ms per request",
    "2ms-10": "2 ms, 10 requests at once",
    "10ms-10": "10 ms, 10 requests at once",
}
METHODS = {
    "plain": "blosc2, memory-mapped",
    "off": "mlarray, read-ahead off",
    "ours": "mlarray",
    "ours no map": "mlarray, mmap_mode=None",
}
WAYS = {"at once": "at once", "slabs": 'slabs, "w+"', "slabs no map": "slabs, mmap_mode=None"}
LAYOUTS = {"nnunet": "default layout"}


def library(name: str) -> str:
    """Return the name of a row of the table of libraries."""
    return LIBRARIES.get(name, name)


def opener(name: str) -> str:
    """Return who opens a file, in the table of openings."""
    return "blosc2.open, same file" if name == "blosc2 small" else library(name).removesuffix(", told the patch")


def data(name: str) -> str:
    """Return the name of a volume."""
    return DATA.get(name, name)


def place(name: str) -> str:
    """Return the name of a place that files are read from."""
    return PLACES.get(name, name)


def layout(name: str) -> str:
    """Return the name of a layout."""
    return LAYOUTS.get(name, name)


def case(patch: list[int]) -> str:
    """Return the extent of a patch.

    Examples
    --------
    >>> case([64, 64, 64]), case([1, 256, 256])
    ('64³', '1 × 256 × 256')
    """
    if len(set(patch)) == 1 and len(patch) == 3:
        return f"{patch[0]}³"
    return extent(patch)


def case_of_run(name: str) -> str:
    """Return the patches of a case of the comparison, whatever the extent of the volume makes of them.

    Examples
    --------
    >>> case_of_run("64"), case_of_run("2d")
    ('64³', 'slices of 256 × 256')
    """
    return "slices of 256 × 256" if name == "2d" else f"{name}³"


def extent(numbers: list[int]) -> str:
    """Return numbers with crosses between."""
    return " × ".join(map(str, numbers))


def readers(count: str | int) -> str:
    """Return how many readers there are, in words."""
    return "1 reader" if int(count) == 1 else f"{count} readers"


def mode(key: str) -> str:
    """Return a way of reading of ``mla bench``."""
    kind, _, count = key.partition("_")
    return f"{kind}, {readers(count)}"


def number(value: float) -> str:
    """Return a value with three digits, without an exponent.

    Examples
    --------
    >>> number(0.01234), number(1.0), number(1234.5)
    ('0.0123', '1.00', '1,234')
    """
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 if abs(value) >= 1 else 3 if abs(value) >= 0.1 else 4
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.{digits}f}"


def spread(one: dict[str, Any]) -> str:
    """Return median and quartiles."""
    return f"{number(one['median'])} ({number(one['low'])} to {number(one['high'])})"


def table(heads: list[str], rows: list[list[str]], *, numbers: bool = True) -> str:
    """Return a Markdown table; columns of numbers, all but the first, stand to the right."""
    lines = [heads, ["---", *("--:" if numbers else "---" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
