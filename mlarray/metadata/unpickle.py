"""How can a pickle written by somebody else be read without running any of it?

A pickle is a program for a small stack machine, and Python's own machine can be told to import and call anything. This
module is another machine for the same programs. It knows the opcodes that build plain values, it never imports, and the
only callables are those of a table the caller passes: stand-ins that turn plain values into plain values. There are no
attributes to set, because ``BUILD`` reaches nothing but the :meth:`Pending.build` of objects this machine made itself.

Persistent ids, extension codes, ``INST``/``OBJ``, out-of-band buffers, sets and dotted names are refused. Size, number of
operations, nesting and the size of the result written out as a tree (a few kilobytes of shared references can stand for
terabytes) are limited by :class:`Limits`. The table of names that ``.mla`` files use is in ``standins.py``.

The opcodes are those of the Python standard library's ``pickletools``, protocols 0 to 5.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias, cast

from mlarray.errors import FormatError
from mlarray.limits import (
    METADATA_BYTES,
    METADATA_DEPTH,
    METADATA_INTEGER_BYTES,
    METADATA_LINE_BYTES,
    METADATA_OPERATIONS,
    METADATA_UNUSUAL_KEYS,
)

Table: TypeAlias = Mapping[tuple[str, str], Callable[..., object]]
"""(module, name) as the pickle names it -> stand-in, called with the plain values the pickle passes."""

MAX_INT_KEY: Final = 2**61 - 1
"""Integers from here on may share their hash at will and make a dict quadratically slow."""

STOP: Final = ord(".")

_DOUBLE: Final = struct.Struct(">d").unpack_from
_SCALARS: Final = frozenset({str, int, float, bool, bytes, complex, type(None)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one pickle may cost; the defaults are the constants of this module."""

    max_bytes: int = METADATA_BYTES
    max_operations: int = METADATA_OPERATIONS
    max_depth: int = METADATA_DEPTH


class Pending(ABC):
    """An object whose pickle sends a state after making it; stand-ins may return one.

    Only the machine sees it: the result holds what :meth:`finish` returns.
    """

    __slots__ = ()

    @abstractmethod
    def build(self, state: object) -> None:
        """Take the state of a ``BUILD`` opcode, or raise ``ValueError``."""

    @abstractmethod
    def finish(self) -> object:
        """Return the plain value, or raise ``ValueError``."""

    def size(self) -> int:
        """Return the bytes that each reference to the value counts as text."""
        return 0


class Buffer:
    """Bytes of a bytearray, which is no plain value; a stand-in may take them."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class _Global:
    """A name of the table on the stack: callable by the machine, unreachable for the pickle."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[..., object]) -> None:
        self.call = call


def restricted_loads(data: bytes, *, table: Table, limits: Limits | None = None, keep_tuples: bool = False) -> object:
    """Return the value a pickle describes, made of plain builtins only.

    Parameters
    ----------
    data : bytes
        One complete pickle, protocol 0 to 5.
    table : mapping
        ``(module, name)`` to stand-in: all that the pickle may call.
    limits : Limits, optional
        What it may cost.
    keep_tuples : bool
        Whether tuples stay tuples, and short flat ones may be keys; by default they become lists.

    Returns
    -------
    object
        A tree of dict, list, str, int, float, bool, None, bytes and complex; no two branches share a container. Values that
        the table's own :class:`Pending` objects finish to are passed on untouched.

    Raises
    ------
    FormatError
        The pickle is damaged, asks for something that is not allowed, or exceeds a limit.

    Examples
    --------
    >>> import pickle
    >>> restricted_loads(pickle.dumps({"spacing": (1.0, 2.0)}), table={})
    {'spacing': [1.0, 2.0]}
    """
    limits = limits or Limits()
    if len(data) > limits.max_bytes:
        raise FormatError(f"the pickle has {len(data)} bytes, {limits.max_bytes} are allowed", hint=METADATA_BYTES.hint)
    try:
        machine = _Machine(data, table, limits.max_operations, METADATA_UNUSUAL_KEYS if keep_tuples else 0)
        return _TreeCopy(limits, keep_tuples=keep_tuples).copy(machine.run(), 0)
    except FormatError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, struct.error) as error:
        raise FormatError(f"the pickle is damaged: {type(error).__name__}: {error}") from error


