"""Which images does a zarr hierarchy hold?

An image is a group with ``multiscales``, or a bare array. A hierarchy may be one image, with segmentations of it below
``labels``; a list of images as bioformats2raw writes it; a group of bare arrays; or a plate of wells, which is refused. An item
is the path of a group or array below the root: ``1`` for the level of the image at the root of that path, ``labels/nuclei``,
``0/labels/nuclei/2``. The image at the root is called like its finest level.
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
from mlarray.limits import ZARR_IMAGES

ROOT = "/"
_LISTED_WELLS = 3
_LISTED_LEVELS = 6


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
        """Its path below the root; empty for the image at the root."""
        return self.node.path

    @property
    def levels(self) -> tuple[str, ...]:
        """What names each of its levels, the finest first; none for a bare array.

        Raises
        ------
        FormatError
            When its metadata is damaged.
        """
        if self.node.kind == "array":
            return ()
        if not self.node.attributes:
            raise FormatError("It is listed, and not there.")
        multiscale = read_multiscale(image_attributes(self.node.attributes))
        return tuple("/".join(filter(None, (self.item, level.path.strip("/")))) for level in multiscale.levels)


def items(root: Path) -> tuple[Item, ...]:
    """Return the images of a hierarchy, segmentations after what they belong to; levels are not listed.

    Raises
    ------
    FormatError
        When there is no hierarchy, or a plate. A segmentation that is not there fails when it is opened.
    """
    return tuple(_item(image) for image in images(root))


def images(root: Path) -> tuple[Image, ...]:
    """Return the images that :func:`items` lists, each at its finest level."""
    return tuple(_images(_root(root)))


def level_shapes(image: Image) -> dict[str, tuple[int, ...] | None]:
    """Return the extents of each level in stored order, under what names it; None for one that cannot be read."""
    shapes: dict[str, tuple[int, ...] | None] = {}
    for number, name in enumerate(image.levels):
        try:
            shapes[name] = stored(level_array(image.node, number)).shape
        except FormatError:
            shapes[name] = None
    return shapes


def level_array(node: Node, number: int) -> Node:
    """Return the array of a level of a group with ``multiscales``.

    Raises
    ------
    FormatError
        When it is not there.
    """
    path = read_multiscale(image_attributes(node.attributes)).levels[number].path
    array = node.child(path)
    if array is None or array.kind != "array":
        raise FormatError(f"Its level {path!r} is not there.")
    return array


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
        chosen = pick_item(root, [_item(image) for image in known], item or None)
        return next(image for image in known if image.item == chosen.name)
    path = joined("", item.strip("/"))
    found = _at(root, path)
    if found is not None:
        return found
    known_items = items(root)
    if any(one.name == path for one in known_items):
        raise FormatError(f"{root} lists the image {path!r}, which is not there.")
    raise FormatError(f"{root} holds no image {item!r}; it has {listed(known_items)}.")


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
    for number in range(ZARR_IMAGES):
        if root.child(str(number)) is None:
            return
        yield str(number)


def _of_paths(parent: Node, paths: Any, *, is_label: bool = False) -> Iterator[Image]:
    for count, path in enumerate(paths):
        if count >= ZARR_IMAGES:
            raise FormatError(f"{parent.place} lists more than {ZARR_IMAGES} images.", hint=ZARR_IMAGES.hint)
        node = parent.child(path)
        if node is None and is_label:  # listed, so that it is told; what it belongs to can be read
            node = Node(parent.root, joined(parent.path, path), "group", parent.version, {}, {})
            yield Image(node, 0, is_label=True)
            continue
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


def _item(image: Image) -> Item:
    """Return an image for people. The one at the root has no name of its own: it is called like its finest level."""
    if image.item:
        return Item(image.item, _title(image))
    try:
        name = image.levels[0] if image.levels else ROOT
    except FormatError:
        name = ROOT
    return Item(name, _title(image), preferred=True)


def _title(image: Image) -> str:
    """Return type and shape of an image, and what its levels are called."""
    try:
        levels = image.levels
        layout = stored(level_array(image.node, 0) if levels else image.node)
    except FormatError as error:
        return f"cannot be read: {error.message}"
    kind = "segmentation, " if image.is_label else ""
    more = ", ..." if len(levels) > _LISTED_LEVELS else ""
    told = f", levels {', '.join(levels[:_LISTED_LEVELS])}{more}" if len(levels) > 1 else ""
    return f"{kind}{layout.dtype} {' x '.join(map(str, layout.shape))}{told}"
