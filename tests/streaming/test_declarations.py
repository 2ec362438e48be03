"""Transforms of others: the three rules of a declaration (read-only, no I/O, total), and what is no transform at all."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlarray import transforms as T
from mlarray.errors import TransformError
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.streaming import Plan, plan
from mlarray.testing.transforms import source_of
from mlarray.transforms import augmentations as A
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.locality import Locality, Pointwise
from mlarray.transforms.volume import Volume

ARRAY = np.arange(6 * 7 * 8, dtype=np.int16).reshape(1, 6, 7, 8)


class Custom(Transform):
    """Twice the value; a test puts what it does into a declaration."""

    def __init__(self, does: Callable[[Any, Volume], Any], declaration: str = "locality") -> None:
        self.does, self.declaration, self.asked = does, declaration, 0

    def locality(self, volume: Volume) -> Any:
        return self._said("locality", volume, Pointwise())

    def outcome(self, volume: Volume) -> Any:
        return self._said("outcome", volume, volume)

    def statistics(self, volume: Volume) -> Any:
        return self._said("statistics", volume, ())

    def groups(self, volume: Volume) -> Any:
        return self._said("groups", volume, ())

    def references(self, volume: Volume) -> Any:
        return self._said("references", volume, {})

    def beforehand(self, stored: Volume) -> Any:
        return self._said("beforehand", stored, {})

    def apply(self, block: NDArray, context: Context) -> NDArray:
        return block * np.int16(2)

    def _said(self, declaration: str, volume: Volume, otherwise: Any) -> Any:
        return self.does(self, volume) if declaration == self.declaration else otherwise


def planned(*chain: Any) -> Plan:
    return plan(source_of(ARRAY), list(chain), patch_size=4)


def refused(*chain: Any) -> TransformError:
    with pytest.raises(TransformError) as caught:
        planned(*chain)
    return caught.value


DECLARATIONS = ("locality", "outcome", "statistics", "groups", "references", "beforehand")


def sets_a_field(_: Custom, volume: Volume) -> None:
    volume.channels = 7  # type: ignore[misc]


def sets_an_attribute(_: Custom, volume: Volume) -> None:
    volume.attributes.stacks["Mean"] = (0.0,)  # type: ignore[index]


@pytest.mark.parametrize("declaration", DECLARATIONS)
@pytest.mark.parametrize("does", [sets_a_field, sets_an_attribute])
def test_a_declaration_that_changes_the_volume_is_told_that_it_is_read_only(does: Callable, declaration: str) -> None:
    error = refused(T.Flip("0"), Custom(does, declaration))
    assert error.message.startswith(f"Stage 2 (Custom): {declaration}() changes the volume it is given (")
    assert "volume.with_(...)" in str(error.hint)


def test_a_declaration_that_changes_its_transform_is_told_that_it_is_read_only() -> None:
    def counts(self: Custom, volume: Volume) -> Locality:
        self.asked += 1
        return Pointwise()

    assert refused(Custom(counts)).message == "Stage 1 (Custom): locality() changed asked of the transform."


def opens(_: Custom, volume: Volume) -> Locality:
    with open(__file__, encoding="utf-8"):
        return Pointwise()


def loads(_: Custom, volume: Volume) -> Locality:
    np.load(Path(__file__).with_name("none.npy"))
    return Pointwise()


def lists(_: Custom, volume: Volume) -> Locality:
    os.listdir(".")
    return Pointwise()


def connects(_: Custom, volume: Volume) -> Locality:
    with socket.socket() as connection:
        connection.connect(("127.0.0.1", 9))
    return Pointwise()


def hides(_: Custom, volume: Volume) -> Locality:
    try:
        Path(__file__).read_bytes()
    except Exception:
        return Pointwise()
    return Pointwise()


@pytest.mark.parametrize(
    ("does", "told"),
    [(opens, "open("), (loads, "open("), (lists, "os.listdir('.')"), (connects, "socket.connect("), (hides, "open(")],
)
def test_a_declaration_that_does_io_is_refused_before_it_is_done(does: Callable, told: str) -> None:
    error = refused(Custom(does))
    assert error.message.startswith(f"Stage 1 (Custom): locality() does I/O: {told}")
    assert "read files when the transform is made" in str(error.hint)


@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_every_declaration_is_watched(declaration: str) -> None:
    assert f"{declaration}() does I/O" in refused(Custom(opens, declaration)).message


def test_files_are_free_again_after_the_question_and_in_other_stages(tmp_path: Path) -> None:
    refused(Custom(opens))
    (tmp_path / "a.txt").write_text("free", encoding="utf-8")

    def reads(block: NDArray) -> NDArray:
        return block + np.int16(len((tmp_path / "a.txt").read_text(encoding="utf-8")))

    class Reads(Custom):
        def apply(self, block: NDArray, context: Context) -> NDArray:
            return reads(block)

    result = planned(Reads(lambda self, volume: Pointwise())).read_whole()
    assert np.array_equal(result, ARRAY + 4)


def test_a_module_may_be_imported_and_a_warning_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def imports(_: Custom, volume: Volume) -> Locality:
        monkeypatch.delitem(sys.modules, "colorsys", raising=False)
        importlib.import_module("colorsys")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("note", UserWarning, stacklevel=1)
        return Pointwise()

    assert planned(Custom(imports)).regime == "stream"


@pytest.mark.parametrize(
    ("declaration", "remedy"),
    [("locality", "answer WholeVolume()"), ("outcome", "raise TransformError"), ("groups", "answer nothing")],
)
def test_a_declaration_that_fails_is_told_that_it_is_total(declaration: str, remedy: str) -> None:
    def fails(_: Custom, volume: Volume) -> Any:
        return volume.attributes["unknown"]

    error = refused(T.Clip(), Custom(fails, declaration))
    assert error.message == f"Stage 2 (Custom): {declaration}() failed with KeyError: 'unknown'."
    assert remedy in str(error.hint)


@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_an_answer_of_another_kind_says_what_to_return(declaration: str) -> None:
    error = refused(Custom(lambda self, volume: None, declaration))
    assert error.message == f"Stage 1 (Custom): {declaration}() returned NoneType."
    assert str(error.hint).startswith("Return a ")


def test_an_outcome_that_contradicts_the_locality_is_told() -> None:
    error = refused(Custom(lambda self, volume: volume.with_(shape=(1, 2, 3)), "outcome"))
    assert error.message == "Stage 1 (Custom): its locality gives the shape (6, 7, 8), its outcome (1, 2, 3)."


@pytest.mark.parametrize(
    ("chain", "told", "remedy"),
    [
        ([T.Clip(), T.Flip], "Stage 2 is the class Flip, not a transform.", "Make one of it: Flip(...)."),
        ([np.flip], "Stage 1 is", "Subclass mlarray.transforms.Transform"),
        ([lambda x: x], "Stage 1 is a function, not a transform.", "define apply(block, context)"),
        (["Clip"], "Stage 1 is a str, not a transform.", "chain_of makes transforms of names"),
        ([None], "Stage 1 is a NoneType", "Subclass"),
        ([3], "Stage 1 is an int", "Subclass"),
        ([A.Flip()], "Stage 1 is a Flip, not a transform.", "plan(..., augmentations=[AugmentationList"),
        (T.Clip(), "The chain is a Clip, not a list of transforms.", "Put it into a list"),
        (T.Clip, "The chain is the class Clip, not a list", "Put it into a list"),
        (None, "The chain is a NoneType, not a list", "Put it into a list"),
    ],
)
def test_what_is_no_transform_says_what_to_do(chain: Any, told: str, remedy: str) -> None:
    with pytest.raises(TransformError) as caught:
        plan(source_of(ARRAY), chain, patch_size=4)
    assert caught.value.message.startswith(told)
    assert remedy in str(caught.value.hint)


@dataclass(frozen=True)
class Wrong(Transform):
    """Pointwise, and wrong in ``apply``."""

    result: Any = field(default=None, compare=False)

    def locality(self, volume: Volume) -> Locality:
        return Pointwise()

    def apply(self, block: NDArray, context: Context) -> NDArray:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result  # type: ignore[no-any-return]


def test_a_result_of_another_kind_names_the_stage() -> None:
    with pytest.raises(TransformError, match=r"Stage 1 \(Wrong\) returned NoneType, not an array"):
        planned(Wrong()).read_whole()
    with pytest.raises(
        TransformError, match=r"Stage 1 \(Wrong\) returned float64 \(2,\); it declared int16 \(1, 6, 7, 8\)"
    ):
        planned(Wrong(np.zeros(2))).read_whole()


def test_an_error_of_a_transform_stays_and_names_stage_and_block() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        planned(T.Flip("0"), Wrong(ZeroDivisionError("by hand"))).read(Region((0, 0, 0), (2, 3, 4)))
    assert caught.value.__notes__ == [
        "In apply() of Stage 2 (Wrong), block int16 (1, 2, 3, 4), target (0, 0, 0) to (2, 3, 4)."
    ]


def test_a_transform_without_apply_says_so() -> None:
    with pytest.raises(TransformError, match=r"Stage 1 \(Transform\) does not say what it computes"):
        planned(Transform()).read_whole()


def test_declaring_nothing_is_the_whole_volume_and_right() -> None:
    class Sorted(Transform):
        def apply(self, block: NDArray, context: Context) -> NDArray:
            return np.sort(block, axis=1)[:, ::-1]

    made = planned(Sorted(), T.Clip(0, 100))
    assert (made.regime, made.verdict.stage) == ("buffer", 0)
    assert "declares no smaller dependence" in made.verdict.reason
    whole = np.clip(np.sort(ARRAY, axis=1)[:, ::-1], 0, 100)
    assert np.array_equal(made.read(made.grid[3]), whole[(slice(None), *made.grid[3].slices)])
    assert made.source.reads == 1
