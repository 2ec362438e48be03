"""What a user says of a file counts where the file itself says nothing."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from mlarray import Geometry, open_source
from mlarray.axes import parse_axes
from mlarray.errors import UsageError
from mlarray.sources.base import Source
from mlarray.sources.memory import ArraySource
from mlarray.sources.stated import StatedSource, with_stated
from mlarray.spec import ArraySpec
from mlarray.testing.conformance import SourceConformance
from mlarray_convert import convert
from mlarray_convert.report import ExitCode
from mlarray_convert.request import parse_spacing

ARRAY = np.arange(2 * 3 * 4, dtype=np.int16).reshape(2, 3, 4)


class TestStatedSource(SourceConformance):
    def make(self, folder: Path) -> Source:
        return with_stated(ArraySource(self.expected()), axes="zyx", spacing=(3, 1, 1))


def test_axes_and_spacing_are_taken_where_nothing_is_known() -> None:
    source = with_stated(ArraySource(ARRAY), axes="zyx", spacing=(3.0, 0.5, 0.5))
    assert source.spec.axes == parse_axes("zyx")
    assert source.spec.geometry == Geometry.from_parts(spacing=(3.0, 0.5, 0.5))
    assert pickle.loads(pickle.dumps(source)).spec == source.spec


def test_one_spacing_is_for_every_spatial_axis() -> None:
    source = with_stated(ArraySource(ARRAY), axes="cyx", spacing=(0.5,))
    assert source.spec.geometry == Geometry.from_parts(spacing=(0.5, 0.5))


def test_what_the_file_states_counts() -> None:
    geometry = Geometry.from_parts(spacing=(1, 2, 3), origin=(4, 5, 6))
    inner = ArraySource(ARRAY, ArraySpec(ARRAY.shape, ARRAY.dtype, parse_axes("zyx"), geometry))
    assert with_stated(inner, axes="xyz", spacing=(9.0,)) is inner
    without = ArraySpec(ARRAY.shape, ARRAY.dtype, parse_axes("zyx"), Geometry.from_parts(origin=(4, 5, 6)))
    source = with_stated(ArraySource(ARRAY, without), spacing=(9.0,))
    assert isinstance(source, StatedSource)
    assert source.spec.geometry == Geometry.from_parts(spacing=(9, 9, 9), origin=(4, 5, 6))


@pytest.mark.parametrize(
    ("axes", "spacing", "told"),
    [("zy", None, "2 axes were named for an array of 3"), ("cyx", (1.0, 1.0, 1.0), "3 spacings were given for 2")],
)
def test_numbers_of_axes_must_agree(axes: str, spacing: tuple[float, ...] | None, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        with_stated(ArraySource(ARRAY), axes=axes, spacing=spacing)


@pytest.mark.parametrize("value", ["", "a", "1,0", "-1", "nan", "1,,2", "inf", []])
def test_a_spacing_is_made_of_positive_numbers(value: object) -> None:
    with pytest.raises(UsageError, match="not a spacing"):
        parse_spacing(value)  # type: ignore[arg-type]


def test_the_converter_takes_both_for_files_that_say_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ARRAY)
    report = convert(tmp_path / "a.npy", tmp_path / "a.mla", axes="zyx", spacing="3,0.5,0.5")
    assert report.exit_code is ExitCode.OK
    assert report.outcomes[0].warnings == ()
    with open_source(tmp_path / "a.mla") as source:
        assert source.spec.axes == parse_axes("zyx")
        assert source.spec.geometry == Geometry.from_parts(spacing=(3, 0.5, 0.5))
    again = convert(tmp_path / "a.npy", tmp_path / "a.mla", axes="zyx", spacing=(3, 0.5, 0.5))
    assert again.outcomes[0].reason == "up to date"
    other = convert(tmp_path / "a.npy", tmp_path / "a.mla", axes="zyx")
    assert other.outcomes[0].reason == "converted again: other settings than before"
    with pytest.raises(UsageError, match="unique"):
        convert(tmp_path / "a.npy", tmp_path / "b.mla", axes="zzx")
