"""Files that hold several images: naming one, listing them, and what becomes a case."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mlarray import open_source
from mlarray.errors import FormatError, UsageError
from mlarray.formats import plugins, registry
from mlarray.formats.items import Item, item_path, listed, pick_item, split_item
from mlarray.formats.table import FORMATS, Format
from mlarray.sources.base import Source, SourceInfo
from mlarray.sources.memory import ArraySource
from mlarray_convert.cli.info import command as info_command
from mlarray_convert.discovery import Discovery, discover
from mlarray_convert.record import make_record, settings_of, why_stale
from mlarray_convert.request import make_request
from mlarray_convert.run import Job, Outcome, Status, run_case
from mlarray_convert.verify import check_against, check_file


def items(path: Path) -> tuple[Item, ...]:
    """One image per line of the file (or of the file ``list`` in a folder): its name."""
    text = (path / "list" if path.is_dir() else path).read_text(encoding="utf-8")
    return tuple(Item(name, "int16 2 x 3 x 4") for name in text.split())


def open_box(path: Path, *, item: str | None = None) -> Source:
    chosen = pick_item(path, items(path), item)
    files = (path / "list",) if path.is_dir() else (path,)
    info = SourceInfo(format="boxes", files=files, item=chosen.name)
    return ArraySource(np.full((2, 3, 4), len(chosen.name), np.int16), info=info)


@pytest.fixture(autouse=True)
def _formats(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType("mlarray.formats.boxes")
    module.items, module.open_source = items, open_box  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    rows = (
        Format("boxes", "Boxes", (".box",), "boxes", writes=False, items=True),
        Format("series", "Series", (".series",), "boxes", writes=False, items=True, split=True),
        Format("crates", "Crates", (".crate",), "boxes", writes=False, folders=True, items=True),
    )
    monkeypatch.setattr(plugins, "FORMATS", FORMATS + rows)
    plugins.all_formats.cache_clear()
    yield
    monkeypatch.undo()
    plugins.all_formats.cache_clear()


def box(path: Path, *names: str) -> Path:
    place = path
    if path.suffix == ".crate":
        path.mkdir(parents=True)
        (path / "part.nii").touch()
        place = path / "list"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("\n".join(names) + "\n", encoding="utf-8")
    return path


def found(*places: Path, **options: object) -> Discovery:
    output = options.pop("output", None)
    return discover(make_request(list(places), output, **options))  # type: ignore[arg-type]


def shown(discovery: Discovery, root: Path) -> dict[str, tuple[str, str]]:
    return {case.name: (case.item, str(case.output.relative_to(root))) for case in discovery.cases}


def test_the_only_image_needs_no_name(tmp_path: Path) -> None:
    with open_source(box(tmp_path / "a.box", "/only")) as source:
        assert source.info.item == "/only"


@pytest.mark.parametrize("name", ["/g/ct", "g/ct", "/g/ct/"])
def test_an_image_is_chosen_by_name_or_behind_an_at_sign(tmp_path: Path, name: str) -> None:
    path = box(tmp_path / "a.box", "/g/ct", "/g/seg")
    for source in (open_source(path, item=name), open_source(f"{path}@{name}")):
        assert source.info.item == "/g/ct"


def test_several_images_without_a_choice_are_refused_with_the_list(tmp_path: Path) -> None:
    path = box(tmp_path / "a.box", "/g/ct", "/g/seg")
    with pytest.raises(FormatError) as refused:
        open_source(path)
    for part in (str(path), "2 images", "/g/ct (int16 2 x 3 x 4)", "/g/seg (", "--item NAME", "a.box@NAME"):
        assert part in str(refused.value)


def test_a_name_that_is_not_there_is_refused_with_the_list(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no image 'pet'; it has /ct \(int16"):
        open_source(box(tmp_path / "a.box", "/ct"), item="pet")


def test_a_long_list_is_cut() -> None:
    text = listed([Item(f"/{number}", "uint8 3 x 3") for number in range(1000)])
    assert text.endswith("/19 (uint8 3 x 3), and 980 more")


def test_an_empty_container_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="holds no image"):
        open_source(box(tmp_path / "a.box"))


def test_an_item_of_a_format_with_one_image_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "a.nii").touch()
    with pytest.raises(UsageError, match="holds one image: there is no item '1'"):
        open_source(tmp_path / "a.nii", item="1")


def test_a_path_and_an_argument_that_name_different_items_are_refused(tmp_path: Path) -> None:
    path = box(tmp_path / "a.box", "x", "y")
    with pytest.raises(UsageError, match=r"'x'.*'y'"):
        open_source(f"{path}@x", item="y")


def test_the_path_before_the_sign_must_exist_and_a_file_of_that_name_wins(tmp_path: Path) -> None:
    first = box(tmp_path / "a@b" / "c.box", "u@v", "w")
    assert split_item(Path(f"{first}@u@v")) == (first, "u@v")
    whole = box(tmp_path / "a@b" / "c.box@w.box", "z")
    assert split_item(whole) == (whole, None)
    assert split_item(tmp_path / "none@1") == (tmp_path / "none@1", None)
    assert split_item(Path(f"{first}@")) == (Path(f"{first}@"), None)


@pytest.mark.parametrize(
    ("item", "path"),
    [("/g/ct", "g/ct"), ("../../x", "x"), ("a/./b/", "a/b"), ('a:b*"c', "a_b__c"), ("/", "item"), ("", "item")],
)
def test_an_item_becomes_a_path_that_stays_where_it_is_put(item: str, path: str) -> None:
    assert str(item_path(item)) == path


def test_items_are_listed_and_formats_with_one_image_have_none(tmp_path: Path) -> None:
    assert [one.name for one in registry.items_of(box(tmp_path / "a.box", "x", "y"))] == ["x", "y"]
    (tmp_path / "a.nii").touch()
    assert registry.items_of(tmp_path / "a.nii") == ()


def test_the_files_of_a_folder_that_is_an_image_are_no_cases(tmp_path: Path) -> None:
    crate = box(tmp_path / "d" / "sub" / "a.crate", "x")
    assert registry.is_folder_image(crate)
    assert not registry.is_folder_image(tmp_path / "d")
    assert shown(found(tmp_path / "d"), tmp_path) == {"sub/a": ("", "d_mla/sub/a.mla")}
    assert shown(found(crate), tmp_path / "d") == {"a": ("", "sub/a.mla")}
    assert shown(found(crate, output=tmp_path / "b.mla"), tmp_path) == {"a": ("", "b.mla")}


def test_a_named_item_does_not_change_the_name_of_its_case(tmp_path: Path) -> None:
    path = box(tmp_path / "d" / "a.box", "/g/ct", "/g/pet")
    assert shown(found(path, item="/g/ct"), tmp_path) == {"a": ("/g/ct", "d/a.mla")}
    assert shown(found(Path(f"{path}@/g/pet")), tmp_path) == {"a": ("/g/pet", "d/a.mla")}
    assert shown(found(path.parent, item="ct"), tmp_path) == {"a": ("ct", "d_mla/a.mla")}


def test_several_items_of_one_file_are_cases_below_its_name(tmp_path: Path) -> None:
    path = box(tmp_path / "a.box", "/g/ct", "/g/pet", "/x")
    assert shown(found(Path(f"{path}@/g/ct"), Path(f"{path}@/g/pet")), tmp_path) == {
        "a/g/ct": ("/g/ct", "a/g/ct.mla"),
        "a/g/pet": ("/g/pet", "a/g/pet.mla"),
    }


def test_of_series_each_is_a_case_and_a_single_one_keeps_the_name(tmp_path: Path) -> None:
    root = tmp_path / "d"
    box(root / "one.series", "1")
    box(root / "two.series", "1", "labels/2")
    discovery = found(root)
    assert shown(discovery, tmp_path) == {
        "one": ("1", "d_mla/one.mla"),
        "two/1": ("1", "d_mla/two/1.mla"),
        "two/labels/2": ("labels/2", "d_mla/two/labels/2.mla"),
    }
    label = discovery.cases[-1]
    assert label.is_label
    assert [str(image) for image in label.images] == [f"{root / 'two.series'}@1"]
    with pytest.raises(UsageError, match="holds 2 images, which cannot all be written to"):
        found(root / "two.series", output=tmp_path / "x.mla")


def test_series_that_cannot_be_listed_stay_a_case_that_fails(tmp_path: Path) -> None:
    box(tmp_path / "d" / "a.series")
    discovery = found(tmp_path / "d")
    assert [case.item for case in discovery.cases] == [""]
    assert converted(discovery, tmp_path / "d").reason.endswith("a.series holds no image.")


def test_an_item_for_inputs_that_have_none_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "a.nii").touch()
    with pytest.raises(UsageError, match="none of the inputs"):
        found(tmp_path / "a.nii", item="ct")
    path = box(tmp_path / "b.box", "x")
    assert shown(found(tmp_path / "a.nii", path, item="x"), tmp_path) == {"a": ("", "a.mla"), "b": ("x", "b.mla")}
    with pytest.raises(UsageError, match=r"'x'.*--item 'y'"):
        found(Path(f"{path}@x"), item="y")
    with pytest.raises(UsageError, match="item is empty"):
        found(path, item="")


def converted(discovery: Discovery, place: Path) -> Outcome:
    job = Job(discovery.cases[0], make_request(place), 10**11, 1)
    return run_case(job, lambda share: None)


def test_the_chosen_image_is_converted_checked_and_recorded(tmp_path: Path) -> None:
    path = box(tmp_path / "a.box", "/ct", "/other")
    one, other = found(path, item="/ct"), found(path, item="/other")
    assert converted(one, path).status is Status.OK
    with open_source(tmp_path / "a.mla") as source:
        assert int(source.read(source.spec.region).max()) == 3
    assert check_against(tmp_path / "a.mla", Path(f"{path}@/ct")).ok
    assert not check_against(tmp_path / "a.mla", Path(f"{path}@/other")).ok
    assert converted(one, path).reason == "up to date"
    assert converted(other, path).reason == "converted again: other settings than before"
    request = make_request(path)
    assert settings_of(one.cases[0], request)["item"] == "/ct"
    record = make_record(one.cases[0], request, [path], ())
    assert why_stale(record, other.cases[0], request, [path]) == "other settings than before"


def test_every_image_of_a_file_is_verified(tmp_path: Path) -> None:
    path = box(tmp_path / "a.box", "x", "y")
    assert check_file(path).ok
    assert check_file(Path(f"{path}@y")).ok
    assert not check_file(Path(f"{path}@z")).ok


def test_info_lists_the_images_or_shows_the_chosen_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = box(tmp_path / "a.box", "/ct", "/seg")
    told = []
    for arguments in ([path], [path, "--json"], [f"{path}@/ct"], [path, "--dataset", "/seg", "--json"]):
        assert info_command.main(list(map(str, arguments)), standalone_mode=False) == 0
        told.append(capsys.readouterr().out)
    listing, rows, one, other = told
    assert "a.box@NAME" in listing
    assert [" ".join(line.split()) for line in listing.splitlines()[-3:-1]] == [
        "/ct int16 2 x 3 x 4",
        "/seg int16 2 x 3 x 4",
    ]
    named = [{"name": name, "title": "int16 2 x 3 x 4"} for name in ("/ct", "/seg")]
    assert json.loads(rows) == {"path": str(path), "format": "boxes", "items": named}
    assert re.search(r"^item +/ct$", one, re.MULTILINE)
    assert json.loads(other)["item"] == "/seg"


def test_info_of_a_damaged_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="holds no image"):
        info_command.main([str(box(tmp_path / "a.box"))], standalone_mode=False)
