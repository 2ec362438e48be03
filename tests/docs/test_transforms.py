"""The page of transforms lists what there is, with the parameters it has."""

import re

from mlarray.streaming.config import known_transforms
from mlarray.transforms import augmentations

from .signatures import signature_text
from .test_facts import code_in, read, rows

KINDS = ("place", "halo", "lines", "voxels", "all")


def test_every_transform_has_a_row_with_its_parameters() -> None:
    shown = [code_in(cells[0])[0] for cells in rows(read("transforms.md"))]
    assert sorted(shown) == sorted(f"{name}{signature_text(value)}" for name, value in known_transforms().items())


def test_the_page_says_which_are_undone_and_what_each_reads() -> None:
    known = known_transforms()
    for cells in rows(read("transforms.md")):
        name = re.split(r"\(", code_in(cells[0])[0])[0]
        assert cells[3].split(",")[0] == ("yes" if known[name].invertible else "no"), name
        assert cells[2].startswith(KINDS), name


def test_every_augmentation_has_a_row_with_its_parameters() -> None:
    known = {name: getattr(augmentations, name) for name in augmentations.__all__}
    wanted = [
        f"{name}{signature_text(value)}"
        for name, value in known.items()
        if isinstance(value, type) and issubclass(value, augmentations.Augmentation) and name != "Augmentation"
    ]
    assert sorted(code_in(cells[0])[0] for cells in rows(read("augmentations.md"))) == sorted(wanted)
