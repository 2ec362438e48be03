"""How does metadata become the bytes of a file, and those bytes a mapping again?

Written: gzip of a pickle (protocol 4) of plain builtins, with exactly the keys the 0.0.54 release knows, so that it and the
releases before it open our files. No class, no numpy, no sharing between equal strings and no time stamp: equal metadata
gives equal bytes. ``source`` and ``extra`` go through ``values.py`` first, so they hold JSON values only.

Read: gzip of a pickle by anyone (``unpickle.py`` runs none of it), or a mapping that the container has decoded already.
Which keys it has, and what they mean, is asked of ``legacy.py``.
"""

from __future__ import annotations

import gzip
import pickle
import zlib
from collections.abc import Mapping
from typing import Any, Final

from mlarray.errors import FormatError, MetadataError
from mlarray.limits import METADATA_BYTES, METADATA_OPERATIONS
from mlarray.metadata.model import Meta
from mlarray.metadata.standins import METADATA_TABLE
from mlarray.metadata.unpickle import Limits, plain_tree, restricted_loads
from mlarray.metadata.validation import validated_mapping
from mlarray.metadata.values import from_jsonable, to_jsonable

PICKLE_PROTOCOL: Final = 4
VERSION_MARK: Final = "v0"
"""What every release has written as ``_mlarray_version``; it says nothing, and a reader may look for it."""
_SURELY_READABLE: Final = METADATA_OPERATIONS
"""Bytes of pickle up to which no limit of reading can be met: an operation has at least one byte."""
FREE_NAMESPACES: Final = ("source", "extra")


def stored_mapping(meta: Meta) -> dict[str, Any]:
    """Return `meta` as the mapping that is written: the keys of 0.0.54, values of builtin types only.

    Raises
    ------
    MetadataError
        Everything that is wrong with `meta`, see :func:`mlarray.metadata.validation.find_problems`.
    """
    mapping: dict[str, Any] = validated_mapping(meta)
    for namespace in FREE_NAMESPACES:
        mapping[namespace] = {"data": to_jsonable(mapping[namespace]["data"])}
    if mapping["spatial"]["coord_system"] is None:
        del mapping["spatial"]["coord_system"]  # releases before 0.0.54 refuse the key
    mapping["_mlarray_version"] = mapping["_mlarray_version"]["mlarray_version"] or VERSION_MARK
    return mapping


def encode(meta: Meta) -> bytes:
    """Return the bytes of `meta` as they are stored in a file.

    Parameters
    ----------
    meta : Meta
        Not changed.

    Returns
    -------
    bytes
        Equal for equal values in equal order.

    Raises
    ------
    MetadataError
        Everything that is wrong with `meta`; or it is larger than a reader accepts.

    Examples
    --------
    >>> decode(encode(Meta(source={"Modality": "CT", "slope": float("inf")})))["source"]
    {'data': {'Modality': 'CT', 'slope': inf}}
    """
    pickled = pickle.dumps(_canonical(stored_mapping(meta), {}), protocol=PICKLE_PROTOCOL)
    if len(pickled) > _SURELY_READABLE:
        try:
            restricted_loads(pickled, table={})
        except FormatError as error:
            raise MetadataError([f"the metadata is too large to be read again: {error}"]) from error
    return gzip.compress(pickled, mtime=0)


def decode(payload: bytes | Mapping[str, object], *, limits: Limits | None = None) -> dict[str, Any]:
    """Return the mapping in a payload, as its writer laid it out, with plain lists and dicts.

    Parameters
    ----------
    payload : bytes or mapping
        gzip of a pickle, or a mapping that the container has decoded.
    limits : Limits, optional
        What decoding may cost.

    Raises
    ------
    FormatError
        The payload is damaged, too large, holds no mapping, or asks for what is not allowed.
    """
    limits = limits or Limits()
    if isinstance(payload, (bytes, bytearray, memoryview)):
        pickled = gunzip_limited(bytes(payload), max_bytes=limits.max_bytes)
        mapping = restricted_loads(pickled, table=METADATA_TABLE, limits=limits)
    else:
        mapping = plain_tree(dict(payload) if isinstance(payload, Mapping) else payload, limits=limits)
    if not isinstance(mapping, dict):
        raise FormatError(f"the metadata is a {type(mapping).__name__}, a mapping was expected")
    for namespace in FREE_NAMESPACES:
        if isinstance(mapping.get(namespace), dict):
            mapping[namespace] = _restored(mapping[namespace])
    return mapping


def gunzip_limited(data: bytes, *, max_bytes: int = METADATA_BYTES) -> bytes:
    """Decompress one gzip member, stopping as soon as it exceeds `max_bytes`.

    Raises
    ------
    FormatError
        Not gzip, damaged, cut off, followed by other bytes, or larger than `max_bytes`.
    """
    stream = zlib.decompressobj(wbits=31)
    try:
        result = stream.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise FormatError(f"the metadata is not valid gzip: {error}") from error
    if len(result) > max_bytes:
        raise FormatError(f"the metadata is larger than {max_bytes} bytes when decompressed", hint=METADATA_BYTES.hint)
    if not stream.eof:
        raise FormatError("the gzip stream of the metadata is cut off")
    if stream.unused_data:
        raise FormatError("the gzip stream of the metadata is followed by other bytes")
    return result


def _restored(part: dict[Any, Any]) -> dict[Any, Any]:
    if part.keys() == {"data"}:
        return {"data": from_jsonable(part["data"])}
    restored = from_jsonable(part)
    return restored if isinstance(restored, dict) else part


def _canonical(value: Any, seen: dict[str, str]) -> Any:
    """Copy `value` so that equal strings are one object and no container is shared: pickle notes identity, not equality."""
    if isinstance(value, str):
        return seen.setdefault(value, value)
    if isinstance(value, list):
        return [_canonical(item, seen) for item in value]
    if isinstance(value, dict):
        return {_canonical(key, seen): _canonical(item, seen) for key, item in value.items()}
    return value
