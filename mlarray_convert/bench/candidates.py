"""What is compared? Layouts, codecs and filters, each as the exact arguments that a user would pass.

A full cross product would take an hour, so candidates differ from the default in one thing, or in the layout and one more.
They come in the order of their promise: when time runs short, the last ones are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mlarray.errors import UsageError
from mlarray.layout import DEFAULT_LAYOUT, NAMED_LAYOUTS, Layout, LayoutName, PatchSize
from mlarray.spec import ArraySpec
from mlarray.storage.options import COMPRESSION_LEVEL, COMPRESSION_THREADS, SizeLike, StorageOptions

# As blosc2 numbers them; plain numbers are accepted as compression parameters, so that no import is needed to pass them.
CODEC_NUMBERS = {"BLOSCLZ": 0, "LZ4": 1, "LZ4HC": 2, "ZLIB": 4, "ZSTD": 5}
FILTER_NUMBERS = {"none": 0, "shuffle": 1, "bitshuffle": 2}
AUTO_FILTER = "auto"
SMALL_LAYOUT: LayoutName = "small-blocks"
OWN_LAYOUT = "yours"


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec of blosc2 with its level.

    Examples
    --------
    >>> str(parse_codec("zstd-1")), parse_codec("lz4").level
    ('ZSTD-1', 5)
    """

    name: str
    level: int

    def __str__(self) -> str:
        return f"{self.name}-{self.level}"


DEFAULT_CODEC = Codec("LZ4HC", COMPRESSION_LEVEL)
OTHER_CODECS = (Codec("LZ4", 5), Codec("ZSTD", 1))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to store the data.

    Parameters
    ----------
    name : str
        Unique within a run.
    layout, filter : str
        Short names; the filter ``"auto"`` is the one that ``MLArray`` chooses by itself.
    codec : Codec
        Codec and level.
    arguments : mapping
        Storage arguments of ``MLArray``, exactly as they are to be passed.
    changes : int
        In how many of layout, codec and filter it differs from the default.
    """

    name: str
    layout: str
    codec: Codec
    filter: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    changes: int = 0

    @property
    def is_default(self) -> bool:
        """Whether it is what happens when nothing but the patch is given."""
        return self.changes == 0


def parse_codec(text: str) -> Codec:
    """Return the codec that a text such as ``"ZSTD-3"`` or ``"lz4"`` (level 5) stands for.

    Raises
    ------
    UsageError
        For a codec blosc2 does not have, or a level that is not within 1 to 9.
    """
    match = re.fullmatch(r"([A-Za-z0-9]+?)(?:-(\d+))?", text.strip())
    name = match.group(1).upper() if match else ""
    level = int(match.group(2) or COMPRESSION_LEVEL) if match else 0
    if name not in CODEC_NUMBERS or not 1 <= level <= 9:
        raise UsageError(
            f"{text!r} is no codec; known are {', '.join(CODEC_NUMBERS)}, with a level from 1 to 9.",
            hint="Write it like LZ4-5 or ZSTD-1.",
        )
    return Codec(name, level)


def make_candidates(
    spec: ArraySpec,
    patch_size: PatchSize,
    *,
    chosen_filter: str,
    chunk_size: SizeLike = None,
    block_size: SizeLike = None,
    codecs: Sequence[Codec] | None = None,
) -> tuple[Candidate, ...]:
    """Return what to compare for one kind of data, the default first and without doubles.

    Parameters
    ----------
    spec : ArraySpec
        Of the data; candidates that come to the same chunks, blocks and compression are one.
    patch_size : int, sequence of int or "default"
        The patch that will be read.
    chosen_filter : {"none", "shuffle"}
        The one that the default chooses for this data; codecs other than the default are tried with it.
    chunk_size, block_size : int or sequence of int, optional
        The caller's own layout, both or none.
    codecs : sequence of Codec, optional
        Tried beside the default LZ4HC-5. Default: LZ4-5 and ZSTD-1.

    Raises
    ------
    LayoutError
        When the caller's own layout cannot be stored.
    """
    seen: set[object] = set()
    found = []
    for candidate in _proposed(spec, patch_size, chosen_filter, chunk_size, block_size, codecs):
        layout = layout_of(candidate, spec)
        used = chosen_filter if candidate.filter == AUTO_FILTER else candidate.filter
        key = (layout.chunks, layout.blocks, candidate.codec, used)
        if key not in seen:
            seen.add(key)
            found.append(candidate)
    return tuple(found)


def layout_of(candidate: Candidate, spec: ArraySpec) -> Layout:
    """Return the chunks and blocks that a candidate comes to for an array."""
    return StorageOptions.from_mapping(candidate.arguments).layout_for(spec)


def _proposed(
    spec: ArraySpec,
    patch_size: PatchSize,
    chosen_filter: str,
    chunk_size: SizeLike,
    block_size: SizeLike,
    codecs: Sequence[Codec] | None,
) -> Iterator[Candidate]:
    patch = {"patch_size": patch_size}
    small = {**patch, "layout": SMALL_LAYOUT}
    limits = NAMED_LAYOUTS[SMALL_LAYOUT]
    yield _candidate(DEFAULT_LAYOUT, patch)
    if chunk_size is not None or block_size is not None:
        yield _candidate(OWN_LAYOUT, {"chunk_size": chunk_size, "block_size": block_size})
    yield _candidate(SMALL_LAYOUT, small)
    others = OTHER_CODECS if codecs is None else tuple(codec for codec in codecs if codec != DEFAULT_CODEC)
    for codec in others:
        yield _candidate(SMALL_LAYOUT, small, codec, chosen_filter)
    yield _candidate("small-blocks-32", {**small, "block_limit_bytes": 2 * limits.block_limit_bytes})
    yield _candidate("blocks-16", {**patch, "block_limit_bytes": limits.block_limit_bytes})
    yield _candidate("chunks-1.5", {**patch, "chunk_limit_bytes": limits.chunk_limit_bytes})
    yield _candidate("blosc2", {"patch_size": None})
    for codec in others:
        yield _candidate(DEFAULT_LAYOUT, patch, codec, chosen_filter)
    # One-byte types have no bytes to shuffle; their bits can be.
    filters = ("none", "bitshuffle") if spec.dtype.itemsize == 1 else ("none", "shuffle", "bitshuffle")
    for filter_name in filters:
        if filter_name != chosen_filter:
            yield _candidate(DEFAULT_LAYOUT, patch, DEFAULT_CODEC, filter_name)


def _candidate(
    layout: str, arguments: Mapping[str, object], codec: Codec = DEFAULT_CODEC, filter_name: str = AUTO_FILTER
) -> Candidate:
    changes = int(layout != DEFAULT_LAYOUT) + int(codec != DEFAULT_CODEC)
    if filter_name != AUTO_FILTER:
        # The filter counts as a change where it is what was changed; another codec merely has to name one.
        changes += int(codec == DEFAULT_CODEC)
        arguments = {**arguments, "cparams": _parameters(codec, filter_name)}
    name = " ".join((layout, str(codec), *(() if filter_name == AUTO_FILTER else (filter_name,))))
    return Candidate(name, layout, codec, filter_name, dict(arguments), changes)


def _parameters(codec: Codec, filter_name: str) -> dict[str, object]:
    return {
        "codec": CODEC_NUMBERS[codec.name],
        "clevel": codec.level,
        "filters": [FILTER_NUMBERS[filter_name]],
        "nthreads": COMPRESSION_THREADS,
    }
