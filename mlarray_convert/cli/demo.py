"""``mla demo``: a data set of real images that installed packages bring along, converted and read as training would."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from mlarray.errors import MissingDependencyError, UsageError
from mlarray.formats.registry import format_of_name, module_of, open_source
from mlarray.sources.base import SinkOptions, Source, SourceInfo
from mlarray.sources.copy import copy
from mlarray_convert.cli.arguments import GivenPath
from mlarray_convert.cli.render import amount, by, plain, table
from mlarray_convert.report import Report, case_fields

_MARK = ".made-by-mla-demo"
_PATCH = (16, 48, 64)
_READS = 200


@click.command(short_help="Make a small data set, convert it, and read patches from it.")
@click.argument("folder", default="mla-demo", type=GivenPath(file_okay=False), metavar="[DIR]")
def command(folder: Path) -> int:
    """Make a small data set in DIR (default: mla-demo), convert it, and read patches from it.

    The images come with the package nibabel; nothing is downloaded. Running it again starts afresh.
    """
    _claim(folder)
    dataset, converted = folder / "dataset", folder / "dataset_mla"
    _title(1, "A small data set")
    _say(f"Real images from the test data of nibabel, in {dataset}:")
    click.echo(table(["file", "image", "shape", "dtype", "size"], _make_dataset(dataset)))

    _title(2, "Converted")
    again = f"mla convert {dataset} --patch-size {','.join(map(str, _PATCH))}"
    _command(f"{again} --verify full")
    report = _convert(dataset, converted)
    rows = [_row(case_fields(outcome)) for outcome in report.outcomes]
    click.echo(table(["case", "stored as", "before", "after", "status"], rows))
    for outcome in report.outcomes:
        for warning in outcome.warnings:
            _say(f"{outcome.case.name}: {warning}")
    if report.exit_code:
        return int(report.exit_code)

    _title(3, "Read, memory-mapped")
    _read_patches(dataset / "brain" / "EPI.nii.gz", converted / "brain" / "EPI.mla")

    _title(4, "What to try next")
    for line, why in (
        (f"mla info {converted / 'brain' / 'EPI.mla'}", "what the file knows, and why it is laid out like this"),
        (again, "again: everything is up to date"),
        (f"mla convert {dataset} --dry-run", "what would be done, from headers alone"),
        (
            f"mla verify {converted / 'brain' / 'EPI.mla'} --against {dataset / 'brain' / 'EPI.nii.gz'}",
            "every value, and where it lies",
        ),
        (f"mla convert {converted} --to nifti -o {folder / 'back'}", "and back"),
    ):
        _command(line, why)
    return 0


def _convert(dataset: Path, converted: Path) -> Report:
    from mlarray_convert.batch import convert

    return convert(dataset, converted, patch_size=_PATCH, verify="full", if_exists="overwrite")


def _claim(folder: Path) -> None:
    """Make an empty folder of ours; refuse one with foreign files in it."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARK).is_file():
            raise UsageError(
                f"{folder} is not empty and was not made by `mla demo`.", hint="Name another folder: mla demo DIR."
            )
        for name in ("dataset", "dataset_mla"):
            shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch()


def _make_dataset(dataset: Path) -> list[list[str]]:
    """Write the images and return a row for each: name, what it is, shape, dtype, size."""
    made: dict[str, str] = {}
    for name, what, make in (
        ("brain/EPI.nii.gz", "functional MRI, 2 time points", _copy_epi),
        ("brain/SEG.nii.gz", "its brightest voxels, float64", _write_segmentation),
        ("head/T1.mha", "anatomical MRI", _write_metaimage),
        ("rest/BOLD.nrrd", "functional MRI, 20 time points", _write_nrrd),
    ):
        path = dataset / name
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
        made[name] = what
    rows = []
    for name, what in made.items():
        with closing(open_source(dataset / name)) as source:
            size = (dataset / name).stat().st_size
            rows.append([name, what, by(source.spec.shape), str(source.spec.dtype), amount(size)])
    return rows


def _sample(name: str) -> Path:
    """Return an image that the package nibabel brings along."""
    from importlib.util import find_spec

    found = find_spec("nibabel")
    path = Path(found.origin).parent / "tests" / "data" / name if found is not None and found.origin else None
    if path is None or not path.is_file():
        raise MissingDependencyError(f"The demo needs the image {name} of the package nibabel, which is not installed.")
    return path


