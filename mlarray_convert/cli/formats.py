"""``mla formats``: the table of formats."""

from __future__ import annotations

import click

from mlarray.formats.table import FORMATS
from mlarray_convert.cli.render import table


@click.command(short_help="List the formats that can be read and written.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(*, as_json: bool) -> int:
    """List the formats that can be read and written."""
    if as_json:
        import json

        rows = [
            {
                "name": row.name,
                "title": row.title,
                "suffixes": list(row.suffixes),
                "writes": row.writes,
                "partial_reads": row.regions,
            }
            for row in FORMATS
        ]
        click.echo(json.dumps(rows, indent=2))
        return 0
    cells = [
        [row.name, row.title, " ".join(row.suffixes), "read, write" if row.writes else "read", row.regions]
        for row in FORMATS
    ]
    click.echo(table(["name", "format", "suffixes", "can", "part of an image without reading all of it"], cells))
    return 0
