"""The header of a frame is judged before blosc2 sees the file; records are decoded as plain values only."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import blosc2
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlarray.errors import FormatError
from mlarray.storage.blosc import open_store
from mlarray.storage.frame import MAGIC, plain_value, read_header

METALAYERS_AT = 87


@pytest.fixture
def path(tmp_path: Path) -> Path:
    voxels = np.arange(1000, dtype=np.int16).reshape(10, 100)
    blosc2.asarray(voxels, urlpath=str(tmp_path / "a.mla"), mode="w")
    return tmp_path / "a.mla"


def edited(path: Path, offset: int, new: bytes) -> Path:
    data = bytearray(path.read_bytes())
    data[offset : offset + len(new)] = new
    path.write_bytes(data)
    return path


def test_a_header_says_what_the_file_holds(path: Path) -> None:
    header = read_header(path)
    assert list(header.metalayers) == ["b2nd"]
    assert header.data_bytes == 2000
    assert header.frame_bytes == path.stat().st_size
    assert msgpack.unpackb(header.metalayers["b2nd"])[2] == [10, 100]


@pytest.mark.parametrize("name", [b"LazyArray", b"b2o", b"proxy-source", b"CTable", b"anything"])
def test_a_fixed_metalayer_that_an_array_has_no_use_for_is_refused(tmp_path: Path, name: bytes) -> None:
    target = tmp_path / "a.mla"
    blosc2.asarray(np.zeros(10), urlpath=str(target), mode="w", meta={name.decode(): {"a": 1}})
    with pytest.raises(FormatError, match=f"fixed metalayers are '{name.decode()}'"):
        open_store(target)


def test_the_metalayer_of_the_oldest_files_is_allowed(tmp_path: Path) -> None:
    target = tmp_path / "a.mla"
    blosc2.asarray(np.zeros(10), urlpath=str(target), mode="w", meta={"med_blosc2": {"a": 1}})
    assert sorted(read_header(target).metalayers) == ["b2nd", "med_blosc2"]
    assert open_store(target).shape == (10,)


def test_bytes_that_are_no_array_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "a.mla"
    blosc2.SChunk(data=bytes(1000), urlpath=str(target), mode="w")
    with pytest.raises(FormatError, match="fixed metalayers are none"):
        open_store(target)


def test_a_metalayer_cannot_hide_behind_a_field_of_another_length(path: Path) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[11:15], "big")
    # msgpack allows any encoding of a number; blosc2 looks at fixed places. One byte more, and the two see other layers.
    longer = data[:38] + b"\xd3" + bytes(8) + b"\x01" + data[47:]
    path.write_bytes(longer[:11] + (length + 1).to_bytes(4, "big") + longer[15:])
    with pytest.raises(FormatError, match="cannot be parsed"):
        read_header(path)


def test_a_fourteenth_field_of_another_kind_is_refused(path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be parsed"):
        read_header(edited(path, METALAYERS_AT, b"\xc0"))


def test_another_number_of_fields_is_refused(path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be parsed"):
        read_header(edited(path, 0, b"\x9d"))


@pytest.mark.parametrize(
    ("offset", "new", "message"),
    [
        (2, b"x", "does not start with a Blosc2 frame"),
        (11, b"\xff\xff\xff\xff", "header claims"),
        (11, b"\x00\x00\x00\x02", "header claims"),
        (16, (2**40).to_bytes(8, "big"), "frame has 1099511627776 bytes"),
    ],
)
def test_lengths_that_cannot_be_are_refused(path: Path, offset: int, new: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_header(edited(path, offset, new))


@given(st.binary(max_size=300), st.booleans())
def test_random_files_are_refused_with_our_error_only(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, magic: bool
) -> None:
    target = tmp_path_factory.getbasetemp() / "random.mla"
    target.write_bytes(b"\x9e\xa8" + MAGIC + b"\xd2" + (60).to_bytes(4, "big") + data if magic else data)
    with pytest.raises(FormatError):
        read_header(target)


@given(st.lists(st.tuples(st.integers(0, 160), st.integers(0, 255)), min_size=1, max_size=4))
def test_random_damage_of_a_header_is_refused_or_leaves_an_array(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    target = tmp_path_factory.getbasetemp() / "damaged.mla"
    blosc2.asarray(np.arange(100), urlpath=str(target), mode="w")
    data = bytearray(target.read_bytes())
    for offset, value in changes:
        data[offset] = value
    target.write_bytes(data)
    with suppress(FormatError):
        assert "b2nd" in read_header(target).metalayers


@pytest.mark.parametrize(
    "value", [{"a": [1, 2.5, None, b"x", "y"]}, [], "text", b"bytes", 3, {1: 2}, [True, {"n": {"m": []}}]]
)
def test_plain_values_come_back(value: object) -> None:
    assert plain_value(msgpack.packb(value)) == value


@pytest.mark.parametrize(
    "raw",
    [
        msgpack.packb(msgpack.ExtType(42, b"code")),
        msgpack.packb({"a": msgpack.ExtType(5, b"")}),
        msgpack.packb({("a", "list"): 1}),
        msgpack.packb({1: 2})[:-1],
        msgpack.packb(1) + b"\x00",
        b"",
        b"\xc1",
        b"\x91" * 5000,
        b"\xdd\xff\xff\xff\xff",
        b"\xa1\xff",
    ],
)
def test_anything_else_is_not_decoded(raw: bytes) -> None:
    assert plain_value(raw) is None


def test_a_time_stamp_is_a_number() -> None:
    assert plain_value(msgpack.packb(msgpack.Timestamp(5))) == 5.0


@given(st.binary(max_size=100))
def test_random_bytes_never_raise(raw: bytes) -> None:
    value = plain_value(raw)
    assert isinstance(value, (dict, list, str, bytes, int, float, bool, type(None)))
