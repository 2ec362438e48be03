"""The command ``mla``: a group whose commands are imported when they are used.

``mla --help`` shows what there is without loading numpy or any imaging library, so it answers at once. Errors end here: one
line that says what happened and what to do, and an exit code; the traceback of an unexpected one only with ``-v``.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from typing import TextIO

import click

from mlarray_convert.cli.render import error_text, plain

_COMMANDS = {
    "convert": ("convert", "Convert files and data sets, by default to .mla."),
    "report": ("report", "Join the reports of several runs."),
    "info": ("info", "Show what the header of an image says."),
    "verify": ("verify", "Check files by their checksums, or against their source."),
    "formats": ("formats", "List the formats that can be read and written."),
    "plan": ("plan", "Show whether a chain of transforms streams, and what a patch reads."),
    "stream": ("stream", "Show or measure a patch stream that a YAML file describes."),
    "bench": ("bench", "Measure which layout reads your patches fastest."),
    "demo": ("demo", "Make a small data set, convert it, and read patches from it."),
}
_INTERNAL, _USAGE, _FAILED, _INTERRUPTED = 1, 2, 4, 130


class LazyGroup(click.Group):
    """A group that knows names and help lines of its commands and imports a command when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order in which people need them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"mlarray_convert.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _show_version(ctx: click.Context, option: click.Parameter, value: bool) -> None:  # noqa: FBT001  click calls it so
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"mla {version('mlarray')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
)
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of an unexpected error.")
@click.pass_context
def group(context: click.Context) -> int:
    """Store medical images for training: fast patches, no loss, geometry kept.

    Start with `mla demo`, or with `mla convert DATASET/`, which writes DATASET_mla/ beside it.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        return _USAGE
    return 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.unraisablehook = _interrupt_again
    warnings.showwarning = _show_warning
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def _interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
    """Give an interrupt again that came while an object was being freed, where Python drops exceptions."""
    if isinstance(dropped.exc_value, KeyboardInterrupt):
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(dropped)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning as one line for people; where in the code it arose helps nobody here."""
    click.echo(click.style("Warning: ", fg="yellow", bold=True) + plain(str(message)), err=True)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    try:
        result = group.main(list(arguments), prog_name="mla", standalone_mode=False)
        return int(result or 0)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        if context is not None:
            click.echo(context.get_usage(), err=True)
        hint = f"`{context.command_path} --help` shows the options." if context is not None else ""
        click.echo(error_text(error.format_message(), hint), err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("Interrupted.", err=True)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _INTERNAL
    except Exception as error:
        return _told(error, verbose=any(argument in ("-v", "--verbose") for argument in arguments))


def _told(error: Exception, *, verbose: bool) -> int:
    from mlarray.errors import MLArrayError, UsageError

    if isinstance(error, MLArrayError | OSError):
        click.echo(error_text(str(error)), err=True)
        usage = isinstance(error, UsageError | FileNotFoundError)
        return _USAGE if usage else _FAILED
    if verbose:
        click.echo(plain(traceback.format_exc(), keep="\n\t"), err=True, nl=False)
    told = " ".join(str(error).split())
    click.echo(
        error_text(f"Unexpected {type(error).__name__}: {told}", "Run again with -v for the traceback."), err=True
    )
    return _INTERNAL
