"""What does the name of a file or folder tell about its part in a data set? Leftovers, halves of an image, channels."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePath

from mlarray.formats.registry import split_suffix
from mlarray.storage.publish import is_part
from mlarray.storage.remote import is_remote

_JUNK_NAMES = {"thumbs.db", "desktop.ini", "__macosx", "$recycle.bin", "system volume information"}
_IMAGE_FOLDER = re.compile(r"images(tr|ts|val)?", re.IGNORECASE)
_CHANNEL = re.compile(r"(.+)_(\d{4})")


def is_junk(name: str) -> bool:
    """Tell whether a file or folder is hidden, left by an operating system, or not finished by its writer."""
    return name.startswith(".") or name.lower() in _JUNK_NAMES or is_part(name)


def belongs_to_header(name: str, names: Iterable[str]) -> bool:
    """Tell whether a file is the voxel half of an Analyze or NIfTI pair; ``names`` are those beside it, in lower case."""
    stem, suffix = split_suffix(name.lower())
    return suffix in (".img", ".img.gz") and (f"{stem}.hdr" in names or f"{stem}.hdr.gz" in names)


def belongs_to_case(name: str, names: Iterable[str]) -> bool:
    """Tell whether a file holds the properties of a case that nnU-Net has preprocessed."""
    lower = name.lower()
    return lower.endswith(".pkl") and f"{lower.removesuffix('.pkl')}.b2nd" in names


def is_segmentation_file(path: PurePath) -> bool:
    """Tell whether a name is one that 3D Slicer gives to segmentations."""
    return path.name.lower().endswith(".seg.nrrd")


def is_image_folder(name: str) -> bool:
    """Tell whether a folder is called as those of nnU-Net with one file per channel: ``imagesTr``."""
    return _IMAGE_FOLDER.fullmatch(name) is not None


def split_channel(stem: str) -> tuple[str, str]:
    """Split the name of a channel as nnU-Net writes it into case and number; without a number the second part is empty.

    Examples
    --------
    >>> split_channel("liver_7_0001"), split_channel("liver_7")
    (('liver_7', '0001'), ('liver_7', ''))
    """
    match = _CHANNEL.fullmatch(stem)
    return (match[1], match[2]) if match is not None else (stem, "")


def identity(path: Path) -> tuple[int, int] | str:
    """Return what is the same for all names of one file or folder."""
    if is_remote(path):
        return str(path)
    status = path.stat()
    return (status.st_dev, status.st_ino) if status.st_ino else str(path.resolve())
