"""``mla stream``: what will a patch stream do, and how fast and in how much memory does it do it?"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlarray_convert.cli.arguments import GivenPath
from mlarray_convert.cli.render import plain
from mlarray_convert.report import ExitCode, json_lines

if TYPE_CHECKING:
    from mlarray.streaming import PatchStream
    from mlarray.streaming.meter import Rate


@click.group(no_args_is_help=False, short_help="Show or measure a patch stream that a YAML file describes.")
def command() -> None:
    """Show or measure the patch stream that a YAML file describes."""


@command.command(short_help="Show what is cached, streamed and buffered, and why.")
@click.argument("config", type=GivenPath(), metavar="STREAM.YAML")
@click.option("--json", "as_json", is_flag=True, help="Write one line of JSON.")
def plan(config: Path, *, as_json: bool) -> int:
    """Show what the stream will do: cases, regimes, memory, and what a patch reads. Only headers are read."""
    from mlarray.streaming import PatchStream

    stream = PatchStream.from_config(config)
    click.echo(json_lines([_facts(stream)]) if as_json else plain(stream.explain(), keep="\n"), nl=not as_json)
    return int(ExitCode.OK)


@command.command(short_help="Measure patches per second and memory.")
@click.argument("config", type=GivenPath(), metavar="STREAM.YAML")
@click.option(
    "--batches", type=click.IntRange(min=1), default=None, metavar="N", help="At most, per epoch; default: all."
)
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option(
    "--workers", type=click.IntRange(min=0), default=None, metavar="N", help="Default: as the stream decides."
)
@click.option("--torch/--no-torch", "torch", default=None, help="Through torch's DataLoader; default: where installed.")
@click.option("--json", "as_json", is_flag=True, help="Write one line of JSON per epoch.")
def run(
    config: Path, *, batches: int | None, epochs: int, workers: int | None, torch: bool | None, as_json: bool
) -> int:
    """Run through the stream and show, per epoch, how many patches came per second and how much memory was in use."""
    from mlarray.streaming import PatchStream
    from mlarray.streaming.meter import MemoryCurve, measure_rate

    stream = PatchStream.from_config(config)
    if not as_json:
        click.echo(plain(stream.decision.line, keep="\n"))
    with ExitStack() as stack:
        stack.callback(stream.close)
        loader = stream.loader(workers, torch=torch)
        stack.callback(getattr(loader, "close", lambda: None))
        for epoch in range(epochs):
            stream.set_epoch(epoch)
            with MemoryCurve() as memory:
                rate = measure_rate(loader, most=batches)
            shown = json_lines([_row(epoch, rate, memory.peak)]) if as_json else _line(epoch, rate, memory.peak)
            click.echo(shown, nl=not as_json)
    return int(ExitCode.OK)


def _line(epoch: int, rate: Rate, peak: int) -> str:
    speed = "one batch has no rate" if rate.batches == 1 else f"{rate.patches_per_second:.1f} patches/s"
    return (
        f"epoch {epoch}   {speed}, {rate.patches} in {rate.batches} batches, "
        f"first after {rate.first_seconds:.2f} s, peak {peak / 2**20:.0f} MiB"
    )


def _row(epoch: int, rate: Rate, peak: int) -> dict[str, object]:
    return {
        "epoch": epoch,
        "batches": rate.batches,
        "patches": rate.patches,
        "patches_per_second": None if rate.batches == 1 else round(rate.patches_per_second, 2),
        "first_batch_seconds": round(rate.first_seconds, 3),
        "megabytes_per_second": round(rate.bytes / 1e6 / rate.seconds, 2) if rate.seconds else None,
        "peak_memory_bytes": peak,
    }


def _facts(stream: PatchStream) -> dict[str, Any]:
    decision = stream.decision
    return {
        "cases": list(stream.cases.names),
        "groups": list(stream.chains),
        "copies": stream.copies - 1,
        "patch_size": list(stream.patch_size),
        "patches": stream.patches,
        "batches": len(stream),
        "regime": decision.regime.value,
        "workers": decision.workers,
        "queue_cases": decision.fifo_cases,
        "predicted_peak_bytes": decision.predicted_peak_bytes,
        "decision": " ".join(decision.line.split()),
    }
