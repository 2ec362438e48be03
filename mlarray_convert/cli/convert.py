"""``mla convert``: options in, :func:`mlarray_convert.batch.run_request`, text and JSON out."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import click

from mlarray.errors import UsageError
from mlarray.formats.plugins import all_formats
from mlarray.layout import DEFAULT_LAYOUT, NAMED_LAYOUTS
from mlarray.storage.publish import named_errors
from mlarray_convert.batch import Ended, Event, Found, run_request
from mlarray_convert.cli.arguments import GivenPath
from mlarray_convert.cli.render import ConvertView
from mlarray_convert.report import Report, case_fields, json_lines
from mlarray_convert.request import IfExists, IrregularSlices, Request, Verify, make_request
from mlarray_convert.run import Outcome

_TARGETS = [row.name for row in all_formats() if row.writes]


@click.command(short_help="Convert files and data sets, by default to .mla.")
@click.argument("inputs", nargs=-1, required=True, type=GivenPath(), metavar="IN...")
@click.option("-o", "--output", type=GivenPath(), metavar="OUT", help="Folder, or for one input file also a file.")
@click.option("--to", type=click.Choice(_TARGETS), help="Target format.  [default: by the suffix of OUT, else mla]")
@click.option("--patch-size", metavar="N|N,N,N", help="Patch that will be read; chunks follow from it.  [default: 192]")
@click.option("--layout", type=click.Choice(list(NAMED_LAYOUTS)),
              help=f"How large blocks and chunks may be.  [default: {DEFAULT_LAYOUT}]")  # fmt: skip
@click.option("--codec", metavar="NAME[-LEVEL]", help="Compression of HDF5: gzip, blosc2, none.  [default: gzip]")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Worker processes.  [default: as many as fit]")
@click.option("--memory", metavar="SIZE", help="Limit of each worker, such as 8GB.  [default: 80 % of what is free]")
@click.option("--if-exists", type=click.Choice([one.value for one in IfExists]), default="skip", show_default=True,
              help="skip: keep outputs that are up to date, make stale ones again.")  # fmt: skip
@click.option("--verify", type=click.Choice([one.value for one in Verify]), default="quick", show_default=True,
              help="How an output is checked before it gets its name.")  # fmt: skip
@click.option("--labels", metavar="auto|none|GLOB", default="auto", show_default=True,
              help="Which files are segmentations.")  # fmt: skip
@click.option("--item", "--dataset", "--level", "item", metavar="NAME",
              help="Which image of files that hold several; also FILE@NAME as an input.")  # fmt: skip
@click.option("--axes", metavar="NAMES", help="Names of the axes, such as czyx, for files that do not state them.")
@click.option("--spacing", metavar="N|N,N,N", help="Spacing in millimetres, for files that do not state it.")
@click.option("--slice-tolerance", type=float, metavar="X", default=0.01, show_default=True,
              help="DICOM: how uneven the steps between slices may be, as a part of the median step.")  # fmt: skip
@click.option("--orientation-tolerance", type=float, metavar="X", default=1e-4, show_default=True,
              help="DICOM: how far direction cosines of the slices of one volume may differ.")  # fmt: skip
@click.option("--irregular-slices", type=click.Choice([one.value for one in IrregularSlices]), default="refuse",
              show_default=True, help="DICOM: what becomes of series with gaps; keep marks the spacing unknown.")  # fmt: skip
@click.option("--keep-private", is_flag=True, help="DICOM: keep all header fields, names of persons too.")
@click.option("--ome-version", type=click.Choice(["0.5", "0.4"]), help="Version of OME-Zarr.  [default: 0.5]")
@click.option("--shards", metavar="auto|N|N,N,N", help="Extents of the shards of an OME-Zarr.  [default: no shards]")
@click.option("--statistics", is_flag=True,
              help="Measure images and store minimum, maximum, mean and deviation for `mlarray.streaming`.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Read headers, show the plan, write nothing.")
@click.option("--fail-fast", is_flag=True, help="Stop at the first case that fails.")
@click.option("--scheduler", metavar="ADDRESS|FILE|local",
              help="Work on a Dask cluster: its scheduler's address or file, or local.")  # fmt: skip
@click.option("--shard", metavar="I/N", help="Take the I-th of N parts of the cases, as for an array job.")
@click.option("--json", "json_path", metavar="FILE|-", help="Write one line of JSON per case, and a summary line.")
@click.option("-q", "--quiet", is_flag=True, help="Show failures only.")
@click.option("-v", "--verbose", is_flag=True, help="Show every note, and tracebacks.")
def command(inputs: tuple[Path, ...], json_path: str | None, **options: Any) -> int:
    """Convert files and data sets, by default to .mla.

    A folder is converted with all its subfolders: `mla convert DATASET/` writes DATASET_mla/ beside it. Segmentations are
    recognised by the names of files and folders and stored in the smallest integer type that holds them.

    Cases that fail do not stop the others. A second run skips what is up to date.

    \b
    Exit codes: 0 all converted or up to date, 2 wrong use, 3 nothing to convert,
    4 some cases failed, 5 all failed, 6 verification failed, 7 the cluster was lost,
    130 interrupted.
    """  # noqa: D301  click's mark for lines that stay as they are is the backspace character itself
    quiet, verbose = options.pop("quiet"), options.pop("verbose")
    if quiet and verbose:
        raise UsageError("--quiet and --verbose exclude each other.")
    request = make_request(inputs, **options)
    view = ConvertView(quiet=quiet, verbose=verbose, dry_run=request.dry_run)
    with _opened(json_path) as stream:
        collector = _Collector(view, stream)
        try:
            report = run_request(request, on_event=collector)
        except KeyboardInterrupt:
            report = collector.interrupted(request)
        finally:
            view.close()
        if stream is not None:
            stream.write(json_lines([report.summary()]))
            stream.flush()
    view.summary(report)
    return int(report.exit_code)


class _Collector:
    """Keeps what arrived, so that an interrupted run can still be reported."""

    def __init__(self, view: ConvertView, stream: TextIO | None) -> None:
        self._view = view
        self._stream = stream
        self._outcomes: dict[int, Outcome] = {}
        self._names: tuple[str, ...] = ()
        self._elsewhere = 0
        self._began = time.perf_counter()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Found):
            self._names = tuple(case.name for case in event.discovery.cases)
            self._elsewhere = event.elsewhere
        if isinstance(event, Ended):
            self._outcomes[event.index] = event.outcome
            if self._stream is not None:
                with named_errors(Path(getattr(self._stream, "name", "the report"))):
                    self._stream.write(json_lines([case_fields(event.outcome)]))
                    self._stream.flush()
        self._view(event)

    def interrupted(self, request: Request) -> Report:
        """Return the report of a run that did not end by itself."""
        done = tuple(self._outcomes[index] for index in sorted(self._outcomes))
        rest = tuple(name for index, name in enumerate(self._names) if index not in self._outcomes)
        seconds = time.perf_counter() - self._began
        return Report(
            *(done, seconds, request.dry_run, rest),
            interrupted=True,
            shard=request.shard,
            elsewhere=self._elsewhere,
        )


@contextlib.contextmanager
def _opened(path: str | None) -> Iterator[TextIO | None]:
    if path is None:
        yield None
    elif path == "-":
        yield sys.stdout
    else:
        try:
            file = Path(path).open("w", encoding="ascii")  # noqa: SIM115  closed below; only opening is wrong use
        except OSError as error:
            raise UsageError(f"The report {path!r} cannot be written: {error.strerror}.") from error
        try:
            yield file
        finally:
            with named_errors(Path(path)):
                file.close()
