"""Opening a frame directly gives what ``blosc2.open`` gives, and its absence changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import blosc2
import numpy as np
import pytest

from mlarray import MLArray
from mlarray.errors import MissingFileError
from mlarray.storage import parameters

VOXELS = np.arange(6 * 7 * 8, dtype=np.int16).reshape(6, 7, 8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    MLArray(VOXELS, chunk_size=(3, 4, 8), block_size=(2, 2, 4), spacing=(3, 1, 1)).save(tmp_path / "case.mla")
    return tmp_path / "case.mla"


@pytest.mark.parametrize("mmap_mode", ["r", "c", None])
def test_the_direct_call_gives_the_array_that_blosc2_gives(path: Path, mmap_mode: str | None) -> None:
    theirs = blosc2.open(str(path), mode="r", mmap_mode=mmap_mode)
    with MLArray.open(path, mmap_mode=mmap_mode) as image:  # type: ignore[arg-type]
        assert (image.shape, image.dtype) == (theirs.shape, theirs.dtype)
        assert (image._store.chunks, image._store.blocks) == (theirs.chunks, theirs.blocks)
        assert image._store._schunk.cparams == theirs.schunk.cparams
        np.testing.assert_array_equal(image[...], theirs[...], strict=True)


def test_a_blosc2_without_the_direct_call_is_opened_by_its_public_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blosc2, "blosc2_ext", None)
    parameters.frame_opener.cache_clear()
    try:
        assert parameters.frame_opener(blosc2) is not blosc2.open
        with MLArray.open(path) as image:
            np.testing.assert_array_equal(image[1:5, 2, ::3], VOXELS[1:5, 2, ::3], strict=True)
            assert image.spacing == [3, 1, 1]
    finally:
        monkeypatch.undo()
        parameters.frame_opener.cache_clear()


@pytest.mark.parametrize("name", ["none.mla", "folder.mla", "case.mla/inside.mla", "nul\0l.mla", "pipe.mla"])
def test_what_is_no_file_is_missing(path: Path, name: str) -> None:
    (path.parent / "folder.mla").mkdir()
    os.mkfifo(path.parent / "pipe.mla")
    with pytest.raises(MissingFileError, match="There is no file"):
        MLArray.open(path.parent / name)
    with pytest.raises(MissingFileError, match="There is no file"):
        MLArray.load(path.parent / name)
