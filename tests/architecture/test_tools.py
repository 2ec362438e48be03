"""Lint, format, types and import direction hold, checked by the tools themselves; each check is able to fail."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .tree import ROOT

PYTHON = [sys.executable, "-m"]
LINT_IMPORTS = [
    sys.executable,
    "-c",
    "from importlinter.cli import lint_imports_command; lint_imports_command()",
    "--no-cache",
]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", check=False
    )


def output(result: subprocess.CompletedProcess[str]) -> str:
    return f"{result.stdout}\n{result.stderr}"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([*PYTHON, "ruff", "check", "."], id="ruff check"),
        pytest.param([*PYTHON, "ruff", "format", "--check", "."], id="ruff format"),
        pytest.param([*PYTHON, "mypy"], id="mypy --strict", marks=pytest.mark.slow),
        pytest.param(LINT_IMPORTS, id="import-linter"),
    ],
)
def test_the_tool_has_nothing_to_report(command: list[str]) -> None:
    result = run(command, ROOT)
    assert result.returncode == 0, output(result)


def test_mypy_is_strict_and_looks_at_both_packages(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in ("mlarray", "mlarray_convert"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("def half(value):\n    return value / 2\n", encoding="utf-8")
    result = run([*PYTHON, "mypy"], tmp_path)
    assert result.returncode == 1
    for package in ("mlarray", "mlarray_convert"):
        assert f"{package}/__init__.py:1: error: Function is missing a type annotation" in result.stdout.replace(
            "\\", "/"
        )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import os\n", "F401"),
        (
            '"""Say it."""\n\n\ndef half(value: int, exact: bool = True) -> int:\n    """Halve."""\n    return value\n',
            "FBT001",
        ),
        ("x = 1\n", "D100"),
    ],
)
def test_ruff_reports_a_planted_fault(tmp_path: Path, text: str, code: str) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "planted.py").write_text(text, encoding="utf-8")
    result = run([*PYTHON, "ruff", "check", "--no-cache", "--output-format", "concise", "."], tmp_path)
    assert result.returncode == 1
    assert code in result.stdout


def test_ruff_reports_a_planted_layout(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "planted.py").write_text("x = {'a':1}\n", encoding="utf-8")
    result = run([*PYTHON, "ruff", "format", "--check", "--no-cache", "."], tmp_path)
    assert result.returncode == 1
    assert "planted.py" in output(result)


@pytest.mark.parametrize(
    ("planted", "text", "contract"),
    [
        ("mlarray/errors.py", "import mlarray.layout", "Import direction of mlarray"),
        ("mlarray/layout.py", "def f():\n    from mlarray.metadata import codec", "Import direction of mlarray"),
        ("mlarray/sources/__init__.py", "from mlarray.storage import publish", "Import direction of mlarray"),
        ("mlarray/novelty.py", "", "Import direction of mlarray"),
        ("mlarray_convert/plan.py", "import mlarray_convert.cli", "Import direction of mlarray_convert"),
        ("mlarray/region.py", "import mlarray_convert.plan", "The library does not know its converter"),
    ],
)
def test_import_linter_reports_a_planted_import(tmp_path: Path, planted: str, text: str, contract: str) -> None:
    plant_packages(tmp_path)
    kept = run(LINT_IMPORTS, tmp_path)
    assert kept.returncode == 0, output(kept)
    (tmp_path / planted).write_text(text, encoding="utf-8")
    broken = run(LINT_IMPORTS, tmp_path)
    assert broken.returncode == 1, output(broken)
    assert f"{contract} BROKEN" in broken.stdout


def plant_packages(root: Path) -> None:
    """A tree with the module names of the project and no imports."""
    shutil.copy(ROOT / "pyproject.toml", root)
    for package in ("mlarray", "mlarray_convert"):
        for module in (ROOT / package).rglob("*.py"):
            planted = root / module.relative_to(ROOT)
            planted.parent.mkdir(parents=True, exist_ok=True)
            planted.touch()
