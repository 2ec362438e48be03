"""The published table of chains: which of them stream, and which stage and which rule stands in the way, in both profiles.

The strict profile gives the published verdicts. The extended one streams what is exact in bounded memory: only cost and a stage
that needs the whole volume are in the way. Rows 18 and 19 need a stage that stores its input, 27 and 28 a loader that may keep
volumes in memory; neither is the planner's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk

from mlarray import open_source
from mlarray import transforms as T
from mlarray.errors import TransformError, UsageError
from mlarray.geometry import Geometry
from mlarray.streaming import Regime, Rule, Verdict, plan, volume_source
from mlarray.testing.transforms import source_of
from mlarray.transforms import augmentations as A
from mlarray.transforms.base import Transform

from ..transforms.references import grid, image_of

SCAN = np.random.default_rng(0).normal(0, 300, (1, 24, 30, 36)).astype(np.float32)
SEG = (np.random.default_rng(1).random((1, 24, 30, 36)) < 0.3).astype(np.uint8)
SPACING = (2.0, 1.5, 1.5)  # z, y, x

WHOLE, HALO, STATISTIC = Rule.WHOLE_VOLUME, Rule.HALO, Rule.STATISTIC_AFTER_CHANGE
COST = Rule.COST


def turned(degrees: float) -> np.ndarray:
    """A rotation about z, of x, y, z."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


PLAIN = grid(SPACING)
EXCHANGED = grid(SPACING, direction_xyz=np.array([[0.0, 0, 1], [0, 1, 0], [1, 0, 0]]))
OBLIQUE = grid(SPACING, direction_xyz=turned(20))


@dataclass(frozen=True)
class Row:
    """A chain of the table, and what each profile says: None where it streams, else the rule and the stage, from 0."""

    number: str
    chain: Sequence[Transform]
    strict: tuple[Rule, int] | None = None
    extended: tuple[Rule, int] | None = None
    patch: int | tuple[int, ...] = 8
    array: np.ndarray = field(default_factory=lambda: SCAN)
    geometry: Geometry | None = PLAIN
    copy: A.Augmentation | None = None

    def verdict(self, *, strict: bool) -> Verdict:
        """What the planner says."""
        lists = [] if self.copy is None else [A.AugmentationList([self.copy], nb=1)]
        groups = {"SEG": source_of(SEG), "REF": source_of(SCAN * 2 + 7)}
        source = source_of(self.array, self.geometry)
        return plan(
            source,
            self.chain,
            patch_size=self.patch,
            groups=groups,
            augmentations=lists,
            copy=len(lists),
            strict=strict,
        ).verdict

    def __str__(self) -> str:
        return self.number


THIN = SCAN[:, :5]
CHANNELS = np.repeat(SCAN, 3, axis=0)
NORMALIZE, STANDARDIZE = T.Normalize(), T.Standardize()
CASTS = ("float16", "uint8", "int16", "int32")

