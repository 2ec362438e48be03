"""Is there a cluster, and can it do the work? Everything that can be known to fail is refused before the first case.

Each refusal is one sentence with the remedy: no scheduler answers, no workers, a worker without this package or with another
version of it, a worker that sees other files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mlarray.errors import UsageError
from mlarray.machine import MEMORY_SHARE
from mlarray_convert.interrupts import born_deaf_to_interrupts, deaf_to_interrupts
from mlarray_convert.share import Share

CONNECT_SECONDS = 10.0
LOCAL_SECONDS = 120.0
WORKERS_SECONDS = 30.0
_NAMED = 3
_TIMEOUT = "distributed.comm.timeouts.connect"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Dask from telling the user what is told as one line in the end; its settings are given back.

    Raises
    ------
    UsageError
        When Dask is not installed.
    """
    try:
        import dask  # noqa: F401
        import distributed  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "--scheduler needs Dask, which is not installed.", hint="Install it: pip install 'mlarray[dask]'"
        ) from error
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in ("distributed", "tornado")]
    loggers = [logging.getLogger(name) for name in (*names, "asyncio")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def connected(scheduler: str, local: Share | None) -> Iterator[Any]:
    """Yield a client of the cluster, or of a local one that ends with the block."""
    from distributed import Client
    from distributed.versions import VersionMismatchWarning

    with contextlib.ExitStack() as stack:
        if local is not None:  # a busy machine is slow to start it, and it is certain to come
            stack.enter_context(_patient(LOCAL_SECONDS))
        address = stack.enter_context(_local_cluster(local)) if local is not None else address_of(scheduler)
        # A client that cannot connect leaves threads behind that print tracebacks in the end, so the way is tried first.
        with ThreadPoolExecutor(1) as thread:
            try:
                thread.submit(asyncio.run, _reach(address, LOCAL_SECONDS if local else CONNECT_SECONDS)).result()
            except (OSError, ValueError, TypeError, RuntimeError) as error:
                raise UsageError(
                    f"No Dask scheduler answers at {address}: {' '.join(str(error).split()).rstrip('.')}.",
                    hint="Start one with `dask scheduler`, and workers with `dask worker ADDRESS`.",
                ) from error
        with warnings.catch_warnings():  # of packages whose versions differ; those that matter are compared later
            warnings.simplefilter("ignore", VersionMismatchWarning)
            client = Client(address, set_as_default=False, name="mla")
        stack.callback(_close, client)
        try:
            client.wait_for_workers(1, timeout=WORKERS_SECONDS)
        except TimeoutError as error:
            raise UsageError(
                f"The Dask scheduler at {address} has no workers; waited {WORKERS_SECONDS:.0f} seconds for one.",
                hint=f"Start them: dask worker {address}",
            ) from error
        yield client


async def _reach(address: str, seconds: float) -> None:
    from distributed.comm import connect
    from distributed.security import Security

    comm = await connect(address, timeout=seconds, **Security().get_connection_args("client"))
    await comm.close()


@contextlib.contextmanager
def _patient(seconds: float) -> Iterator[None]:
    """Let connections of Dask take at least so long, also in the processes that are started meanwhile."""
    import dask
    from dask.utils import parse_timedelta

    longest = max(seconds, parse_timedelta(dask.config.get(_TIMEOUT)))
    with dask.config.set({_TIMEOUT: f"{longest}s"}):
        yield


def address_of(scheduler: str) -> str:
    """Return the address of a scheduler, which may be given by its scheduler file.

    Raises
    ------
    UsageError
        When the file is no scheduler file.
    """
    path = Path(scheduler)
    if "://" in scheduler or not path.is_file():
        return scheduler
    try:
        address = json.loads(path.read_text(encoding="utf-8"))["address"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{scheduler} is no scheduler file of Dask: JSON with an address is expected.",
            hint="`dask scheduler --scheduler-file FILE` writes one.",
        ) from error
    return str(address)


def refuse_other_versions(client: Any) -> None:
    """Refuse a cluster whose scheduler or workers lack this package, or have another version of it."""
    found = client.get_versions(packages=["mlarray"])
    ours = found["client"]["packages"]["mlarray"]
    sides = {"the scheduler": found["scheduler"], **{f"worker {key}": side for key, side in found["workers"].items()}}
    theirs = {name: side["packages"].get("mlarray") if side else None for name, side in sides.items()}
    _refuse(
        [name for name, version in theirs.items() if version is None],
        "the package mlarray cannot be imported there",
        f"Install it in the environment of the cluster: pip install mlarray=={ours}",
    )
    _refuse(
        [f"{name} ({version})" for name, version in theirs.items() if version != ours],
        f"another version of mlarray than here ({ours})",
        "Outputs of one run must come from one version: use one environment everywhere.",
    )


def refuse_misplaced(seen: Mapping[str, Any]) -> None:
    """Refuse workers that do not see the files of the run."""
    wrong = [f"{address} on {one.host} {one.problem}" for address, one in seen.items() if one.problem]
    if wrong:
        rest = f"; the same or another problem on {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise UsageError(
            f"The Dask worker {wrong[0]}{rest}.",
            hint="All workers need the paths of this machine, on a file system that they share.",
        )


