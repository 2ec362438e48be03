"""Which images does a zarr hierarchy hold?

An image is a group with ``multiscales``, or a bare array. A hierarchy may be one image, with segmentations of it below
``labels``; a list of images as bioformats2raw writes it; a group of bare arrays; or a plate of wells, which is refused. An item
is the path of a group or array below the root: ``""`` for the root, ``1`` for its level of that path, ``labels/nuclei``,
``0/labels/nuclei/2``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlarray.errors import FormatError
from mlarray.formats.items import Item, listed, pick_item
from mlarray.formats.ome_zarr_multiscale import image_attributes, read_multiscale
from mlarray.formats.ome_zarr_store import Node, children, joined, read_node, stored

_MAX_IMAGES = 10_000
_LISTED_WELLS = 3


@dataclass(frozen=True, slots=True)
class Image:
    """One image of a hierarchy.

    Parameters
    ----------
    node : Node
        A group with ``multiscales``, or a bare array.
    level : int
        Which of its levels.
    is_label : bool
        Whether it is a segmentation.
    """

    node: Node
    level: int = 0
    is_label: bool = False

    @property
    def item(self) -> str:
        """Its name among the images of the hierarchy."""
        return self.node.path


def items(root: Path) -> tuple[Item, ...]:
    """Return the images of a hierarchy, segmentations after what they belong to; levels are not listed.

    Raises
    ------
    FormatError
        When there is no hierarchy, or a plate.
    """
    return tuple(Item(image.item, _title(image)) for image in images(root))


def images(root: Path) -> tuple[Image, ...]:
    """Return the images that :func:`items` lists, each at its finest level."""
    return tuple(_images(_root(root)))


def find(root: Path, item: str | None) -> Image:
    """Return the image that is meant.

    Parameters
    ----------
    root : Path
        The hierarchy.
    item : str or None
        Its path, that of one of its levels, or the number of a level. None: the image at the root, else the only one.

    Raises
    ------
    FormatError
        When there is none of that name, or several and no name; the message lists them.
    """
    if item is None or not item.strip("/"):
        known = images(root)
        if known and known[0].item == "":
            return known[0]
        chosen = pick_item(root, [Item(image.item, _title(image)) for image in known], item or None)
        return next(image for image in known if image.item == chosen.name)
    path = joined("", item.strip("/"))
    found = _at(root, path)
    if found is not None:
        return found
    raise FormatError(f"{root} holds no image {item!r}; it has {listed(items(root))}.")


def _at(root: Path, path: str) -> Image | None:
    """Return the image or level at a path, looking for the group that the last parts name a level of."""
    parts = path.split("/")
    bare: Node | None = None
    for count in range(len(parts), -1, -1):
        node = read_node(root, "/".join(parts[:count]))
        if node is None:
            continue
        if node.kind == "array":
            bare = node if count == len(parts) else bare
            continue
        ome = image_attributes(node.attributes)
        if "multiscales" not in ome:
            continue
        rest = "/".join(parts[count:])
        levels = [level.path.strip("/") for level in read_multiscale(ome).levels]
        number = int(rest) if rest.isdigit() and len(rest) < 4 else -1
        level = 0 if not rest else levels.index(rest) if rest in levels else number
        if 0 <= level < len(levels):
            return Image(node, level, _is_label(node))
    return None if bare is None else Image(bare, 0, _is_label(bare))


def _root(root: Path) -> Node:
    node = read_node(root)
    if node is None:
        raise FormatError(
            f"{root} holds no zarr metadata.", hint="If it is being written, wait; if its writer died, write it again."
        )
    return node


def _images(root: Node) -> Iterator[Image]:
    """Yield the images below a root."""
    ome = image_attributes(root.attributes)
    if root.kind == "array":
        yield Image(root)
    elif "multiscales" in ome:
        yield Image(root, 0, _is_label(root))
        yield from _labels(root)
    elif "plate" in ome:
        raise _plate(root, ome)
    elif "well" in ome:
        yield from _of_paths(root, [one.get("path") for one in _dicts(ome, "well", "images")])
    elif "bioformats2raw.layout" in ome:
        yield from _of_paths(root, _series(root))
    elif isinstance(ome.get("labels"), list):
        yield from _of_paths(root, ome["labels"], is_label=True)
    else:
        yield from _arrays(root)


def _series(root: Node) -> Iterator[object]:
    """Yield the paths of the images that bioformats2raw wrote: as listed in the group OME, else 0, 1, 2 ..."""
    listing = root.child("OME")
    named = None if listing is None else image_attributes(listing.attributes).get("series")
    if isinstance(named, list):
        yield from named
        return
    for number in range(_MAX_IMAGES):
        if root.child(str(number)) is None:
            return
        yield str(number)


def _of_paths(parent: Node, paths: Any, *, is_label: bool = False) -> Iterator[Image]:
    for count, path in enumerate(paths):
        if count >= _MAX_IMAGES:
            raise FormatError(f"{parent.place} lists more than {_MAX_IMAGES} images.")
        node = parent.child(path)
        if node is None:
            raise FormatError(f"{parent.place} lists the image {path!r}, which is not there.")
        if node.kind == "group" and "multiscales" not in image_attributes(node.attributes):
            continue
        yield Image(node, 0, is_label or _is_label(node))
        if not is_label:
            yield from _labels(node)


def _labels(image: Node) -> Iterator[Image]:
    group = image.child("labels")
    if group is None or group.kind != "group":
        return
    named = image_attributes(group.attributes).get("labels")
    yield from _of_paths(group, named if isinstance(named, list) else [], is_label=True)


def _arrays(group: Node) -> Iterator[Image]:
    """Yield the bare arrays directly below a group; a remote store is not asked for its objects."""
    for name in children(group):
        node = group.child(name)
        if node is not None and node.kind == "array":
            yield Image(node)
        elif node is not None and "multiscales" in image_attributes(node.attributes):
            yield Image(node, 0, _is_label(node))


def _is_label(node: Node) -> bool:
    return "image-label" in image_attributes(node.attributes) or "labels" in node.path.split("/")[:-1]


def _plate(root: Node, ome: Mapping[str, Any]) -> FormatError:
    wells = [str(one.get("path"))[:40] for one in _dicts(ome, "plate", "wells")]
    some = ", ".join(wells[:_LISTED_WELLS]) or "none"
    return FormatError(
        f"{root.place} is a plate of {len(wells)} wells ({some}{', ...' if len(wells) > _LISTED_WELLS else ''}), not an image.",
        hint=f"Name one image of a well, as in --item {wells[0] if wells else 'A/1'}/0.",
    )


def _dicts(ome: Mapping[str, Any], key: str, entries: str) -> list[Mapping[str, Any]]:
    holder = ome.get(key)
    found = holder.get(entries) if isinstance(holder, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _title(image: Image) -> str:
    """Return type and shape of an image, and how many levels it has."""
    try:
        array, levels = image.node, ""
        if image.node.kind == "group":
            multiscale = read_multiscale(image_attributes(image.node.attributes))
            child = image.node.child(multiscale.levels[0].path)
            if child is None:
                return "its array is missing"
            array = child
            levels = f", {len(multiscale.levels)} levels" if len(multiscale.levels) > 1 else ""
        layout = stored(array)
    except FormatError as error:
        return f"cannot be read: {error.message}"
    kind = "segmentation, " if image.is_label else ""
    return f"{kind}{layout.dtype} {' x '.join(map(str, layout.shape))}{levels}"