TABLE = [
    Row("1", [T.TensorCast("float32"), T.Clip(-200, 400)]),
    Row("2", [T.Clip(-200, 400), STANDARDIZE], (STATISTIC, 1)),
    Row("3", [STANDARDIZE, T.Clip(-3, 3)]),
    Row("4 mean and std", [T.Clip(-200, 400), T.Standardize(mean=[0], std=[30])]),
    Row("4 mean alone", [T.Clip(-200, 400), T.Standardize(mean=[0])], (STATISTIC, 1)),
    Row("4 std alone", [T.Clip(-200, 400), T.Standardize(std=[30])], (STATISTIC, 1)),
    Row("5 identity", [T.Canonical(), NORMALIZE]),
    Row("5 axis-permuting", [T.Canonical(), NORMALIZE], geometry=EXCHANGED),
    Row("6", [T.Canonical()], (WHOLE, 0), geometry=OBLIQUE),
    *(Row(f"7 {kind}", [T.TensorCast(kind), STANDARDIZE]) for kind in ("float32", "float64")),
    *(Row(f"7 {kind}", [T.TensorCast(kind), STANDARDIZE], (STATISTIC, 1)) for kind in CASTS),
    Row("8 alone", [T.Clip("min", "max")]),
    Row("8 before Normalize", [T.Clip("min", "max"), NORMALIZE], (STATISTIC, 1)),
    Row("9 percentiles", [T.Clip("percentile:1", "percentile:99")], (WHOLE, 0)),
    Row("9 Clip in a mask", [T.Clip(mask="SEG")], (WHOLE, 0)),
    Row("9 Mask", [T.Mask("SEG")], (WHOLE, 0)),
    Row("9 Standardize in a mask", [T.Standardize(mask="SEG")], (WHOLE, 0)),
    Row("10 at half", [T.Dilate(4)]),  # (8 + 8)**3 / 8**3 = 8 voxels read for one
    Row("10 beyond half", [T.Dilate(5)], (HALO, 0), (COST, 0)),
    Row("11 two dilations", [T.Dilate(2), T.Dilate(2)], None, (COST, 1), patch=4),  # 27 for one: judged together
    Row("11 dilation and gradient", [T.Dilate(1), T.Gradient()], patch=4),
    Row("12 one plane", [T.Gradient()], (HALO, 0), patch=(1, 30, 36)),
    Row("12 two planes", [T.Gradient()], patch=(2, 30, 36)),
    Row("13 within half", [T.Dilate(2)], patch=64, array=THIN),
    Row("13 beyond half", [T.Dilate(3)], (HALO, 0), patch=64, array=THIN),
    Row("14 Canonical", [T.Canonical(), T.Permute("2|1|0")]),
    Row("14 rescaled", [T.Flip("0"), T.ResampleToShape([12, 9, 8]), T.Permute("1|0|2")], None, (COST, 1)),  # 30 for one
    Row("15", [T.Canonical(), T.ResampleToResolution([2, 1, 3]), T.Padding([1] * 6)]),
    Row("16 Crop", [T.Crop()]),
    Row("16 Crop first", [T.Crop(), NORMALIZE], (STATISTIC, 1)),
    Row("16 Crop last", [NORMALIZE, T.Crop()]),
    Row("17 to a shape", [T.ResampleToShape([20, 25, 30])], (Rule.NO_SPACING, 0), geometry=None),
    Row("20 over channels", [T.Softmax(0)], array=CHANNELS),
    Row("20 over z", [T.Softmax(1)], (WHOLE, 0), array=CHANNELS),
    Row("20 over x", [T.Softmax(-1)], (WHOLE, 0), array=CHANNELS),
    Row("21 Gradient first", [T.Gradient(), NORMALIZE], (STATISTIC, 1)),
    Row("21 Gradient last", [NORMALIZE, T.Gradient()]),
    Row("22 Flip", [], copy=A.Flip([1, 0, 1])),
    Row("22 Flip of vectors", [], (WHOLE, 0), copy=A.Flip([1, 0, 1], vector_field=True), array=CHANNELS),
    Row("22 quarter Rotate", [], copy=A.Rotate(is_quarter=True)),
    Row("22 Rotate by 10 degrees", [], (WHOLE, 0), copy=A.Rotate(10, 10)),
    Row("23 by 1", [], patch=4, copy=A.Translate(1, 1)),
    Row("23 by -1", [], patch=4, copy=A.Translate(-1, -1)),
    Row("23 by exactly 3", [], patch=8, copy=A.Translate(3, 3)),
    Row("23 by 3.01", [], (HALO, 0), patch=8, copy=A.Translate(3.01, 3.01)),
    Row("23 by 10", [], (HALO, 0), patch=4, copy=A.Translate(10, 10)),
    Row("24 not selected", [], copy=A.Scale(prob=0)),
    Row("24 selected", [], (WHOLE, 0), copy=A.Scale()),
    Row("25 Normalize", [NORMALIZE], copy=A.Flip([1, 1, 1])),
    Row("25 ResampleToResolution", [T.ResampleToResolution([2, 2, 2])], copy=A.Flip([1, 1, 1])),
    Row("25 Dilate", [T.Dilate(4)], None, None, copy=A.Translate(3, 3)),
]


