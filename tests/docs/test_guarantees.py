"""Every promise of the guarantees names a test that exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from .pages import ROOT
from .test_facts import code_in, read, rows

PROMISES = [(promise, tests) for promise, tests in rows(read("guarantees.md"))]


@cache
def functions_in(path: Path) -> frozenset[str]:
    """Names of the functions of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(("promise", "tests"), PROMISES, ids=[promise[:60] for promise, _ in PROMISES])
def test_the_tests_of_a_promise_exist(promise: str, tests: str) -> None:
    named = code_in(tests)
    assert named, promise
    for name in named:
        path, _, function = name.partition("::")
        file = ROOT / "tests" / path
        assert file.is_file(), name
        assert not function or function in functions_in(file), name
