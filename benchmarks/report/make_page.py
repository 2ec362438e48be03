"""How does the page about performance follow from the measurements?

Keeps what is shown of a folder of results (``peers.py``, ``cold.py``, ``writing.py``, ``scaling.py`` and ``mla bench --json``) as
small JSON files beside the page, draws the pictures, and fills the places between ``<!-- figures: NAME -->`` and
``<!-- end of figures -->``. All else on the page is written by hand and stays. Kinds that the folder does not hold stay as they
were. Without a folder, page and pictures are made again from the JSON that is there.

    python benchmarks/report/make_page.py [RESULTS] [--docs docs/explanation] [--check]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from condense import KINDS, condensed
from pictures import pictures_of
from pieces import PIECES

DOCS = Path(__file__).resolve().parents[2] / "docs" / "explanation"
_PLACE = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def kept_in(folder: Path) -> dict[str, Any]:
    """Return the results that are kept in a folder, by kind."""
    paths = {kind: folder / f"{kind}.json" for kind in KINDS}
    return {kind: json.loads(path.read_text(encoding="utf-8")) for kind, path in paths.items() if path.exists()}


def filled(page: str, kept: dict[str, Any]) -> str:
    """Return the page with all its places filled; each of them must be there once, and no other."""
    named = [match[2] for match in _PLACE.finditer(page)]
    if sorted(named) != sorted(PIECES):
        found = ", ".join(sorted(named)) or "none"
        raise SystemExit(f"The page has the places {found}; wanted, once each, are {', '.join(sorted(PIECES))}.")
    return _PLACE.sub(lambda match: f"{match[1]}\n{PIECES[match[2]](kept)}\n\n{match[3]}", page)


def files_of(page: str, kept: dict[str, Any]) -> dict[str, str]:
    """Return the text of everything that is made, by its path below the folder of the page."""
    made = {"performance.md": filled(page, kept)}
    made |= {f"performance/{name}": text for name, text in pictures_of(kept).items()}
    for kind, results in kept.items():
        made[f"performance/{kind}.json"] = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    return made


def main() -> None:
    """Make everything, or tell what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "results", type=Path, nargs="?", help="folder of measurements; without it, what is kept is used"
    )
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of performance.md")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where something would change")
    arguments = parser.parse_args()
    folder = arguments.docs / "performance"
    kept = kept_in(folder)
    if arguments.results is not None:
        fresh = condensed(arguments.results)
        if not fresh:
            sys.exit(f"{arguments.results} holds no results of {', '.join(KINDS)}.")
        print(f"read: {', '.join(fresh)}")
        kept = {kind: (kept | fresh)[kind] for kind in KINDS if kind in kept | fresh}
    made = files_of((arguments.docs / "performance.md").read_text(encoding="utf-8"), kept)
    present = {f"performance/{path.name}" for path in folder.glob("*") if path.suffix in (".svg", ".json")}
    paths = {name: arguments.docs / name for name in made}
    changed = [n for n, path in paths.items() if not path.exists() or path.read_text(encoding="utf-8") != made[n]]
    stale = sorted(present - made.keys())
    if arguments.check:
        for name in [*changed, *stale]:
            print(f"differs from what the results give: {name}")
        sys.exit(1 if changed or stale else 0)
    folder.mkdir(exist_ok=True)
    for name in changed:
        paths[name].write_text(made[name], encoding="utf-8")
        print(f"written: {name}")
    for name in stale:
        (arguments.docs / name).unlink()
        print(f"removed: {name}")


if __name__ == "__main__":
    main()
