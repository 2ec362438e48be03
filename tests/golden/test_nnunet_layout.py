"""Layouts equal the published nnU-Net 2.8.1 rule on every recorded case (provenance: README.md beside this file)."""

import json
from pathlib import Path

import pytest

from mlarray.layout import layout_for_patch

CASES = json.loads((Path(__file__).parent / "nnunet_layout.json").read_text(encoding="utf-8"))


def test_the_file_holds_310_cases() -> None:
    assert len(CASES) == 310


def test_blocks_and_chunks_equal_every_recorded_case() -> None:
    different = []
    for case in CASES:
        layout = layout_for_patch(case["image"], case["itemsize"], patch_size=case["patch"])
        if (list(layout.blocks), list(layout.chunks)) != (case["block"], case["chunk"]):
            different.append((case, layout))
    assert different == []


@pytest.mark.parametrize("channel_at", [0, 1, 2, 3])
def test_a_channel_axis_anywhere_leaves_the_recorded_numbers_on_the_spatial_axes(channel_at: int) -> None:
    different = []
    for case in CASES:
        shape, spatial = list(case["image"]), [True, True, True]
        shape.insert(channel_at, 4)
        spatial.insert(channel_at, False)
        layout = layout_for_patch(shape, case["itemsize"], patch_size=case["patch"], spatial=spatial)
        blocks, chunks = list(layout.blocks), list(layout.chunks)
        if (blocks.pop(channel_at), chunks.pop(channel_at)) != (1, 1) or (blocks, chunks) != (
            case["block"],
            case["chunk"],
        ):
            different.append((case, layout))
    assert different == []
