"""The page of limits shows the constants of the module, and an override is what it says."""

import ast
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlarray import limits

from .pages import ROOT
from .test_facts import code_in, read, rows


def constants() -> dict[str, tuple[int, str]]:
    """Name, value and description of each limit, as the module has them."""
    body = ast.parse(Path(limits.__file__).read_text(encoding="utf-8")).body
    described = {}
    for node, following in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(
            getattr(limits, ast.unparse(node.target), None), limits.Limit
        ):
            assert isinstance(following, ast.Expr), f"{ast.unparse(node.target)} is not described"
            name = ast.unparse(node.target)
            described[name] = (int(getattr(limits, name)), ast.literal_eval(following.value))
    return described


def test_every_limit_is_on_the_page_with_its_default_and_its_reason() -> None:
    shown = {code_in(name)[0]: (int(default), text) for name, default, text in rows(read("limits.md"))}
    assert shown == constants()


def test_every_limit_has_the_name_of_its_variable() -> None:
    assert {getattr(limits, name).variable for name in constants()} == {f"MLARRAY_LIMIT_{name}" for name in constants()}


def test_no_limit_stands_there_for_nothing() -> None:
    code = "".join(
        path.read_text(encoding="utf-8")
        for package in ("mlarray", "mlarray_convert")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "limits.py"
    )
    assert [name for name in constants() if name not in code] == []


def run(value: str, code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MLARRAY_LIMIT_YAML_BYTES": value}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, encoding="utf-8", check=False
    )


def test_the_environment_raises_a_limit() -> None:
    assert run("5", "from mlarray.limits import YAML_BYTES; print(YAML_BYTES)").stdout == "5\n"


def test_the_message_names_limit_and_variable(tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text("- Canonical\n", encoding="utf-8")
    code = f"from mlarray.streaming.config import load_chain; load_chain({str(tmp_path / 'chain.yaml')!r})"
    assert "larger than 5 bytes" in run("5", code).stderr
    assert "set MLARRAY_LIMIT_YAML_BYTES to a larger number than 5." in run("5", code).stderr
    assert run("500", code).returncode == 0


@pytest.mark.parametrize("value", ["0", "-1", "1e6", "1_000", "many", " 5", "9" * 30, "٣"])
def test_what_is_no_whole_number_is_told(value: str) -> None:
    done = run(value, "import mlarray.limits")
    assert "UsageError: MLARRAY_LIMIT_YAML_BYTES is" in done.stderr