def _copy_epi(path: Path) -> None:
    shutil.copyfile(_sample("example4d.nii.gz"), path)


def _write_segmentation(path: Path) -> None:
    import numpy as np

    from mlarray import ArraySpec, Region
    from mlarray.sources.memory import ArraySource

    with closing(open_source(_sample("example4d.nii.gz"))) as source:
        spec = source.spec
        first = source.read(Region.at((0, 0, 0, 0), (1, *spec.shape[1:])))[0]
    brightest = (first > np.percentile(first, 90)).astype(np.float64)
    _write(ArraySource(brightest, ArraySpec(brightest.shape, brightest.dtype, spec.axes[1:], spec.geometry)), path)


def _write_metaimage(path: Path) -> None:
    with closing(open_source(_sample("anatomical.nii"))) as source:
        _write(source, path)


def _write_nrrd(path: Path) -> None:
    with closing(open_source(_sample("functional.nii"))) as source:
        _write(source, path)


def _write(source: Source, path: Path) -> None:
    """Write an image as its suffix says, without the header fields of the format it had."""
    row = format_of_name(path)
    assert row is not None
    sink = module_of(row).open_sink(path, source.spec, SourceInfo(), SinkOptions())
    try:
        copy(source, sink, [source.spec.region])
        sink.publish()
    except BaseException:
        sink.abort()
        raise


def _read_patches(original: Path, converted: Path) -> None:
    import numpy as np

    from mlarray import MLArray, Region

    rng = np.random.default_rng(0)
    with closing(open_source(original)) as source, MLArray.open(converted) as array:
        free = [n - p for n, p in zip(array.shape[1:], _PATCH, strict=True)] if array.shape else []
        corners = [(int(rng.integers(2)), *(int(rng.integers(f + 1)) for f in free)) for _ in range(_READS)]
        slices = [(c[0], *(slice(a, a + p) for a, p in zip(c[1:], _PATCH, strict=True))) for c in corners]
        array[slices[0]]  # the first read opens the file
        seconds = _timed(lambda: [array[where] for where in slices])
        some = corners[:5]
        regions = [Region.at(c, (1, *_PATCH)) for c in some]
        slow = _timed(lambda: [source.read(region) for region in regions])
        equal = all(
            np.array_equal(array[where], source.read(region)[0])
            for where, region in zip(slices[:5], regions, strict=True)
        )
        value, position = array[0, 12, 48, 64], array.spec.geometry
        assert position is not None
    click.echo(
        table(
            ["source", "patches", "per patch", "patches per second"],
            [
                [original.name, str(len(some)), f"{slow / len(some) * 1e3:.2f} ms", f"{len(some) / slow:.0f}"],
                [converted.name, str(_READS), f"{seconds / _READS * 1e3:.2f} ms", f"{_READS / seconds:.0f}"],
            ],
        )
    )
    _say(f"Random patches of {by(_PATCH)} voxels; the values of both files are {'equal' if equal else 'NOT EQUAL'}.")
    place = ", ".join(f"{coordinate:.1f}" for coordinate in position.world((12, 48, 64)))
    _say(
        f"Voxel (t, z, y, x) = (0, 12, 48, 64) has the value {value} and lies at {position.coord_system} ({place}) mm."
    )
    click.echo()
    click.echo(click.style("    from mlarray import MLArray", fg="cyan"))
    click.echo(click.style(f"    image = MLArray.open({str(converted)!r})", fg="cyan"))
    click.echo(click.style("    patch = image[0, 4:20, 24:72, 32:96]", fg="cyan"))


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _row(outcome: dict[str, Any]) -> list[str]:
    kind = f"{by(outcome['shape'])} {outcome['dtype']}"
    return [outcome["case"], kind, amount(outcome["bytes_in"]), amount(outcome["bytes_out"]), outcome["status"]]


def _title(number: int, text: str) -> None:
    click.echo()
    click.echo(click.style(f"{number}. {text}", bold=True))


def _say(text: str) -> None:
    click.echo(plain(text))


def _command(text: str, why: str = "") -> None:
    click.echo(click.style("  $ ", dim=True) + click.style(plain(text), fg="cyan") + (f"\n      {why}" if why else ""))