def share_of(seen: Mapping[str, Any], client: Any, memory_bytes: int | None, *, place: str) -> Share:
    """Return what each case gets: one thread of the cluster, and its part of the memory of the worker with the least.

    Parameters
    ----------
    seen : mapping
        What each worker says about itself, by its address.
    client : distributed.Client
        Knows threads and memory limits of the workers.
    memory_bytes : int or None
        Limit of each case, as asked for.
    place : str
        What to call the cluster.
    """
    workers = {key: info for key, info in client.scheduler_info()["workers"].items() if key in seen}
    together: dict[tuple[str, str], int] = {}
    for address, info in workers.items():
        one = seen[address]
        key = (one.host, one.shared_with)
        together[key] = together.get(key, 0) + max(1, info["nthreads"])
    each = []
    for address, info in workers.items():
        one = seen[address]
        each.append(one.memory_bytes // together[one.host, one.shared_with])
        if info.get("memory_limit"):
            each.append(info["memory_limit"] // max(1, info["nthreads"]))
    hosts = {one.host for one in seen.values()}
    reason = f"a Dask cluster with {len(workers)} workers (hosts: {len(hosts)}), one case per thread"
    count = sum(max(1, info["nthreads"]) for info in workers.values())
    return Share(max(1, count), 1, memory_bytes or int(min(each, default=0) * MEMORY_SHARE), reason, place)


@contextlib.contextmanager
def _local_cluster(share: Share) -> Iterator[str]:
    """Run a cluster on this machine; its processes do not hear Ctrl-C, they are stopped in order."""
    scratch = tempfile.TemporaryDirectory(prefix="mla-dask-")
    with scratch, _local_workers(share, scratch.name) as cluster:
        yield str(cluster.scheduler_address)


@contextlib.contextmanager
def _local_workers(share: Share, scratch: str) -> Iterator[Any]:
    from distributed import LocalCluster

    with born_deaf_to_interrupts():
        cluster = LocalCluster(
            n_workers=share.workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",  # any free port: the usual one may be that of another cluster
            local_directory=scratch,
            memory_limit=0,  # the processes of the cases keep the limit; a worker only waits for them
            silence_logs=logging.CRITICAL + 1,
        )
    try:
        yield cluster
    finally:
        with deaf_to_interrupts():
            cluster.close()


def _close(client: Any) -> None:
    with deaf_to_interrupts(), contextlib.suppress(TimeoutError, OSError):
        client.close(timeout=2)


def _refuse(names: list[str], what: str, hint: str) -> None:
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise UsageError(f"The Dask cluster cannot be used, {what}: {', '.join(names[:_NAMED])}{more}.", hint=hint)
