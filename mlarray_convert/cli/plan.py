"""``mla plan``: would this chain stream from these files, and what would a patch read?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlarray.errors import MLArrayError, UsageError
from mlarray.formats.registry import open_source
from mlarray_convert.cli.arguments import GivenPath, images_in
from mlarray_convert.cli.render import plain
from mlarray_convert.report import ExitCode, json_lines
from mlarray_convert.request import parse_patch_size

if TYPE_CHECKING:
    from mlarray.transforms import Transform


@click.command(short_help="Show whether a chain of transforms streams, and what a patch reads.")
@click.argument("paths", nargs=-1, required=True, type=GivenPath(), metavar="PATH...")
@click.option("--chain", "chain_file", required=True, type=GivenPath(), metavar="FILE", help="Transforms, as YAML.")
@click.option("--patch-size", metavar="SIZE", help="Of the result, like 64 or 64,128,128; default: the whole volume.")
@click.option("--strict", is_flag=True, help="Follow the published rules to the letter.")
@click.option("--json", "as_json", is_flag=True, help="Write one line of JSON per file.")
def command(
    paths: tuple[Path, ...],
    chain_file: Path,
    patch_size: str | None,
    *,
    strict: bool,
    as_json: bool,
) -> int:
    """Show, for each image, whether a chain of transforms streams, and what a patch of its result reads.

    Only headers are read. A folder stands for the images in it.
    """
    from mlarray.streaming.config import load_chain

    chain = load_chain(chain_file)
    patch = None if patch_size is None else parse_patch_size(patch_size)
    if isinstance(patch, str):
        raise UsageError("--patch-size takes extents, like 64 or 64,128,128.")
    files = [file for path in paths for file in images_in(path)]
    if not files:
        click.echo("There is nothing to plan.", err=True)
        return int(ExitCode.NOTHING)
    failed = 0
    for file in files:
        text, row = _planned(file, chain, patch, strict=strict)
        failed += "error" in row
        click.echo(json_lines([row]) if as_json else plain(text, keep="\n"), nl=not as_json)
    if failed == len(files):
        return int(ExitCode.ALL_FAILED)
    return int(ExitCode.SOME_FAILED if failed else ExitCode.OK)


def _planned(
    file: Path, chain: Sequence[Transform], patch: int | Sequence[int] | None, *, strict: bool
) -> tuple[str, dict[str, object]]:
    from mlarray.streaming import plan

    try:
        with open_source(file) as source:
            told = plan(
                source, chain, patch_size=patch, strict=strict, case=str(file), measure=False, opener=open_source
            ).explain()
    except (MLArrayError, OSError) as error:
        return f"{file}: {error}", {"case": str(file), "error": str(error)}
    return str(told), told.as_dict()