def plain_tree(value: object, *, limits: Limits | None = None) -> object:
    """Copy `value` into fresh dicts and lists, refusing what is too large, too deep or not a plain value.

    Raises
    ------
    FormatError
        Naming the first thing that is refused.
    """
    return _TreeCopy(limits or Limits()).copy(value, 0)


class _TreeCopy:
    __slots__ = ("keep_tuples", "limits", "text", "values")

    def __init__(self, limits: Limits, *, keep_tuples: bool = False) -> None:
        self.limits, self.values, self.text = limits, limits.max_operations, limits.max_bytes
        self.keep_tuples = keep_tuples

    def copy(self, value: object, depth: int) -> object:
        self.values -= 1
        if self.values < 0:
            raise FormatError(
                f"the value has more than {self.limits.max_operations} parts", hint=METADATA_OPERATIONS.hint
            )
        kind = type(value)
        if kind is float or kind is bool or value is None:
            return value
        if kind in _SCALARS:
            self._charge(value)
            return value
        if depth >= self.limits.max_depth:
            raise FormatError(
                f"the value is nested deeper than {self.limits.max_depth} levels", hint=METADATA_DEPTH.hint
            )
        depth += 1
        if kind is list or kind is tuple:
            items = [self.copy(item, depth) for item in cast("list[object]", value)]
            return tuple(items) if kind is tuple and self.keep_tuples else items
        if kind is dict:
            pairs = cast("dict[object, object]", value).items()
            return {self._key(key): self.copy(item, depth) for key, item in pairs}
        if isinstance(value, Pending):
            self._spend(value.size())
            return value.finish()
        raise FormatError(f"a {kind.__name__.lstrip('_')} is not a plain value")

    def _key(self, key: object) -> object:
        key = key.finish() if isinstance(key, Pending) else key
        if type(key) not in _SCALARS and not (type(key) is tuple and self.keep_tuples):
            raise FormatError(f"a {type(key).__name__} cannot be the key of a dict here")
        return self.copy(key, 0)

    def _charge(self, value: object) -> None:
        if isinstance(value, (str, bytes)):
            self._spend(len(value))
        elif type(value) is int and value.bit_length() > 8 * METADATA_INTEGER_BYTES:
            raise FormatError(f"an integer has more than {METADATA_INTEGER_BYTES} bytes")

    def _spend(self, count: int) -> None:
        self.text -= count
        if self.text < 0:
            raise FormatError(
                f"the value has more than {self.limits.max_bytes} bytes of text", hint=METADATA_BYTES.hint
            )


