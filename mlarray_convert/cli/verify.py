"""``mla verify``: stored checksums, a comparison with the source, or what can be saved of a damaged file."""

from __future__ import annotations

from pathlib import Path

import click

from mlarray.errors import UsageError
from mlarray.storage.integrity import METADATA_RECORD
from mlarray.storage.salvage import Salvaged
from mlarray_convert.cli.arguments import GivenPath, images_in
from mlarray_convert.cli.render import ByteBar, plain
from mlarray_convert.report import ExitCode, json_lines
from mlarray_convert.verify import FileCheck, check_against, check_file, salvaged

_SHOWN_REGIONS = 5


@click.command(short_help="Check files by their checksums, or against their source.")
@click.argument("paths", nargs=-1, required=True, type=GivenPath(), metavar="PATH...")
@click.option("--against", type=GivenPath(), metavar="SOURCE", help="Compare one file with its source.")
@click.option("--salvage", type=GivenPath(), metavar="OUT", help="Write what is intact of one .mla to a new file.")
@click.option("--json", "as_json", is_flag=True, help="Write one line of JSON per file.")
def command(paths: tuple[Path, ...], against: Path | None, salvage: Path | None, *, as_json: bool) -> int:
    """Check files by their checksums, or against their source.

    Files that have no checksums are decoded from the first to the last voxel. With --against, values and the place of every
    value in the world are compared. A folder stands for the images in it. With --salvage, the chunks and records of a damaged or
    unfinished .mla that are intact are written to a new file; voxels that are lost are 0 there.

    Exit code 6 when a file does not pass, or something of it is lost.
    """
    if salvage is not None:
        return _salvage(paths, salvage, against, as_json=as_json)
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


def _salvage(paths: tuple[Path, ...], target: Path, against: Path | None, *, as_json: bool) -> int:
    if len(paths) != 1 or against is not None:
        raise UsageError(
            f"--salvage writes what is intact of one file, got {len(paths)} paths"
            f"{' and --against' if against is not None else ''}."
        )
    kept = salvaged(paths[0], target)
    complete = not kept.lost and not kept.lost_records
    row = {
        "path": str(paths[0]),
        "salvaged": str(kept.path),
        "ok": complete,
        "chunks": kept.chunk_count,
        "lost": [[list(region.start), list(region.stop)] for region in kept.lost],
        "unwritten_chunks": kept.unwritten,
        "lost_records": list(kept.lost_records),
    }
    click.echo(json_lines([row]) if as_json else _salvaged_text(kept), nl=not as_json)
    return int(ExitCode.OK if complete else ExitCode.VERIFICATION)


def _salvaged_text(kept: Salvaged) -> str:
    whole = kept.chunk_count - len(kept.lost) - kept.unwritten
    lines = [plain(f"{kept.path}  ({whole} of {kept.chunk_count} chunks)")]
    if kept.unwritten:
        lines.append(f"       {kept.unwritten} chunks had not been written; their voxels are 0.")
    shown = ", ".join(f"{region.start} to {region.stop}" for region in kept.lost[:_SHOWN_REGIONS])
    more = len(kept.lost) - _SHOWN_REGIONS
    if kept.lost:
        lines.append(f"       Lost, and 0 here: voxels {shown}{f' and of {more} chunks more' if more > 0 else ''}.")
    if METADATA_RECORD in kept.lost_records:
        lines.append("       The metadata is lost, and with it the geometry.")
    others = [name for name in kept.lost_records if name != METADATA_RECORD]
    if others:
        lines.append(plain(f"       Lost beside the array: {', '.join(others)}."))
    return "\n".join(lines)


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
