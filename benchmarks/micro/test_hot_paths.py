"""The paths that training takes for every sample. As tests they run once; `--benchmark-enable` measures them.

python -m pytest benchmarks/micro -p no:xdist --benchmark-enable
"""

from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mlarray import MLArray, Region, open_source
from mlarray import transforms as T
from mlarray.streaming import plan

PATCH = Region((20, 30, 40), (52, 62, 72))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).normal(0, 100, (96, 112, 128)).astype(np.int16)
    MLArray(values, patch_size=32, spacing=(3, 1, 1), axes="zyx").save(tmp_path / "case.mla")
    return tmp_path / "case.mla"


def test_opening_a_file(benchmark: BenchmarkFixture, path: Path) -> None:
    assert benchmark(MLArray.open, path).shape == (96, 112, 128)


def test_reading_a_patch_by_key(benchmark: BenchmarkFixture, path: Path) -> None:
    with MLArray.open(path) as image:
        assert benchmark(lambda: image[PATCH.slices]).shape == PATCH.shape


def test_reading_a_patch_into_a_buffer(benchmark: BenchmarkFixture, path: Path) -> None:
    with MLArray.open(path) as image:
        out = np.empty(PATCH.shape, np.int16)
        assert benchmark(image.read, PATCH, out) is out


def test_folding_a_patch_through_five_stages(benchmark: BenchmarkFixture, path: Path) -> None:
    chain = [T.Flip("0"), T.ResampleToResolution([1, 1, 1]), T.Clip(-100, 100), T.Dilate(2), T.Padding([8] * 6)]
    with open_source(path) as source:
        planned = plan(source, chain, patch_size=64)
        assert planned.result.shape == (304, 128, 144)
        assert benchmark(planned.fold, Region((120, 0, 40), (184, 64, 104))).shape == (24, 58, 68)