class _Machine:
    """The stack machine; one instance reads one pickle."""

    __slots__ = ("budget", "data", "marks", "memo", "position", "stack", "table", "tuple_keys")

    def __init__(self, data: bytes, table: Table, budget: int, tuple_keys: int) -> None:
        self.data, self.table, self.budget, self.tuple_keys = data, table, budget, tuple_keys
        self.position = 0
        self.stack: list[object] = []
        self.marks: list[list[object]] = []
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        operations, data = _OPERATIONS, self.data
        try:
            while (code := data[self.position]) != STOP:
                self.position += 1
                self.budget -= 1
                if self.budget < 0:
                    self.charge(0)
                operations[code](self)
        except KeyError as error:
            if code in operations:
                raise
            raise FormatError(f"the pickle uses the operation {code:#04x}, which is not allowed") from error
        if self.position != len(data) - 1 or len(self.stack) != 1 or self.marks:
            raise FormatError("the pickle leaves something behind its STOP")
        return self.stack[0]

    def charge(self, cost: int) -> None:
        self.budget -= cost
        if self.budget < 0:
            raise FormatError("the pickle needs more operations than are allowed")

    # arguments of opcodes

    def take(self, length: int) -> bytes:
        end = self.position + length
        if end > len(self.data):
            raise FormatError("the pickle claims more bytes than it has")
        chunk = self.data[self.position : end]
        self.position = end
        return chunk

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def line(self) -> str:
        end = self.data.find(b"\n", self.position, self.position + METADATA_LINE_BYTES)
        if end < 0:
            raise FormatError(f"a text line of the pickle is not ended within {METADATA_LINE_BYTES} bytes")
        text = self.take(end - self.position)
        self.position += 1
        return text.decode("ascii")

    # stack

    def push(self, value: object) -> None:
        self.stack.append(value)  # looks the stack up after `value` was made: popping a mark replaces it

    def pop(self) -> object:
        return self.stack.pop()

    def pop_mark(self) -> list[object]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    # opcodes with more to them than one push

    def proto(self) -> None:
        if self.unsigned(1) > 5:
            raise FormatError("the pickle has a protocol newer than 5")

    def frame(self) -> None:
        if self.unsigned(8) > len(self.data) - self.position:
            raise FormatError("a frame of the pickle claims more bytes than it has")

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def long_integer(self, width: int) -> None:
        length = self.unsigned(width)
        if length > METADATA_INTEGER_BYTES:
            raise FormatError(f"an integer of the pickle has {length} bytes, {METADATA_INTEGER_BYTES} are allowed")
        self.stack.append(int.from_bytes(self.take(length), "little", signed=True))

    def text_integer(self) -> None:
        text = self.line()
        if len(text) > 2 * METADATA_INTEGER_BYTES:
            raise FormatError("an integer of the pickle is too long")
        self.stack.append({"00": False, "01": True}[text] if text in ("00", "01") else int(text.removesuffix("L")))

    def raw_unicode(self) -> None:
        end = self.data.find(b"\n", self.position)
        if end < 0:
            raise FormatError("a string of the pickle is not ended")
        self.stack.append(self.take(end - self.position).decode("raw-unicode-escape"))
        self.position += 1

    def text(self, width: int) -> None:
        self.stack.append(self.take(self.unsigned(width)).decode("utf-8", "surrogatepass"))

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def append_all(self, items: list[object]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise FormatError("the pickle appends to something that is no list")
        target.extend(items)

    def set_all(self, items: list[object]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise FormatError("the pickle sets items of something that is no dict")
        self.fill(target, items)

    def new_dict(self) -> None:
        result: dict[object, object] = {}
        self.fill(result, self.pop_mark())
        self.stack.append(result)

    def new_tuple(self, length: int) -> None:
        if len(self.stack) < length:
            raise FormatError("the pickle takes more values than it made")
        self.stack[-length:] = [tuple(self.stack[-length:])]

    def global_name(self, module: object, name: object) -> None:
        if type(module) is not str or type(name) is not str:
            raise FormatError("the pickle names something to import that is no text")
        stand_in = self.table.get((module, name))
        if stand_in is None:
            raise FormatError(f"the pickle asks for {f'{module}.{name}'[:100]!r}, which is not allowed")
        self.stack.append(_Global(stand_in))

    def stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        self.global_name(module, name)

    def call(self) -> None:
        arguments, target = self.pop(), self.pop()
        if type(target) is not _Global or type(arguments) is not tuple:
            raise FormatError("the pickle calls something that is not in the table")
        result = target.call(*arguments)
        if isinstance(result, (str, bytes, list, dict)):
            self.charge(len(result))  # a stand-in may copy: many calls on one memoised value add up
        self.stack.append(result)

    def build(self) -> None:
        state, target = self.pop(), self.stack[-1]
        if not isinstance(target, Pending):
            raise FormatError("the pickle sets the state of something that has none")
        target.build(state)

    def fill(self, target: dict[object, object], items: list[object]) -> None:
        for key, value in zip(items[::2], items[1::2], strict=True):
            parts: tuple[object, ...] = (key,)
            if type(key) is tuple and len(key) <= METADATA_UNUSUAL_KEYS and self.tuple_keys > 0:
                parts, self.tuple_keys = key, self.tuple_keys - 1  # tuples may share their hash at will
            for part in parts:
                # Only these are hashed: hashing a deeply nested tuple would overflow the C stack.
                if type(part) not in _SCALARS and not (part is key and isinstance(key, Pending)):
                    raise FormatError("the pickle uses a key that is no plain value")
                if type(part) is int and abs(part) >= MAX_INT_KEY:
                    raise FormatError("the pickle uses an integer key that is too large")
            target[key] = value


# The five most frequent operations are written out: a call per step would double the time of reading a header.


def _short_text(machine: _Machine) -> None:
    start = machine.position + 1
    end = start + machine.data[machine.position]
    if end > len(machine.data):
        raise FormatError("the pickle claims more bytes than it has")
    machine.stack.append(str(machine.data[start:end], "utf-8", "surrogatepass"))
    machine.position = end


def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _get(machine: _Machine) -> None:
    machine.stack.append(machine.memo[machine.data[machine.position]])
    machine.position += 1


def _small_integer(machine: _Machine) -> None:
    machine.stack.append(machine.data[machine.position])
    machine.position += 1


def _double(machine: _Machine) -> None:
    machine.stack.append(_DOUBLE(machine.data, machine.position)[0])
    machine.position += 8


def _unpack(machine: _Machine, layout: str, width: int) -> None:
    machine.stack.append(struct.unpack(layout, machine.take(width))[0])


def _text_float(machine: _Machine) -> None:
    machine.stack.append(float(machine.line()))


def _duplicate(machine: _Machine) -> None:
    machine.stack.append(machine.stack[-1])


def _pop(machine: _Machine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.pop_mark()


_OPERATIONS: Final[Mapping[int, Callable[[_Machine], None]]] = MappingProxyType(
    {
        # constants and containers
        ord("N"): lambda m: m.stack.append(None),
        0x88: lambda m: m.stack.append(True),
        0x89: lambda m: m.stack.append(False),
        ord(")"): lambda m: m.stack.append(()),
        ord("]"): lambda m: m.stack.append([]),
        ord("}"): lambda m: m.stack.append({}),
        # numbers
        ord("K"): _small_integer,
        ord("M"): lambda m: m.stack.append(m.unsigned(2)),
        ord("J"): lambda m: _unpack(m, "<i", 4),
        ord("I"): _Machine.text_integer,
        ord("L"): _Machine.text_integer,
        0x8A: lambda m: m.long_integer(1),
        0x8B: lambda m: m.long_integer(4),
        ord("G"): _double,
        ord("F"): _text_float,
        # text and bytes
        ord("V"): _Machine.raw_unicode,
        0x8C: _short_text,
        ord("X"): lambda m: m.text(4),
        0x8D: lambda m: m.text(8),
        ord("C"): lambda m: m.stack.append(m.take(m.unsigned(1))),
        ord("B"): lambda m: m.stack.append(m.take(m.unsigned(4))),
        0x8E: lambda m: m.stack.append(m.take(m.unsigned(8))),
        0x96: lambda m: m.stack.append(Buffer(m.take(m.unsigned(8)))),
        # building containers
        ord("("): _Machine.mark,
        ord("a"): lambda m: m.append_all([m.pop()]),
        ord("e"): lambda m: m.append_all(m.pop_mark()),
        ord("l"): lambda m: m.push(m.pop_mark()),
        ord("s"): lambda m: m.set_all([m.pop(), m.pop()][::-1]),
        ord("u"): lambda m: m.set_all(m.pop_mark()),
        ord("d"): _Machine.new_dict,
        ord("t"): lambda m: m.push(tuple(m.pop_mark())),
        0x85: lambda m: m.new_tuple(1),
        0x86: lambda m: m.new_tuple(2),
        0x87: lambda m: m.new_tuple(3),
        # stack and memo
        ord("0"): _pop,
        ord("1"): lambda m: m.pop_mark().clear(),
        ord("2"): _duplicate,
        0x94: _memoize,
        ord("q"): lambda m: m.put(m.unsigned(1)),
        ord("r"): lambda m: m.put(m.unsigned(4)),
        ord("p"): lambda m: m.put(int(m.line())),
        ord("h"): _get,
        ord("j"): lambda m: m.get(m.unsigned(4)),
        ord("g"): lambda m: m.get(int(m.line())),
        # the table
        ord("c"): lambda m: m.global_name(m.line(), m.line()),
        0x93: _Machine.stack_global,
        ord("R"): _Machine.call,
        0x81: _Machine.call,  # NEWOBJ: the class is a stand-in, so making and calling are the same
        ord("b"): _Machine.build,
        # structure
        0x80: _Machine.proto,
        0x95: _Machine.frame,
    }
)
