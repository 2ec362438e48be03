"""``mla formats``: the table of formats, and what there is to know about one."""

from __future__ import annotations

import click

from mlarray.formats.plugins import all_formats
from mlarray.formats.registry import format_named
from mlarray_convert.cli.render import fields, plain, table


@click.command(short_help="List the formats that can be read and written.")
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Write the tables of the reference page.")
def command(name: str | None, *, as_json: bool, as_markdown: bool) -> int:
    """List the formats that can be read and written; with a NAME, tell what one keeps and leaves out."""
    rows = all_formats() if name is None else (format_named(name),)
    if as_markdown:
        from mlarray.formats.guide import overview

        click.echo(overview(rows))
        return 0
    if as_json:
        import json

        listed = [
            {
                "name": row.name,
                "title": row.title,
                "suffixes": list(row.suffixes),
                "writes": row.writes,
                "partial_reads": row.regions,
            }
            | ({"package": row.package} if row.package else {})
            for row in rows
        ]
        click.echo(json.dumps(listed, indent=2))
        return 0
    if name is not None:
        click.echo(_told(name))
        return 0
    cells = [
        [row.name, row.title, " ".join(row.suffixes), "read, write" if row.writes else "read", row.regions]
        for row in rows
    ]
    click.echo(table(["name", "format", "suffixes", "can", "part of an image without reading all of it"], cells))
    click.echo(plain("`mla formats NAME` tells what a format keeps."))
    return 0


def _told(name: str) -> str:
    from mlarray.formats.guide import guide_of

    guide = guide_of(format_named(name))
    row = guide.row
    facts: dict[str, object] = {
        "format": row.title,
        "suffixes": " ".join(row.suffixes),
        "can": guide.abilities,
        "partial reads": row.regions,
        "several images": guide.several,
        "reading leaves out": plain(guide.not_read),
        "writing leaves out": plain(guide.not_written or "not written"),
        "package": row.package or "built in",
    }
    return f"{fields(facts)}\n\n{plain(guide.about, keep=chr(10))}"
