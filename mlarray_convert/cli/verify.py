"""``mla verify``: stored checksums, or a comparison with the source."""

from __future__ import annotations

from pathlib import Path

import click

from mlarray.errors import UsageError
from mlarray_convert.cli.arguments import GivenPath, images_in
from mlarray_convert.cli.render import ByteBar, plain
from mlarray_convert.report import ExitCode, json_lines
from mlarray_convert.verify import FileCheck, check_against, check_file


@click.command(short_help="Check files by their checksums, or against their source.")
@click.argument("paths", nargs=-1, required=True, type=GivenPath(), metavar="PATH...")
@click.option("--against", type=GivenPath(), metavar="SOURCE", help="Compare one file with its source.")
@click.option("--json", "as_json", is_flag=True, help="Write one line of JSON per file.")
def command(paths: tuple[Path, ...], against: Path | None, *, as_json: bool) -> int:
    """Check files by their checksums, or against their source.

    Files that have no checksums are decoded from the first to the last voxel. With --against, values and the place of every
    value in the world are compared. A folder stands for the images in it.

    Exit code 6 when a file does not pass.
    """
    files = [file for path in paths for file in images_in(path, broken=True)]
    if against is not None and len(files) != 1:
        raise UsageError(f"--against compares one file with its source, got {len(files)} files.")
    if not files:
        click.echo("There is nothing to verify.", err=True)
        return int(ExitCode.NOTHING)
    ok = True
    for path in files:
        with ByteBar(0 if against is None and path.is_dir() else _decoded_bytes(path, against), path.name) as progress:
            result = (
                check_file(path, progress=progress)
                if against is None
                else check_against(path, against, progress=progress)
            )
        ok &= result.ok
        click.echo(json_lines([_row(result)]) if as_json else _text(result), nl=not as_json)
    return int(ExitCode.OK if ok else ExitCode.VERIFICATION)


def _decoded_bytes(path: Path, against: Path | None) -> int:
    """Return how many bytes of voxels will be looked at, for the progress bar; 0 when the header cannot be read."""
    from contextlib import closing

    from mlarray.errors import MLArrayError
    from mlarray.formats.registry import open_source

    try:
        with closing(open_source(path if against is None else against, mapped=False)) as source:
            return source.spec.nbytes
    except (MLArrayError, OSError):
        return 0


def _row(result: FileCheck) -> dict[str, object]:
    return {
        "path": str(result.path),
        "ok": result.ok,
        "how": result.how,
        "problems": list(result.problems),
        "remarks": list(result.remarks),
    }


def _text(result: FileCheck) -> str:
    word = click.style("ok     ", fg="green") if result.ok else click.style("failed ", fg="red", bold=True)
    lines = [word + plain(f"{result.path}  ({result.how})")]
    lines += ["       " + plain(text) for text in (*result.problems, *result.remarks)]
    return "\n".join(lines)
