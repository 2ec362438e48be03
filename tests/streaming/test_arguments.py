"""An argument of another kind is one error of the project, which names it; never a bare one of Python or numpy."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlarray import MLArray, open_source
from mlarray import transforms as T
from mlarray.errors import MLArrayError, UsageError
from mlarray.integrations.nnunet import NNUNetDataset
from mlarray.integrations.patch_volumes import ras_affine, xyz_volume
from mlarray.streaming import (
    Batch,
    CaseEstimate,
    ForegroundPatches,
    GridPatches,
    GroupChain,
    PatchStream,
    PatchWriter,
    RandomPatches,
    WorkerLoader,
    block_origins,
    class_locations,
    decide,
    evaluation_patch,
    find_cases,
    fingerprint,
    kept_for,
    locations_of,
    memory_budget,
    open_place,
    padded,
    parse_bytes,
    patch_grid,
    patch_weights,
    plan,
    record_statistics,
    split,
)

ODD = [
    "x",
    b"x",
    1.5,
    -1,
    float("nan"),
    10**30,
    None,
    True,
    object(),
    int,
    [],
    ["x"],
    [None],
    {"a": 1},
    np.array([1, 2]),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One case with an image and a segmentation."""
    folder = tmp_path_factory.mktemp("arguments") / "data" / "a"
    folder.mkdir(parents=True)
    for group, dtype in (("CT", np.float32), ("SEG", np.uint8)):
        voxels = np.arange(9 * 10 * 11).reshape(9, 10, 11).astype(dtype) % 3
        image = MLArray(voxels, axes="zyx", spacing=(2, 1, 1), origin=(0, 0, 0), direction=np.eye(3), patch_size=8)
        image.save(folder / f"{group}.mla")
    return folder.parent


def stream_of(root: Path, **given: Any) -> PatchStream:
    given = {"dataset": root, "groups": {"CT": [], "SEG": []}, "patch_size": 8, "memory_budget": 4, **given}
    return PatchStream(**given)


def calls(root: Path) -> Iterator[tuple[Callable[..., Any], dict[str, Any]]]:
    """Give what a caller may call, with arguments that are right."""
    chain = [T.Canonical()]
    image, labels = (plan(open_source(root / "a" / f"{name}.mla"), chain, patch_size=8) for name in ("CT", "SEG"))
    stream = stream_of(root)
    sample = stream.batch(0).samples[0]
    yield stream.plan, {"case": 0, "group": "CT"}
    yield stream.plan_as_judged, {"case": 0, "group": "CT"}
    yield stream.set_epoch, {"epoch": 0}
    yield stream.state, {"done": 0}
    yield stream.resume, {"state": stream.state(0)}
    yield stream.announce, {"index": 0}
    yield stream.loader, {"workers": 0, "torch": False}
    yield WorkerLoader, {"stream": stream, "workers": 0}
    yield PatchStream.from_config, {"path": "none.yaml"}
    yield plan, {"source": open_source(root / "a" / "CT.mla"), "chain": chain}
    yield memory_budget, {"ranks_on_node": 1}
    yield parse_bytes, {"value": 1}
    yield GroupChain, {}
    yield find_cases, {"dataset": root}
    yield open_place, {"place": stream.cases.cases[0].places["CT"]}
    yield split, {"case_set": stream.cases, "validation": None}
    for found in (class_locations, locations_of, fingerprint):
        yield found, {"plan": labels}
    yield padded, {"patch": np.zeros((1, 4, 4)), "patch_size": (4, 5)}
    yield patch_grid, {"shape": (10, 12), "patch_size": 4}
    yield patch_weights, {"shape": (4, 4), "kind": "uniform"}
    yield record_statistics, {"source": 0}
    yield kept_for, {"dataset": root}
    yield decide, {"estimates": [CaseEstimate("a", 1, 1, {"CT": (True,)}, 1)], "budget": memory_budget(4)}
    yield evaluation_patch, {"shapes": {"a": (4, 4)}, "channels": {"a": 1}, "budget": memory_budget(4)}
    yield RandomPatches, {"per_case": 2}
    yield ForegroundPatches, {"per_case": 2, "group": "SEG"}
    yield RandomPatches(2).region, {"shape": (10, 10), "patch_size": 4, "index": 0, "key": 1}
    yield GridPatches().region, {"shape": (10, 10), "patch_size": 4, "index": 0}
    yield block_origins, {"plan": image, "patch_size": 8}
    yield image.read, {"target": image.grid[0]}
    yield image.prefetch, {"targets": [image.grid[0]]}
    yield image.geometry, {"target": image.grid[0]}
    yield image.inverse, {"prediction": open_source(root / "a" / "CT.mla")}
    yield image.extended, {"transforms": []}
    yield PatchWriter, {"path": root.parent / "out.mla", "plan": image, "channels": 1}
    yield Batch.of, {"samples": [sample]}
    yield sample.affine, {"group": "CT"}
    yield xyz_volume, {"sample": sample, "group": "CT"}
    yield ras_affine, {"sample": sample, "group": "CT"}
    yield NNUNetDataset, {"folder": root}
    yield NNUNetDataset(root, []).load_case, {"identifier": "none"}
    yield (
        NNUNetDataset.save_seg,
        {"seg": np.zeros((1, 4, 4, 4), np.int8), "output_filename_truncated": root.parent / "s"},
    )


