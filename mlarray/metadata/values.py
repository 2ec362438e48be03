"""How does a value that JSON cannot hold travel through a file, and come back as it was?

``source`` and ``extra`` are free: headers put NaN, raw bytes, numpy scalars, tuples and dates there. The file holds
only what JSON can hold, so that every reader, in any language, can use it. The rule:

* ``None``, ``bool``, ``int``, finite ``float``, ``str`` and lists and dicts of them (with string keys) stay as they are;
  a subclass of one of these types is stored as that type.
* Anything else becomes a *tagged dict* of exactly two keys, ``{"__mla__": kind, "value": ...}``:

  ============= ===============================================================================
  kind          value
  ============= ===============================================================================
  ``float``     ``"nan"``, ``"inf"`` or ``"-inf"``
  ``text``      base64 of the UTF-8 bytes (surrogates passed) of a string with lone surrogates
  ``bytes``     base64
  ``complex``   ``[real, imaginary]``
  ``tuple``     list of the items (likewise ``set`` and ``frozenset``, sorted by their stored form)
  ``date``      ISO 8601 (likewise ``datetime`` and ``time``; ``fold`` and the name of a zone are dropped)
  ``timedelta`` ``[days, seconds, microseconds]``
  ``numpy``     ``{"dtype": "<f4", "data": base64}``, one scalar
  ``ndarray``   ``{"dtype": "<f4", "shape": [2, 3], "data": base64 of the C-order bytes}``
  ``dict``      list of ``[key, value]`` pairs: a dict with a key that is no string, or with the key ``"__mla__"``
  ============= ===============================================================================

The last row is also the escape: a dict of the user's that looks like a tag is stored as pairs, so it never reads as one.
A tag that cannot be understood stays the dict it is. Nothing here knows fields or files.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, cast

import numpy as np

from mlarray.errors import MetadataError
from mlarray.limits import METADATA_UNUSUAL_KEYS

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

TAG: Final = "__mla__"
MAX_DEPTH: Final = 32
"""Levels of nesting that are stored and read back; deeper values, and values that contain themselves, are refused."""

MAX_INT_KEY: Final = 2**61 - 1
"""Integers from here on may share their hash at will: thousands of them make a dict or set quadratically slow."""

_STORED_DTYPE: Final = re.compile(
    r"[<>|](?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[mM]8(?:\[\d*[a-zA-Z]+\])?|[SU]\d+)"
)


def to_jsonable(value: object, *, path: str = "value") -> Json:
    r"""Return `value` as plain JSON values, tagged where needed.

    Parameters
    ----------
    value : object
        Anything the table above lists, nested at will up to ``MAX_DEPTH`` levels.
    path : str, default "value"
        How messages name `value`.

    Returns
    -------
    None, bool, int, float, str, list or dict
        Fresh containers; ``json.dumps(..., allow_nan=False)`` accepts the result.

    Raises
    ------
    MetadataError
        Listing every part that cannot be stored.

    Examples
    --------
    >>> to_jsonable({"scl_slope": float("nan"), "descrip": b"caf\xe9"})
    {'scl_slope': {'__mla__': 'float', 'value': 'nan'}, 'descrip': {'__mla__': 'bytes', 'value': 'Y2Fm6Q=='}}
    >>> from_jsonable(to_jsonable((1, 2j)))
    (1, 2j)
    """
    problems: list[str] = []
    result = _encode(value, path, problems, MAX_DEPTH)
    if problems:
        raise MetadataError(problems)
    return result


def unstorable(value: object, *, path: str) -> list[str]:
    """Return one sentence for every part of `value` that cannot be stored; an empty list when all can."""
    problems: list[str] = []
    _encode(value, path, problems, MAX_DEPTH)
    return problems


def from_jsonable(value: object) -> object:
    """Undo :func:`to_jsonable`; dicts that are not a tag of ours stay as they are."""
    if isinstance(value, list):
        return [from_jsonable(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG in value and value.keys() == {TAG, "value"}:
        decoder = _DECODERS.get(value[TAG]) if isinstance(value[TAG], str) else None
        if decoder is not None:
            try:
                return decoder(value["value"])
            except (ValueError, TypeError, KeyError, OverflowError, binascii.Error):
                pass
    return {key: from_jsonable(item) for key, item in value.items()}


def is_serializable(obj: object) -> bool:
    """Say whether ``json.dumps`` takes `obj` as it is.

    ``source`` and ``extra`` hold more than that, see :func:`to_jsonable`.

    Examples
    --------
    >>> is_serializable({"a": [1, 2.5, None]}), is_serializable(b"raw")
    (True, False)
    """
    try:
        json.dumps(obj)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _tagged(kind: str, value: Json) -> Json:
    return {TAG: kind, "value": value}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _encode(value: object, path: str, problems: list[str], depth: int) -> Json:
    if value is None or isinstance(value, bool):
        return value
    if depth == 0:
        problems.append(f"{path} is nested deeper than {MAX_DEPTH} levels")
        return None
    if isinstance(value, (np.generic, np.ndarray)) and not isinstance(value, (float, str)):
        return _encode_numpy(value, path, problems)
    if isinstance(value, str):
        return _encode_text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        number = float(value)
        return number if math.isfinite(number) else _tagged("float", repr(number))
    if isinstance(value, list):
        return _encode_items(value, path, problems, depth)
    if isinstance(value, Mapping):
        return _encode_mapping(value, path, problems, depth)
    return _encode_other(value, path, problems, depth)


def _encode_text(value: str) -> Json:
    text = str.__str__(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return _tagged("text", _base64(text.encode("utf-8", "surrogatepass")))
    return text


def _encode_items(items: list[object] | tuple[object, ...], path: str, problems: list[str], depth: int) -> list[Json]:
    return [_encode(item, f"{path}[{index}]", problems, depth - 1) for index, item in enumerate(items)]


def _encode_mapping(value: Mapping[object, object], path: str, problems: list[str], depth: int) -> Json:
    if TAG not in value and all(isinstance(key, str) and _encode_text(key) == key for key in value):
        return {
            str.__str__(cast(str, key)): _encode(item, f"{path}[{key!r}]", problems, depth - 1)
            for key, item in value.items()
        }
    if not _hashes_well(list(value)):
        problems.append(f"{path} has more than {METADATA_UNUSUAL_KEYS} keys of unusual types")
        return None
    pairs: list[Json] = []
    for key, item in value.items():
        stored_key = _encode(key, f"key {key!r} of {path}", problems, depth - 1)
        pairs.append([stored_key, _encode(item, f"{path}[{key!r}]", problems, depth - 1)])
    return _tagged("dict", pairs)


def _encode_numpy(value: np.generic | np.ndarray, path: str, problems: list[str]) -> Json:
    dtype = value.dtype.newbyteorder("<") if value.dtype.byteorder == "=" else value.dtype
    if not _STORED_DTYPE.fullmatch(dtype.str):
        problems.append(f"{path} is a numpy value of dtype {value.dtype}, which cannot be stored as metadata")
        return None
    data = _base64(np.asarray(value).astype(dtype, copy=False).tobytes())
    if isinstance(value, np.ndarray):
        return _tagged("ndarray", {"dtype": dtype.str, "shape": list(value.shape), "data": data})
    return _tagged("numpy", {"dtype": dtype.str, "data": data})


def _encode_other(value: object, path: str, problems: list[str], depth: int) -> Json:
    if isinstance(value, bytes):
        return _tagged("bytes", _base64(value))
    if isinstance(value, complex):
        return _tagged("complex", _encode_items((value.real, value.imag), path, problems, depth))
    if isinstance(value, tuple):
        return _tagged("tuple", _encode_items(value, path, problems, depth))
    if isinstance(value, (set, frozenset)):
        if not _hashes_well(list(value)):
            problems.append(f"{path} has more than {METADATA_UNUSUAL_KEYS} members of unusual types")
            return None
        items = sorted(_encode_items(list(value), path, problems, depth), key=json.dumps)
        return _tagged("frozenset" if isinstance(value, frozenset) else "set", items)
    if isinstance(value, datetime.datetime):
        return _tagged("datetime", value.isoformat())
    if isinstance(value, datetime.date):
        return _tagged("date", value.isoformat())
    if isinstance(value, datetime.time):
        return _tagged("time", value.isoformat())
    if isinstance(value, datetime.timedelta):
        return _tagged("timedelta", [value.days, value.seconds, value.microseconds])
    problems.append(f"{path} is a {type(value).__name__}, which cannot be stored as metadata")
    return None


def _hashes_well(keys: list[object]) -> bool:
    usual = (str, bytes, float, bool, type(None), datetime.date, datetime.time, datetime.timedelta)
    return len(keys) <= METADATA_UNUSUAL_KEYS or all(
        isinstance(key, usual) or (isinstance(key, int) and abs(key) < MAX_INT_KEY) for key in keys
    )


def _hashable(keys: list[object]) -> list[object]:
    if not _hashes_well(keys):
        raise ValueError("too many keys of unusual types")
    return keys


def _need(value: object, kind: type) -> object:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} expected")
    return value


def _decode_float(value: object) -> float:
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[cast(str, _need(value, str))]


def _decode_bytes(value: object) -> bytes:
    return base64.b64decode(cast(str, _need(value, str)), validate=True)


def _decode_text(value: object) -> str:
    return _decode_bytes(value).decode("utf-8", "surrogatepass")


def _decode_list(value: object) -> list[object]:
    return cast("list[object]", from_jsonable(_need(value, list)))


def _decode_complex(value: object) -> complex:
    real, imaginary = (cast(float, _need(part, float)) for part in _decode_list(value))
    return complex(real, imaginary)


def _decode_timedelta(value: object) -> datetime.timedelta:
    days, seconds, microseconds = (cast(int, _need(part, int)) for part in _decode_list(value))
    return datetime.timedelta(days, seconds, microseconds)


def _decode_dict(value: object) -> dict[object, object]:
    pairs = [cast("list[object]", _need(pair, list)) for pair in cast("list[object]", _need(value, list))]
    keys = _hashable([from_jsonable(key) for key, _ in pairs])
    return dict(zip(keys, (from_jsonable(item) for _, item in pairs), strict=True))


def _decode_array(value: object) -> np.ndarray:
    fields = cast("dict[str, object]", _need(value, dict))
    name = cast(str, _need(fields["dtype"], str))
    if not _STORED_DTYPE.fullmatch(name):
        raise ValueError("not a dtype that is stored")
    shape = [cast(int, _need(length, int)) for length in cast("list[object]", _need(fields.get("shape", []), list))]
    dtype, data = np.dtype(name), _decode_bytes(fields["data"])
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError("the size does not fit the shape")
    return np.ndarray(shape, dtype, data).copy()


_DECODERS: Final[Mapping[str, Callable[[object], object]]] = {
    "float": _decode_float,
    "text": _decode_text,
    "bytes": _decode_bytes,
    "complex": _decode_complex,
    "tuple": lambda value: tuple(_decode_list(value)),
    "set": lambda value: set(_hashable(_decode_list(value))),
    "frozenset": lambda value: frozenset(_hashable(_decode_list(value))),
    "date": lambda value: datetime.date.fromisoformat(cast(str, _need(value, str))),
    "datetime": lambda value: datetime.datetime.fromisoformat(cast(str, _need(value, str))),
    "time": lambda value: datetime.time.fromisoformat(cast(str, _need(value, str))),
    "timedelta": _decode_timedelta,
    "numpy": lambda value: _decode_array(value)[()],
    "ndarray": _decode_array,
    "dict": _decode_dict,
}
