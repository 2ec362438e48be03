"""Medical and scientific volumes stored for training: the ``.mla`` format and its library.

``MLArray`` keeps an N-D array in Blosc2 chunks laid out for the patches that training reads, with geometry and metadata.
Names are loaded on first use, so that importing the package costs little more than importing numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "MLArray": "mlarray.array",
    "MLARRAY_DEFAULT_PATCH_SIZE": "mlarray.layout",
    "Axis": "mlarray.axes",
    "ArraySpec": "mlarray.spec",
    "BlockGrid": "mlarray.block_grid",
    "Geometry": "mlarray.geometry",
    "Layout": "mlarray.layout",
    "Region": "mlarray.region",
    "open_source": "mlarray.formats.registry",
    **dict.fromkeys(("get_read_ahead", "read_ahead_status", "set_read_ahead"), "mlarray.storage.readahead"),
    **dict.fromkeys(
        (
            "AxisLabel",
            "CoordSystem",
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
            "is_serializable",
        ),
        "mlarray.metadata",
    ),
}
_RENAMED = {"MLARRAY_DEFAULT_PATCH_SIZE": "DEFAULT_PATCH_SIZE"}
__all__ = [
    "MLARRAY_DEFAULT_PATCH_SIZE",
    "ArraySpec",
    "Axis",
    "AxisLabel",
    "BlockGrid",
    "CoordSystem",
    "Geometry",
    "Layout",
    "MLArray",
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
    "Region",
    "__version__",
    "get_read_ahead",
    "is_serializable",
    "open_source",
    "read_ahead_status",
    "set_read_ahead",
]

if TYPE_CHECKING:
    from mlarray.array import MLArray
    from mlarray.axes import Axis
    from mlarray.block_grid import BlockGrid
    from mlarray.formats.registry import open_source
    from mlarray.geometry import Geometry
    from mlarray.layout import DEFAULT_PATCH_SIZE as MLARRAY_DEFAULT_PATCH_SIZE
    from mlarray.layout import Layout
    from mlarray.metadata import (
        AxisLabel,
        CoordSystem,
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
        is_serializable,
    )
    from mlarray.region import Region
    from mlarray.spec import ArraySpec
    from mlarray.storage.readahead import get_read_ahead, read_ahead_status, set_read_ahead


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mlarray' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), _RENAMED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
