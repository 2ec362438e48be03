"""How is an input changed so that it stays nearly right? By bytes, and by what the bytes are: fields, lines, JSON, elements.

A mutation takes a source of chance and one file and returns another, or the same where it has nothing to change. Blind
changes of bytes end in the first check of a parser; those that keep the structure reach what lies behind it.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any, TypeAlias

Mutation: TypeAlias = Callable[[Random, bytes], bytes]

LONGEST = 64 * 1024
WHOLE = (0, 1, 2, 3, 7, 8, 16, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
WIDE = (*WHOLE, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
REAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-300,
    5e-324,
    1e-38,
    1e38,
    1e300,
    -1e300,
    1e16,
    float("inf"),
    float("-inf"),
    float("nan"),
)
TOKENS = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "3",
        "17",
        "255",
        "65536",
        "2147483648",
        "99999999999999999999",
        "-0",
        "1e400",
        "1e-400",
        "nan",
    ),
    *(
        "inf",
        "-inf",
        "none",
        "true",
        "null",
        "",
        " ",
        "?",
        "%d",
        "%s%s%s",
        "a",
        "é",
        "\udc80",
        "\x00",
        "\x1b[31m",
        "(1,2,3)",
    ),
    *(
        "9" * 5000,
        "(" * 300,
        "[" * 3000,
        "..",
        "../a",
        "/etc/passwd",
        "~",
        "LIST",
        "a" * 300,
        "1,2",
        "1 2 3 4 5 6 7 8 9",
    ),
    *(
        "1.5",
        "0x10",
        "1_0",
        "١",
        "+5",
        "1e3",
        "NaN",
        "0 0 0",
        "-1 -1 -1",
        "1e308 1e308 1e308",
        "False",
        "{}",
        "[]",
        '"',
    ),
)
JSON_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 10**400, 0.5, 1e308, -0.0, 1e-320),
    *(
        "",
        "a",
        "0",
        "é",
        "\ud800",
        "\x00",
        "a" * 300,
        "1" * 5000,
        "../a",
        "/etc",
        "NaN",
        [],
        {},
        [[]],
        [{}],
        [None],
        {"a": 1},
    ),
    *(
        [0],
        [0, 0, 0],
        [1, 2, 3, 4, 5, 6, 7],
        [-1],
        ["a"],
        [1.5, "x"],
        [[1, 2], [3]],
        {"name": 1},
        {"name": None},
        {"": {}},
    ),
    *(float("nan"), float("inf"), float("-inf")),
)
_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][\w-]*")


# --- bytes ---------------------------------------------------------------------------------------------------------------


def _place(random: Random, size: int) -> int:
    """Return a place in a file: half of the time among the first bytes, where headers are."""
    if size < 2:
        return 0
    return (
        random.randrange(min(size, random.choice((16, 64, 352, 600, 2000))))
        if random.random() < 0.5
        else random.randrange(size)
    )


def bit(random: Random, data: bytes) -> bytes:
    if not data:
        return b"\x00"
    changed = bytearray(data)
    changed[_place(random, len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)


def one_byte(random: Random, data: bytes) -> bytes:
    if not data:
        return b"a"
    changed = bytearray(data)
    changed[_place(random, len(data))] = random.choice((0, 1, 9, 10, 32, 48, 127, 128, 255, random.randrange(256)))
    return bytes(changed)


def cut(random: Random, data: bytes) -> bytes:
    return data[: random.choice((_place(random, len(data)), max(0, len(data) - random.randrange(1, 32))))]


def drop(random: Random, data: bytes) -> bytes:
    at = _place(random, len(data))
    return data[:at] + data[at + random.choice((1, 1, 2, 4, 8, 64, random.randrange(1, 512))) :]


def insert(random: Random, data: bytes) -> bytes:
    at = _place(random, len(data))
    count = random.choice((1, 1, 2, 4, 8, 16, 300))
    return data[:at] + random.choice((bytes(count), random.randbytes(count), data[:count], b"\xff" * count)) + data[at:]


def repeat(random: Random, data: bytes) -> bytes:
    at = _place(random, len(data))
    piece = data[at : at + random.choice((1, 4, 16, 128))]
    return (data[:at] + piece * random.choice((2, 2, 3, 50)) + data[at + len(piece) :])[:LONGEST]


def move(random: Random, data: bytes) -> bytes:
    length = random.choice((1, 2, 4, 8, 32))
    at, to = _place(random, len(data)), _place(random, len(data))
    return data[:to] + data[at : at + length] + data[to + length :]


def blank(random: Random, data: bytes) -> bytes:
    at, length = _place(random, len(data)), random.choice((2, 4, 8, 64, 4096))
    return (
        data[:at]
        + random.choice((b"\x00", b"\xff", b" "))[:1] * min(length, max(0, len(data) - at))
        + data[at + length :]
    )


def whole_number(random: Random, data: bytes) -> bytes:
    """Set an aligned whole number to one that is extreme, or near to what it was."""
    code = random.choice("BHIQ")
    order = random.choice("<>")
    width = struct.calcsize(code)
    if len(data) < width:
        return data
    at = _place(random, len(data) - width + 1)
    at -= at % random.choice((1, width))
    return _set_whole(random, data, at, order + code)


def real_number(random: Random, data: bytes) -> bytes:
    code = random.choice(("<f", "<d", ">f", ">d"))
    width = struct.calcsize(code)
    if len(data) < width:
        return data
    at = _place(random, len(data) - width + 1)
    at -= at % 4
    return data[:at] + _packed_real(random, code) + data[at + width :]


BYTES: tuple[Mutation, ...] = (
    *(bit, bit, one_byte, one_byte, cut, drop, insert, repeat, move, blank, whole_number, whole_number, real_number),
)


def _set_whole(random: Random, data: bytes, at: int, code: str) -> bytes:
    width = struct.calcsize(code)
    old = int.from_bytes(data[at : at + width], "little" if code[0] == "<" else "big")
    near = (old + 1, old - 1, old * 2, old // 2, -old, old ^ (1 << random.randrange(8 * width)))
    value = random.choice(WIDE if random.random() < 0.6 else near) % (1 << 8 * width)
    return data[:at] + value.to_bytes(width, "little" if code[0] == "<" else "big") + data[at + width :]


def _packed_real(random: Random, code: str) -> bytes:
    try:
        return struct.pack(code, random.choice(REAL) if random.random() < 0.8 else random.uniform(-1e4, 1e4))
    except OverflowError:
        return struct.pack(code, float("inf"))


# --- headers of fields at fixed places -----------------------------------------------------------------------------------


def fields(layout: Sequence[tuple[int, str]]) -> Mutation:
    """Return a mutation of headers: ``layout`` has places and :mod:`struct` codes, with their byte order."""

    def mutate(random: Random, data: bytes) -> bytes:
        at, code = random.choice(layout)
        width = struct.calcsize(code)
        if len(data) < at + width:
            return data
        if code[-1] in "fd":
            return data[:at] + _packed_real(random, code) + data[at + width :]
        return _set_whole(random, data, at, code)

    return mutate


def series(start: int, code: str, count: int) -> list[tuple[int, str]]:
    """Return the places of ``count`` numbers side by side."""
    return [(start + i * struct.calcsize(code), code) for i in range(count)]


# --- text ----------------------------------------------------------------------------------------------------------------


def _split_head(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the lines of a text header and what stands behind it."""
    end = re.search(rb"\n\r?\n|ElementDataFile[^\n]*\n", data[:LONGEST])
    at = end.end() if end else min(len(data), 8192)
    return data[:at].split(b"\n"), data[at:]


