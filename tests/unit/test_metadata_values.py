"""Values that JSON cannot hold are stored as JSON and come back as they were."""

from __future__ import annotations

import collections
import datetime
import enum
import json
import math

import numpy as np
import pytest

from mlarray.errors import MetadataError
from mlarray.metadata import from_jsonable, is_serializable, to_jsonable

STORED = [
    ({"a": [1, 2.5, None, True, "ü"]}, {"a": [1, 2.5, None, True, "ü"]}),
    (math.inf, {"__mla__": "float", "value": "inf"}),
    (-math.inf, {"__mla__": "float", "value": "-inf"}),
    (b"caf\xe9", {"__mla__": "bytes", "value": "Y2Fm6Q=="}),
    ("caf\udce9", {"__mla__": "text", "value": "Y2Fm7bOp"}),
    (complex(1, -2), {"__mla__": "complex", "value": [1.0, -2.0]}),
    ((1, (2,)), {"__mla__": "tuple", "value": [1, {"__mla__": "tuple", "value": [2]}]}),
    ({3, 1, 2}, {"__mla__": "set", "value": [1, 2, 3]}),
    (frozenset({"b", "a"}), {"__mla__": "frozenset", "value": ["a", "b"]}),
    (datetime.date(2024, 2, 29), {"__mla__": "date", "value": "2024-02-29"}),
    (
        datetime.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=datetime.UTC),
        {"__mla__": "datetime", "value": "2024-02-29T01:02:03.000004+00:00"},
    ),
    (datetime.time(1, 2, 3), {"__mla__": "time", "value": "01:02:03"}),
    (datetime.timedelta(days=1, seconds=2, microseconds=3), {"__mla__": "timedelta", "value": [1, 2, 3]}),
    ({1: "liver"}, {"__mla__": "dict", "value": [[1, "liver"]]}),
    (
        {"__mla__": "float", "value": "nan"},
        {"__mla__": "dict", "value": [["__mla__", "float"], ["value", "nan"]]},
    ),
]


@pytest.mark.parametrize(("value", "stored"), STORED, ids=range(len(STORED)))
def test_a_value_is_stored_by_the_rule_and_comes_back(value: object, stored: object) -> None:
    assert to_jsonable(value) == stored
    assert json.loads(json.dumps(stored, allow_nan=False)) == stored
    back = from_jsonable(stored)
    assert back == value
    assert type(back) is type(value)


def test_nan_comes_back_as_nan() -> None:
    assert to_jsonable([float("nan")]) == [{"__mla__": "float", "value": "nan"}]
    assert math.isnan(from_jsonable(to_jsonable(float("nan"))))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.1),
        np.int16(-3),
        np.bool_(True),
        np.complex64(1j),
        np.datetime64("2024-02-29T01", "h"),
        np.bytes_(b"a"),
    ],
    ids=repr,
)
def test_a_numpy_scalar_comes_back_with_its_dtype(value: np.generic) -> None:
    back = from_jsonable(json.loads(json.dumps(to_jsonable(value), allow_nan=False)))
    assert back == value
    assert back.dtype == value.dtype  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=">i2").reshape(3, 2).T,
        np.array(3.5),
        np.zeros((0, 4)),
        np.array(["a", "ü"]),
        np.array([True, False]),
        np.array([np.nan, np.inf]),
    ],
    ids=repr,
)
def test_an_array_comes_back_with_shape_and_dtype(array: np.ndarray) -> None:
    back = from_jsonable(json.loads(json.dumps(to_jsonable(array), allow_nan=False)))
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype  # type: ignore[attr-defined]
    assert back.shape == array.shape  # type: ignore[attr-defined]


def test_subclasses_of_plain_types_are_stored_as_the_plain_type() -> None:
    class Colour(enum.IntEnum):
        red = 1

    value = {"f": np.float64(2.0), "s": np.str_("x"), "e": Colour.red, "o": collections.OrderedDict(a=1)}
    assert to_jsonable(value) == {"f": 2.0, "s": "x", "e": 1, "o": {"a": 1}}
    assert [type(item) for item in to_jsonable(value).values()] == [float, str, int, dict]  # type: ignore[union-attr]


def test_every_part_that_cannot_be_stored_is_named() -> None:
    with pytest.raises(MetadataError) as caught:
        to_jsonable({"a": [1, object()], "b": np.array([object()])}, path="meta.source")
    assert caught.value.problems == (
        "meta.source['a'][1] is a object, which cannot be stored as metadata",
        "meta.source['b'] is a numpy value of dtype object, which cannot be stored as metadata",
    )


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, object] = {}
    loop["self"] = loop
    with pytest.raises(MetadataError, match="nested deeper than 32 levels"):
        to_jsonable(loop)


@pytest.mark.parametrize(
    "almost",
    [
        {"__mla__": "unknown", "value": 1},
        {"__mla__": "float", "value": "1.0"},
        {"__mla__": "float", "value": "nan", "more": 1},
        {"__mla__": ["float"], "value": "nan"},
        {"__mla__": "bytes", "value": "not base64!"},
        {"__mla__": "dict", "value": [[[1], 2]]},
        {"__mla__": "ndarray", "value": {"dtype": "O", "shape": [1], "data": "AAAAAAAAAAA="}},
        {"__mla__": "ndarray", "value": {"dtype": "<f8", "shape": [10**12], "data": "AAAAAAAAAAA="}},
        {"__mla__": "ndarray", "value": {"dtype": "<f8", "shape": [-1, -1], "data": "AAAAAAAAAAA="}},
        {"__mla__": "ndarray", "value": {"dtype": "<f8", "shape": [0, 10**30], "data": ""}},
        {"__mla__": "numpy", "value": {"dtype": "<U99999999", "data": ""}},
        {"__mla__": "timedelta", "value": [10**12, 0, 0]},
        {"__mla__": "complex", "value": [1.0]},
        {"__mla__": "datetime", "value": "yesterday"},
    ],
    ids=repr,
)
def test_what_only_looks_like_a_tag_stays_a_dict_and_survives(almost: dict[str, object]) -> None:
    assert from_jsonable(almost) == almost
    assert from_jsonable(to_jsonable(almost)) == almost


def test_keys_that_could_share_their_hash_are_limited_in_number() -> None:
    many = {(index,): index for index in range(1001)}
    with pytest.raises(MetadataError, match="more than 1000 keys of unusual types"):
        to_jsonable(many)
    pairs = [[2**61 * index, None] for index in range(1001)]
    assert from_jsonable({"__mla__": "dict", "value": pairs}) == {"__mla__": "dict", "value": pairs}
    labels = dict.fromkeys(range(5000), "x")
    assert from_jsonable(to_jsonable(labels)) == labels


def test_is_serializable_says_what_plain_json_takes() -> None:
    assert is_serializable({"a": [1, None, (2,)], 3: float("nan")})
    assert not is_serializable(b"x")
    assert not is_serializable({"a": np.float32(1)})
