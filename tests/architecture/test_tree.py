"""The source tree keeps its own rules, and every rule is able to fail."""

from collections.abc import Callable
from pathlib import Path

import pytest

from .tree import (
    ROOT,
    banned_module_names,
    file_layers_below_streams,
    imports,
    machine_paths,
    misplaced_libraries,
    modules,
    oversized_modules,
    unfinished_marks,
)

Rule = Callable[[Path], list[str]]


def plant(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_both_packages_are_looked_at() -> None:
    names = [name for name, _ in modules(ROOT)]
    assert "mlarray/layout.py" in names
    assert "mlarray_convert/cli/__init__.py" in names


@pytest.mark.parametrize(
    "rule",
    [
        misplaced_libraries,
        file_layers_below_streams,
        oversized_modules,
        banned_module_names,
        unfinished_marks,
        machine_paths,
    ],
)
def test_the_project_keeps_the_rule(rule: Rule) -> None:
    assert rule(ROOT) == []


@pytest.mark.parametrize(
    ("rule", "name", "text", "breach"),
    [
        (misplaced_libraries, "mlarray/array.py", "def f():\n    import blosc2\n", "array.py:2 imports blosc2"),
        (misplaced_libraries, "mlarray/array.py", "from blosc2 import NDArray", "imports blosc2.NDArray"),
        (misplaced_libraries, "mlarray/array.py", 'import_module("blosc2")', "imports blosc2"),
        (misplaced_libraries, "mlarray/formats/nifti.py", "import nibabel as nib", "at module level"),
        (misplaced_libraries, "mlarray/formats/nifti.py", "class A:\n    import nibabel", "at module level"),
        (misplaced_libraries, "mlarray/geometry.py", "def f():\n    import SimpleITK", "only mlarray/formats/ may"),
        (misplaced_libraries, "mlarray_convert/run.py", "from tqdm import tqdm", "only mlarray_convert/cli/ may"),
        (misplaced_libraries, "mlarray/spec.py", "import click", "only mlarray_convert/cli/ may"),
        (misplaced_libraries, "mlarray_convert/report.py", "from rich.table import Table", "imports rich.table.Table"),
        (misplaced_libraries, "mlarray/streaming/stream.py", "import torch", "only mlarray/integrations/ may"),
        (misplaced_libraries, "mlarray/region.py", "import hypothesis", "only mlarray/testing/ may"),
        (file_layers_below_streams, "mlarray/streaming/plan.py", "from mlarray import formats", "mlarray.formats"),
        (
            file_layers_below_streams,
            "mlarray/streaming/plan.py",
            "from ..storage.blosc import Store",
            "mlarray.storage",
        ),
        (file_layers_below_streams, "mlarray/transforms/base.py", "import mlarray.formats.mla", "mlarray.formats.mla"),
        (oversized_modules, "mlarray/array.py", "x = 1\n" * 501, "array.py has 501 lines, at most 500"),
        (oversized_modules, "benchmarks/compare/reads.py", "x = 1\n" * 501, "reads.py has 501 lines"),
        (banned_module_names, "mlarray/utils.py", "", "'utils' is not a name"),
        (banned_module_names, "mlarray_convert/io_helpers/reading.py", "", "'io_helpers' is not a name"),
        (banned_module_names, "tests/common.py", "", "'common' is not a name"),
        (banned_module_names, "mlarray/storage/cache_manager.py", "", "'cache_manager' is not a name"),
        (unfinished_marks, "mlarray/array.py", "# TO" + "DO: later\n", "array.py:1"),
        (unfinished_marks, "mlarray/array.py", "x = 1\n# FIX" + "ME\n", "array.py:2"),
        (unfinished_marks, "mlarray_convert/run.py", "raise NotImplemented" + "Error\n", "run.py:1"),
        (machine_paths, "docs/how-to/a.md", "see /" + "work/main/a.py", "a.md:1 see"),
        (machine_paths, "docs/how-to/a.md", "open('/" + "tmp/x.mla')", "a.md:1 open"),
        (machine_paths, ".ci/run", "cp ../" + "shared/x .", "run:1 cp"),
        (machine_paths, "pyproject.toml", 'path = "C:\\Us' + 'ers\\me"', "pyproject.toml:1"),
    ],
)
def test_a_planted_breach_is_found(tmp_path: Path, rule: Rule, name: str, text: str, breach: str) -> None:
    plant(tmp_path, name, text)
    found = rule(tmp_path)
    assert len(found) == 1
    assert breach in found[0]


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (misplaced_libraries, "mlarray/storage/blosc.py", "import blosc2"),
        (misplaced_libraries, "mlarray/formats/nifti.py", "def read():\n    import nibabel"),
        (misplaced_libraries, "mlarray/formats/n.py", "if TYPE_CHECKING:\n    import nibabel"),
        (misplaced_libraries, "mlarray_convert/cli/render.py", "import rich, click\nfrom tqdm import tqdm"),
        (misplaced_libraries, "mlarray/streaming/plan.py", "from mlarray.streaming.dask import x"),
        (file_layers_below_streams, "mlarray/streaming/plan.py", "from mlarray.sources import Source"),
        (oversized_modules, "mlarray/array.py", "x = 1\n" * 500),
        (banned_module_names, "mlarray/commonplace.py", ""),
        (unfinished_marks, "mlarray/array.py", "return NotImplemented\n"),
        (machine_paths, "docs/a.md", "open /data/ct.mla, ~/tmp/x, https://example.org/work/x and a/tmp/b"),
    ],
)
def test_what_is_allowed_is_not_reported(tmp_path: Path, rule: Rule, name: str, text: str) -> None:
    plant(tmp_path, name, text)
    assert rule(tmp_path) == []


def test_binary_files_and_caches_are_not_searched_for_paths(tmp_path: Path) -> None:
    (tmp_path / "a.mla").write_bytes(b"\0 /" + b"home/me/x")
    plant(tmp_path, ".mypy_cache/a.json", "/" + "home/me/x")
    assert machine_paths(tmp_path) == []


def test_imports_are_found_with_their_place(tmp_path: Path) -> None:
    text = (
        "import os.path\n"
        "from . import values\n"
        "from ..errors import MLArrayError\n"
        "if TYPE_CHECKING:\n    import zarr\nelse:\n    import h5py\n"
        "class A:\n    def f(self):\n        import nibabel\n"
    )
    found = imports(plant(tmp_path, "mlarray/metadata/model.py", text), "mlarray/metadata/model.py")
    assert [(each.module, each.line, each.in_function, each.for_types_only) for each in found] == [
        ("os.path", 1, False, False),
        ("mlarray.metadata.values", 2, False, False),
        ("mlarray.errors.MLArrayError", 3, False, False),
        ("zarr", 5, False, True),
        ("h5py", 7, False, False),
        ("nibabel", 10, True, False),
    ]