def token(random: Random) -> bytes:
    return random.choice(TOKENS).encode("utf-8", "surrogateescape")


def line(random: Random, data: bytes) -> bytes:
    """Drop, double, swap or change a line of a header."""
    lines, rest = _split_head(data)
    at = random.randrange(len(lines))
    kind = random.randrange(6)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(random.randrange(len(lines) + 1), lines[at])
    elif kind == 2:
        other = random.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        found = re.match(rb"(\s*[^:=]*?(?::=|: ?| ?= ?))(.*)", lines[at], re.DOTALL)
        lines[at] = found[1] + token(random) if found else lines[at] + token(random)
    return b"\n".join(lines)[:LONGEST] + rest


def number(random: Random, data: bytes) -> bytes:
    """Change a number that stands in text."""
    return _replaced(random, data, _NUMBER, token(random))


def word(random: Random, data: bytes) -> bytes:
    """Replace a word of a text by another of it, or by a token."""
    found = _WORD.findall(data[:8192])
    other = random.choice(found) if found and random.random() < 0.7 else token(random)
    return _replaced(random, data, _WORD, other)


def _replaced(random: Random, data: bytes, pattern: re.Pattern[bytes], new: bytes) -> bytes:
    found = list(pattern.finditer(data[:8192]))
    if not found:
        return data
    one = random.choice(found)
    return data[: one.start()] + new + data[one.end() :]


