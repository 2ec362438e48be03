"""A pickle by anyone is read without running any of it, within fixed limits."""

from __future__ import annotations

import collections
import gzip
import pickle
import struct
import sys
import time
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from mlarray.errors import FormatError
from mlarray.metadata import METADATA_TABLE, Limits, Pending, decode, read_metadata, restricted_loads
from mlarray.metadata.codec import gunzip_limited
from mlarray.metadata.standins import ARRAY_TABLE
from mlarray.metadata.unpickle import plain_tree


def load(data: bytes, **limits: int) -> object:
    return restricted_loads(data, table=METADATA_TABLE, limits=Limits(**limits))


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def name(module: str, attribute: str) -> bytes:
    return text(module) + text(attribute) + b"\x93"


class _Calls:
    """Pickles to a call of anything."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call  # type: ignore[return-value]


def test_the_table_knows_exactly_ten_names() -> None:
    assert {".".join(key) for key in METADATA_TABLE} == {
        "mlarray.meta._FrozenList",
        "mlarray.meta._FrozenDict",
        "mlarray.meta.AxisLabelEnum",
        "mlarray.meta.CoordSystemEnum",
        "collections.OrderedDict",
        "numpy._core.multiarray.scalar",
        "numpy.core.multiarray.scalar",
        "numpy.dtype",
        "pydicom.valuerep.DSfloat",
        "pydicom.valuerep.IS",
    }


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_of_every_protocol_are_read(protocol: int) -> None:
    value = {"a": [1, -5, 2**70, 70_000, 300], "b": {"x": 1.5, "y": None, "z": [True, False, []]}, 3: "ü\n\\ \ud800"}
    assert load(pickle.dumps(value, protocol)) == value


def test_tuples_become_lists_and_shared_containers_become_separate() -> None:
    shared = [1]
    result = load(pickle.dumps({"a": shared, "b": shared, "c": (1, (2,))}))
    assert result == {"a": [1], "b": [1], "c": [1, [2]]}
    assert result["a"] is not result["b"]  # type: ignore[index]


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(2.5), 2.5),
        (np.float32(0.5), 0.5),
        (np.float16(0.5), 0.5),
        (np.int8(-3), -3),
        (np.uint64(2**63), 2**63),
        (np.bool_(True), True),
        (np.complex64(1 + 2j), 1 + 2j),
        (np.str_("Größe"), "Größe"),
        (np.bytes_(b"ab"), b"ab"),
        (np.array(258, ">i4")[()], 258),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    ],
)
def test_names_of_the_table_become_plain_values(value: object, plain: object, protocol: int) -> None:
    result = load(pickle.dumps({"v": value}, protocol))
    assert result == {"v": plain}
    assert type(result["v"]) is type(plain)  # type: ignore[index]


def test_frozen_containers_and_enums_become_lists_dicts_and_text() -> None:
    frozen = name("mlarray.meta", "_FrozenList") + b"](K\x01K\x02e\x85R"
    assert load(b"\x80\x04" + frozen + b".") == [1, 2]
    assert load(b"\x80\x04" + name("mlarray.meta", "_FrozenDict") + b"}" + text("a") + b"K\x01s\x85R.") == {"a": 1}
    assert load(b"\x80\x04" + name("mlarray.meta", "AxisLabelEnum") + text("channel") + b"\x85R.") == "channel"


def test_pydicom_numbers_keep_their_value_and_drop_their_text() -> None:
    state = b"}" + text("original_string") + text("1.50") + b"sb"
    number = name("pydicom.valuerep", "DSfloat") + b"G" + struct.pack(">d", 1.5) + b"\x85\x81" + state
    integer = name("pydicom.valuerep", "IS") + b"K\x07\x85\x81" + state
    assert load(b"\x80\x04(" + number + integer + b"l.") == [1.5, 7]


def test_pickles_of_installed_pydicom_numbers_are_read() -> None:
    valuerep = pytest.importorskip("pydicom.valuerep")
    numbers = [valuerep.DSfloat("1.50"), valuerep.IS("7")]
    assert [load(pickle.dumps(numbers, protocol)) for protocol in (2, 3, 4, 5)] == [[1.5, 7]] * 4


CANARY = "metadata_was_run"
HOSTILE = {
    "os.system": pickle.dumps(_Calls(__import__("os").system, f"touch {CANARY}")),
    "eval": pickle.dumps(_Calls(eval, f"open({CANARY!r}, 'w')")),
    "eval with protocol 0": pickle.dumps(_Calls(eval, f"open({CANARY!r}, 'w')"), 0),
    "getattr chain": b"\x80\x04"
    + name("builtins", "getattr")
    + name("mlarray.meta", "_FrozenList")
    + text("x")
    + b"\x86R.",
    "INST": b"(S'x'\nios\nsystem\n.",
    "INST of a known name": b"(icollections\nOrderedDict\n.",
    "OBJ": b"(" + name("collections", "OrderedDict") + b"o.",
    "NEWOBJ_EX": b"\x80\x04" + name("collections", "OrderedDict") + b")}\x92.",
    "persistent id": b"Pabc\n.",
    "binary persistent id": b"K\x01Q.",
    "EXT1": b"\x82\x01.",
    "EXT2": b"\x83\x01\x00.",
    "EXT4": b"\x84\x01\x00\x00\x00.",
    "out-of-band buffer": b"\x80\x05\x97.",
    "read-only buffer": b"\x80\x05]\x98.",
    "bytearray": pickle.dumps(bytearray(b"x"), 5),
    "set": pickle.dumps({1, 2}),
    "frozenset": pickle.dumps(frozenset({1})),
    "dotted name": b"\x80\x04" + name("mlarray.meta", "_FrozenList.__init__") + b")R.",
    "dotted name that joins to a known one": b"\x80\x04" + name("numpy", "core.multiarray.scalar") + b")R.",
    "unknown name of a known module": b"\x80\x04" + name("numpy", "load") + text("x") + b"\x85R.",
    "import of our own modules": b"\x80\x04" + name("mlarray.metadata.codec", "decode") + b")R.",
    "name that is no text": b"\x80\x04K\x01K\x02\x93.",
    "a stand-in itself as value": b"\x80\x04" + name("collections", "OrderedDict") + b".",
    "BUILD on a stand-in": b"\x80\x04" + name("mlarray.meta", "_FrozenList") + b"}" + text("__defaults__") + b"Nsb)R.",
    "BUILD with slots on a stand-in": b"\x80\x04" + name("numpy", "dtype") + b"N}" + text("call") + b"Ns\x86b.",
    "BUILD on a dict": b"\x80\x04}}" + text("__class__") + b"Nsb.",
    "BUILD on a list": b"\x80\x04]}b.",
    "call of a dict": b"\x80\x04})R.",
    "call of text": b"\x80\x04" + text("eval") + b")R.",
    "call with a list for arguments": b"\x80\x04" + name("collections", "OrderedDict") + b"]R.",
    "wrong number of arguments": b"\x80\x04" + name("mlarray.meta", "AxisLabelEnum") + b")R.",
    "list of a text": b"\x80\x04" + name("mlarray.meta", "_FrozenList") + text("abc") + b"\x85R.",
    "dtype object": b"\x80\x04" + name("numpy", "dtype") + text("O8") + b"\x89\x88\x87R.",
    "bare dtype": b"\x80\x04" + name("numpy", "dtype") + text("f8") + b"\x89\x88\x87R.",
    "dtype with a hostile state": b"\x80\x04"
    + name("numpy", "dtype")
    + text("f8")
    + b"\x85R}"
    + text("code")
    + b"Nsb.",
    "scalar of the wrong size": b"\x80\x04"
    + name("numpy.core.multiarray", "scalar")
    + name("numpy", "dtype")
    + text("f8")
    + b"\x85RC\x03abc\x86R.",
    "scalar without a dtype": b"\x80\x04" + name("numpy.core.multiarray", "scalar") + text("f8") + b"C\x01a\x86R.",
    "append to a dict": b"\x80\x04}K\x01a.",
    "items of a list": b"\x80\x04]K\x01K\x02s.",
    "extend of a text": b"\x80\x04" + text("a") + b"(K\x01e.",
    "odd number of items": b"\x80\x04}(K\x01u.",
    "list as key": b"\x80\x04}]K\x01s.",
    "tuple as key": b"\x80\x04})K\x01s.",
    "stand-in as key": b"\x80\x04}" + name("numpy", "dtype") + b"K\x01s.",
    "memo that was never set": b"\x80\x04h\x05.",
    "mark that was never set": b"\x80\x04K\x01e.",
    "nothing on the stack": b"\x80\x04.",
    "two values on the stack": b"\x80\x04NN.",
    "open mark": b"\x80\x04N(N.",
    "bytes behind the end": b"\x80\x04N.N.",
    "no end": b"\x80\x04N",
    "empty": b"",
    "protocol 6": b"\x80\x06N.",
    "Python 2 text": b"S'abc'\n.",
    "text that is not UTF-8": b"\x80\x04X\x01\x00\x00\x00\xff.",
    "integer that is no integer": b"Ixyz\n.",
    "float that is no float": b"Fxyz\n.",
    "integer key with a chosen hash": b"\x80\x04}" + pickle.dumps(2**61)[2:-1] + b"Ns.",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_not_plain_data_is_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = dict(sys.modules)
    with pytest.raises(FormatError):
        load(HOSTILE[case])
    assert sys.modules == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", HOSTILE)
def test_a_refused_payload_costs_the_metadata_only(case: str) -> None:
    meta, warnings = read_metadata({"mlarray": gzip.compress(HOSTILE[case])}, {})
    assert meta.is_default()
    assert len(warnings) == 1
    assert warnings[0].startswith("the metadata cannot be read and is left out: ")


def test_loading_imports_nothing() -> None:
    import subprocess

    code = (
        "import sys, pickle, collections\n"
        "from mlarray.metadata import METADATA_TABLE, restricted_loads\n"
        "blocked = {'mlarray.meta', 'pydicom', 'pydicom.valuerep', 'antigravity', 'blosc2'}\n"
        "before = set(sys.modules)\n"
        "restricted_loads(pickle.dumps(collections.OrderedDict(a=1)), table=METADATA_TABLE)\n"
        "restricted_loads(b'\\x80\\x04cpydicom.valuerep\\nIS\\nK\\x01\\x85\\x81.', table=METADATA_TABLE)\n"
        "restricted_loads(b'\\x80\\x04cmlarray.meta\\n_FrozenList\\n)R.', table=METADATA_TABLE)\n"
        "try: restricted_loads(b'cantigravity\\nfly\\n.', table=METADATA_TABLE)\n"
        "except ValueError: pass\n"
        "print(sorted(set(sys.modules) - before), sorted(blocked & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


def test_a_table_cannot_be_changed() -> None:
    assert isinstance(METADATA_TABLE, MappingProxyType)


@pytest.mark.parametrize("operation", [b"X", b"B"])
def test_claimed_lengths_are_checked_before_memory_is_taken(operation: bytes) -> None:
    with pytest.raises(FormatError, match="claims more bytes"):
        load(b"\x80\x04" + operation + b"\xff\xff\xff\xff.")


@pytest.mark.parametrize("operation", [b"\x8d", b"\x8e", b"\x95"])
def test_claimed_64_bit_lengths_are_checked_too(operation: bytes) -> None:
    with pytest.raises(FormatError, match="claims more bytes"):
        load(b"\x80\x04" + operation + b"\xff" * 8 + b".")


def test_a_huge_memo_index_takes_no_memory() -> None:
    assert load(b"\x80\x04K\x07r\xff\xff\xff\x7f0j\xff\xff\xff\x7f.") == 7
    assert load(b"K\x07p1099511627776\n0g1099511627776\n.") == 7


def test_a_huge_integer_is_refused() -> None:
    with pytest.raises(FormatError, match="integer"):
        load(pickle.dumps(2**100_000))
    with pytest.raises(FormatError, match="integer"):
        load(b"I" + b"9" * 3000 + b"\n.")
    assert load(pickle.dumps(2**8000)) == 2**8000


def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(FormatError, match="not ended"):
        load(b"I" + b"1" * 10_000)


def test_nesting_is_limited() -> None:
    assert load(b"\x80\x04" + b"]" * 128 + b"a" * 127 + b".") is not None
    with pytest.raises(FormatError, match="nested deeper than 128"):
        load(b"\x80\x04" + b"]" * 129 + b"a" * 128 + b".")
    with pytest.raises(FormatError, match="nested deeper"):
        load(b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".")
    with pytest.raises(FormatError, match="nested deeper"):
        load(b"\x80\x04)" + b"\x85" * 100_000 + b".")


def test_a_list_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(FormatError, match="nested deeper"):
        load(pickle.dumps(loop))


def test_shared_references_that_stand_for_terabytes_are_refused_quickly() -> None:
    level: object = ["x"] * 10
    for _ in range(40):
        level = [level] * 10
    started = time.perf_counter()
    with pytest.raises(FormatError, match="more than 10000 parts"):
        load(pickle.dumps(level), max_operations=10_000)
    assert time.perf_counter() - started < 5


def test_shared_text_that_stands_for_gigabytes_is_refused() -> None:
    with pytest.raises(FormatError, match="bytes of text"):
        load(pickle.dumps(["x" * 1000] * 1001), max_bytes=1_000_000)


def test_operations_are_limited() -> None:
    with pytest.raises(FormatError, match="more operations"):
        load(b"\x80\x04" + b"N0" * 600 + b"N.", max_operations=1000)


def test_copies_by_a_stand_in_count_as_operations() -> None:
    big = b"](" + b"N" * 500 + b"e\x94" + name("mlarray.meta", "_FrozenList") + b"\x94"
    copies = b"(" + b"h\x01h\x00\x85R" * 10 + b"l."
    assert (
        load(b"\x80\x04" + big + copies.replace(b"l.", b"1N.").replace(b"(", b"00(", 1), max_operations=10_000) is None
    )
    with pytest.raises(FormatError, match="more operations"):
        load(b"\x80\x04" + big + copies.replace(b"l.", b"1N.").replace(b"(", b"00(", 1), max_operations=5000)


def test_a_gzip_bomb_is_stopped_at_the_limit() -> None:
    bomb = gzip.compress(bytes(20_000_000))
    with pytest.raises(FormatError, match="larger than 1000000 bytes"):
        gunzip_limited(bomb, max_bytes=1_000_000)
    with pytest.raises(FormatError, match="larger than 1000000 bytes"):
        decode(bomb, limits=Limits(max_bytes=1_000_000))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut off"),
        (b"not gzip", "not valid gzip"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-9], "cut off"),
        (gzip.compress(b"x", mtime=0) + b"y", "followed by"),
        (gzip.compress(b"x", mtime=0)[:-8] + bytes(8), "not valid gzip"),
    ],
)
def test_damaged_gzip_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        gunzip_limited(data)


def test_a_reader_of_other_pickles_brings_its_own_table() -> None:
    class Array(Pending):
        def __init__(self, *_: object) -> None:
            self.state: object = None

        def build(self, state: object) -> None:
            self.state = state

        def finish(self) -> object:
            return ("array", self.state)

    table = {("numpy._core.multiarray", "_reconstruct"): Array, ("numpy", "ndarray"): Array, ("numpy", "dtype"): Array}
    result = restricted_loads(pickle.dumps({"locations": np.arange(3)}), table=table)
    kind, state = result["locations"]  # type: ignore[index]
    assert kind == "array"
    assert state[1] == (3,)
    assert np.frombuffer(state[4], np.int64).tolist() == [0, 1, 2]


def test_values_a_container_decoded_are_limited_alike() -> None:
    assert plain_tree({"a": (1, b"x")}) == {"a": [1, b"x"]}
    with pytest.raises(FormatError, match="object is not a plain value"):
        plain_tree({"a": object()})
    with pytest.raises(FormatError, match="cannot be the key"):
        plain_tree({(1, 2): 3})


def arrays(data: bytes, **limits: int) -> object:
    return restricted_loads(data, table=ARRAY_TABLE, limits=Limits(**limits), keep_tuples=True)


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_of_every_protocol_keep_shape_dtype_and_values(protocol: int) -> None:
    values = {
        "c": np.arange(6).reshape(2, 3),
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "empty": np.zeros((0, 4), np.int64),
        "nothing": np.array(3.5),
        "big": np.arange(3, dtype=">i4"),
        "text": np.array(["a", "bcd"]),
        "flags": np.array([True, False]),
    }
    found = arrays(pickle.dumps(values, protocol))
    assert isinstance(found, dict)
    for name, value in values.items():
        np.testing.assert_array_equal(found[name], value)
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert found[name].flags.owndata


@pytest.mark.parametrize("protocol", range(6))
def test_tuples_stay_tuples_and_may_be_keys_where_they_are_asked_for(protocol: int) -> None:
    value = {(1, 2): [(3, (4, 5))], "empty": (), 7: np.float64(0.5), "bytes": b"x"}
    assert arrays(pickle.dumps(value, protocol)) == value
    with pytest.raises(FormatError, match="no plain value"):
        restricted_loads(pickle.dumps(value, protocol), table=ARRAY_TABLE)


HOSTILE_ARRAYS = {
    "array of objects": pickle.dumps(np.array([object()])),
    "array of records": pickle.dumps(np.zeros(2, "i4,f4")),
    "array of times": pickle.dumps(np.zeros(2, "M8[s]")),
    "array that was never filled": b"\x80\x04"
    + name("numpy.core.multiarray", "_reconstruct")
    + name("numpy", "ndarray")
    + b"K\x00\x85C\x01b\x87R.",
    "call of ndarray": b"\x80\x04" + name("numpy", "ndarray") + b"K\x05\x85R.",
    "ndarray as a value": b"\x80\x04" + name("numpy", "ndarray") + b".",
    "array with fewer bytes than its shape": pickle.dumps(np.zeros(4, "i4")).replace(b"K\x04\x85", b"K\x05\x85"),
    "array with a hostile state": b"\x80\x04"
    + name("numpy.core.multiarray", "_reconstruct")
    + name("numpy", "ndarray")
    + b"K\x00\x85C\x01b\x87R}b.",
    "buffer as a value": pickle.dumps(bytearray(b"x"), 5),
    "buffer out of the band": b"\x80\x05\x97.",
    "encoding of another kind": b"\x80\x04" + name("_codecs", "encode") + text("x") + text("rot13") + b"\x86R.",
    "numbers of pydicom": b"\x80\x04" + name("pydicom.valuerep", "IS") + b"K\x07\x85\x81.",
    "array as a key": b"\x80\x04}" + pickle.dumps(np.zeros(1))[2:-1].replace(b"\x95", b"\x95", 1) + b"K\x01s.",
    "deep tuple as a key": b"\x80\x04}" + b")" + b"\x85" * 5 + b"K\x01s.",
    "long tuple as a key": pickle.dumps({tuple(range(2000)): 1}),
    "many tuples as keys": pickle.dumps({(number,): 1 for number in range(2000)}),
    "tuple with a large number as a key": pickle.dumps({(2**61,): 1}),
}


@pytest.mark.parametrize("data", HOSTILE_ARRAYS.values(), ids=HOSTILE_ARRAYS)
def test_what_is_no_array_of_numbers_or_short_key_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        arrays(data)


def test_one_array_that_is_referred_to_often_does_not_multiply() -> None:
    with pytest.raises(FormatError, match="bytes of text"):
        arrays(pickle.dumps([np.zeros(1000)] * 1000), max_bytes=1_000_000)
