"""Which parsers are fuzzed? Those of the modules below; each is imported only when it runs."""

from __future__ import annotations

import importlib

from tests.fuzz.parser import Parser

_VOLUMES = (
    "nifti",
    "nifti-gz",
    "nifti-pair",
    "nrrd",
    "nrrd-detached",
    "metaimage",
    "metaimage-detached",
    "mgh",
    "mgz",
    "npy",
    "npz",
)
_MODULES = {
    "blosc": ("mla", "mla-records"),
    "volumes": _VOLUMES,
    "words": ("pickle", "metadata", "nnunet-pickle", "yaml", "report", "record"),
    "arguments": ("axes", "key"),
    "libraries": ("tiff", "dicom", "dicom-series", "hdf5", "hdf5-attributes", "minc", "ome-zarr"),
}
NAMES = tuple(name for names in _MODULES.values() for name in names)


def load(name: str) -> Parser:
    """Return a parser by its name."""
    module = next(module for module, names in _MODULES.items() if name in names)
    found = importlib.import_module(f"tests.fuzz.{module}").PARSERS
    return next(parser for parser in found if parser.name == name)