BEYOND = [
    Row("three statistics in a row", [T.Normalize(lazy=True), STANDARDIZE], (STATISTIC, 1)),
    Row("extremes in a mask", [T.Clip("min", "max", mask="SEG")], (WHOLE, 0)),
    Row("a mask beside given values", [T.Standardize(mean=[0], std=[1], mask="SEG")], (WHOLE, 0)),
    Row("Statistics", [T.Statistics()], (WHOLE, 0)),
    Row("HistogramMatching", [T.HistogramMatching("REF")], (WHOLE, 0)),
    Row("Dilate by nothing", [T.Dilate(0), NORMALIZE], (STATISTIC, 1)),
    Row("a free axis counts with its extent", [T.Gradient()], patch=(0, 30, 36)),
    Row("orientation, statistic, Crop", [T.Flip("0"), NORMALIZE, T.Crop()]),
    Row("statistic after Padding", [T.Padding([1] * 6), NORMALIZE], (STATISTIC, 1)),
    Row("statistic after a rescale", [T.ResampleToShape([12, 15, 18]), NORMALIZE], (STATISTIC, 1)),
    Row("Argmax over channels", [T.Argmax(0)]),
    Row("Argmax over channels, counted from the end", [T.Argmax(-4)], (WHOLE, 0)),
    Row("Sum over y", [T.Sum(2)], (WHOLE, 0)),
    Row("Argmax over z", [T.Argmax(1)], (WHOLE, 0), patch=1),
    Row("Norm over x", [T.Norm()], (WHOLE, 0), patch=2),
    Row("Softmax over z, 24 read for 2", [T.Softmax(1)], (WHOLE, 0), (COST, 0), patch=2),
    Row("Sum of dilated lines", [T.Dilate(3), T.Sum(1)], (HALO, 0), (COST, 0), patch=(1, 2, 2)),
    Row("a flip of what is no vector", [], copy=A.Flip([1, 0, 1], vector_field=True)),
    Row("Rotate by 90 degrees", [], copy=A.Rotate(90, 90)),
    Row("Permute", [], copy=A.Permute((1, 1))),
    Row("Translate has a halo of 1", [], (HALO, 0), patch=(1, 30, 36), copy=A.Translate(0, 0)),
    Row("Elastix, 16 mm about 12 mm", [], (WHOLE, 0), (COST, 0), copy=A.Elastix()),
    Row("Noise", [], (WHOLE, 0), copy=A.Noise(1.0)),
    Row("CutOUT", [], (WHOLE, 0), copy=A.CutOUT(1.0, 0.5, 0.0)),
    Row("Brightness", [], copy=A.Brightness(1.0)),
    Row("HUE", [], copy=A.HUE(0.5)),
]
"""What the rules mean for chains that the table does not name."""


@pytest.mark.parametrize("row", [*TABLE, *BEYOND], ids=str)
def test_both_profiles_say_what_the_table_says(row: Row) -> None:
    for strict, expected in ((True, row.strict), (False, row.extended)):
        verdict = row.verdict(strict=strict)
        found = None if verdict.rule is None else (verdict.rule, verdict.stage)
        assert found == expected, verdict.reason
        assert verdict.regime is (Regime.STREAM if expected is None else Regime.BUFFER)


def test_row_7_bfloat16_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="bfloat16 has no numpy type"):
        T.TensorCast("bfloat16")


def test_row_17_a_resolution_without_a_spacing_is_an_error_that_names_the_stage() -> None:
    for strict in (True, False):
        with pytest.raises(TransformError, match=r"Stage 1 \(ResampleToResolution\).*spacing"):
            plan(source_of(SCAN), [T.ResampleToResolution([1, 1, 1])], patch_size=8, strict=strict)


@pytest.mark.parametrize("suffix", [".nrrd", ".nii.gz"])
def test_row_26_files_without_regions_stream_with_one_warning_and_have_the_same_voxels(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_source, "_warned", set())  # as in a new process
    for name in (f"scan{suffix}", "scan.mha"):
        sitk.WriteImage(image_of(SCAN[0], PLAIN), tmp_path / name, useCompression=name != "scan.mha")
    chain = [T.Flip("0"), T.ResampleToShape([20, 25, 30]), T.Clip(-200, 400)]
    slow, twin, fast = (
        plan(open_source(tmp_path / name), chain, patch_size=8, strict=True)
        for name in (f"scan{suffix}", f"scan{suffix}", "scan.mha")
    )
    assert slow.regime == fast.regime == "stream"
    with pytest.warns(
        UserWarning, match="cannot be read in parts.* `mla convert` makes files of which patches are read"
    ) as caught:
        found = [planned.read(planned.grid[3]) for planned in (slow, slow, twin)]
    assert len(caught) == 1
    assert {one.tobytes() for one in found} == {fast.read(fast.grid[3]).tobytes()}


def test_every_row_that_is_the_planner_s_is_there() -> None:
    assert {int(row.number.split()[0]) for row in TABLE} == {*range(1, 26)} - {18, 19}  # 26 is about files
