"""Segmentations become the smallest integers that hold them, or are refused."""

import numpy as np
import pytest

from mlarray.errors import DTypeError
from mlarray.region import Region
from mlarray.sources.memory import ArraySource
from mlarray_convert.labels import IntegerSource, LabelRange, is_narrow, scan_labels


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (0, 255, "uint8"),
        (-1, 127, "int8"),
        (0, 256, "int16"),
        (0, 40000, "uint16"),
        (-1, 40000, "int32"),
        (0, 3 * 10**9, "uint32"),
        (0, 2**63, "uint64"),
    ],
)
def test_the_smallest_integer_type_holds_both_ends(low: int, high: int, dtype: str) -> None:
    assert LabelRange(low, high).dtype == np.dtype(dtype)


def test_a_float_segmentation_is_scanned_and_kept_exactly() -> None:
    array = np.array([[0, 1, 16777217.0], [70000, 5, 2]], np.float64)
    source = ArraySource(array)
    found = scan_labels(source, [Region((0, 0), (1, 3)), Region((1, 0), (2, 3))])
    assert found == LabelRange(0, 16777217)
    integers = IntegerSource(source, found.dtype)
    assert integers.spec.dtype == np.int32
    assert integers.info.is_seg is True
    np.testing.assert_array_equal(integers.read(Region.full((2, 3))), array)


@pytest.mark.parametrize("bad", [0.5, np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_whole_is_refused_with_its_place(bad: float) -> None:
    array = np.zeros((2, 3, 4), np.float32)
    array[1, 2, 3] = bad
    with pytest.raises(DTypeError, match=r"index \(1, 2, 3\)"):
        scan_labels(ArraySource(array), [Region((0, 0, 0), (1, 3, 4)), Region((1, 0, 0), (2, 3, 4))])


def test_negative_labels_and_the_first_tile_count_too() -> None:
    array = np.array([5, 6, -2, 7], np.int64)
    assert scan_labels(ArraySource(array), [Region((0,), (2,)), Region((2,), (4,))]) == LabelRange(-2, 7)
    assert scan_labels(ArraySource(array[:2]), [Region((0,), (2,))]) == LabelRange(5, 6)


def test_one_byte_types_need_no_scan() -> None:
    assert [is_narrow(np.dtype(kind)) for kind in ("u1", "i1", "?", "i2", "f4")] == [True, True, True, False, False]
