"""Every code block of README and docs does what its page says, and every link leads somewhere."""

from pathlib import Path

import pytest

from .pages import (
    LANGUAGES,
    ROOT,
    OutputDiffersError,
    all_pages,
    anchors_of,
    bash,
    blocks_of,
    links_of,
    matches,
    run_page,
)

PAGES = all_pages()


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_code_of_the_page_runs_and_prints_what_is_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [block for block in blocks_of(page.read_text(encoding="utf-8")) if block.runs]
    if bash() is None and any(block.language == "bash" for block in blocks):
        pytest.skip("its commands are for machines with bash")
    monkeypatch.chdir(tmp_path)
    assert run_page(page, tmp_path) == len(blocks)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_names_a_language_that_is_known(page: Path) -> None:
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    assert {block.language for block in blocks} <= set(LANGUAGES)
    assert page.read_text(encoding="utf-8").count("\n```") % 2 == 0


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"], ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in links_of(page.read_text(encoding="utf-8")):
        if link.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target.read_text(encoding="utf-8"))):
            broken.append(link)
    assert broken == []


def test_every_page_of_docs_can_be_reached_from_the_readme() -> None:
    reached, pending = set(), [ROOT / "README.md"]
    while pending:
        page = pending.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        targets = (link.partition("#")[0] for link in links_of(page.read_text(encoding="utf-8")))
        pending += [(page.parent / target).resolve() for target in targets if target and "://" not in target]
    assert [name_of(page) for page in PAGES if page not in reached] == []


def test_a_page_that_shows_another_output_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n", encoding="utf-8")
    with pytest.raises(OutputDiffersError, match="printed\n2"):
        run_page(page, tmp_path)


def test_blocks_of_a_page_share_names_and_hidden_ones_run_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- setup\nx = 20\n-->\n```python\nprint(x + 1)\n```\n```text\n21\n```\n", encoding="utf-8")
    assert run_page(page, tmp_path) == 2


@pytest.mark.skipif(bash() is None, reason="needs bash")
def test_a_command_that_fails_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\nfalse\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="exit code 1"):
        run_page(page, tmp_path)


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("a\nb\n", "a\nb", True),
        ("a\n", "a  \n", True),
        ("a\n", "a\nb\n", False),
        ("took ... s\n", "took 1.5 s\n", True),
        ("took ... s\n", "took 1.5 min\n", False),
        ("a\n...\nz\n", "a\nb\nc\nz\n", True),
        ("a\n...\n", "b\n", False),
        ("(1.5)\n", "(1x5)\n", False),
    ],
)
def test_three_dots_stand_for_anything_and_nothing_else_does(expected: str, output: str, same: bool) -> None:
    assert matches(expected, output) is same