def refused(call: Callable[..., Any], arguments: dict[str, Any], at: str, value: object) -> str:
    """Return how a call with another value fails that does not fail as it should, or nothing."""
    try:
        made = call(**{**arguments, at: value})
        getattr(made, "abort", lambda: None)()
    except (MLArrayError, IndexError):
        return ""
    except Exception as error:
        return f"{getattr(call, '__qualname__', call)}({at}={value!r}): {type(error).__name__}: {error}"
    return ""


def test_no_value_of_another_kind_gives_a_bare_error(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call, arguments in calls(root):
            taken = [name for name in inspect.signature(call).parameters if name not in ("self", "_", "args", "kwargs")]
            seams = ("environment", "root", "stack", "opener", "saved", "at", "beside", "locations", "origins", "carry")
            for at in (name for name in taken if name not in seams):
                found += [told for value in ODD if (told := refused(call, arguments, at, value))]
    assert found == []


@pytest.mark.parametrize("at", [name for name in inspect.signature(PatchStream).parameters if name != "groups"])
def test_a_stream_refuses_what_it_cannot_take(
    root: Path, at: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [
            told for value in ODD if (told := refused(lambda **given: stream_of(root, **given), {}, at, value))
        ] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cost_limit": "x"}, "cost_limit is a number above 0, got 'x'"),
        ({"subset": 1.5}, r"A subset is made of names, numbers, 'first:last' and '~name', got 1\.5"),
        ({"rank": "0", "world_size": 1}, "rank is a whole number from 0 on, got '0'"),
        ({"shuffle": "no"}, "shuffle is True or False, got 'no'"),
        ({"seed": "1"}, "seed is a whole number, got '1'"),
        ({"dataset": 5}, "dataset is a list, got 5"),
        ({"augmentations": 5}, "Augmentations come in lists, got int"),
        ({"groups": {"CT": GroupChain([T.Canonical()]), "X": 5}}, "The chain of 'X' is 5, not a list of transforms"),
    ],
)
def test_the_error_of_a_stream_names_the_argument(root: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        stream_of(root, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": "2"}, "workers is a whole number from 0 on, got '2'"),
        ({"workers": 1, "prefetch": 0}, "prefetch is a whole number from 1 on, got 0"),
        ({"workers": 1, "context": "x"}, "Workers start by .*, got 'x'"),
    ],
)
@pytest.mark.parametrize("torch", [False, True])
def test_the_error_of_a_loader_names_the_argument(
    root: Path, given: dict[str, Any], message: str, *, torch: bool
) -> None:
    with pytest.raises(UsageError, match=message):
        stream_of(root).loader(torch=torch, **given)
