"""Which settings a benchmark compares."""

import numpy as np
import pytest

from mlarray.errors import LayoutError, UsageError
from mlarray.layout import layout_for_patch
from mlarray.spec import ArraySpec
from mlarray_convert.bench.candidates import Codec, layout_of, make_candidates, parse_codec

CT = ArraySpec((400, 512, 512), np.dtype(np.int16))
LABELS = ArraySpec((400, 512, 512), np.dtype(np.uint8))


def test_the_default_comes_first_with_nothing_but_the_patch() -> None:
    first, *others = make_candidates(CT, 128, chosen_filter="shuffle")
    assert first.is_default
    assert first.arguments == {"patch_size": 128}
    assert not any(one.is_default for one in others)


def test_names_are_unique_and_every_kind_of_change_is_there() -> None:
    found = make_candidates(CT, 128, chosen_filter="shuffle")
    assert len({one.name for one in found}) == len(found)
    assert {one.layout for one in found} == {
        "nnunet",
        "small-blocks",
        "small-blocks-32",
        "blocks-16",
        "chunks-1.5",
        "blosc2",
    }
    assert {str(one.codec) for one in found} == {"LZ4HC-5", "LZ4-5", "ZSTD-1"}
    assert {one.filter for one in found if one.layout == "nnunet" and str(one.codec) == "LZ4HC-5"} == {
        "auto",
        "none",
        "bitshuffle",
    }


def test_small_blocks_keep_their_limits() -> None:
    small = next(one for one in make_candidates(CT, 128, chosen_filter="none") if one.name == "small-blocks LZ4HC-5")
    layout = layout_of(small, CT)
    assert layout.chunks is not None
    assert layout.blocks is not None
    assert np.prod(layout.blocks) * 2 <= 32 * 1024
    assert np.prod(layout.chunks) * 2 <= 1536 * 1024
    assert small.arguments == {"patch_size": 128, "layout": "small-blocks"}


def test_shuffle_is_never_tried_on_one_byte_types() -> None:
    assert all("shuffle" != one.filter for one in make_candidates(LABELS, 128, chosen_filter="none"))
    assert any("bitshuffle" == one.filter for one in make_candidates(LABELS, 128, chosen_filter="none"))


def test_layouts_that_come_to_the_same_are_measured_once() -> None:
    tiny = ArraySpec((16, 16, 16), np.dtype(np.int16))
    found = make_candidates(tiny, 128, chosen_filter="shuffle")
    keys = [(layout_of(one, tiny).chunks, layout_of(one, tiny).blocks, one.codec, one.filter) for one in found]
    assert len(set(keys)) == len(keys)
    assert [one.name for one in found if str(one.codec) == "LZ4HC-5" and one.filter == "auto"] == [
        "nnunet LZ4HC-5",
        "blosc2 LZ4HC-5",
    ]


def test_the_callers_own_layout_is_second_and_refused_where_it_cannot_be() -> None:
    own = make_candidates(CT, 128, chosen_filter="shuffle", chunk_size=64, block_size=(8, 16, 16))[1]
    assert (own.layout, own.arguments) == ("yours", {"chunk_size": 64, "block_size": (8, 16, 16)})
    assert layout_of(own, CT).blocks == (8, 16, 16)
    with pytest.raises(LayoutError, match="without block_size"):
        make_candidates(CT, 128, chosen_filter="shuffle", chunk_size=64)


def test_codecs_of_the_caller_replace_those_tried_beside_the_default() -> None:
    found = make_candidates(CT, 128, chosen_filter="none", codecs=[Codec("ZSTD", 3), Codec("LZ4HC", 5)])
    assert {str(one.codec) for one in found} == {"LZ4HC-5", "ZSTD-3"}
    zstd = next(one for one in found if one.name == "nnunet ZSTD-3 none")
    assert zstd.arguments["cparams"] == {"codec": 5, "clevel": 3, "filters": [0], "nthreads": 4}


def test_the_default_layout_is_the_one_of_the_patch() -> None:
    first = make_candidates(CT, (64, 192, 192), chosen_filter="none")[0]
    expected = layout_for_patch(CT.shape, 2, patch_size=(64, 192, 192))
    assert layout_of(first, CT).chunks == expected.chunks


@pytest.mark.parametrize("text", ["", "LZ5", "ZSTD-0", "ZSTD-12", "LZ4:5"])
def test_a_codec_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no codec; known are BLOSCLZ, LZ4"):
        parse_codec(text)
