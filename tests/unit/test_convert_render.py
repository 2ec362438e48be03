"""Text for people: nothing in a file name reaches the terminal as a control character."""

import io

import pytest

from mlarray_convert.cli.render import ConvertView, amount, by, duration, fields, plain, table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("line\nbreak\r", r"line\nbreak\r"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("bad\udcff", r"bad\udcff"),
        ("Übung 日本 é", "Übung 日本 é"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_amounts_and_durations_read_well() -> None:
    assert [amount(n) for n in (0, 999, 1000, 52_428_800, 8e9, 3e13)] == [
        *("0 B", "999 B", "1.0 kB", "52.4 MB", "8.0 GB", "30.0 TB")
    ]
    assert [duration(s) for s in (0.04, 59.94, 61, 3725)] == ["0.0 s", "59.9 s", "1 min 1 s", "1 h 2 min"]
    assert by((3, 4)) == "3 x 4"


def test_columns_line_up_and_empty_rows_are_left_out() -> None:
    assert table(["a", "long"], [["1", "2"], ["333", "\x07"]]).splitlines()[1:] == ["1    2", "333  \\x07"]
    assert "none" not in fields({"shown": 1, "none": None, "empty": ""})


def test_a_stream_that_cannot_show_a_character_gets_an_escape() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    ConvertView(quiet=False, verbose=False, dry_run=False, stream=stream)._line("日本")
    assert raw.getvalue() == b"\\u65e5\\u672c\n"
