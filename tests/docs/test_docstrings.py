"""The examples of the docstrings print what they show."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import mlarray
import mlarray_convert

PACKAGES = (mlarray, mlarray_convert)


def module_names() -> list[str]:
    names = [package.__name__ for package in PACKAGES]
    for package in PACKAGES:
        names += [found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return sorted(names)


def examples_of(name: str) -> list[doctest.DocTest]:
    module = importlib.import_module(name)
    return [test for test in doctest.DocTestFinder(exclude_empty=True).find(module) if test.examples]


@pytest.mark.parametrize("name", module_names())
def test_the_examples_of_the_module_hold(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in examples_of(name):
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_examples_are_looked_for_in_both_packages() -> None:
    with_examples = {name for name in module_names() if examples_of(name)}
    assert {"mlarray.region", "mlarray.array", "mlarray_convert.request"} <= with_examples
