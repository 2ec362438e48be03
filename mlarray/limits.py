"""How much may a file from a stranger cost?

Each constant bounds one thing that a file claims for itself: what is beyond it is refused (or left out, where it is only an
addition) before memory or time is spent. They are generous: a legitimate file that meets one is rare. Where one does, the
environment variable ``MLARRAY_LIMIT_<NAME>`` sets another number for the process and those that it starts; it is read when the
package is imported. Where a whole file is refused, the message mostly names it.
"""

from __future__ import annotations

import os
from typing import Final

from mlarray.errors import UsageError

ENVIRONMENT: Final = "MLARRAY_LIMIT_"


class Limit(int):
    """A whole number that knows how it is raised.

    Parameters
    ----------
    name : str
        Of the constant.
    default : int
        Its value where the environment says nothing else.

    Raises
    ------
    UsageError
        When the environment says something that is no whole number of at least 1.
    """

    variable: str

    def __new__(cls, name: str, default: int) -> Limit:
        """Return the limit, as the environment says it."""
        variable = ENVIRONMENT + name
        given = os.environ.get(variable, "")
        if given and not (given.isascii() and given.isdigit() and 0 < len(given) <= 18 and int(given) > 0):
            raise UsageError(f"{variable} is {given[:40]!r}; a whole number from 1 on is allowed.")
        limit = super().__new__(cls, given or default)
        limit.variable = variable
        return limit

    @property
    def hint(self) -> str:
        """The next action of who trusts the file: a sentence for the hint of an error."""
        return f"If the file is right, set {self.variable} to a larger number than {int(self)}."

    def __reduce__(self) -> tuple[object, ...]:
        return (int, (int(self),))


# The container and its metadata

FRAME_HEADER_BYTES: Final = Limit("FRAME_HEADER_BYTES", 1 << 20)
"""Header of a Blosc2 frame. It holds the fixed metalayers; an array's take about 200 bytes."""
RECORD_BYTES: Final = Limit("RECORD_BYTES", 512 << 20)
"""One record beside an array after decompression. Checksums of 10 million chunks take 80 MB."""
METADATA_BYTES: Final = Limit("METADATA_BYTES", 64 << 20)
"""Metadata after decompression, and text in it. A full DICOM header dump is below 1 MiB."""
METADATA_OPERATIONS: Final = Limit("METADATA_OPERATIONS", 4_000_000)
"""Steps of reading metadata, and values in it. 100 000 bounding boxes in 3D need 2.2 million."""
METADATA_DEPTH: Final = Limit("METADATA_DEPTH", 128)
"""Levels of nesting in metadata. What is written here has at most 32 levels of 3 each."""
METADATA_INTEGER_BYTES: Final = Limit("METADATA_INTEGER_BYTES", 1024)
"""Bytes of one integer in metadata. Python refuses to print integers above about 1785 bytes."""
METADATA_LINE_BYTES: Final = Limit("METADATA_LINE_BYTES", 4096)
"""One text argument in pickles of protocol 0. They are names and numbers."""
METADATA_UNUSUAL_KEYS: Final = Limit("METADATA_UNUSUAL_KEYS", 1000)
"""Keys of a dict that are tuples or huge integers. Such may share their hash at will and make a dict quadratically slow."""
NNUNET_PICKLE_BYTES: Final = Limit("NNUNET_PICKLE_BYTES", 512 << 20)
"""Properties of an nnU-Net case. Places of 10 000 voxels for each of 100 classes take 32 MB."""
NNUNET_PROPERTIES_BYTES: Final = Limit("NNUNET_PROPERTIES_BYTES", 16 << 20)
"""Properties of an nnU-Net case that become metadata. Those are read with every opening."""
NNUNET_PLANS_BYTES: Final = Limit("NNUNET_PLANS_BYTES", 16 << 20)
"""Plans of nnU-Net, as JSON. They have some kilobytes."""

# Headers of other formats

