"""``mla plan``: would this chain stream from these files, and what would a patch read?"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlarray.errors import MLArrayError, UsageError
from mlarray.formats.registry import open_source
from mlarray_convert.cli.arguments import GivenPath
from mlarray_convert.cli.cases import Image, images_of
from mlarray_convert.cli.render import plain
from mlarray_convert.report import ExitCode, json_lines
from mlarray_convert.request import parse_patch_size

if TYPE_CHECKING:
    from mlarray.streaming import Plan
    from mlarray.streaming.config import Recipe

_WIDEST = 120


@click.command(short_help="Show whether a chain of transforms streams, and what a patch reads.")
@click.argument("paths", nargs=-1, required=True, type=GivenPath(), metavar="PATH...")
@click.option("--chain", "chain_file", required=True, type=GivenPath(), metavar="FILE",
              help="Transforms, and perhaps augmentations, as YAML.")  # fmt: skip
@click.option("--patch-size", metavar="SIZE", help="Of the result, like 64 or 64,128,128; default: the whole volume.")
@click.option(
    "--group", metavar="NAME", help="Only images called so, of a tree CASE/NAME.mla or a file with /NAME/CASE."
)
@click.option("--copy", type=click.IntRange(min=0), default=0, metavar="N",
              help="Which copy of a case the augmentations make; 0 is the case itself.")  # fmt: skip
@click.option("--seed", type=int, default=0, metavar="N", help="Of the draws of augmentations.")
@click.option("--strict", is_flag=True, help="Follow the published rules to the letter.")
@click.option("--json", "as_json", is_flag=True, help="Write one line of JSON per image.")
def command(
    paths: tuple[Path, ...],
    chain_file: Path,
    patch_size: str | None,
    group: str | None,
    copy: int,
    seed: int,
    *,
    strict: bool,
    as_json: bool,
) -> int:
    """Show, for each image, whether a chain of transforms streams, and what a patch of its result reads.

    Only headers are read. A folder stands for the images in it, a file that holds several for all of them. Masks and references
    that the chain names are looked for beside each image: in the same folder, or under the same case.

    With augmentations in the file, each copy that they make of a case is judged too.
    """
    from mlarray.streaming.config import load_recipe

    recipe = load_recipe(chain_file)
    if copy > recipe.copies:
        raise UsageError(f"There is no copy {copy}: the augmentations of {chain_file} make {recipe.copies}.")
    patch = None if patch_size is None else parse_patch_size(patch_size)
    if isinstance(patch, str):
        raise UsageError("--patch-size takes extents, like 64 or 64,128,128.")
    images = images_of(paths, group=group)
    if not images:
        click.echo("There is nothing to plan.", err=True)
        return int(ExitCode.NOTHING)
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    settings = {"patch_size": patch, "strict": strict, "seed": seed, "group": group}
    failed = 0
    for image in images:
        text, row = _planned(image, recipe, copy, settings, width)
        failed += bool(row.get("error") or row.get("problems"))
        click.echo(json_lines([row]) if as_json else plain(text, keep="\n"), nl=not as_json)
    if failed == len(images):
        return int(ExitCode.ALL_FAILED)
    return int(ExitCode.SOME_FAILED if failed else ExitCode.OK)


def _planned(
    image: Image, recipe: Recipe, copy: int, settings: dict[str, Any], width: int
) -> tuple[str, dict[str, object]]:
    named: dict[str, object] = {"case": str(image.place), "group": image.group}
    try:
        with ExitStack() as stack:
            source = stack.enter_context(open_source(image.place))

            def planned(number: int, **groups: Any) -> Plan:
                from mlarray.streaming import plan

                lists = {"augmentations": recipe.augmentations, "copy": number} if recipe.augmentations else {}
                own = {**settings, **lists, **groups, "case": image.case, "measure": False, "opener": open_source}
                return plan(source, recipe.transforms, **own)

            places = {name: image.beside(name) for name in _wanted(planned(0), recipe)}
            groups = {name: stack.enter_context(open_source(place)) for name, place in places.items() if place}
            told = replace(planned(copy, groups=groups).explain(), case=str(image.place))
            others = [] if copy else [_judged(planned(one, groups=groups), one) for one in range(1, recipe.copies + 1)]
    except (MLArrayError, OSError) as error:
        return f"{image.place}: {error}", {**named, "error": str(error)}
    text = "\n".join([told.text(width), *_copies_told(others)])
    return text, {**told.as_dict(), **named, **({"copies": others} if others else {})}


def _wanted(planned: Plan, recipe: Recipe) -> Sequence[str]:
    from mlarray.transforms.augmentations.lists import wanted_groups

    return tuple(dict.fromkeys((*planned.wanted_groups, *wanted_groups(recipe.augmentations))))


def _judged(planned: Plan, copy: int) -> dict[str, object]:
    return {"copy": copy, **planned.explain().as_dict()["verdict"]}  # type: ignore[dict-item]


def _copies_told(copies: Sequence[dict[str, object]]) -> list[str]:
    if not copies:
        return []
    loaded = [one for one in copies if one["regime"] != "stream"]
    lines = [f"  {len(copies)} copies: {len(copies) - len(loaded)} stream, {len(loaded)} are buffered."]
    return lines + [f"    copy {one['copy']}: {one['reason']}" for one in loaded]
