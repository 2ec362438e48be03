"""A file that runs code elsewhere is inert here: one test per known technique, over whole files and not only their parsers."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import pickle
import socket
import sys
import warnings
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

from mlarray import MLArray
from mlarray.errors import FormatError, MetadataWarning, MissingDependencyError, MLArrayError, UsageError
from mlarray.formats.nnunet_case import read_properties
from mlarray.formats.registry import items_of, open_source
from mlarray.streaming.config import load_recipe
from mlarray.streaming.kept import Kept
from mlarray_convert.verify import check_file

from . import crafted
from .crafted import COMMAND, PICKLES, PROOF, WRITE, Calls

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the file is the current one, as where somebody looks at what was downloaded."""
    monkeypatch.chdir(tmp_path)
    bin_folder = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", bin_folder + os.pathsep + os.environ["PATH"])
    return tmp_path


def opened_in_every_way(path: Path) -> None:
    """Open, read, verify and describe a file; refusals and warnings are welcome."""
    for mode in ("r", None, "r+", "c"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MetadataWarning)
            with contextlib.suppress(MLArrayError), MLArray.open(path, mmap_mode=mode) as image:
                _ = image[0, 0, 0], str(image.meta), repr(image)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetadataWarning)
        for step in (lambda: open_source(path).close(), lambda: check_file(path), lambda: MLArray.load(path)):
            with contextlib.suppress(MLArrayError):
                step()


def assert_inert(path: Path) -> None:
    modules = set(sys.modules)
    opened_in_every_way(path)
    assert not Path(PROOF).exists()
    assert {"antigravity", "this"} & (set(sys.modules) - modules) == set()


@pytest.mark.parametrize("technique", PICKLES)
def test_a_pickle_that_runs_code_in_0_0_54_costs_the_metadata_and_runs_nothing(technique: str) -> None:
    path = crafted.with_pickle(Path("case.mla"), PICKLES[technique])
    with MLArray.open(path) as image:
        with pytest.warns(MetadataWarning):
            assert image.meta.is_default()
        assert image[0, 0, 0] == crafted_voxel()
    assert_inert(path)


def crafted_voxel() -> int:
    return int(np.random.default_rng(0).integers(0, 50, (16, 16, 16)).astype(np.int16)[0, 0, 0])


@pytest.mark.parametrize("where", ["chunk", "index", "record"])
def test_a_codec_for_which_blosc2_would_start_python_is_refused_before_it_is_decoded(where: str) -> None:
    Path(f"{crafted.PLUGIN_MODULE}.py").write_text(
        f"{WRITE}\ndef print_libpath(): print('./lib.so')\n", encoding="ascii"
    )
    path = crafted.with_plugin_codec(Path("case.mla"), where)
    assert_inert(path)
    if where != "record":
        for mode in ("r", None, "r+"):
            with pytest.raises(FormatError, match=r"asks for a codec or filter that is not compiled into blosc2"):
                MLArray.open(path, mmap_mode=mode)[0, 0, 0]


@pytest.mark.parametrize("record", ["mlarray", "other"])
@pytest.mark.parametrize("kind", ["lazyudf", "lazyexpr"])
def test_lazy_functions_and_expressions_of_blosc2_in_a_record_are_not_made(record: str, kind: str) -> None:
    source = f"def f(x):\n    {WRITE}\n    return x\n"
    fields = {"dtype": "<i8", "shape": [2], "name": "f", "udf_source": source, "operands": {}, "kwargs": {}}
    expression = f"__import__('os').system({COMMAND!r})"
    packed = crafted.structured(kind, expression=expression, function_kind="dsl", dsl_version=1, **fields)
    assert_inert(crafted.with_record(crafted.image(Path("case.mla")), record, packed))


def test_a_remote_array_in_a_record_is_not_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        urlbase = f"http://127.0.0.1:{server.getsockname()[1]}/"
        packed = crafted.structured("c2array", path="@public/x.b2nd", urlbase=urlbase)
        assert_inert(crafted.with_record(crafted.image(Path("case.mla")), "mlarray", packed))
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_lazy_array_that_is_called_mla_is_refused_by_its_header() -> None:
    import blosc2

    operand = blosc2.asarray(np.arange(8), urlpath="operand.b2nd", mode="w")
    (operand + 1).save("lazy.b2nd")
    Path("lazy.b2nd").rename("case.mla")
    with pytest.raises(FormatError, match="is not an array file"):
        MLArray.open("case.mla")
    assert_inert(Path("case.mla"))


def test_the_properties_of_an_nnunet_case_run_nothing() -> None:
    Path("case.pkl").write_bytes(pickle.dumps({"spacing": [1, 1, 1], "x": Calls(exec, WRITE)}))
    with pytest.raises(FormatError, match="not allowed"):
        read_properties(Path("case.pkl"))
    assert not Path(PROOF).exists()


def test_objects_in_npy_and_npz_are_never_loaded() -> None:
    objects = np.array([Calls(exec, WRITE)], dtype=object)
    np.save("a.npy", objects, allow_pickle=True)
    np.savez("b.npz", a=objects)
    for path in (Path("a.npy"), Path("b.npz")):
        with pytest.raises(FormatError, match="which is never loaded"):
            open_source(path)
    assert not Path(PROOF).exists()


