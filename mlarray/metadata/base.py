"""What do all parts of the metadata have in common?

Fields that coerce when they are assigned, fields that only the array may change, and the conversions to and from mappings.
The parts themselves are in ``model.py``, the rules per field in ``schema.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, Self

from mlarray.errors import MetadataError
from mlarray.metadata import schema
from mlarray.metadata.values import unstorable


class MetadataValueError(MetadataError, TypeError):
    """A value that does not fit its field; also a ``TypeError``, which 0.0.x raised for values of the wrong type."""


class UnknownFieldError(MetadataError, KeyError):
    """A mapping with fields that metadata does not have; also a ``KeyError``, as in 0.0.x."""


def _refuse_write(self: object, *_: object, **__: object) -> NoReturn:
    raise AttributeError("this metadata is managed by the array and is read-only")


class _ReadOnlyList(list[Any]):
    """A list that compares, copies and pickles as a plain list and refuses changes."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse_write
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse_write

    def __reduce_ex__(self, _: object) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, ([*self],)


class _ReadOnlyDict(dict[Any, Any]):
    """A dict that compares, copies and pickles as a plain dict and refuses changes."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse_write
    clear = pop = popitem = setdefault = update = _refuse_write

    def __reduce_ex__(self, _: object) -> tuple[type[dict[Any, Any]], tuple[dict[Any, Any]]]:
        return dict, ({**self},)


def read_only(value: object) -> object:
    """Return `value` with lists and dicts that refuse changes."""
    if isinstance(value, list):
        return _ReadOnlyList(read_only(item) for item in value)
    if isinstance(value, dict):
        return _ReadOnlyDict({key: read_only(item) for key, item in value.items()})
    return value


def _plain(value: object) -> Any:
    """Return `value` with fresh plain lists and dicts; other values are shared."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _is_unset(value: object) -> bool:
    return value is None or (isinstance(value, (list, tuple, dict, str)) and len(value) == 0)


@dataclass(slots=True, eq=False)
class BaseMeta:
    """What all parts of the metadata have in common."""

    _NAMESPACE: ClassVar[str] = ""
    _MANAGED: ClassVar[frozenset[str]] = frozenset()

    def __setattr__(self, name: str, value: object) -> None:
        if name in self._MANAGED and hasattr(self, name):
            path = self._path(name)
            raise AttributeError(f"{path} is managed by the array and is read-only")
        self._assign(name, value)

    def __post_init__(self) -> None:
        self._settle(self._values())

    def _assign(self, name: str, value: object) -> None:
        names = self._field_names()
        if name not in names:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}, it has {', '.join(names)}")
        value = self._coerced(name, value)
        if hasattr(self, names[-1]):  # else it is still being made; then __post_init__ looks at all fields together
            self._settle(self._values() | {name: value})
        object.__setattr__(self, name, read_only(value) if name in self._MANAGED else value)

    def _coerced(self, name: str, value: object) -> object:
        problems: list[str] = []
        value = schema.coerce(self._NAMESPACE, name, value, problems)
        if problems:
            raise MetadataValueError(problems)
        return value

    def _settle(self, values: Mapping[str, object]) -> None:
        """Refuse `values` if they contradict each other; set the fields that follow from others."""

    def _path(self, name: str) -> str:
        return schema.path_of(self._NAMESPACE, name)

    @classmethod
    def _field_names(cls) -> tuple[str, ...]:
        return tuple(schema.FIELDS[cls._NAMESPACE])

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._field_names()}

    @classmethod
    def from_mapping(cls, d: Mapping[str, Any]) -> Self:
        """Return an object made from a mapping of field names.

        Raises
        ------
        MetadataError
            Not a mapping, an unknown field (then also a ``KeyError``), or a value that does not fit.
        """
        if not isinstance(d, Mapping):
            raise MetadataValueError([f"{cls.__name__} is made from a mapping, {type(d).__name__} was given"])
        unknown = [key for key in d if key not in cls._field_names()]
        if unknown:
            raise UnknownFieldError(
                [f"{cls.__name__} has no field {key!r}" for key in unknown],
                hint=f"Its fields are {', '.join(cls._field_names())}; anything else can go into meta.extra.",
            )
        return cls(**d)

    @classmethod
    def _from_checked(cls, values: Mapping[str, object]) -> Self:
        """Return an object of all fields, given as rules and parts have made them: nothing is checked a second time."""
        made = cls.__new__(cls)
        for name, value in values.items():
            object.__setattr__(made, name, read_only(value) if name in cls._MANAGED else value)
        return made

    @classmethod
    def ensure(cls, x: Any) -> Self:
        """Return `x` itself if it is of this class, else an object made from it; None gives the defaults."""
        if isinstance(x, cls):
            return x
        return cls() if x is None else cls.from_mapping(x)

    def to_mapping(self, *, include_none: bool = True) -> dict[str, Any]:
        """Return all fields, nested parts too, as fresh dicts and lists; the form a file holds.

        Parameters
        ----------
        include_none : bool, default True
            Keep fields that are unset.
        """
        return {
            name: value.to_mapping(include_none=include_none) if isinstance(value, BaseMeta) else _plain(value)
            for name, value in self._values().items()
            if include_none or value is not None
        }

    def to_plain(self, *, include_none: bool = False) -> Any:
        """Return what is set, as people read it: parts with a single field appear as its value.

        Parameters
        ----------
        include_none : bool, default False
            Keep fields that are unset, as None.
        """
        plain = {name: self._plain_field(name, include_none=include_none) for name in self._field_names()}
        return {name: value for name, value in plain.items() if include_none or value is not None}

    def _plain_field(self, name: str, *, include_none: bool) -> Any:
        value = getattr(self, name)
        if not isinstance(value, BaseMeta):
            return _plain(value)
        return None if value.is_default() else value.to_plain(include_none=include_none)

    def is_default(self) -> bool:
        """Say whether every field is as in a new object."""
        return self == type(self)()

    def reset(self) -> None:
        """Set every field back, except those the array manages."""
        fresh = type(self)()
        for name, value in self._values().items():
            if isinstance(value, BaseMeta):
                value.reset()
            elif name not in self._MANAGED:
                object.__setattr__(self, name, getattr(fresh, name))

    def copy_from(self, other: Self, *, overwrite: bool = False) -> None:
        """Take over fields of another object of the same class, as copies.

        Parameters
        ----------
        other : object of the same class
            Where the values come from. Fields the array manages are never taken.
        overwrite : bool, default False
            False fills only what is unset here (None or empty), inside nested parts too; True takes every field.

        Raises
        ------
        MetadataError
            `other` is of another class, or the values contradict each other; then nothing was changed.
        """
        if type(other) is not type(self):
            raise MetadataValueError(
                [f"a {type(self).__name__} copies from its like, {type(other).__name__} was given"]
            )
        target = copy.deepcopy(self)
        target._take_fields(other, overwrite=overwrite)
        for name, value in target._values().items():
            object.__setattr__(self, name, value)

    def _take_fields(self, other: Self, *, overwrite: bool) -> None:
        for name, mine in self._values().items():
            theirs = getattr(other, name)
            if name in self._MANAGED:
                continue
            if isinstance(mine, BaseMeta):
                mine._take_fields(theirs, overwrite=overwrite)
            elif overwrite or _is_unset(mine):
                object.__setattr__(self, name, copy.deepcopy(theirs))
        self._settle(self._values())

    def __eq__(self, other: object) -> bool:
        if type(other) is type(self):
            return bool(self._values() == other._values())
        if isinstance(other, Mapping):
            return bool(self.to_plain() == other)
        return NotImplemented

    def __str__(self) -> str:
        return str(self.to_plain())


