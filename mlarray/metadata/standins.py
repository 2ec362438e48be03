"""What do the names mean that metadata pickles of the 0.0.x releases ask for?

Ten names occur in legitimate files: containers and enums of the package itself, numpy scalars, ordered dicts and the
two number types of pydicom. Each maps to a function from plain values to plain values; nothing is imported or looked up.
The pickled form of a numpy scalar is ``scalar(dtype, raw bytes)``, that of a dtype ``dtype("f8", False, True)`` followed by
the state ``(3, byte order, None, None, None, size, alignment, flags)``. A numpy array is made empty and given
``(1, shape, dtype, whether in columns, bytes)``, with protocol 5 made at once of bytes, dtype, shape and order: a second table
reads those, for the pickles that other programs keep beside their files.
"""

from __future__ import annotations

import math
import struct
from types import MappingProxyType
from typing import Final

import numpy as np

from mlarray.limits import METADATA_INTEGER_BYTES
from mlarray.metadata.unpickle import Buffer, Pending, Table

_FORMATS: Final = MappingProxyType(
    {
        "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
        "f2": "e", "f4": "f", "f8": "d", "c8": "ff", "c16": "dd",
    }
)  # fmt: skip


class _DType(Pending):
    """A numpy dtype as far as one scalar needs it: its code and byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: object) -> None:
        if type(code) is not str or not (code in _FORMATS or (code[:1] in ("U", "S") and code[1:].isdecimal())):
            raise ValueError(f"a numpy dtype {code!r} is not read here"[:200])
        self.code, self.order = code, "<"

    def build(self, state: object) -> None:
        if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise ValueError("a numpy dtype has a state that is not understood")
        self.order = ">" if state[1] == ">" else "<"

    def finish(self) -> object:
        raise ValueError("a numpy dtype is not a plain value")

    def decode(self, data: bytes) -> object:
        if self.code[0] == "S":
            return data.rstrip(b"\0")
        if self.code[0] == "U":
            return data.decode("utf-32-be" if self.order == ">" else "utf-32-le").rstrip("\0")
        parts = struct.unpack(self.order + _FORMATS[self.code], data)
        return complex(*parts) if self.code[0] == "c" else parts[0]


class _Number(Pending):
    """A pydicom number: the value counts, the state (its original text) is dropped."""

    __slots__ = ("value",)

    def __init__(self, value: float | int) -> None:
        self.value = value

    def build(self, state: object) -> None:
        if type(state) not in (dict, tuple, type(None)):
            raise ValueError("a number has a state that is not understood")

    def finish(self) -> object:
        return self.value


def _as_list(items: object = ()) -> list[object]:
    if type(items) not in (list, tuple):
        raise ValueError("a list is made of something else")
    return list(items)  # type: ignore[call-overload,no-any-return]


def _as_dict(items: object = ()) -> dict[object, object]:
    if type(items) is dict:
        return dict(items)
    if items != ():
        raise ValueError("a dict is made of something else")
    return {}


def _as_text(value: object) -> str:
    if type(value) is not str:
        raise ValueError("a label is not text")
    return value


def _scalar(dtype: object, data: object) -> object:
    if type(dtype) is not _DType or type(data) is not bytes:
        raise ValueError("a numpy scalar is not given as a dtype and bytes")
    return dtype.decode(data)


def _dtype(code: object, align: object = False, copy: object = True) -> _DType:  # noqa: FBT002
    return _DType(code)


def _number(value: object, kind: type[float] | type[int]) -> _Number:
    if isinstance(value, _Number):
        value = value.value
    if not isinstance(value, (int, float, str)) or (isinstance(value, str) and len(value) > METADATA_INTEGER_BYTES):
        raise ValueError("a number is made of something else")
    return _Number(kind(value))


def _decimal_string(value: object, *_: object) -> _Number:
    return _number(value, float)


def _integer_string(value: object, *_: object) -> _Number:
    return _number(value, int)


METADATA_TABLE: Final[Table] = MappingProxyType(
    {
        ("mlarray.meta", "_FrozenList"): _as_list,
        ("mlarray.meta", "_FrozenDict"): _as_dict,
        ("mlarray.meta", "AxisLabelEnum"): _as_text,
        ("mlarray.meta", "CoordSystemEnum"): _as_text,
        ("collections", "OrderedDict"): _as_dict,
        ("numpy._core.multiarray", "scalar"): _scalar,
        ("numpy.core.multiarray", "scalar"): _scalar,
        ("numpy", "dtype"): _dtype,
        ("pydicom.valuerep", "DSfloat"): _decimal_string,
        ("pydicom.valuerep", "IS"): _integer_string,
    }
)
"""The names that metadata of ``.mla`` files may ask for."""


class _Array(Pending):
    """A numpy array of numbers or text: made empty, then given shape, dtype and bytes by its state."""

    __slots__ = ("value",)

    def __init__(self, value: np.ndarray | None = None) -> None:
        self.value = value

    def build(self, state: object) -> None:
        if type(state) is not tuple or len(state) != 5 or type(state[3]) is not bool:
            raise ValueError("a numpy array has a state that is not understood")
        _, shape, dtype, in_columns, data = state
        self.value = _decoded(data, dtype, shape, in_columns=in_columns)

    def size(self) -> int:
        return 0 if self.value is None else self.value.nbytes

    def finish(self) -> object:
        if self.value is None:
            raise ValueError("a numpy array was never filled")
        return self.value


def _decoded(data: object, dtype: object, shape: object, *, in_columns: bool) -> np.ndarray:
    if type(dtype) is not _DType or type(data) is not bytes or type(shape) is not tuple:
        raise ValueError("a numpy array is not given as shape, dtype and bytes")
    if not all(type(extent) is int and extent >= 0 for extent in shape):
        raise ValueError("a numpy array has no shape")
    kind = np.dtype(dtype.order + dtype.code)
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError("the bytes of a numpy array do not fit its shape")
    return np.ndarray(shape, kind, data, order="F" if in_columns else "C").copy()


def _reconstruct(kind: object, shape: object, code: object) -> _Array:
    return _Array()


def _refuse_call(*_: object) -> object:
    raise ValueError("numpy.ndarray is only named, never called")


def _frombuffer(data: object, dtype: object, shape: object, order: object) -> _Array:
    if order not in ("C", "F"):
        raise ValueError("a numpy array has an order that is not understood")
    content = data.data if isinstance(data, Buffer) else data
    return _Array(_decoded(content, dtype, shape, in_columns=order == "F"))


def _latin1(value: object, encoding: object = "") -> bytes:
    if type(value) is not str or encoding != "latin1":
        raise ValueError("bytes are not given as latin-1 text")
    return value.encode("latin1")


def _no_bytes() -> bytes:
    return b""


ARRAY_TABLE: Final[Table] = MappingProxyType(
    {
        ("collections", "OrderedDict"): _as_dict,
        ("_codecs", "encode"): _latin1,
        ("__builtin__", "bytes"): _no_bytes,
        ("numpy", "dtype"): _dtype,
        ("numpy", "ndarray"): _refuse_call,
        **{
            (f"numpy.{core}.{module}", name): stand_in
            for core in ("core", "_core")
            for module, name, stand_in in (
                ("multiarray", "scalar", _scalar),
                ("multiarray", "_reconstruct", _reconstruct),
                ("numeric", "_frombuffer", _frombuffer),
            )
        },
    }
)
"""The names that plain containers of numpy arrays and scalars ask for, whatever the protocol."""
