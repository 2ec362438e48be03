"""Formats of other packages: what is taken stays with its owner, and what cannot be used is said by name."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from mlarray.errors import FormatWarning
from mlarray.formats.plugins import GROUP, all_formats, with_plugins
from mlarray.formats.table import FORMATS, Format

OURS = (Format("nifti", "NIfTI", (".nii", ".nii.gz"), "nifti"),)


def point(monkeypatch: pytest.MonkeyPatch, package: str, name: str, value: object) -> EntryPoint:
    """An entry point that gives ``value``."""
    module = ModuleType(package)
    module.FORMAT = value  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package, module)
    return EntryPoint(name, f"{package}:FORMAT", GROUP)


def test_a_row_of_another_package_stands_behind_ours_and_says_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    added = Format("vox", "Voxel dump", (".vox",), "vox_reader")
    rows = with_plugins(OURS, [point(monkeypatch, "vox_package", "vox", added)])
    assert [row.name for row in rows] == ["nifti", "vox"]
    assert (rows[1].package, rows[1].module) == ("vox_package", "vox_reader")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("no row", "it gives str"),
        (Format("A Name", "x", (".x",), "m"), "the name 'A Name'"),
        (Format("x", "x", (), "m"), r"the suffixes \(\)"),
        (Format("x", "x", ("x",), "m"), "not like '.abc'"),
        (Format("x", "x", (".X",), "m"), "not like '.abc'"),
        (Format("x", "x", (".nii/..",), "m"), "not like '.abc'"),
        (Format("nifti", "x", (".x",), "m"), "the name 'nifti' is that of NIfTI, which is built in"),
        (Format("x", "x", (".nii.gz",), "m"), "does not get the suffix .nii.gz: it is that of NIfTI"),
    ],
)
def test_a_row_that_cannot_be_used_is_left_out_by_name(
    value: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(FormatWarning, match=f"'p' of the package odd .*{words}.*Update or remove odd"):
        assert with_plugins(OURS, [point(monkeypatch, "odd", "p", value)]) == OURS


def test_a_suffix_that_is_taken_stays_with_its_owner_and_the_others_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    first = point(monkeypatch, "aaa", "a", Format("a", "A", (".a", ".shared"), "m"))
    second = point(monkeypatch, "bbb", "b", Format("b", "B", (".shared", ".nii", ".b"), "m"))
    with pytest.warns(FormatWarning) as caught:
        rows = with_plugins(OURS, [second, first])
    assert [(row.name, row.suffixes) for row in rows[1:]] == [("a", (".a", ".shared")), ("b", (".b",))]
    told = [str(warning.message) for warning in caught]
    assert told[0].startswith(
        "The format 'b' of the package bbb does not get the suffix .shared: it is that of A of the package aaa."
    )
    assert "suffix .nii: it is that of NIfTI, which is built in" in told[1]


def test_without_packages_that_add_formats_there_are_ours() -> None:
    assert all_formats()[: len(FORMATS)] == FORMATS
