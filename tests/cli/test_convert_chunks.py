"""Chunks that are copied as they are: between ``.mla`` and ``.b2nd``, and the cases of nnU-Net with what stands beside them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import blosc2
import numpy as np
import pytest

from mlarray import MLArray
from mlarray.errors import FormatError, MissingFileError
from mlarray.integrations.nnunet import NNUNetDataset, case_properties
from mlarray.storage.blosc import BloscStore, open_store
from mlarray.storage.contents import LOCATIONS_RECORD
from mlarray.storage.integrity import IntegrityState, check
from mlarray_convert import convert
from mlarray_convert.cli import run
from mlarray_convert.report import ExitCode
from mlarray_convert.run import Failure, Status
from tests.cli.samples import ROOT, files_below

IDENTIFIER = "nnUNetPlans_3d_fullres"
SHAPE = (1, 12, 20, 24)
DAMAGED = {"dtype": "<u2", "labels": [1], "counts": [2], "voxels": bytes(8)}


def opened(path: Path) -> BloscStore:
    return open_store(path, mmap_mode=None)


def chunks_of(path: Path) -> list[bytes]:
    store = opened(path)
    return [store.chunk_bytes(index) for index in range(store.chunk_count)]


def image(dtype: str = "int16", **storage: object) -> MLArray:
    voxels = np.random.default_rng(5).integers(0, 90, (40, 50, 60)).astype(dtype)
    return MLArray(voxels, spacing=(3, 1, 1), axes="zyx", meta={"Modality": "CT"}, **storage)  # type: ignore[arg-type]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    image(patch_size=None, chunk_size=(16, 32, 32), block_size=(8, 16, 16)).save(tmp_path / "a.mla")
    return tmp_path / "a.mla"


def case_of_nnunet(folder: Path, name: str = "scan_0001", **changes: object) -> dict[str, object]:
    """Write a case as nnU-Net lays it out, with plans in the folder above."""
    folder.mkdir(parents=True, exist_ok=True)
    configurations = {"3d_fullres": {"data_identifier": IDENTIFIER}}
    plans = {"transpose_forward": [0, 1, 2], "configurations": configurations}
    (folder.parent / "nnUNetPlans.json").write_text(json.dumps(plans))
    rng = np.random.default_rng(3)
    labels = np.zeros(SHAPE, np.int16)
    labels[0, 3:6, 4:9, 10:20] = 1
    layout = {"chunks": (1, 8, 16, 16), "blocks": (1, 4, 8, 8)}
    blosc2.asarray(rng.normal(size=SHAPE).astype("f4"), urlpath=str(folder / f"{name}.b2nd"), mode="w", **layout)
    blosc2.asarray(labels, urlpath=str(folder / f"{name}_seg.b2nd"), mode="w", **layout)
    properties: dict[str, object] = {
        "sitk_stuff": {"spacing": (1.0, 1.0, 2.0), "origin": (5.0, 6.0, 7.0), "direction": (1, 0, 0, 0, 1, 0, 0, 0, 1)},
        "spacing": [np.float64(2.0), 1.0, 1.0],
        "shape_before_cropping": (14, 22, 24),
        "bbox_used_for_cropping": [[1, 13], [2, 22], [0, 24]],
        "shape_after_cropping_and_before_resampling": SHAPE[1:],
        "class_locations": {1: np.argwhere(labels == 1), 2: []},
    } | changes
    (folder / f"{name}.pkl").write_bytes(pickle.dumps(properties))
    return properties


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    case_of_nnunet(tmp_path / "Dataset001_Scan" / IDENTIFIER)
    return tmp_path / "Dataset001_Scan" / IDENTIFIER


# --- copied or compressed again -------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", ["none", "quick", "full"])
def test_an_mla_is_copied_with_chunks_metadata_and_layout_as_they_are(
    source: Path, tmp_path: Path, verify: str
) -> None:
    outcome = convert(source, tmp_path / "b.mla", verify=verify).outcomes[0]
    assert (outcome.status, outcome.dtype) == (Status.OK, "int16")
    assert chunks_of(tmp_path / "b.mla") == chunks_of(source)
    assert check(opened(tmp_path / "b.mla")).state is IntegrityState.INTACT
    with MLArray.open(source) as before, MLArray.open(tmp_path / "b.mla") as after:
        assert after.meta.to_mapping() == before.meta.to_mapping()
        assert after.spec == before.spec
        assert after.layout == before.layout


def test_a_layout_that_is_asked_for_is_compressed_again(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "b.mla", layout="nnunet", verify="full")
    assert opened(tmp_path / "b.mla").chunks != opened(source).chunks
    with MLArray.open(source) as before, MLArray.open(tmp_path / "b.mla") as after:
        np.testing.assert_array_equal(before.to_numpy(), after.to_numpy())


def test_a_second_run_knows_whether_the_chunks_were_taken_as_they_were(source: Path, tmp_path: Path) -> None:
    assert convert(source, tmp_path / "b.mla").outcomes[0].status is Status.OK
    assert convert(source, tmp_path / "b.mla").outcomes[0].reason == "up to date"
    again = convert(source, tmp_path / "b.mla", layout="nnunet").outcomes[0]
    assert again.reason == "converted again: other settings than before"
    assert convert(source, tmp_path / "b.mla", layout="nnunet").outcomes[0].reason == "up to date"


def test_the_dry_run_says_that_chunks_are_copied(source: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    arguments = ["convert", str(source), "-o", str(tmp_path / "b.mla"), "--dry-run", "--json", "-"]
    assert run(arguments) == ExitCode.OK
    captured = capfd.readouterr()
    assert "chunks are copied as they are, not compressed again" in captured.err
    plan = json.loads(captured.out.splitlines()[0])["plan"]
    assert (plan["chunks_as_stored"], plan["chunks"], plan["blocks"]) == (True, [16, 32, 32], [8, 16, 16])
    assert run([*arguments, "--patch-size", "32"]) == ExitCode.OK
    captured = capfd.readouterr()
    assert "copied as they are" not in captured.err
    assert json.loads(captured.out.splitlines()[0])["plan"]["chunks_as_stored"] is False


def test_labels_keep_their_integer_type_and_lose_a_float_type(tmp_path: Path) -> None:
    for name, dtype in (("a_seg", "int16"), ("b_seg", "float32")):
        image(dtype).save(tmp_path / f"{name}.mla")
        convert(tmp_path / f"{name}.mla", tmp_path / f"{name}.b2nd")
    assert opened(tmp_path / "a_seg.b2nd").dtype == np.int16
    assert opened(tmp_path / "b_seg.b2nd").dtype == np.uint8
    with MLArray.open(tmp_path / "a_seg.b2nd") as labels:
        assert labels.meta.is_seg.is_seg is True


def test_another_byte_order_is_compressed_again_in_the_native_one(tmp_path: Path) -> None:
    values = np.arange(600, dtype=">i2").reshape(1, 10, 10, 6)
    blosc2.asarray(values, urlpath=str(tmp_path / "a.b2nd"), mode="w")
    assert convert(tmp_path / "a.b2nd", tmp_path / "b.mla", verify="full").outcomes[0].status is Status.WARNED
    assert opened(tmp_path / "b.mla").dtype == np.dtype("=i2")
    with MLArray.open(tmp_path / "b.mla") as after:
        np.testing.assert_array_equal(after.to_numpy(), values)


@pytest.mark.parametrize("value", [0, 7])
def test_chunks_of_one_value_and_arrays_without_voxels_are_copied(tmp_path: Path, value: int) -> None:
    MLArray.full((70, 40, 40), value, np.int16, patch_size=16).save(tmp_path / "a.mla")
    MLArray(np.zeros((0, 5), np.float32)).save(tmp_path / "empty.mla")
    for name in ("a", "empty"):
        convert(tmp_path / f"{name}.mla", tmp_path / f"{name}_b.mla", verify="full")
        with MLArray.open(tmp_path / f"{name}.mla") as before, MLArray.open(tmp_path / f"{name}_b.mla") as after:
            np.testing.assert_array_equal(after.to_numpy(), before.to_numpy())


def damaged(path: Path, chunk: int = 2) -> None:
    """Change bytes in the middle of a stored chunk."""
    data = opened(path).chunk_bytes(chunk)
    content = path.read_bytes()
    place = content.index(data) + len(data) // 2
    path.write_bytes(
        content[:place] + bytes(byte ^ 255 for byte in content[place : place + 64]) + content[place + 64 :]
    )


def test_a_damaged_chunk_is_not_copied_into_a_file_with_good_checksums(source: Path, tmp_path: Path) -> None:
    damaged(source)
    outcome = convert(source, tmp_path / "b.mla").outcomes[0]
    assert outcome.failure is Failure.INPUT
    assert "chunk 2 does not match its checksum" in outcome.reason
    assert files_below(tmp_path) == ["a.mla"]


def test_a_damaged_chunk_without_a_checksum_is_found_by_decoding_it(folder: Path, tmp_path: Path) -> None:
    path = folder / "scan_0001_seg.b2nd"
    data = opened(path).chunk_bytes(0)
    content = path.read_bytes()
    place = content.index(data) + 32  # behind the header of the chunk: where its blocks begin
    path.write_bytes(content[:place] + b"\xff" * 16 + content[place + 16 :])
    outcome = convert(path, tmp_path / "b.mla").outcomes[0]
    assert outcome.failure is Failure.INPUT
    assert "damaged" in outcome.reason
    assert not (tmp_path / "b.mla").exists()


# --- what stands beside the arrays of nnU-Net -----------------------------------------------------------------------


def test_a_preprocessed_folder_has_no_strangers_and_warns_of_nothing(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    assert run(["convert", str(folder), "-o", str(tmp_path / "mla")]) == ExitCode.OK
    told = capfd.readouterr().err
    assert "warn" not in told
    assert "left out" not in told
    assert files_below(tmp_path / "mla") == ["scan_0001.mla", "scan_0001_seg.mla"]
    assert chunks_of(tmp_path / "mla" / "scan_0001.mla") == chunks_of(folder / "scan_0001.b2nd")


def test_a_case_whose_name_ends_in_four_digits_is_compared_with_its_own_segmentation(
    folder: Path, tmp_path: Path
) -> None:
    case_of_nnunet(folder, "scan_0002")
    blosc2.asarray(np.zeros((1, 4, 4, 4), np.int16), urlpath=str(folder / "scan_0002_seg.b2nd"), mode="w")
    outcomes = {outcome.case.name: outcome for outcome in convert(folder, tmp_path / "mla", workers=1).outcomes}
    assert outcomes["scan_0001_seg"].case.images == (folder / "scan_0001.b2nd",)
    assert outcomes["scan_0001_seg"].status is Status.OK
    assert any("grid of scan_0002.b2nd" in warning for warning in outcomes["scan_0002_seg"].warnings)


def test_a_changed_pickle_makes_the_output_stale(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "mla", workers=1)
    changed = case_of_nnunet(folder.with_name("other"), bbox_used_for_cropping=[[2, 14], [2, 22], [0, 24]])
    (folder / "scan_0001.pkl").write_bytes(pickle.dumps(changed))
    again = convert(folder, tmp_path / "mla", workers=1).outcomes
    assert [outcome.reason for outcome in again] == ["converted again: the source scan_0001.pkl has changed"] * 2
    with MLArray.open(tmp_path / "mla" / "scan_0001.mla") as array:
        assert array.origin == [5.0, 8.0, 11.0]


def test_an_export_whose_properties_are_gone_is_made_again(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "mla", workers=1)
    convert(tmp_path / "mla", tmp_path / "b2nd", to="b2nd", workers=1)
    assert files_below(tmp_path / "b2nd") == ["scan_0001.b2nd", "scan_0001.pkl", "scan_0001_seg.b2nd"]
    (tmp_path / "b2nd" / "scan_0001.pkl").unlink()
    again = {o.case.name: o for o in convert(tmp_path / "mla", tmp_path / "b2nd", to="b2nd", workers=1).outcomes}
    assert again["scan_0001"].reason == "converted again: scan_0001.pkl is missing beside it"
    assert again["scan_0001_seg"].status is Status.SKIPPED
    assert (tmp_path / "b2nd" / "scan_0001.pkl").is_file()


def test_what_was_exported_is_read_without_its_pickle(folder: Path, tmp_path: Path) -> None:
    """An exported array says all itself, so nothing beside it is asked."""
    convert(folder, tmp_path / "mla", workers=1)
    convert(tmp_path / "mla", tmp_path / "b2nd", to="b2nd", workers=1)
    (tmp_path / "b2nd" / "scan_0001.pkl").write_bytes(b"no pickle")
    convert(tmp_path / "b2nd", tmp_path / "again", workers=1)
    with (
        MLArray.open(tmp_path / "again" / "scan_0001.mla") as after,
        MLArray.open(tmp_path / "mla" / "scan_0001.mla") as b,
    ):
        assert after.meta.to_mapping() == b.meta.to_mapping()
        np.testing.assert_equal(case_properties(after), case_properties(b))


class _Calls:
    def __init__(self, function: object, *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self._call


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (pickle.dumps(_Calls(eval, "open('canary', 'w')")), "which is not allowed"),
        (pickle.dumps({"spacing": _Calls(__import__("os").system, "touch canary")}), "which is not allowed"),
        (pickle.dumps({"spacing": np.array([object()])}), "is not read here"),
        (pickle.dumps({"spacing": [1.0, 1.0, 2.0]})[:-5], "claims more bytes"),
        (b"", "damaged"),
        (pickle.dumps([1, 2]), "does not hold the properties"),
        (pickle.dumps({"other": 1}), "does not hold the properties"),
        (pickle.dumps({"spacing": [1], "huge": np.zeros(3_000_000)}), "bytes of metadata"),
    ],
)
def test_a_pickle_that_is_not_read_costs_the_properties_and_never_the_voxels(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / "scan_0001.pkl").write_bytes(content)
    outcomes = convert(folder, tmp_path / "mla", workers=1).outcomes
    assert {outcome.status for outcome in outcomes} == {Status.WARNED}
    assert any(why in warning for warning in outcomes[0].warnings), outcomes[0].warnings
    assert not (tmp_path / "canary").exists()
    assert chunks_of(tmp_path / "mla" / "scan_0001.mla") == chunks_of(folder / "scan_0001.b2nd")


def test_locations_of_another_form_are_kept_as_they_are(tmp_path: Path) -> None:
    place = tmp_path / "Dataset001_Scan" / IDENTIFIER
    for name, locations in (
        ("a", {1: [[0, 1, 2, 3]]}),
        ("b", {"tumour": np.array([[0, 1, 2, 3]])}),
        ("c", {1: np.array([[0, 99, 2, 3]])}),
        ("d", {1: np.array([[0, 1, 2, 3]], np.int32)}),
    ):
        case_of_nnunet(place, name, class_locations=locations)
    assert {outcome.status for outcome in convert(place, tmp_path / "mla", workers=1).outcomes} == {Status.OK}
    dataset = NNUNetDataset(tmp_path / "mla")
    found = {name: dataset[name][3]["class_locations"] for name in dataset.identifiers}
    np.testing.assert_equal(found["a"], {1: [[0, 1, 2, 3]]})
    np.testing.assert_equal(found["b"], {"tumour": np.array([[0, 1, 2, 3]])})
    np.testing.assert_equal(found["c"], {1: np.array([[0, 99, 2, 3]])})
    assert found["d"][1].dtype == np.int32  # type: ignore[index]


# --- the dataset class ----------------------------------------------------------------------------------------------


def test_the_dataset_class_needs_neither_torch_nor_nnunet(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "mla", workers=1)
    code = (
        "import sys\nfrom mlarray.integrations.nnunet import NNUNetDataset\n"
        f"data, seg, previous, properties = NNUNetDataset({str(tmp_path / 'mla')!r})['scan_0001']\n"
        "print(data[:, 1:3, ...].shape, len(properties['class_locations'][1]))\n"
        "print({'torch', 'nnunetv2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["(1, 2, 20, 24) 150", "set()"]


def test_a_case_or_previous_stage_that_is_not_there_is_a_missing_file(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "mla", workers=1)
    with pytest.raises(FileNotFoundError, match="scan_0009"):
        NNUNetDataset(tmp_path / "mla").load_case("scan_0009")
    with pytest.raises(MissingFileError, match="scan_0001"):
        NNUNetDataset(tmp_path / "mla", None, tmp_path).load_case("scan_0001")


def test_an_image_without_properties_says_where_they_come_from(tmp_path: Path) -> None:
    image().save(tmp_path / "a.mla")
    image().save(tmp_path / "a_seg.mla")
    with pytest.raises(FormatError, match="no properties of nnU-Net") as caught:
        NNUNetDataset(tmp_path)["a"]
    assert "mla convert" in (caught.value.hint or "")


@pytest.mark.parametrize("record", [None, "text", {"dtype": "O"}, {"dtype": "<u2"}, DAMAGED])
def test_locations_that_were_lost_or_damaged_are_an_error_not_a_silence(
    folder: Path, tmp_path: Path, record: object
) -> None:
    convert(folder, tmp_path / "mla", workers=1)
    store = open_store(tmp_path / "mla" / "scan_0001.mla", mmap_mode="r+")
    store.drop_record(LOCATIONS_RECORD)
    if record is not None:
        store.put_record(LOCATIONS_RECORD, record)
    store.close()
    with pytest.raises(FormatError, match="locations of the labels"):
        NNUNetDataset(tmp_path / "mla")["scan_0001"]


def test_a_saved_segmentation_of_a_stage_is_found_by_the_next_one(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "mla", workers=1)
    labels = np.arange(12 * 20 * 24, dtype=np.uint8).reshape(12, 20, 24) % 3
    (tmp_path / "stage").mkdir()
    NNUNetDataset.save_seg(labels, tmp_path / "stage" / "scan_0001")
    previous = NNUNetDataset(tmp_path / "mla", None, tmp_path / "stage")["scan_0001"][2]
    assert previous is not None
    np.testing.assert_array_equal(previous[:], labels)
    assert previous.meta.is_seg.is_seg is True


def test_a_case_is_saved_with_the_compression_that_is_asked_for(tmp_path: Path) -> None:
    data, seg = np.ones(SHAPE, np.float32), np.zeros(SHAPE, np.int16)
    properties = {"spacing": [1.0, 1.0, 1.0], "class_locations": {1: []}}
    NNUNetDataset.save_case(
        data,
        seg,
        properties,
        str(tmp_path / "a"),
        clevel=3,
        codec=blosc2.Codec.ZSTD,
        filters=[blosc2.Filter.BITSHUFFLE],
    )
    assert opened(tmp_path / "a.mla").compression.codec == "ZSTD"
    assert opened(tmp_path / "a.mla").compression.filters == ("BITSHUFFLE",)
    NNUNetDataset.save_case(data, seg, properties, str(tmp_path / "a"))
    assert opened(tmp_path / "a.mla").compression.codec == "LZ4HC"
    assert check(opened(tmp_path / "a_seg.mla")).state is IntegrityState.INTACT
    assert NNUNetDataset(tmp_path)["a"][3] == properties
