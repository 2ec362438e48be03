"""Whatever metadata holds comes back from a file, and whatever a file holds raises nothing but our own error."""

from __future__ import annotations

import datetime
import gzip
import json
import pickle
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from mlarray.errors import FormatError
from mlarray.metadata import (
    METADATA_TABLE,
    Meta,
    decode,
    encode,
    from_jsonable,
    read_metadata,
    restricted_loads,
    to_jsonable,
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=["Cs", "Lu"]))
    | st.binary()
    | st.complex_numbers()
    | st.dates()
    | st.times().map(lambda time: time.replace(fold=0))
    | st.datetimes(timezones=st.none() | st.just(datetime.UTC)).map(lambda time: time.replace(fold=0))
    | st.timedeltas()
)
keys = st.text() | st.just("__mla__") | st.just("value") | st.just("data") | st.integers() | st.booleans() | st.binary()
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.fixed_dictionaries({"__mla__": st.sampled_from(["float", "dict", "ndarray"]), "value": inner})
    ),
    max_leaves=12,
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=5),
    max_leaves=30,
)


@given(values)
def test_any_value_survives_strict_json(value: object) -> None:
    stored = json.loads(json.dumps(to_jsonable(value), allow_nan=False))
    assert repr(from_jsonable(stored)) == repr(value)


@given(
    npst.arrays(npst.scalar_dtypes().filter(lambda d: d.kind in "biufcmMSU"), npst.array_shapes(min_dims=0, min_side=0))
)
def test_any_array_survives_strict_json(array: np.ndarray) -> None:
    back = from_jsonable(json.loads(json.dumps(to_jsonable(array), allow_nan=False)))
    assert isinstance(back, np.ndarray)
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


@st.composite
def metas(draw: st.DrawFn) -> Meta:
    labels = draw(st.lists(st.sampled_from(["channel", "spatial_z", "spatial", "temporal"]), min_size=1, max_size=4))
    count = sum(label.startswith("spatial") for label in labels)
    finite = st.floats(-1e6, 1e6)
    per_axis = st.lists(finite, min_size=count, max_size=count)
    boxes = st.lists(st.lists(st.tuples(finite, finite), min_size=len(labels), max_size=len(labels)), max_size=3)
    return Meta(
        source=draw(st.dictionaries(st.text(), values, max_size=4)) | {"pad": 0},
        extra=draw(st.dictionaries(keys, values, max_size=3)) | {"pad": 0},
        spatial={
            "axis_labels": labels,
            "origin": draw(st.none() | per_axis),
            "spacing": draw(st.none() | st.lists(st.floats(1e-3, 1e3), min_size=count, max_size=count)),
            "coord_system": draw(st.none() | st.text()),
            "shape": draw(st.lists(st.integers(0, 2**40), min_size=len(labels), max_size=len(labels))),
        },
        stats={"min": draw(st.none() | st.floats() | st.integers())},
        bbox={"bboxes": draw(st.none() | boxes)},
        is_seg=draw(st.none() | st.booleans()),
        _has_array=draw(st.booleans()),
    )


@given(metas())
def test_any_metadata_survives_a_file(meta: Meta) -> None:
    payload = encode(meta)
    back, warnings = read_metadata({"mlarray": payload}, {})
    assert warnings == []
    assert repr(back.to_mapping() | {"_mlarray_version": None}) == repr(meta.to_mapping() | {"_mlarray_version": None})
    assert encode(back) == payload


@given(plain, st.integers(0, 5))
def test_any_plain_pickle_reads_as_python_reads_it(value: object, protocol: int) -> None:
    def without_bytes(item: object) -> object:  # protocols below 3 pickle bytes as a call
        if isinstance(item, bytes):
            return item.hex()
        if isinstance(item, list):
            return [without_bytes(part) for part in item]
        return {key: without_bytes(part) for key, part in item.items()} if isinstance(item, dict) else item

    value = without_bytes(value) if protocol < 3 else value
    assert repr(restricted_loads(pickle.dumps(value, protocol), table={})) == repr(value)


def refused_or_plain(data: bytes) -> None:
    try:
        value = restricted_loads(data, table=METADATA_TABLE)
    except FormatError:
        return
    assert type(value) in (dict, list, str, int, float, bool, type(None), bytes, complex)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_with_our_error_only(data: bytes) -> None:
    refused_or_plain(data)
    refused_or_plain(b"\x80\x04" + data + b".")


OPCODES = st.sampled_from(
    [bytes([code]) for code in range(256)]
    + [
        b"K\x01",
        b"X\x01\x00\x00\x00a",
        b"h\x00",
        b"h\x01",
        b"(",
        b"t",
        b"}",
        b"]",
        b"R",
        b"b",
        b"\x94",
        b"e",
        b"u",
        b"\x85",
    ]
    + [f"c{module}\n{name}\n".encode() for module, name in METADATA_TABLE]
)


@given(st.lists(OPCODES, max_size=40).map(b"".join))
def test_random_programs_are_refused_with_our_error_only(program: bytes) -> None:
    refused_or_plain(program + b".")


@given(metas(), st.data())
def test_a_damaged_payload_costs_metadata_but_never_raises(meta: Meta, data: st.DataObject) -> None:
    pickled = bytearray(gzip.decompress(encode(meta)))
    for _ in range(data.draw(st.integers(1, 3))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    back, warnings = read_metadata({"mlarray": gzip.compress(bytes(pickled))}, {})
    assert isinstance(back, Meta)
    assert all(isinstance(warning, str) for warning in warnings)


@given(st.binary(max_size=200))
def test_random_payloads_never_raise(data: bytes) -> None:
    back, warnings = read_metadata({"mlarray": data}, {})
    assert back.is_default()
    assert len(warnings) == 1


NAMES = st.sampled_from(
    [*Meta().to_mapping(), *Meta().spatial.to_mapping(), "image", "_blosc2", "channel_axis", "data", "x"]
)
wild: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=25,
)


@given(st.dictionaries(NAMES, wild, max_size=8), st.none() | wild)
def test_any_mapping_is_read_and_nothing_of_it_raises(payload: dict[str, Any], layer: object) -> None:
    meta, warnings = read_metadata({"mlarray": payload}, {"b2nd": layer})
    assert isinstance(meta, Meta)
    assert not any("cannot be read" in warning for warning in warnings)
    assert decode(payload) is not payload
