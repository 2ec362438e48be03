"""Metadata of an image: what a user sets, whether it is valid, and how it travels in a file.

``model.py`` holds the classes, ``schema.py`` the rules per field, ``validation.py`` the check of the whole, ``codec.py``
the bytes, ``legacy.py`` the layouts of older releases, ``unpickle.py`` and ``standins.py`` the reading of pickles without
running them, ``values.py`` the storing of values JSON cannot hold.
"""

from mlarray.metadata.codec import decode, encode
from mlarray.metadata.legacy import read_metadata, upgrade
from mlarray.metadata.model import (
    KEEP,
    Meta,
    MetaBbox,
    MetaBlosc2,
    MetaExtra,
    MetaHasArray,
    MetaImageFormat,
    MetaIsSeg,
    MetaSource,
    MetaSpatial,
    MetaStatistics,
    MetaVersion,
    update_managed,
)
from mlarray.metadata.schema import AxisLabel, AxisLabelEnum, CoordSystem, CoordSystemEnum, is_spatial
from mlarray.metadata.standins import METADATA_TABLE
from mlarray.metadata.unpickle import Limits, Pending, restricted_loads
from mlarray.metadata.validation import find_problems, validate
from mlarray.metadata.values import from_jsonable, is_serializable, to_jsonable

__all__ = [
    "KEEP",
    "METADATA_TABLE",
    "AxisLabel",
    "AxisLabelEnum",
    "CoordSystem",
    "CoordSystemEnum",
    "Limits",
    "Meta",
    "MetaBbox",
    "MetaBlosc2",
    "MetaExtra",
    "MetaHasArray",
    "MetaImageFormat",
    "MetaIsSeg",
    "MetaSource",
    "MetaSpatial",
    "MetaStatistics",
    "MetaVersion",
    "Pending",
    "decode",
    "encode",
    "find_problems",
    "from_jsonable",
    "is_serializable",
    "is_spatial",
    "read_metadata",
    "restricted_loads",
    "to_jsonable",
    "update_managed",
    "upgrade",
    "validate",
]