@dataclass(slots=True, eq=False)
class SingleKeyBaseMeta(BaseMeta):
    """A part with one field: it compares, prints and indexes as the value of that field."""

    @classmethod
    def _key_name(cls) -> str:
        (name,) = cls._field_names()
        return name

    @classmethod
    def from_mapping(cls, d: Any) -> Self:
        """Return an object made from ``{field: value}`` or from the value alone; None and ``{}`` give the default."""
        if d is None or (isinstance(d, Mapping) and not d):
            return cls()
        if isinstance(d, Mapping) and not isinstance(d, cls) and d.keys() == {cls._key_name()}:
            return cls(**d)
        return cls(**{cls._key_name(): d})

    @property
    def value(self) -> Any:
        """The value of the only field."""
        return getattr(self, self._key_name())

    def set(self, v: Any) -> None:
        """Set the value of the only field."""
        setattr(self, self._key_name(), v)

    def to_plain(self, *, include_none: bool = False) -> Any:
        """Return the value of the only field.

        Parameters
        ----------
        include_none : bool, default False
            Without meaning here; there is one value only.
        """
        return _plain(self.value)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, BaseMeta):
            return type(other) is type(self) and bool(self.value == other.value)
        return bool(self.value == other)

    def __bool__(self) -> bool:
        return bool(self.value)


@dataclass(slots=True, eq=False, repr=False)
class FreeMeta(SingleKeyBaseMeta, MutableMapping[Any, Any]):
    """A free dict with the whole interface of a dict; each item is checked when it is set."""

    data: dict[Any, Any] = field(default_factory=dict)

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]

    def __setitem__(self, key: Any, val: Any) -> None:
        problems = unstorable({key: val}, path=f"meta.{self._NAMESPACE}")
        if problems:
            raise MetadataValueError(problems)
        self.data[key] = val

    def __delitem__(self, key: Any) -> None:
        del self.data[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __bool__(self) -> bool:
        return bool(self.data)

    __eq__ = SingleKeyBaseMeta.__eq__
