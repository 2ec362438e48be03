"""Which formats exist? One row each; a module is imported only when a file of its kind is opened."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """One file format.

    Parameters
    ----------
    name : str
        Short name, used on the command line and in reports.
    title : str
        What people call it.
    suffixes : tuple of str
        Lower case, the one used for writing first.
    module : str
        Module below ``mlarray.formats`` with ``open_source(path)`` and, where it writes, ``open_sink`` and ``losses``; of a
        format that another package adds, the full name of the module.
    regions : str
        What a partial read costs, for people.
    writes : bool
        Whether there is an ``open_sink``.
    maps : bool
        Whether ``open_source`` may map the file into memory and takes ``mapped=False`` not to.
    folders : bool
        Whether an image of this format is a folder.
    items : bool
        Whether a file may hold several images: then the module has ``items(path)``, and ``open_source`` takes ``item=NAME``.
    split : bool
        Whether each of them is a case of its own to the converter (series); otherwise a user chooses one (datasets).
    codecs : tuple of str
        What the storage argument ``codec`` may name, the default first; a level may follow: ``"gzip-6"``.
    joins : bool
        Whether several cases can go into one file: then the module has ``join(path, parts)``.
    package : str
        The package that adds it; ``""`` for those that are built in. Filled in when the row is found.
    series : bool
        Whether an image may be spread over the files of a folder, which only their headers tell: then the module also has
        ``holds_images(folder)`` and ``survey(files)``.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    module: str
    regions: str = "no"
    writes: bool = True
    maps: bool = False
    folders: bool = False
    items: bool = False
    split: bool = False
    codecs: tuple[str, ...] = ()
    joins: bool = False
    package: str = ""
    series: bool = False


FORMATS: tuple[Format, ...] = (
    Format("mla", "MLArray", (".mla", ".mb2nd"), "mla", regions="yes, block by block", maps=True),
    Format("b2nd", "Blosc2 array (nnU-Net)", (".b2nd",), "b2nd", regions="yes, block by block", maps=True),
    Format(
        "nifti",
        "NIfTI-1, NIfTI-2, Analyze",
        (".nii.gz", ".nii", ".hdr", ".img", ".hdr.gz", ".img.gz"),
        "nifti",
        regions="yes when uncompressed; .gz: in storage order only",
    ),
    Format(
        "nrrd",
        "NRRD",
        (".nrrd", ".nhdr", ".seg.nrrd"),
        "nrrd",
        regions="yes when raw; gzip, bzip2: in storage order only",
    ),
    Format(
        "metaimage", "MetaImage", (".mha", ".mhd"), "metaimage", regions="yes when raw; zlib: in storage order only"
    ),
    Format(
        "hdf5",
        "HDF5",
        (".h5", ".hdf5"),
        "hdf5",
        regions="yes, chunk by chunk",
        items=True,
        codecs=("gzip", "blosc2", "none"),
        joins=True,
    ),
    Format("npy", "NumPy array", (".npy",), "npy", regions="yes", writes=False),
    Format(
        "npz",
        "NumPy archive",
        (".npz",),
        "npy",
        regions="yes when stored; compressed: in storage order only",
        writes=False,
        items=True,
    ),
    Format(
        "tiff",
        "TIFF, OME-TIFF, ImageJ",
        (".tif", ".tiff", ".ome.tif", ".ome.tiff", ".btf", ".tf8"),
        "tiff",
        regions="yes, by strips and tiles; large compressed strips: whole planes",
        writes=False,
        items=True,
    ),
    Format(
        "mgh",
        "FreeSurfer MGH, MGZ",
        (".mgz", ".mgh", ".mgh.gz"),
        "mgh",
        regions="yes when uncompressed; .mgz: in storage order only",
        writes=False,
    ),
    Format("minc", "MINC 1, MINC 2", (".mnc",), "minc", regions="yes", writes=False),
    Format(
        "dicom",
        "DICOM",
        (".dcm", ".dicom", ".ima"),
        "dicom",
        regions="yes, only the files of the slices; compressed frames whole",
        writes=False,
        items=True,
        split=True,
        series=True,
    ),
    Format(
        "ome-zarr",
        "OME-Zarr, zarr",
        (".ome.zarr", ".zarr"),
        "ome_zarr",
        regions="yes, chunk by chunk",
        folders=True,
        items=True,
        split=True,
    ),
)
