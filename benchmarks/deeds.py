"""What a program may be doing when it dies or when the disk is full, and what it may leave: kills.py and full_disk.py do it.

Each deed writes into a folder of its own. ``look`` says what the folder holds afterwards: ``"old"``, ``"new"``, ``"absent"`` or
``"unfinished"``, and raises for everything else: a file that can be read and is neither.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mlarray import MLArray, open_source
from mlarray import transforms as T
from mlarray.errors import MissingFileError, UnfinishedError
from mlarray.region import Region
from mlarray.storage import integrity
from mlarray.storage.blosc import open_store
from mlarray.storage.integrity import IntegrityState
from mlarray.streaming import PatchStream, PatchWriter, class_locations, plan, record_statistics
from mlarray.streaming.kept import Kept

SHAPE = (40, 60, 70)
CASES = 3
SUFFIXES = (".mla", ".b2nd", ".nii", ".nii.gz", ".mha", ".nrrd", ".h5", ".ome.zarr")


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that writes.

    Parameters
    ----------
    prepare, do : callable
        Take the folder.
    look : callable
        Returns what the folder holds.
    may_leave : tuple of str
        What ``look`` may say after a death.
    """

    prepare: Callable[[Path], object]
    do: Callable[[Path], object]
    look: Callable[[Path], str]
    may_leave: tuple[str, ...] = ("old", "new")


