"""How are chunks of a zarr array kept from growing without end while they are decoded?

zarr's codecs decode what they are given, whatever its size. Each that compresses is put behind one that knows what a chunk may
hold, in the description that zarr opens the array by.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlarray.formats.expansion import expand
from mlarray.formats.ome_zarr_store import Stored
from mlarray.limits import EXPANSION_BYTES

_LARGEST_ITEM = 16  # bytes of a complex128: filters may store another type than they return
_COMPRESSORS = frozenset({"blosc", "zlib", "gzip", "zstd", "lz4", "bz2", "lzma"})
_PREFIX, _SHARDS = "numcodecs.", "sharding_indexed"


def bounded(document: Mapping[str, Any], layout: Stored) -> dict[str, Any]:
    """Return the description of an array whose compressors stop at what a chunk may hold.

    Parameters
    ----------
    document : mapping
        As checked by :func:`~mlarray.formats.ome_zarr_store.stored`.
    layout : Stored
        What it says.
    """
    most = math.prod(layout.chunks) * max(_LARGEST_ITEM, layout.dtype.itemsize) + EXPANSION_BYTES
    if document.get("zarr_format") == 3:
        return {**document, "codecs": _codecs_v3(document["codecs"], most)}
    filters, compressor = document.get("filters"), document.get("compressor")
    return {
        **document,
        "filters": [_codec_v2(one, most) for one in filters] if filters else filters,
        "compressor": None if compressor is None else _codec_v2(compressor, most),
    }


def _codecs_v3(codecs: Sequence[Any], most: int) -> list[Any]:
    return [_codec_v3({"name": codec} if isinstance(codec, str) else codec, most) for codec in codecs]


def _codec_v3(document: Mapping[str, Any], most: int) -> Any:
    from zarr.abc.codec import BytesBytesCodec
    from zarr.registry import get_codec_class

    name = str(document["name"])
    if name == _SHARDS:
        inner = document["configuration"]
        return {**document, "configuration": {**inner, "codecs": _codecs_v3(inner["codecs"], most)}}
    kind = name.removeprefix(_PREFIX)
    if kind not in _COMPRESSORS:
        return document

    @dataclass(frozen=True)
    class Bounded(BytesBytesCodec):  # type: ignore[misc]
        inner: Any
        is_fixed_size = False

        def to_dict(self) -> Any:
            return self.inner.to_dict()

        def compute_encoded_size(self, length: int, spec: Any) -> int:
            return int(self.inner.compute_encoded_size(length, spec))

        def evolve_from_array_spec(self, array_spec: Any) -> Bounded:
            return replace(self, inner=self.inner.evolve_from_array_spec(array_spec))

        async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            data = memoryview(chunk_bytes.as_numpy_array()).cast("B")
            expanded = await asyncio.to_thread(expand, kind, data, most)
            if expanded is None:
                return await self.inner._decode_single(chunk_bytes, chunk_spec)
            return chunk_spec.prototype.buffer.from_bytes(expanded)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that codecs of numcodecs are not in the specification
        return Bounded(get_codec_class(name).from_dict(dict(document)))


def _codec_v2(document: Mapping[str, Any], most: int) -> Any:
    import numcodecs
    from numcodecs.abc import Codec

    name = str(document["id"])
    inner = numcodecs.get_codec(dict(document))
    if name not in _COMPRESSORS:
        return inner

    class Bounded(Codec):  # type: ignore[misc]
        codec_id = name

        def encode(self, buf: Any) -> Any:
            return inner.encode(buf)

        def decode(self, buf: Any, out: Any = None) -> Any:
            expanded = expand(name, memoryview(buf).cast("B"), most)
            return inner.decode(buf, out) if expanded is None else expanded

        def get_config(self) -> Any:
            return inner.get_config()

    return Bounded()
