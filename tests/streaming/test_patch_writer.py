"""Predicted patches become a volume on the stored grid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray, open_source
from mlarray import transforms as T
from mlarray.errors import TransformError, UsageError
from mlarray.streaming import PatchWriter, patch_weights, plan
from mlarray.testing.transforms import source_of

OBLIQUE = np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])


def stored(tmp_path: Path, shape: tuple[int, ...] = (21, 26, 23)) -> Path:
    values = np.random.default_rng(0).normal(0, 300, shape).astype(np.float32)
    path = tmp_path / "ct.mla"
    MLArray(values, axes="zyx", spacing=(2, 1.5, 1), origin=(3, 4, 5), direction=OBLIQUE, patch_size=8).save(path)
    return path


def fill(writer: PatchWriter, of: object, order: list[int] | None = None) -> None:
    grid = writer.plan.grid
    for index in range(len(grid)) if order is None else order:
        writer.add(grid[index], of(writer.plan.read(grid[index], pad=True)))


@pytest.mark.filterwarnings("ignore:.*cannot be read in parts")
@pytest.mark.parametrize("weights", ["uniform", "gaussian"])
@pytest.mark.parametrize("suffix", [".mla", ".mha", ".nii.gz", ".nrrd"])
def test_patches_that_agree_give_the_volume_itself(tmp_path: Path, weights: str, suffix: str) -> None:
    planned = plan(open_source(stored(tmp_path)), [T.Canonical()], patch_size=10, overlap=4)
    with PatchWriter(tmp_path / f"out{suffix}", planned, channels=1, weights=weights) as writer:
        fill(writer, lambda patch: patch)
    with open_source(tmp_path / f"out{suffix}") as out, open_source(stored(tmp_path)) as source:
        back, original = plan(out, [T.Canonical()]), plan(source, [T.Canonical()])
        np.testing.assert_allclose(back.read_whole(), original.read_whole(), rtol=2e-7, atol=1e-4)
        assert out.spec.geometry.is_close(source.spec.geometry) or suffix == ".nii.gz"


def test_the_mean_is_weighted_and_does_not_depend_on_the_order(tmp_path: Path) -> None:
    planned = plan(source_of(np.zeros((1, 9, 9), np.float32)), [], patch_size=6, overlap=3)
    rng = np.random.default_rng(1)
    patches = rng.normal(size=(len(planned.grid), 2, 6, 6))
    window = patch_weights((6, 6), "gaussian")
    sums, total = np.zeros((2, 9, 9)), np.zeros((9, 9))
    for target, patch in zip(planned.grid, patches, strict=True):
        sums[(slice(None), *target.slices)] += patch * window
        total[target.slices] += window
    found = []
    for order in (range(len(planned.grid)), reversed(range(len(planned.grid)))):
        with PatchWriter(tmp_path / "mean.mla", planned, channels=2, dtype=np.float64, back=False, memory=1) as writer:
            for index in order:
                writer.add(planned.grid[index], patches[index])
        found.append(plan(open_source(tmp_path / "mean.mla"), []).read_whole())
    np.testing.assert_allclose(found[0], sums / total, rtol=1e-13)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-13)


def test_labels_are_decided_on_the_stored_grid(tmp_path: Path) -> None:
    path = stored(tmp_path)
    planned = plan(open_source(path), [T.Canonical(), T.ResampleToResolution([1, 1, 1])], patch_size=12, overlap=2)
    finish = [T.Argmax(), T.TensorCast("uint8")]
    with PatchWriter(tmp_path / "seg.mla", planned, channels=3, finish=finish) as writer:
        fill(writer, lambda patch: np.concatenate([-np.abs(patch), patch, -patch]))
    with open_source(tmp_path / "seg.mla") as seg, open_source(path) as source:
        assert seg.spec.dtype == np.uint8
        assert seg.spec.shape == source.spec.shape
        assert seg.spec.geometry.is_close(source.spec.geometry)
        assert seg.info.is_seg
        labels, values = seg.read(seg.spec.region), source.read(source.spec.region)
    agree = np.mean(labels == np.where(values > 0, 1, 2))
    assert agree > 0.85  # resampled there and back


def test_tiles_that_are_put_aside_change_nothing(tmp_path: Path) -> None:
    planned = plan(source_of(np.zeros((1, 70, 130, 140), np.float32)), [], patch_size=40, overlap=10)
    order = list(np.random.default_rng(2).permutation(len(planned.grid)))
    results = []
    for memory in (1, 1 << 30):
        with PatchWriter(tmp_path / "out.mla", planned, channels=1, memory=memory) as writer:
            for index in order:
                target = planned.grid[index]
                writer.add(target, np.full((1, *target.shape), index, np.float32))
        results.append(plan(open_source(tmp_path / "out.mla"), []).read_whole())
    np.testing.assert_array_equal(*results)
    assert [path.name for path in tmp_path.iterdir()] == ["out.mla"]


def test_a_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    planned = plan(open_source(stored(tmp_path)), [], patch_size=10)
    with (
        pytest.raises(UsageError, match=r"26 of 27 patches of out\.mha are missing"),
        PatchWriter(tmp_path / "out.mha", planned, channels=1) as writer,
    ):
        fill(writer, lambda patch: patch, [0])
    with pytest.raises(ZeroDivisionError), PatchWriter(tmp_path / "out.mha", planned, channels=1) as writer:
        fill(writer, lambda patch: 1 / 0)
    assert [path.name for path in tmp_path.iterdir()] == ["ct.mla"]


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    planned = plan(open_source(stored(tmp_path)), [], patch_size=10)
    first = planned.grid[0]
    with pytest.raises(UsageError, match="channels is a whole number from 1 on, got 0"):
        PatchWriter(tmp_path / "out.mla", planned, channels=0)
    with (
        pytest.raises(UsageError, match='weights are "uniform", "gaussian" or an array'),
        PatchWriter(tmp_path / "out.mla", planned, channels=1, weights="round") as writer,
    ):
        writer.add(first, np.zeros((1, 10, 10, 10)))
    with PatchWriter(tmp_path / "out.mla", planned, channels=1) as writer:
        with pytest.raises(UsageError, match=r"A patch of \(1, 10, 10, 10\) was expected, got \(2, 10, 10, 10\)"):
            writer.add(first, np.zeros((2, 10, 10, 10)))
        with pytest.raises(UsageError, match="is not of the plan's grid"):
            writer.add(first.translate((1, 0, 0)), np.zeros((1, 10, 10, 10)))
        fill(writer, lambda patch: patch)
        with pytest.raises(UsageError, match="came before"):
            writer.add(first, np.zeros((1, 10, 10, 10)))
    with pytest.raises(UsageError, match="has no suffix of a format that can be written"):
        PatchWriter(tmp_path / "out.png", planned, channels=1)
    (tmp_path / "folder.mha").mkdir()
    with pytest.raises(UsageError, match=r"folder\.mha is a folder, and a MetaImage image is a file"):
        PatchWriter(tmp_path / "folder.mha", planned, channels=1)
    with pytest.raises(TransformError, match="Stage 1 is a str, not a transform"):
        PatchWriter(tmp_path / "out.mla", planned, channels=1, finish=["Argmax"])  # type: ignore[list-item]


def written_as(tmp_path: Path, value: object, dtype: str) -> np.ndarray:
    """Return what a writer of a dtype makes of patches with one value."""
    planned = plan(source_of(np.zeros((1, 6, 6), np.float32)), [], patch_size=6)
    with PatchWriter(tmp_path / "out.mla", planned, channels=1, dtype=dtype, weights="uniform") as writer:
        writer.add(planned.grid[0], np.full((1, 6, 6), value))
    with open_source(tmp_path / "out.mla") as found:
        return found.read(found.spec.region)


@pytest.mark.parametrize(
    ("dtype", "value", "stored"),
    [
        ("uint8", 2.5, 2),
        ("uint8", 3.5, 4),
        ("uint8", 300.0, 255),
        ("uint8", -7.0, 0),
        ("int64", 1e30, np.iinfo(np.int64).max),
        ("bool", 0.5, False),
        ("bool", 0.75, True),
        ("float16", 1e6, 65504.0),
        ("float16", -1e6, -65504.0),
        ("float32", np.inf, np.inf),
        ("float32", np.nan, np.nan),
    ],
)
def test_means_are_rounded_and_end_at_the_ends_of_their_type(
    tmp_path: Path, dtype: str, value: float, stored: float
) -> None:
    found = written_as(tmp_path, value, dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.full_like(found, stored))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_refused_for_an_integer_type_with_its_patch(tmp_path: Path, value: float) -> None:
    message = r"36 of 36 values of the patch \(0, 0\)\.\.\(6, 6\) are NaN or infinite, which is no uint8"
    with pytest.raises(UsageError, match=message):
        written_as(tmp_path, value, "uint8")


def test_what_cannot_be_written_is_refused_before_anything_is_predicted(tmp_path: Path) -> None:
    planned = plan(open_source(stored(tmp_path)), [T.Canonical()], patch_size=10)
    for given, message in (
        ({"storage": {"patch_sise": 8}}, "patch_sise"),
        ({"storage": 5}, "storage is a mapping of storage arguments, got 5"),
        ({"dtype": "complex64"}, "'complex64' is not a type of numbers here"),
        ({"weights": np.full((10, 10, 10), np.nan)}, "Weights are finite numbers above 0"),
        ({"finish": [T.Argmax(7)]}, "Argmax"),
    ):
        with pytest.raises(UsageError, match=message):
            PatchWriter(tmp_path / "out.mla", planned, channels=1, **given)
    assert [path.name for path in tmp_path.iterdir()] == ["ct.mla"]


def test_tensors_of_a_graph_and_of_bfloat16_are_taken(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    planned = plan(source_of(np.zeros((1, 6, 6), np.float32)), [], patch_size=6)
    for tensor in (torch.full((1, 6, 6), 2.5, requires_grad=True), torch.full((1, 6, 6), 2.5, dtype=torch.bfloat16)):
        with PatchWriter(tmp_path / "out.mla", planned, channels=1, back=False) as writer:
            writer.add(planned.grid[0], tensor)
        with open_source(tmp_path / "out.mla") as found:
            assert (found.read(found.spec.region) == 2.5).all()
    with (
        pytest.raises(UsageError, match="A patch holds real numbers, got complex64 from Tensor"),
        PatchWriter(tmp_path / "out.mla", planned, channels=1) as writer,
    ):
        writer.add(planned.grid[0], torch.zeros((1, 6, 6), dtype=torch.complex64))