def lines_of(known: Sequence[str]) -> Mutation:
    """Return a mutation that adds a line of a header that other files have."""

    def mutate(random: Random, data: bytes) -> bytes:
        lines, rest = _split_head(data)
        lines.insert(random.randrange(1, max(2, len(lines))), random.choice(known).encode())
        return b"\n".join(lines) + rest

    return mutate


TEXT: tuple[Mutation, ...] = (line, line, number, number, word)


# --- JSON ----------------------------------------------------------------------------------------------------------------


def tree(random: Random, value: Any) -> Any:
    """Return plain values with one node changed; ``value`` may be changed in place."""
    nodes: list[tuple[Any, Any]] = []
    open_nodes = [value]
    while open_nodes:
        node = open_nodes.pop()
        keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            nodes.append((node, key))
            open_nodes.append(node[key])
    if not nodes:
        return deepcopy(random.choice(JSON_VALUES))
    node, key = random.choice(nodes)
    kind = random.randrange(9)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, list):
        node.insert(key, deepcopy(node[key]))
    elif kind == 2:
        node[key] = [node[key]]
    elif kind == 3:
        other, name = random.choice(nodes)
        node[key] = deepcopy(other[name])
    elif kind == 4 and isinstance(node, dict):
        node[random.choice(("", "name", "x", "0", "é"))] = node.pop(key)
    elif kind == 5 and isinstance(node, list):
        random.shuffle(node)
    elif kind == 6 and isinstance(node[key], (int, float)):
        node[key] = random.choice((-node[key], node[key] * 2, node[key] + 1, str(node[key]), float(node[key]) / 3))
    else:
        node[key] = deepcopy(random.choice(JSON_VALUES))
    return value


def json_tree(random: Random, data: bytes) -> bytes:
    try:
        value = json.loads(data)
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            value = tree(random, value)
        return json.dumps(value).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError, OverflowError, TypeError):
        return bit(random, data)


JSON: tuple[Mutation, ...] = (json_tree, json_tree, json_tree, json_tree, number, bit)


# --- what is inside of compressed bytes ----------------------------------------------------------------------------------


def unzipped(mutations: Sequence[Mutation], chance: float = 0.85) -> Mutation:
    """Return a mutation of the content of a gzip stream; sometimes of the stream itself."""

    def mutate(random: Random, data: bytes) -> bytes:
        if random.random() > chance:
            return random.choice(BYTES)(random, data)
        try:
            inside = zlib.decompressobj(wbits=31).decompress(data, 1 << 20)
        except zlib.error:
            return random.choice(BYTES)(random, data)
        for _ in range(random.choice((1, 1, 2, 3))):
            inside = random.choice(mutations)(random, inside)
        return gzip.compress(inside, 1, mtime=0)

    return mutate


def mutated(random: Random, data: bytes, mutations: Sequence[Mutation]) -> bytes:
    """Return a file after one to four mutations."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        data = random.choice(mutations)(random, data)
    return data[:LONGEST]
