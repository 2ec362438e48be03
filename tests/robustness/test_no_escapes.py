"""Nothing that a file says or is called reaches a terminal as more than text."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import h5py
import numpy as np
import pytest

from mlarray import MLArray
from tests.cli.samples import mla
from tests.conformance.text_header_files import NRRD_BASE, write_nrrd
from tests.conformance.zarr_files import multiscale, write_image

EVIL = "a\x1b[31m\x1b]0;t\x07\r\n\u202eb\u2066c\x9b2J\u200b"
NAME = EVIL.replace("/", "")


def assert_plain(*texts: str) -> None:
    for text in texts:
        found = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c not in "\n"}
        assert found == set(), [ascii(line) for line in text.splitlines() if set(line) & found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files whose names and contents try to move the cursor; one of them is damaged."""
    folder = tmp_path / f"data{NAME}"
    folder.mkdir()
    image = MLArray(np.zeros((4, 4, 4), np.uint8), axes="zyx", meta={EVIL: EVIL})
    image.save(folder / f"{NAME}.mla")
    content = NRRD_BASE | {"content": EVIL.replace("\n", "").replace("\r", "")}
    write_nrrd(folder / f"n{NAME}.nrrd", content, keys=f"k\x1b:={NAME[:4]}\n")
    write_nrrd(folder / f"d{NAME}.nrrd", NRRD_BASE | {"encoding": "\x1b[31m"})
    (folder / f"t{NAME}.nii.gz").write_bytes(b"\x1b[2J")
    with h5py.File(folder / f"h{NAME}.h5", "w") as file:
        for name in (EVIL, f"{EVIL}2"):
            file.create_dataset(name, data=np.zeros((4, 4, 4), np.uint8)).attrs[EVIL] = EVIL
    write_image(
        folder / f"z{NAME.replace(':', '')}.zarr",
        np.zeros((4, 4, 4), np.uint8),
        multiscale("zyx"),
        extra={"name": EVIL},
    )
    return folder  # fmt: skip


def test_no_command_prints_an_escape_of_a_file_or_its_name(folder: Path, tmp_path: Path) -> None:
    chain = tmp_path / f"chain{NAME}.yaml"
    chain.write_text(f"- {json.dumps(EVIL)}: {{}}\n", encoding="utf-8")
    good = tmp_path / "good.yaml"
    good.write_text("- Canonical\n", encoding="utf-8")
    report = tmp_path / f"report{NAME}.jsonl"
    commands: list[list[object]] = [
        ["convert", folder, "-o", tmp_path / f"out{NAME}", "--workers", 1, "-v", "--json", report],
        ["convert", folder, "-o", tmp_path / f"dry{NAME}", "--dry-run", "-v"],
        ["report", report],
        ["report", chain],
        ["verify", folder],
        ["plan", chain, folder / f"{NAME}.mla"],
        ["plan", good, folder / f"{NAME}.mla"],
        ["stream", "plan", chain],
        ["bench", folder / f"d{NAME}.nrrd"],
        ["convert", f"--{EVIL}"],
        [EVIL],
        ["convert", folder, "--to", EVIL],
        ["convert", folder, "--patch-size", EVIL],
        ["convert", folder, "--labels", EVIL, "--dry-run"],
    ]
    commands += [["info", path] for path in sorted(folder.iterdir())]
    for command in commands:
        done = mla(*command)
        assert_plain(done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, command


def test_json_for_programs_is_ascii(folder: Path, tmp_path: Path) -> None:
    for command in (["info", "--json", folder / f"{NAME}.mla"], ["verify", "--json", folder]):
        done = mla(*command)
        assert_plain(done.stdout)
        assert done.stdout.isascii()
