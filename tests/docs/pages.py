"""What do the pages of the documentation contain, and what happens when their code is run?

A page is run from top to bottom in an empty folder. Its Python blocks share one namespace, as in one session; its shell blocks
run with bash, in the same folder. A `text` block directly below a code block is the output of that block: lines are compared
without trailing spaces, and `...` stands for anything within a line, or for any lines where it is a line of its own.

A block with the word `setup` (```` ```bash setup ````) installs things: it is checked by other tests and not run here. What a
page needs and does not show (the reader's own files) is made by Python inside a comment `<!-- setup ... -->`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("python", "bash")
LANGUAGES = (*CODE, "text", "json", "toml", "yaml")
_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)
_HIDDEN = re.compile(r"^<!-- setup\n(?P<body>.*?)^-->[ ]*$", re.MULTILINE | re.DOTALL)


class OutputDiffersError(AssertionError):
    """A block printed something else than the page shows."""


@dataclass(frozen=True)
class Block:
    """One fenced block, or one hidden one.

    `line` is the line of its first line of content, counted from 1. `expected` is the output that the page shows.
    """

    language: str
    words: tuple[str, ...]
    text: str
    line: int
    expected: str | None = None

    @property
    def runs(self) -> bool:
        return self.language in CODE and "setup" not in self.words


def all_pages(root: Path = ROOT) -> list[Path]:
    """README and every page of docs/."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page in order, each code block with its expected output."""
    found = [(match.start(), match.end(), "python", (), match) for match in _HIDDEN.finditer(text)]
    for match in _FENCE.finditer(text):
        language, *words = match["info"].split() or [""]
        found.append((match.start(), match.end(), language, tuple(words), match))
    found.sort(key=lambda entry: entry[0])
    blocks = []
    for position, (_, end, language, words, match) in enumerate(found):
        expected = None
        if match.re is _FENCE and language in CODE and position + 1 < len(found):
            start, _, following, _, shown = found[position + 1]
            if following == "text" and not text[end:start].strip():
                expected = shown["body"]
        line = text.count("\n", 0, match.start("body")) + 1
        blocks.append(Block(language, words, match["body"], line, expected))
    return blocks


def run_page(page: Path, folder: Path) -> int:
    """Run the blocks of a page in `folder`, which must be the working directory; return how many there were."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    count = 0
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if not block.runs:
            continue
        where = f"{page.name}:{block.line}"
        output = _run_python(block, page, namespace) if block.language == "python" else _run_shell(block, folder, where)
        if block.expected is not None and not matches(block.expected, output):
            raise OutputDiffersError(f"{where} shows\n{block.expected}\nbut printed\n{output}")
        count += 1
    return count


def matches(expected: str, output: str) -> bool:
    """Tell whether an output is the expected one, with `...` as a wildcard."""
    pattern = ""
    for line in expected.strip("\n").split("\n"):
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += r"[^\n]*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ ]*\n"
    return re.fullmatch(pattern, output.strip("\n") + "\n") is not None


def bash() -> str | None:
    """Where bash is, or None."""
    return shutil.which("bash")


def _run_python(block: Block, page: Path, namespace: dict[str, object]) -> str:
    # Blank lines in front make a traceback name the line of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def _run_shell(block: Block, folder: Path, where: str) -> str:
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": scripts + os.pathsep + os.environ.get("PATH", ""), "COLUMNS": "120"}
    environment |= {"NO_COLOR": "1", "PYTHONWARNINGS": "error"}
    command = [str(bash()), "-euo", "pipefail", "-c", block.text]
    result = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    if result.returncode != 0:
        raise AssertionError(f"{where} ended with exit code {result.returncode}:\n{block.text}\n{result.stdout}")
    return result.stdout


def links_of(text: str) -> Iterator[str]:
    """Targets of the links of a page, code left out."""
    prose = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))
    yield from re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose)


def anchors_of(text: str) -> set[str]:
    """Anchors of the headings of a page, as hosting sites make them."""
    anchors = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", _FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower())
        anchors.add(plain.replace(" ", "-"))
    return anchors
