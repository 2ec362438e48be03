"""How does the API page write a callable? Parameter names and plain defaults, without types."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from enum import Enum

import mlarray
import mlarray.streaming.meter
import mlarray_convert

DESCRIBED = ("MLArray", "Meta", "Region", "Geometry", "Axis", "ArraySpec", "Layout", "BlockGrid")
_PLAIN = (bool, int, float, str, type(None), tuple)


def signature_text(value: object) -> str:
    """The signature of a callable as the page shows it; an empty string for anything else."""
    if not (inspect.isclass(value) or inspect.isroutine(value)) or (inspect.isclass(value) and issubclass(value, Enum)):
        return ""
    parts, keyword_only = [], False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name == "self" or parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
            keyword_only = True
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = ""
        if parameter.default is not parameter.empty:
            default = f"={parameter.default!r}" if isinstance(parameter.default, _PLAIN) else "=..."
        parts.append(f"{prefix}{parameter.name}{default}")
    return f"({', '.join(parts)})"


def public_names() -> Iterator[tuple[str, str]]:
    """Name and signature of everything the page must show."""
    for name in mlarray.__all__:
        value = getattr(mlarray, name)
        yield name, signature_text(value)
        if name in DESCRIBED:
            fields = set(getattr(value, "__dataclass_fields__", ()))
            for member, found in inspect.getmembers(value):
                if not member.startswith("_") and member not in fields:
                    yield f"{name}.{member}", signature_text(found)
    for name in mlarray_convert.__all__:
        yield f"mlarray_convert.{name}", signature_text(getattr(mlarray_convert, name))


def resolve(name: str) -> object:
    """The object that a name on the page stands for: in mlarray, or with its package in front."""
    package, _, rest = name.partition(".")
    value: object = importlib.import_module(package) if package == "mlarray_convert" else mlarray
    for part in rest.split(".") if package == "mlarray_convert" else name.split("."):
        value = getattr(value, part)
    return value
