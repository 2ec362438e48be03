"""Files that run code when somebody who trusts them opens them: each leaves a proof in the current folder.

Every pickle here but APPENDS, and the chunk with a codec that is searched with Python, was seen to run when
``mlarray==0.0.54`` (with blosc2 4.14.1) opened the file, and its metadata or a voxel was asked for. Lazy functions and
expressions run where blosc2 is told to trust the file; they are here so that they stay inert.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blosc2
import msgpack
import numpy as np

from mlarray import MLArray
from mlarray.storage.frame import read_header

PROOF = "proof.txt"
COMMAND = f"echo run > {PROOF}"
WRITE = f"open({PROOF!r}, 'w').write('run')"
PLUGIN_CODEC, PLUGIN_MODULE = 37, "blosc2_grok"  # of Blosc2's registry; its library is searched with Python


class Calls:
    """Is pickled as the call of a function (REDUCE)."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self.parts = (call, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


def name(module: str, attribute: str) -> bytes:
    """The operation GLOBAL."""
    return f"c{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def data(value: bytes) -> bytes:
    return b"B" + len(value).to_bytes(4, "little") + value


def call(function: bytes, *arguments: bytes) -> bytes:
    """The operation REDUCE."""
    return function + b"(" + b"".join(arguments) + b"tR"


def extra(code: bytes) -> bytes:
    """A pickle of metadata whose ``extra`` holds what some operations leave on the stack."""
    return b"\x80\x04}" + text("extra") + b"}" + text("data") + b"}" + text("x") + code + b"sss."


SYSTEM = name("os", "system")
IMPORTED = call(name("builtins", "__import__"), text("os"))
PICKLES: dict[str, bytes] = {
    "REDUCE of os.system": extra(call(SYSTEM, text(COMMAND))),
    "REDUCE of exec": extra(call(name("builtins", "exec"), text(WRITE))),
    "REDUCE of eval, protocol 0": pickle.dumps({"extra": Calls(eval, WRITE)}, 0),
    "STACK_GLOBAL": extra(call(text("os") + text("system") + b"\x93", text(COMMAND))),
    "a dotted name": extra(call(text("os") + text("path.os.system") + b"\x93", text(COMMAND))),
    "INST": extra(b"(" + text(COMMAND) + b"ios\nsystem\n"),
    "OBJ": extra(b"(" + SYSTEM + text(COMMAND) + b"o"),
    "NEWOBJ": extra(
        name("builtins", "bytes") + b"(" + name("builtins", "map") + b"(" + SYSTEM + b"(" + text(COMMAND) + b"lt\x81t\x81"
    ),
    "NEWOBJ_EX": extra(
        name("builtins", "bytes") + b"(" + name("builtins", "map") + b"(" + SYSTEM + b"(" + text(COMMAND) + b"lt}\x92t}\x92"
    ),
    "BUILD with a __setstate__ of its own": extra(
        name("pickle", "PickleError") + b")R}" + text("__setstate__") + SYSTEM + b"sb" + text(COMMAND) + b"b"
    ),
    "EXT of a code that it registers": extra(
        call(name("copyreg", "add_extension"), text("posix"), text("system"), b"K\xc8") + b"0" + call(b"\x82\xc8", text(COMMAND))
    ),
    "APPENDS to what is no list": extra(
        call(name("types", "SimpleNamespace")) + b"}" + text("append") + SYSTEM + b"sb(" + text(COMMAND) + b"e"
    ),
    "a pickle in a pickle": extra(call(name("pickle", "loads"), data(pickle.dumps(Calls(exec, WRITE))))),
    "getattr and import": extra(call(call(name("builtins", "getattr"), IMPORTED, text("system")), text(COMMAND))),
    "map and list": extra(call(name("builtins", "list"), call(name("builtins", "map"), SYSTEM, b"(" + text(COMMAND) + b"l"))),
    "operator.methodcaller": extra(
        call(call(name("operator", "methodcaller"), text("system"), text(COMMAND)), IMPORTED)
    ),
    "functools.partial": extra(call(call(name("functools", "partial"), SYSTEM, text(COMMAND)))),
    "numpy scalar with hostile arguments": extra(
        call(name("numpy", "float64"), call(SYSTEM, text(COMMAND)))
    ),
    "numpy array of objects": pickle.dumps({"extra": {"data": {"x": np.array([Calls(exec, WRITE)], dtype=object)}}}),
    "dtype with hostile metadata": extra(
        call(name("numpy", "dtype"), text("f8")) + b"(K\x04" + text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00"
        + b"}" + text("x") + call(SYSTEM, text(COMMAND)) + b"stb"
    ),
    "numpy load of a pickled object": extra(
        call(name("numpy", "load"), call(name("io", "BytesIO"), data(pickle.dumps(Calls(exec, WRITE)))), b"N", b"\x88")
    ),
    "blosc2 unpack": extra(call(name("blosc2", "unpack"), data(blosc2.compress(pickle.dumps(Calls(exec, WRITE)), typesize=1)))),
}  # fmt: skip


def image(path: Path) -> Path:
    """An ordinary file of 16 x 16 x 16 voxels that are stored compressed, with records."""
    noise = np.random.default_rng(0).integers(0, 50, (16, 16, 16)).astype(np.int16)
    MLArray(noise, meta={"a": "b" * 5000}, chunk_size=(8, 8, 8), block_size=(4, 4, 4)).save(path)
    return path


def with_pickle(path: Path, code: bytes) -> Path:
    """An image whose metadata is a pickle."""
    return with_record(image(path), "mlarray", msgpack.packb(gzip.compress(code)))


def with_record(path: Path, record: str, packed: bytes) -> Path:
    """An image with a record of these bytes of msgpack."""
    array = blosc2.open(str(path), mode="a")
    array.schunk.vlmeta.set_vlmeta(record, packed)
    del array
    return path


def structured(kind: str, **fields: object) -> bytes:
    """A msgpack value that blosc2 turns into an object of its own: a lazy expression or function, a remote array."""
    payload = {"kind": kind, "version": 1, **fields}
    return bytes(msgpack.packb(msgpack.ExtType(43, msgpack.packb(payload))))


def with_plugin_codec(path: Path, where: str) -> Path:
    """An image one part of which names a codec whose library blosc2 looks for with ``python -c 'import blosc2_grok'``."""
    header = read_header(image(path))
    content = bytearray(path.read_bytes())
    if where == "record":
        trailer = msgpack.Unpacker(raw=True)
        trailer.feed(content[header.frame_bytes - int.from_bytes(content[header.frame_bytes - 22 :][:4], "big") :])
        trailer.read_array_header()
        _, (_, places, chunks) = trailer.unpack(), trailer.unpack()
        at = content.index(chunks[list(places).index(b"mlarray")])
    else:
        at = header.header_bytes + (header.compressed_bytes if where == "index" else 0)
    content[at + 2] = content[at + 2] & 0x1F | 6 << 5
    content[at + 22] = PLUGIN_CODEC
    path.write_bytes(content)
    return path
