"""What stands in the JSON of a zarr hierarchy, and may it be believed?

Groups and arrays are described by small JSON documents (``zarr.json`` in version 3; ``.zgroup``, ``.zarray`` and ``.zattrs``
in version 2). They are read here without zarr, with limits on size and content: an array is opened only when its description
names plain numbers, chunks that fit into memory, and codecs that do nothing but decode numbers. zarr's registry also holds
codecs that run code (``pickle``); those are refused by name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mlarray.errors import FormatError
from mlarray.formats.text_header import shorten
from mlarray.limits import CHUNK_BYTES, ZARR_DOCUMENT_BYTES, ZARR_SHARD_CHUNKS
from mlarray.storage.remote import is_remote, read_object

_MAX_AXES = 32
_MAX_CODECS = 16
_PATH_LIMIT = 1024
_DTYPES_V3 = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    }
)
_DTYPE_V2 = re.compile(r"[<>|](b1|[iu][1248]|f[248]|c(8|16))")
_PLAIN_V2 = frozenset(
    {
        *("blosc", "zlib", "gzip", "zstd", "lz4", "bz2", "lzma", "delta", "shuffle", "fixedscaleoffset", "packbits"),
        *("bitround", "quantize", "astype", "crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"),
    }
)
_CODECS_V3 = frozenset({"bytes", "endian", "transpose", "blosc", "gzip", "zstd", "crc32c", "sharding_indexed"}) | {
    f"numcodecs.{name}" for name in _PLAIN_V2
}


@dataclass(frozen=True, slots=True)
class Node:
    """One group or array of a hierarchy.

    Parameters
    ----------
    root : Path
        Where the hierarchy starts.
    path : str
        Below it, ``""`` for the root.
    kind : {"group", "array"}
        Which of both.
    version : int
        Of the zarr format, 2 or 3.
    attributes : mapping
        What its users wrote.
    document : mapping
        The description of an array; empty for groups.
    """

    root: Path
    path: str
    kind: Literal["group", "array"]
    version: int
    attributes: Mapping[str, Any]
    document: Mapping[str, Any]

    @property
    def place(self) -> str:
        """The whole path, for messages."""
        return f"{self.root}/{self.path}" if self.path else str(self.root)

    def child(self, path: str) -> Node | None:
        """Return the node at a relative path that a document names, or None where there is none."""
        return read_node(self.root, joined(self.path, path))


@dataclass(frozen=True, slots=True)
class Stored:
    """How an array lies in its store.

    Parameters
    ----------
    shape : tuple of int
        Extents.
    dtype : numpy dtype
        In native byte order.
    chunks : tuple of int
        What is decoded at a time.
    objects : tuple of int
        What is one object of the store: a shard, or a chunk.
    blosc : bool
        Whether an object is one Blosc frame, whose length is then known from its header.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    objects: tuple[int, ...]
    blosc: bool

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one decoded chunk."""
        return math.prod(self.chunks) * self.dtype.itemsize


def read_node(root: Path, path: str = "") -> Node | None:
    """Return the group or array at ``path``, or None where there is neither.

    Raises
    ------
    FormatError
        When its documents are damaged or too large.
    """
    prefix = f"{path}/" if path else ""
    document = _document(root, f"{prefix}zarr.json")
    if document is not None:
        kind = document.get("node_type")
        if document.get("zarr_format") != 3 or kind not in ("group", "array"):
            raise FormatError(f"{root}/{prefix}zarr.json describes neither a group nor an array of zarr version 3.")
        return Node(root, path, kind, 3, _mapping(document, "attributes"), document if kind == "array" else {})
    array = _document(root, f"{prefix}.zarray")
    group = _document(root, f"{prefix}.zgroup") if array is None else None
    attributes = _document(root, f"{prefix}.zattrs")
    if array is None and group is None and attributes is None:
        return None
    return Node(root, path, "group" if array is None else "array", 2, attributes or {}, array or {})


def joined(base: str, path: object) -> str:
    """Return a path that a document names, below ``base``.

    Raises
    ------
    FormatError
        When it is no text, or leads out of the store.
    """
    parts = path.strip("/").split("/") if isinstance(path, str) else []
    unsafe = any(part in ("", ".", "..") or "\\" in part or "\0" in part or ":" in part for part in parts)
    if not isinstance(path, str) or unsafe or path.startswith("/") or len(path) > _PATH_LIMIT:
        raise FormatError(
            f"The path {shorten(repr(path))} in the metadata is not one below the store; it is not followed."
        )
    return "/".join([base, *parts]) if base else "/".join(parts)


def children(node: Node) -> Iterator[str]:
    """Yield the names of what may be nodes below a group of this machine, sorted; nothing for remote ones."""
    if is_remote(node.root):
        return
    folder = Path(node.root, node.path)
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir() and not entry.name.startswith("."):
            yield entry.name


def stored(node: Node) -> Stored:
    """Return how an array is stored, after checking that it can be opened without harm.

    Raises
    ------
    FormatError
        When the description is damaged, not supported, or asks for what is not allowed.
    """
    try:
        return _stored_v3(node) if node.version == 3 else _stored_v2(node)
    except FormatError as error:
        raise FormatError(f"The array {node.place} cannot be read: {error.message}", hint=error.hint) from error


def _stored_v2(node: Node) -> Stored:
    document = node.document
    kind = document.get("dtype")
    if document.get("zarr_format") != 2:
        raise FormatError(f"its zarr_format is {document.get('zarr_format')!r}, not 2.")
    if not isinstance(kind, str) or _DTYPE_V2.fullmatch(kind) is None:
        raise FormatError(f"its values are {shorten(repr(kind))}, not plain numbers.")
    shape = _extents(document.get("shape"), "shape", 0)
    dtype = np.dtype(kind).newbyteorder("=")
    chunks = _grid(document.get("chunks"), shape)
    _refuse_large(chunks, dtype)
    if document.get("order") not in ("C", "F") or document.get("dimension_separator", ".") not in (".", "/"):
        raise FormatError("its order or dimension_separator is none that zarr defines.")
    filters = document.get("filters") or []
    compressor = document.get("compressor")
    if not isinstance(filters, list) or len(filters) > _MAX_CODECS:
        raise FormatError("its filters are no list of codecs.")
    for codec in [*filters, *([] if compressor is None else [compressor])]:
        name = codec.get("id") if isinstance(codec, dict) else None
        _refuse_codec(name, _PLAIN_V2)
    blosc = compressor is not None and compressor.get("id") == "blosc"
    return Stored(shape, dtype, chunks, chunks, blosc and not filters)


def _stored_v3(node: Node) -> Stored:
    document = node.document
    kind = document.get("data_type")
    if not isinstance(kind, str) or kind not in _DTYPES_V3:
        raise FormatError(f"its values are {shorten(repr(kind))}, not plain numbers.")
    if document.get("storage_transformers"):
        raise FormatError("it uses storage transformers, which are not supported.")
    shape = _extents(document.get("shape"), "shape", 0)
    grid = _mapping(document, "chunk_grid")
    if grid.get("name") != "regular":
        raise FormatError(f"its chunk grid is {shorten(repr(grid.get('name')))}; only regular ones can be read.")
    dtype = np.dtype(kind)
    objects = _grid(_mapping(grid, "configuration").get("chunk_shape"), shape)
    names = _codec_names(document.get("codecs"))
    chunks = objects
    if names[0][0] == "sharding_indexed":
        chunks = _inner_chunks(names[0][1], objects, depth=0)
    _refuse_large(chunks, dtype)
    return Stored(shape, dtype, chunks, objects, names[-1][0] == "blosc" and chunks == objects)


def _inner_chunks(configuration: Mapping[str, Any], outer: tuple[int, ...], *, depth: int) -> tuple[int, ...]:
    inner = _extents(configuration.get("chunk_shape"), "chunk_shape of its shards", 1)
    fits = len(inner) == len(outer) and all(o % i == 0 for o, i in zip(outer, inner, strict=True))
    if not fits:
        raise FormatError(f"its shards of {outer} cannot be divided into chunks of {inner}.")
    if math.prod(o // i for o, i in zip(outer, inner, strict=True)) > ZARR_SHARD_CHUNKS:
        raise FormatError(
            f"its shards of {outer} are divided into more than {ZARR_SHARD_CHUNKS} chunks of {inner}.",
            hint=ZARR_SHARD_CHUNKS.hint,
        )
    names = _codec_names(configuration.get("codecs"))
    _codec_names(configuration.get("index_codecs"))
    if configuration.get("index_location", "end") not in ("start", "end"):
        raise FormatError("the index of its shards is neither at the start nor at the end.")
    if names[0][0] == "sharding_indexed":
        if depth:
            raise FormatError("its shards are nested more than twice.")
        return _inner_chunks(names[0][1], inner, depth=depth + 1)
    return inner


def _codec_names(codecs: object) -> list[tuple[str, Mapping[str, Any]]]:
    """Return name and configuration of each codec, after checking that all are known."""
    if not isinstance(codecs, list) or not 1 <= len(codecs) <= _MAX_CODECS:
        raise FormatError("its codecs are no list of codecs.")
    found = []
    for codec in codecs:
        name = codec.get("name") if isinstance(codec, dict) else codec
        _refuse_codec(name, _CODECS_V3)
        found.append((str(name), _mapping(codec, "configuration") if isinstance(codec, dict) else {}))
    return found


def _refuse_codec(name: object, allowed: frozenset[str]) -> None:
    if not isinstance(name, str) or name not in allowed:
        raise FormatError(
            f"the codec {shorten(repr(name))} is not one that only decodes numbers.",
            hint=f"Those are {', '.join(sorted(allowed))}.",
        )


def _grid(value: object, shape: tuple[int, ...]) -> tuple[int, ...]:
    extents = _extents(value, "chunk shape", 1)
    if len(extents) != len(shape):
        raise FormatError(f"chunks of {extents} do not fit an array of shape {shape}.")
    return extents


def _refuse_large(chunks: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if math.prod(chunks) * dtype.itemsize > CHUNK_BYTES:
        raise FormatError(f"a chunk of {chunks} has more than {CHUNK_BYTES} bytes.", hint=CHUNK_BYTES.hint)


def _extents(value: object, name: str, least: int) -> tuple[int, ...]:
    plain = isinstance(value, list) and len(value) <= _MAX_AXES
    if not plain or not all(type(n) is int and least <= n < 2**62 for n in value):  # type: ignore[attr-defined]
        raise FormatError(f"its {name} {shorten(repr(value))} is no list of whole numbers of at least {least}.")
    extents: Sequence[int] = value  # type: ignore[assignment]
    return tuple(extents)


def _mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key, {})
    return value if isinstance(value, dict) else {}


def _document(root: Path, key: str) -> dict[str, Any] | None:
    data = _read(root, key)
    if data is None:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{root}/{key} is no JSON: {shorten(str(error))}.") from error
    if not isinstance(document, dict):
        raise FormatError(f"{root}/{key} holds no JSON object.")
    return document


def _read(root: Path, key: str) -> bytes | None:
    if is_remote(root):
        return read_object(root, key, ZARR_DOCUMENT_BYTES)
    path = Path(root, key)
    if not path.is_file():  # a pipe would wait for ever
        return None
    size = path.stat().st_size
    if size > ZARR_DOCUMENT_BYTES:
        raise FormatError(
            f"{path} has {size} bytes; at most {ZARR_DOCUMENT_BYTES} are read.", hint=ZARR_DOCUMENT_BYTES.hint
        )
    return path.read_bytes()
