"""How is blosc2 called: with which parameters where the caller gave none, and by which of its functions for opening?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from mlarray.storage.forks import is_forked, with_safe_threads
from mlarray.storage.guards import CODECS, FILTERS
from mlarray.storage.options import COMPRESSION_LEVEL, DECOMPRESSION_THREADS, Params


def compression_params(blosc2: Any, params: Params, dtype: np.dtype[Any], *, shuffle: bool, threads: int) -> Any:
    """Return what the caller gave, or the defaults as an object of the package ``blosc2``.

    Raises
    ------
    ValueError
        A codec or filter that no file may ask for, as it is not compiled into blosc2.
    """
    if params is not None:
        _refuse_plugins(params)
        return with_safe_threads(params)
    filters = [blosc2.Filter.SHUFFLE if shuffle else blosc2.Filter.NOFILTER]
    return blosc2.CParams(
        codec=blosc2.Codec.LZ4HC,
        clevel=COMPRESSION_LEVEL,
        nthreads=1 if is_forked() else threads,
        typesize=dtype.itemsize,
        filters=filters,
        filters_meta=[0],
    )


def decompression_params(blosc2: Any, params: Params) -> Any:
    """Return what the caller gave, or the defaults as an object of the package ``blosc2``."""
    return _defaults(blosc2) if params is None else with_safe_threads(params)


@cache
def frame_opener(blosc2: Any) -> Callable[..., Any]:
    """Return the call that opens a frame.

    ``blosc2.open`` first searches which kind of object a name stands for, a third of what opening a small file costs. Here the
    header has told that already, so the call that it ends in is made, as the package itself does in many places.
    """
    direct: Callable[..., Any] | None = getattr(getattr(blosc2, "blosc2_ext", None), "open", None)
    return direct or (lambda name, mode, offset, **others: blosc2.open(name, mode=mode, offset=offset, **others))


@cache
def _defaults(blosc2: Any) -> Any:
    # A ready object saves 40 of 150 microseconds an open, against the dictionary.
    return blosc2.DParams(nthreads=DECOMPRESSION_THREADS)


def _refuse_plugins(params: Any) -> None:
    given = params.get if isinstance(params, Mapping) else partial(getattr, params)
    numbers = [getattr(one, "value", one) for one in (given("codec", 0), *(given("filters", None) or ()))]
    foreign = [number for number in numbers[:1] if isinstance(number, int) and number not in CODECS]
    foreign += [number for number in numbers[1:] if isinstance(number, int) and number not in FILTERS]
    if foreign:
        raise ValueError(f"codecs are {sorted(CODECS)} and filters {sorted(FILTERS)}, got {foreign}")