TEXT_HEADER_BYTES: Final = Limit("TEXT_HEADER_BYTES", 16 << 20)
"""Header of NRRD and MetaImage. Ultrasound sequences with thousands of frames reach a few MiB."""
CONVERSION_RECORD_BYTES: Final = Limit("CONVERSION_RECORD_BYTES", 4 << 20)
"""Record of a conversion in the header of another format. It has some kilobytes."""
DETACHED_FILES: Final = Limit("DETACHED_FILES", 100_000)
"""Data files that one header names. A file for each slice of a long series is within."""
VOXEL_TEXT_BYTES: Final = Limit("VOXEL_TEXT_BYTES", 256 << 20)
"""Voxels that are written as text or hexadecimal digits. They are parsed as a whole."""
NIFTI_RECORD_BYTES: Final = Limit("NIFTI_RECORD_BYTES", 1 << 20)
"""Record of a conversion in a NIfTI extension. It has some kilobytes."""
NIFTI_EXTENSION_BYTES: Final = Limit("NIFTI_EXTENSION_BYTES", 64 << 20)
"""What lies between header and voxels of a NIfTI file. It is held in memory; extensions beyond it are left out."""
NPY_HEADER_BYTES: Final = Limit("NPY_HEADER_BYTES", 64 << 10)
"""Header of a .npy file. It has some hundred bytes."""
NPZ_MEMBERS: Final = Limit("NPZ_MEMBERS", 100_000)
"""Entries of a .npz file. Their list is read as a whole."""
LZMA_DICTIONARY_BYTES: Final = Limit("LZMA_DICTIONARY_BYTES", 192 << 20)
"""Memory that an LZMA stream may ask for. The highest preset, 9, takes 64 MiB."""
TIFF_TAGS: Final = Limit("TIFF_TAGS", 4096)
"""Entries in one directory of a TIFF file. tifffile reads no more."""
TIFF_TEXT_CHARACTERS: Final = Limit("TIFF_TEXT_CHARACTERS", 32 << 20)
"""OME-XML of a TIFF file. A tree is built of it."""
TIFF_PLANES: Final = Limit("TIFF_PLANES", 4_000_000)
"""Planes that an OME-TIFF names. Each takes some bytes of a table."""
TIFF_MODULO_STEPS: Final = Limit("TIFF_MODULO_STEPS", 1_000_000)
"""Positions along a subdivided axis of an OME-TIFF. A reader lists them."""
HDF5_OBJECTS: Final = Limit("HDF5_OBJECTS", 200_000)
"""Groups and datasets that are looked at to list the images of an HDF5 file. A name that is given is found without."""
HDF5_LINKS: Final = Limit("HDF5_LINKS", 32)
"""Soft links, and layers of virtual datasets, on the way to one dataset. More are a circle."""
HDF5_ATTRIBUTES: Final = Limit("HDF5_ATTRIBUTES", 1000)
"""Attributes of a dataset that are kept. Others are left out and named."""
HDF5_ATTRIBUTE_BYTES: Final = Limit("HDF5_ATTRIBUTE_BYTES", 64 << 10)
"""One attribute of a dataset. A longer one is left out and named."""
ZARR_DOCUMENT_BYTES: Final = Limit("ZARR_DOCUMENT_BYTES", 16 << 20)
"""One JSON document of a zarr hierarchy. Descriptions of a thousand levels and labels are within."""
ZARR_IMAGES: Final = Limit("ZARR_IMAGES", 10_000)
"""Images that one OME-Zarr lists. Each is a document to read."""
ZARR_SHARD_CHUNKS: Final = Limit("ZARR_SHARD_CHUNKS", 1 << 20)
"""Chunks of one shard. Its index takes 16 bytes for each."""

# Voxels

CHUNK_BYTES: Final = Limit("CHUNK_BYTES", 2**31 - 1)
"""A decoded chunk of an HDF5 or zarr array, and a segment of a TIFF. It is held to read one voxel of it."""
EXPANSION_BYTES: Final = Limit("EXPANSION_BYTES", 1 << 20)
"""What a stream may expand to beyond the chunk that it stands for. Filters add some bytes; a bomb adds gigabytes."""
HDF5_EXPANSION_BYTES: Final = Limit("HDF5_EXPANSION_BYTES", 256 << 20)
"""What a deflated chunk of an HDF5 file could expand to at most without being looked at first. HDF5 itself knows no limit."""
DICOM_FRAME_BYTES: Final = Limit("DICOM_FRAME_BYTES", 1 << 30)
"""A compressed DICOM frame after decoding. A mammogram has 30 MB, a whole-slide tile less."""
DICOM_INFLATED_BYTES: Final = Limit("DICOM_INFLATED_BYTES", 1 << 30)
"""A deflated DICOM file after inflation. It is inflated as a whole."""

# Files beside the images

YAML_BYTES: Final = Limit("YAML_BYTES", 1 << 20)
"""YAML file of a chain or a stream. A chain of a hundred transforms has 10 kB."""
CASE_LIST_BYTES: Final = Limit("CASE_LIST_BYTES", 16 << 20)
"""File with the names of cases. A million names are within."""
KEPT_BYTES: Final = Limit("KEPT_BYTES", 256 << 20)
"""One value that was measured and kept, such as the places of classes. A larger one is measured again."""
REPORT_BYTES: Final = Limit("REPORT_BYTES", 1 << 30)
"""One report of `mla convert --json`. It has a line of about 1 kB for each case."""

# Time

STALL_SECONDS: Final = Limit("STALL_SECONDS", 3600)
"""How long a case of `mla convert` may go without progress. Its process is then ended, and the case fails."""
