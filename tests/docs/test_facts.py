"""What the documentation states in tables is what the code says."""

import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

from mlarray import errors
from mlarray.formats.guide import overview
from mlarray.formats.table import FORMATS
from mlarray.layout import BLOCK_LIMIT_BYTES, CHUNK_LIMIT_BYTES, CHUNK_PATCH_FACTOR
from mlarray.storage.options import StorageKwargs
from mlarray_convert.cli import group

from .pages import ROOT, blocks_of
from .signatures import public_names, resolve, signature_text

REFERENCE = ROOT / "docs" / "reference"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def read(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def rows(text: str, heading: str | None = None) -> list[list[str]]:
    """Cells of every table row below a heading, the head rows left out."""
    if heading is not None:
        text = text.split(f"\n{heading}\n", 1)[1]
        text = re.split(r"^#{1,6} ", text, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = {position - 1 for position, line in enumerate(lines) if set(line) <= set("|- ")}
    kept = [line for position, line in enumerate(lines) if position not in heads and position - 1 not in heads]
    bar = re.compile(r"(?<!\\)\|")  # one that is not written as \|
    return [[cell.strip().replace("\\|", "|") for cell in bar.split(line.strip("|"))] for line in kept]


def code_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_formats_of_the_readme_are_those_that_the_command_lists() -> None:
    command = [sys.executable, "-c", "from mlarray_convert.cli import main; main()", "formats", "--json"]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    shown = [
        {
            "name": code_in(name)[0],
            "title": title,
            "suffixes": code_in(suffixes),
            "writes": can == "read, write",
            "partial_reads": partial,
        }
        for name, title, suffixes, can, partial in rows(README, "## What can be read and written")
    ]
    assert shown == listed


def test_every_format_is_described() -> None:
    headings = re.findall(r"^## (.+)$", read("formats.md"), re.MULTILINE)
    assert {row.name for row in FORMATS} <= {word for heading in headings for word in heading.lower().split()}


def test_the_overview_of_formats_is_made_of_their_rows_and_docstrings() -> None:
    shown = read("formats.md").split("<!-- overview -->\n", 1)[1].split("\n<!-- end of overview -->", 1)[0]
    assert shown == overview(FORMATS), "`mla formats --markdown` writes it"


def test_every_code_of_a_note_is_explained() -> None:
    described = {code for cells in rows(read("formats.md"), "## Notes") for code in code_in(cells[0])}
    used: set[str] = set()
    for path in (ROOT / "mlarray").rglob("*.py"):
        used |= set(re.findall(r"\bNote\(\s*\"([a-z0-9-]+)\"", path.read_text(encoding="utf-8")))
    assert used - described == set()
    assert {code for code in described - used if not code.endswith("-dropped")} == set()


def test_the_two_commands_install_and_test_in_one_line_each() -> None:
    section = README.split("\n## The two commands\n", 1)[1].split("\n## ", 1)[0]
    first, second = (block.text.strip() for block in blocks_of(section))
    assert first == "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/mla demo"
    assert second == "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/python -m pytest -n 2"


def test_the_last_part_of_the_first_command_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from mlarray_convert.cli import main; main()", "demo"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr
    assert list(tmp_path.rglob("*.mla"))


def shown_signatures() -> dict[str, str]:
    found = re.findall(r"^- `([\w.]+)(\([^`]*\))?`: \S", read("api.md"), re.MULTILINE)
    assert len(found) == len({name for name, _ in found}), "a name stands on the page twice"
    return dict(found)


def test_every_public_name_is_on_the_api_page() -> None:
    assert {name for name, _ in public_names()} - shown_signatures().keys() == set()


def test_signatures_on_the_api_page_are_those_of_the_code() -> None:
    shown = shown_signatures()
    assert shown == {name: signature_text(resolve(name)) for name in shown}


def test_storage_arguments_have_the_defaults_that_are_shown() -> None:
    shown = {name: cells[1] for cells in rows(read("api.md"), "### Storage arguments") for name in code_in(cells[0])}
    assert shown["block_limit_bytes"] == str(BLOCK_LIMIT_BYTES)
    assert shown["chunk_limit_bytes"] == str(CHUNK_LIMIT_BYTES)
    assert shown["chunk_patch_factor"] == str(CHUNK_PATCH_FACTOR)
    assert shown.keys() == StorageKwargs.__annotations__.keys()


def test_every_error_is_described_with_the_builtin_it_is() -> None:
    shown = {code_in(cells[0])[0]: set(code_in(cells[1])) for cells in rows(read("errors.md"))}
    defined = {
        name: {base.__name__ for base in value.__bases__ if base is not errors.MLArrayError}
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.MLArrayError) and value.__module__ == errors.__name__
    }
    assert shown == defined


def requirements() -> Iterator[tuple[str, str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    for extra, wanted in groups.items():
        for requirement in wanted:
            yield extra, re.split(r"[<>=!~\[; ]", requirement, maxsplit=1)[0]


def test_every_dependency_is_described_and_nothing_else() -> None:
    page = read("dependencies.md")
    shown = {("", code_in(cells[0])[0]) for cells in rows(page, "## Always installed")}
    for extra, packages, _ in rows(page, "## Optional"):
        shown |= {(code_in(extra)[0], package) for package in code_in(packages)}
    assert shown == set(requirements())
    assert [cells for cells in rows(page) if not all(cells)] == []


def test_the_tree_of_the_architecture_page_is_the_tree_of_the_packages() -> None:
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    tree, directions = (
        block.text for block in blocks_of(text) if block.language == "text" and "\n" in block.text.strip()
    )
    names = {"mlarray": set[str](), "mlarray_convert": set[str]()}
    for package, part in re.findall(r"^(\w+)/\n((?:  .*\n)+)", tree, re.MULTILINE):
        for line in part.splitlines():
            names[package] |= set(re.findall(r"(?:^  | )(\w+)(?:\.py|/)(?= )", line[:20] + " "))
    for package, shown in names.items():
        folder = ROOT / package
        modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        folders = {path.parent.name for path in folder.glob("*/__init__.py")}
        assert shown == modules | folders
        named = {name for line in directions.splitlines() for name in re.findall(r"\w+", line) if f"{package}." in line}
        assert named - {package} == modules | folders


def test_the_words_of_the_glossary_are_in_order() -> None:
    words = [cells[0].lower() for cells in rows(read("glossary.md"))]
    assert words == sorted(words)


def test_every_command_is_on_the_page_of_the_command_line() -> None:
    context = click.Context(group)
    assert [name for name in group.list_commands(context) if f"mla {name}" not in read("cli.md")] == []
