"""Which unfinished files may be removed? Those whose writer is certainly dead.

A name says host and process id of its writer. On another host nothing can be known, so such files stay. On this host a
process id that is in use may have been given away again: then the process is younger than the file. A run on several
machines knows which of its own workers are gone, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from mlarray.storage.publish import part_owner, remove_tree, this_host

_CLOCK_SLACK_SECONDS = 2.0
_OLD_SECONDS = 3600.0


def remove_leftovers(folders: Iterable[Path], *, dead: Iterable[tuple[str, int]] = ()) -> tuple[Path, ...]:
    """Remove what dead writers left in ``folders`` and return it.

    Parameters
    ----------
    folders : iterable of Path
        Folders that outputs go to; those below them are not looked at.
    dead : iterable of (str, int)
        Host and process id of writers that are known to be dead, on any host and whatever the system says.
    """
    known_dead = set(dead)
    removed = []
    for path, owner in _unfinished(folders):
        if owner in known_dead or (owner[0] == this_host() and not _may_live(owner[1], path)):
            remove_tree(path)
            removed.append(path)
    return tuple(removed)


@cache
def remove_old_leftovers(folder: Path) -> None:
    """Remove what dead writers left in a folder an hour ago or longer; looked for once per process and folder.

    The hour is for containers that share the name of their host and not its process ids: what lives there seems dead here.
    """
    newest = time.time() - _OLD_SECONDS
    for path, owner in _unfinished([folder]):
        try:
            old = path.stat().st_mtime < newest
        except OSError:  # just published
            continue
        if old and owner[0] == this_host() and not _may_live(owner[1], path):
            remove_tree(path)


def _unfinished(folders: Iterable[Path]) -> Iterator[tuple[Path, tuple[str, int]]]:
    for folder in sorted(set(folders)):
        if not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            owner = part_owner(path.name)
            if owner is not None:
                yield path, owner


def _may_live(pid: int, path: Path) -> bool:
    """Tell whether the process ``pid`` may be the writer of ``path``."""
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return bool(process.create_time() <= path.stat().st_mtime + _CLOCK_SLACK_SECONDS)
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False
    except psutil.AccessDenied:
        return True