def voxels(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Return values that compress like an image: the same for one seed."""
    rng = np.random.default_rng(seed)
    found: np.ndarray = (rng.normal(0, 4, shape).cumsum(0) + seed * 1000).astype(np.int16)
    return found


def image(seed: int) -> MLArray:
    return MLArray(voxels(seed), axes="zyx", spacing=(2, 1, 1), chunk_size=16, block_size=8, meta={"seed": seed})


def run_mla(*arguments: str) -> None:
    """Run a command as the shell would; an exit code other than 0 ends the process with it."""
    from mlarray_convert.cli import run

    code = run(list(arguments))
    if code:
        raise SystemExit(code)


# --- one .mla file ---------------------------------------------------------------------------------------------------


def save_old(folder: Path) -> None:
    image(1).save(folder / "a.mla")


def save_new(folder: Path) -> None:
    image(2).save(folder / "a.mla")


def create_new(folder: Path, *, mmap_mode: Any) -> None:
    with MLArray.create(
        folder / "a.mla",
        SHAPE,
        np.int16,
        {"seed": 2},
        mmap_mode=mmap_mode,
        axes="zyx",
        chunk_size=16,
        block_size=8,
    ) as made:
        new = voxels(2)
        for start in range(0, SHAPE[0], 6):
            made[start : start + 6] = new[start : start + 6]


def change(folder: Path, *, mmap_mode: Any) -> None:
    new = voxels(2)
    with MLArray.open(folder / "a.mla", "a", mmap_mode) as changed:
        for start in range(0, SHAPE[0], 6):
            changed[start : start + 6] = new[start : start + 6]
        changed.meta.source["seed"] = 2


def change_metadata(folder: Path) -> None:
    with MLArray.open(folder / "a.mla", mmap_mode="r+") as changed:
        changed.meta.source["seed"] = 2


def measure(folder: Path) -> None:
    record_statistics(open_source(folder / "a.mla"))


def state_of(path: Path, *, whole: bool = True) -> str:
    """Return what a file written by one of the functions above holds."""
    told = ""
    try:
        found = MLArray.open(path)
    except MissingFileError:
        return "absent"
    except UnfinishedError as error:
        told = str(error)
    if told:
        assert f"mla verify --salvage OUT {path}" in told
        return "unfinished"
    seed = found.meta.source["seed"]
    expected = seed if whole else 1
    np.testing.assert_array_equal(found[...], voxels(expected))
    assert found.spacing == ([2, 1, 1] if seed == 1 or not whole else found.spacing)
    assert integrity.check(open_store(path)).state is IntegrityState.INTACT
    return "old" if seed == 1 else "new"


def look_at_one(folder: Path, *, whole: bool = True) -> str:
    return state_of(folder / "a.mla", whole=whole)


def look_at_measured(folder: Path) -> str:
    assert look_at_one(folder) == "old"
    return "old" if open_source(folder / "a.mla").kept_statistics() is None else "new"  # type: ignore[attr-defined]


# --- conversions -----------------------------------------------------------------------------------------------------


def fill_inputs(folder: Path, *, suffix: str, cases: int = CASES) -> None:
    """Make inputs of seed 2, and outputs that were made of inputs of seed 1."""
    (folder / "in").mkdir()
    for seed in (1, 2):
        for number in range(cases):
            np.save(folder / "in" / f"c{number}.npy", voxels(10 * number + seed))
        if seed == 1:
            convert(folder, suffix=suffix, cases=cases)


def convert(folder: Path, *, suffix: str, cases: int = CASES) -> None:
    """Convert one file in this process, or a folder in two worker processes."""
    source, output = folder / "in", folder / "out"
    if cases == 1:
        source, output = source / "c0.npy", output / f"c0{suffix}"
    chunks = ("--patch-size", "16") if suffix in (".mla", ".b2nd", ".h5", ".ome.zarr") else ()
    given = ("--axes", "zyx", "--spacing", "2,1,1", "--if-exists", "overwrite", "-q", "--workers", str(min(2, cases)))
    run_mla("convert", str(source), "-o", str(output), *given, *chunks)


def look_at_outputs(folder: Path, *, suffix: str, cases: int = CASES) -> str:
    """Return the least of what the outputs are; each is old or new."""
    found = []
    for number in range(cases):
        path = folder / "out" / f"c{number}{suffix}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = open_source(path, mapped=False)
        values = source.read(source.spec.region).reshape(SHAPE)
        seed = int(np.rint(float(values[0].mean()) / 1000))
        np.testing.assert_array_equal(values, voxels(seed).astype(values.dtype))
        assert seed in (10 * number + 1, 10 * number + 2)
        found.append("old" if seed == 10 * number + 1 else "new")
        source.close()
    return min(found, key=["old", "new"].index)


# --- streams ---------------------------------------------------------------------------------------------------------

CHAIN = (T.ResampleToResolution([1.5, 1.5, 1.5]), T.Clip(-2000, 2000))


def fill_stream(folder: Path) -> None:
    for number in range(CASES):
        path = folder / "data" / f"p{number}" / "CT.mla"
        path.parent.mkdir(parents=True)
        MLArray(voxels(number).astype(np.float32), axes="zyx", spacing=(2, 1, 1), patch_size=16).save(path)


def prepare_stream(folder: Path) -> None:
    chain = [*CHAIN, T.Save(str(folder / "saved")), T.Clip(-1, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        PatchStream(folder / "data", {"CT": chain}, patch_size=16, mode="predict").prepare()


def look_at_saved(folder: Path) -> str:
    """Return whether all is saved; what is there must be whole."""
    count = 0
    for number in range(CASES):
        expected = plan(open_source(folder / "data" / f"p{number}" / "CT.mla"), CHAIN)
        for path in (folder / "saved").glob(f"p{number}*/*.mla") if (folder / "saved").is_dir() else ():
            if path.name.startswith("."):
                continue
            source = open_source(path)
            values = expected.read(Region.full(expected.result.shape))
            np.testing.assert_array_equal(source.read(source.spec.region).reshape(values.shape), values)
            count += 1
    return "new" if count == CASES else "absent"


def write_patches(folder: Path, *, suffix: str = ".mla") -> None:
    made = plan(open_source(folder / "data" / "p0" / "CT.mla"), CHAIN, patch_size=16)
    with PatchWriter(folder / f"seg{suffix}", made, channels=2, finish=[T.Argmax()], memory=1 << 20) as writer:
        for target in made.grid:
            patch = made.read(target)
            writer.add(target, np.concatenate([0 * patch + 1, patch]))


def look_at_patches(folder: Path, *, suffix: str = ".mla") -> str:
    path = folder / f"seg{suffix}"
    if not path.exists():
        return "absent"
    source = open_source(path)
    values = source.read(source.spec.region)
    assert values.shape == SHAPE
    assert 0 < float(values.mean()) < 1
    return "new"


def locate_classes(folder: Path) -> None:
    """Keep places of labels and other results beside the data."""
    kept = Kept(folder / "kept", root=folder)
    made = plan(open_source(folder / "data" / "p0" / "CT.mla"), [T.Clip(0, 3), T.TensorCast("uint8")])
    found = class_locations(made, limit=50)
    kept.put("classes", {"type": type(found).__name__, "numbers": np.arange(1000)})  # or is measured again


def look_at_kept(folder: Path) -> str:
    found = Kept(folder / "kept", root=folder).get("classes")
    return "absent" if found is None else "new"


# --- bench -----------------------------------------------------------------------------------------------------------


def measure_layouts(folder: Path) -> None:
    arguments = ("--scratch", str(folder), "--seconds", "0.5", "--readers", "1", "--patch-size", "16")
    reports = ("--json", str(folder / "bench.json"), "--plot", str(folder / "bench.html"))
    run_mla("bench", str(folder / "a.mla"), *arguments, *reports)


def look_at_reports(folder: Path) -> str:
    import json

    assert look_at_one(folder) == "old"
    path = folder / "bench.json"
    if not path.exists():
        return "absent"
    return "old" if json.loads(path.read_text()) == {"old": 1} else "new"


def fill_reports(folder: Path) -> None:
    save_old(folder)
    (folder / "bench.json").write_text('{"old": 1}')


def deeds() -> Iterator[tuple[str, Deed]]:
    """Yield every deed by name."""
    marked = ("old", "unfinished", "new")
    yield "save", Deed(save_old, save_new, look_at_one)
    yield "create-mapped", Deed(save_old, partial(create_new, mmap_mode="w+"), look_at_one, marked)
    yield "create", Deed(save_old, partial(create_new, mmap_mode=None), look_at_one, marked)
    yield "change-mapped", Deed(save_old, partial(change, mmap_mode="r+"), look_at_one)
    yield "change", Deed(save_old, partial(change, mmap_mode=None), look_at_one)
    yield "metadata", Deed(save_old, change_metadata, partial(look_at_one, whole=False))
    yield "statistics", Deed(save_old, measure, look_at_measured)
    yield "Save", Deed(fill_stream, prepare_stream, look_at_saved, ("absent", "new"))
    yield "PatchWriter", Deed(fill_stream, write_patches, look_at_patches, ("absent", "new"))
    for suffix in SUFFIXES[1:]:
        yield (
            f"PatchWriter{suffix}",
            Deed(
                fill_stream,
                partial(write_patches, suffix=suffix),
                partial(look_at_patches, suffix=suffix),
                ("absent", "new"),
            ),
        )
    yield "kept", Deed(fill_stream, locate_classes, look_at_kept, ("absent", "new"))
    yield "bench", Deed(fill_reports, measure_layouts, look_at_reports)
    yield "convert-pool", _conversion(".mla")
    for suffix in SUFFIXES:
        yield f"convert{suffix}", _conversion(suffix, cases=1)


def _conversion(suffix: str, *, cases: int = CASES) -> Deed:
    return Deed(
        partial(fill_inputs, suffix=suffix, cases=cases),
        partial(convert, suffix=suffix, cases=cases),
        partial(look_at_outputs, suffix=suffix, cases=cases),
    )


def emptied(folder: Path) -> Path:
    """Return the folder, made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
