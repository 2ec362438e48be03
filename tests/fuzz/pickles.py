"""How is a pickle changed so that it stays a pickle? By its operations."""

from __future__ import annotations

import pickletools
import warnings
from functools import lru_cache
from random import Random

from tests.fuzz.mutations import LONGEST, bit, drop, one_byte, whole_number


def operations(random: Random, data: bytes) -> bytes:
    """Drop, double, swap or insert operations of a pickle, or change an argument."""
    pieces = list(_pieces(data))
    if len(pieces) < 3:
        return bit(random, data)
    at, to = random.randrange(len(pieces)), random.randrange(len(pieces))
    kind = random.randrange(6)
    if kind == 0:
        del pieces[at]
    elif kind == 1:
        pieces.insert(to, pieces[at])
    elif kind == 2:
        pieces[at], pieces[to] = pieces[to], pieces[at]
    elif kind == 3:
        pieces.insert(at, random.choice(_OPERATIONS))
    elif kind == 4:
        pieces[at] = random.choice(_OPERATIONS)
    else:
        head = pieces[at][:1]
        pieces[at] = head + random.choice((bit, one_byte, whole_number, drop))(random, pieces[at][1:] or b"\x00")
    return b"".join(pieces)[:LONGEST]


@lru_cache(2000)
def _pieces(data: bytes) -> tuple[bytes, ...]:
    """Return the operations of a pickle; nothing where they cannot be told apart."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            starts = [position for _, _, position in pickletools.genops(data) if position is not None]
    except Exception:
        return ()
    return tuple(data[a:b] for a, b in zip(starts, [*starts[1:], len(data)], strict=True))


_OPERATIONS = (
    *(
        b"N",
        b"\x88",
        b")",
        b"]",
        b"}",
        b"(",
        b".",
        b"a",
        b"e",
        b"l",
        b"s",
        b"u",
        b"d",
        b"t",
        b"\x85",
        b"\x86",
        b"\x87",
        b"0",
    ),
    *(
        b"1",
        b"2",
        b"\x94",
        b"R",
        b"\x81",
        b"b",
        b"\x93",
        b"h\x00",
        b"h\x05",
        b"q\x00",
        b"K\xff",
        b"M\xff\xff",
        b"J\xff\xff\xff\xff",
    ),
    *(
        b"I1\n",
        b"L9999999999999L\n",
        b"F1e999\n",
        b"Fnan\n",
        b"V\\ud800\n",
        b"S'a'\n",
        b"p0\n",
        b"p-1\n",
        b"g99\n",
        b"gx\n",
    ),
    *(
        b"I1_0\n",
        b"p99999999999999999999\n",
        b"Ix\n",
        b"F_\n",
        b"c__builtin__\nset\n",
        b"cnumpy\nndarray\n",
        b"cnumpy\ndtype\n",
    ),
    *(
        b"cnumpy.core.multiarray\nscalar\n",
        b"cnumpy.core.multiarray\n_reconstruct\n",
        b"c_codecs\nencode\n",
        b"c__builtin__\ncomplex\n",
    ),
    *(
        b"ccollections\nOrderedDict\n",
        b"cos\nsystem\n",
        b"\x8a\x01\xff",
        b"\x8b\xff\xff\xff\x7f",
        b"X\xff\xff\xff\xff",
        b"\x8c\x01a",
    ),
    *(
        b"C\x01a",
        b"\x8d" + b"\xff" * 8,
        b"\x95" + b"\xff" * 8,
        b"\x96" + b"\x01" + bytes(7) + b"a",
        b"G\x7f\xf0" + bytes(6),
    ),
    *(
        b"\x8a\xff" + b"\xff" * 255,
        b"r\xff\xff\xff\xff",
        b"j\xff\xff\xff\xff",
        b"o",
        b"i",
        b"Q",
        b"P1\n",
        b"\x82\x01",
        b"\x8f",
        b"\x91",
    ),
)
