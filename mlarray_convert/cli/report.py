"""``mla report``: the reports of several runs in, what failed over all of them out."""

from __future__ import annotations

from pathlib import Path

import click

from mlarray.errors import UsageError
from mlarray.limits import REPORT_BYTES
from mlarray_convert.cli.arguments import GivenPath
from mlarray_convert.cli.render import ConvertView
from mlarray_convert.joined import join_reports
from mlarray_convert.report import case_fields, json_lines


@click.command(short_help="Join the reports of several runs.")
@click.argument("files", nargs=-1, required=True, type=GivenPath(), metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="Write the failed cases and the sums as lines of JSON.")
def command(files: tuple[Path, ...], *, as_json: bool) -> int:
    """Join the reports of several runs: what failed, what is missing, the sums.

    FILEs are what `mla convert --json FILE` wrote, for example one for each part of an array job, the oldest first. The exit
    code is that of one run over all cases; 4 also when a part has no report, or one that ends early.
    """
    joined = join_reports((str(path), _text(path)) for path in files)
    if as_json:
        rows = [case_fields(outcome) for outcome in joined.report.failed]
        summary = {**joined.report.summary(), "problems": list(joined.problems), "exit_code": int(joined.exit_code)}
        click.echo(json_lines([*rows, summary]), nl=False)
    view = ConvertView(quiet=False, verbose=False, dry_run=joined.report.dry_run)
    for problem in joined.problems:
        view.remark(problem)
    view.summary(joined.report)
    return int(joined.exit_code)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(REPORT_BYTES + 1)
        if len(content) > REPORT_BYTES:
            raise UsageError(f"The report {path} has more than {REPORT_BYTES} bytes.", hint=REPORT_BYTES.hint)
        return content.decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The report {path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