def test_what_was_kept_of_measurements_is_no_pickle_either() -> None:
    kept = Kept(Path("kept"))
    kept.put("key", {"places": np.arange(3)})
    (entry,) = Path("kept").iterdir()
    np.save("o.npy", np.array([Calls(exec, WRITE)], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(entry) as archive:
        plain = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(entry, "w") as archive:
        for name, content in plain.items():
            archive.writestr(name, Path("o.npy").read_bytes() if name.endswith(".npy") else content)
    assert kept.get("key") is None
    assert not Path(PROOF).exists()


def test_objects_and_attributes_of_hdf5_are_not_unpickled() -> None:
    code = np.void(pickle.dumps(Calls(exec, WRITE)))
    with h5py.File("a.h5", "w") as file:
        file["objects"] = code
        file.create_dataset("image", data=np.zeros((4, 4, 4), np.uint8))
        file["image"].attrs["pickled"] = code
    with open_source(Path("a.h5")) as source:
        assert "pickled" not in source.info.header
    with pytest.raises(FormatError, match="no array of numbers"):
        open_source(Path("a.h5"), item="/objects")
    assert not Path(PROOF).exists()


def test_a_filter_of_hdf5_is_not_loaded_from_beside_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HDF5_PLUGIN_PATH", raising=False)
    with h5py.File("a.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((4, 4, 4))
        properties.set_filter(32767, h5py.h5z.FLAG_OPTIONAL, (1,))
        space = h5py.h5s.create_simple((4, 4, 4))
        h5py.h5d.create(file.id, b"image", h5py.h5t.NATIVE_UINT8, space, properties)
    for name in ("libfilter.so", "libh5filter.so", "filter.so"):
        Path(name).write_bytes(b"\x7fELF" + b"\0" * 60)
    with pytest.raises((MissingDependencyError, FormatError), match="32767"):
        open_source(Path("a.h5"))
    assert [str(one) for one in map(os.fsdecode, _plugin_paths()) if not os.path.isabs(one)] == []


def _plugin_paths() -> list[bytes]:
    return [h5py.h5pl.get(position) for position in range(h5py.h5pl.size())]


@pytest.mark.parametrize("codec", ["pickle", "json2", "msgpack2", "vlen-utf8", "os.system", "numcodecs.pickle"])
def test_a_codec_of_zarr_that_does_more_than_decode_numbers_is_refused(codec: str) -> None:
    zarr.create_array("a.zarr", shape=(4, 4, 4), chunks=(4, 4, 4), dtype="u1", zarr_format=2)[...] = 1
    document = json.loads(Path("a.zarr/.zarray").read_text(encoding="ascii"))
    document["filters"] = [{"id": codec}]
    Path("a.zarr/.zarray").write_text(json.dumps(document), encoding="ascii")
    Path("a.zarr/0.0.0").write_bytes(pickle.dumps(Calls(exec, WRITE)))
    with pytest.raises(FormatError, match="not one that only decodes numbers"):
        open_source(Path("a.zarr"))
    assert not Path(PROOF).exists()


@pytest.mark.parametrize(
    "content",
    [
        f"!!python/object/apply:os.system ['{COMMAND}']",
        f"- !!python/object/new:os.system ['{COMMAND}']",
        "- !!python/name:os.system",
        "- !!python/module:antigravity",
        f"- os.system: {{command: '{COMMAND}'}}",
        f"- builtins.exec: ['{WRITE}']",
        "- mlarray.transforms.importlib: {}",
        "- __import__: {name: antigravity}",
        "- Transform: {}",
        "augmentations: {a: {augmentations: [AugmentationList]}}",
    ],
)
def test_a_chain_names_transforms_of_this_package_and_nothing_else(content: str) -> None:
    Path("chain.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(UsageError):
        load_recipe("chain.yaml")
    assert not Path(PROOF).exists()
    assert "antigravity" not in sys.modules


def test_items_of_a_file_are_listed_without_running_it() -> None:
    np.savez("b.npz", a=np.array([Calls(exec, WRITE)], dtype=object), b=np.zeros((2, 2)))
    assert [item.name for item in items_of(Path("b.npz"))] == ["b"]
    assert not Path(PROOF).exists()


# Where code may be loaded: what processes of one run say to each other over their own pipes.
_OWN_PIPES = {
    "mlarray/streaming/handover.py",
    "mlarray/streaming/loader.py",
    "mlarray/testing/transforms.py",
    "mlarray/testing/conformance.py",
    "mlarray_convert/cluster/child.py",
    "mlarray_convert/cluster/worker.py",
    "mlarray_convert/cluster/client.py",
}


def test_nothing_else_in_the_packages_can_run_what_it_reads() -> None:
    found = []
    for path in [*(ROOT / "mlarray").rglob("*.py"), *(ROOT / "mlarray_convert").rglob("*.py")]:
        place = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in ("pickle.loads", "pickle.load") and place in _OWN_PIPES:
                continue
            allowed = any(word.arg == "allow_pickle" and ast.unparse(word.value) == "True" for word in node.keywords)
            if called in _RUNS or allowed:
                found.append(f"{place}:{node.lineno}: {called}")
    assert found == []


_RUNS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "joblib.load", "dill.loads"),
    *("pickle.loads", "pickle.load", "pickle.Unpickler", "cloudpickle.loads", "marshal.loads", "shelve.open"),
    *("yaml.unsafe_load", "yaml.full_load", "runpy.run_path", "pd.read_pickle", "blosc2.unpack", "blosc2.load_array"),
}
