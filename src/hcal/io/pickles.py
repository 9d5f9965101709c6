"""A reader for the benchmark's numpy pickles that can build numeric arrays and nothing else.

A pickle is a program. Python's own machine runs it with no bounds: nine bytes can ask for a memo of
gigabytes, and two hundred for a hash or a print that takes for ever. So the forty instructions that
pickles of arrays are made of are carried out here, with every count capped, and a vocabulary of five words
(:mod:`hcal.io.stand_ins`), none of which is numpy's own code.
"""

from __future__ import annotations

import codecs
import pickle
import struct
from collections.abc import Callable
from typing import Any, Final

from hcal.io.limits import BROKEN, one_line
from hcal.io.stand_ins import Array, Dtype, find

#: Instructions of one pickle, and parts of what it holds (shared parts count each time they are met).
MAX_NODES: Final = 2_000_000
#: Tuples in lists in dicts …
MAX_DEPTH: Final = 16
#: numpy's own words take five at most, the state of a dtype nine.
MAX_ARGUMENTS: Final = 16
#: Bytes that text may turn into, for each byte of the file.
MAX_COPIES: Final = 4

_COMPRESSED: Final = {
    b"\x1f\x8b": "gzip", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"x\x01": "zlib", b"x^": "zlib",
    b"x\x9c": "zlib", b"x\xda": "zlib", b"]\x00\x00": "lzma", b"\x28\xb5\x2f\xfd": "zstandard",
    b"\x04\x22\x4d\x18": "lz4",
}  # fmt: skip


def read_pickle(data: bytes, name: str) -> Any:
    """Read a pickle of numeric numpy arrays in tuples, lists and dicts; refuse everything else.

    >>> import numpy as np
    >>> read_pickle(pickle.dumps((np.arange(3), np.eye(2))), "a.p")[0]
    array([0, 1, 2])
    >>> read_pickle(pickle.dumps(print), "a.p")
    Traceback (most recent call last):
    ...
    ValueError: a.p is no pickle of arrays: it asks for builtins.print; only numpy arrays are admitted
    """
    for magic, what in _COMPRESSED.items():
        if data.startswith(magic):
            raise ValueError(f"{name} is compressed ({what}): unpack it first")
    try:
        return _Plain(len(data)).of(_Machine(data).run())
    except (pickle.UnpicklingError, *BROKEN) as error:
        raise ValueError(f"{name} is no pickle of arrays: {one_line(error)}") from None


class _Plain:
    """Replaces stand-ins by their arrays, through tuples, lists and dicts, and counts as it goes."""

    def __init__(self, held: int) -> None:
        self.nodes, self.bytes = MAX_NODES, MAX_COPIES * held + 2**20

    def of(self, value: Any, depth: int = 0) -> Any:
        self.nodes -= 1
        if self.nodes < 0 or depth > MAX_DEPTH:
            raise pickle.UnpicklingError(f"more than {MAX_NODES:,} parts, or {MAX_DEPTH} levels of them")
        if isinstance(value, Array):
            if value.value is None:
                raise pickle.UnpicklingError("an array without content")
            self.bytes -= value.value.nbytes
            if self.bytes < 0:
                raise pickle.UnpicklingError("the same array again and again")
            return value.value
        if isinstance(value, dict):
            return {k: self.of(v, depth + 1) for k, v in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(self.of(v, depth + 1) for v in value)
        if isinstance(value, Dtype | type) or callable(value):
            raise pickle.UnpicklingError("only numpy arrays are admitted")
        return value


class _Machine:
    """Carries out the instructions of a pickle on a stack, within bounds."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = memoryview(data), 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.copies = MAX_COPIES * len(data)

    def run(self) -> Any:
        for _ in range(MAX_NODES):
            code = bytes(self.take(1))
            if code == pickle.STOP:
                return self.pop()
            action = _ACTIONS.get(code)
            if action is None:
                raise pickle.UnpicklingError(f"instruction {code!r} is not one that arrays need")
            action(self)
        raise pickle.UnpicklingError(f"more than {MAX_NODES:,} instructions")

    # -- bytes ------------------------------------------------------------------------------------

    def take(self, count: int) -> memoryview:
        if count < 0 or count > len(self.data) - self.place:
            raise pickle.UnpicklingError("it ends early")
        self.place += count
        return self.data[self.place - count : self.place]

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def line(self) -> bytes:
        start = self.place
        end = self.data.obj.find(b"\n", start)  # type: ignore[attr-defined]
        if end < 0:
            raise pickle.UnpicklingError("it ends early")
        self.place = end + 1
        return bytes(self.data[start:end])

    # -- stack ------------------------------------------------------------------------------------

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise pickle.UnpicklingError("its stack is empty")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def extend(self, items: list[Any]) -> None:
        if not self.stack or not isinstance(self.stack[-1], list):
            raise pickle.UnpicklingError("it appends to something that is no list")
        self.stack[-1].extend(items)

    def insert(self, items: list[Any]) -> None:
        if not self.stack or not isinstance(self.stack[-1], dict) or len(items) % 2:
            raise pickle.UnpicklingError("it puts items into something that is no dict")
        self.stack[-1].update(_pairs(items))

    def tuple_of(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(items)))

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        self.push(self.memo[index])

    # -- words ------------------------------------------------------------------------------------

    def word(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise pickle.UnpicklingError("a global whose name is no text")
        self.push(find(module, name))

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(arguments, tuple) or not callable(function):
            raise pickle.UnpicklingError("it calls something that is no function")
        self.count(arguments)
        self.push(function(*arguments))

    def count(self, arguments: Any) -> None:
        """Count the bytes that a stand-in may copy: each may be met again and again through the memo."""
        if not isinstance(arguments, tuple) or len(arguments) > MAX_ARGUMENTS:
            raise pickle.UnpicklingError(f"a call with more than {MAX_ARGUMENTS} arguments")
        self.copies -= sum(len(a) for a in arguments if isinstance(a, str | bytes | memoryview))
        if self.copies < 0:
            raise pickle.UnpicklingError("the same bytes again and again")

    def build(self) -> None:
        state, target = self.pop(), self.stack[-1]
        if not isinstance(target, Array | Dtype):
            raise pickle.UnpicklingError("it builds something that is no array")
        if isinstance(target, Array) and target.value is not None:
            raise pickle.UnpicklingError("it builds an array twice")
        self.count(state)
        target.build(state)


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """Return a dict; its keys are plain, because the hash of nested tuples may take for ever."""
    keys = items[::2]
    if not all(isinstance(k, str | int | float) for k in keys):
        raise pickle.UnpicklingError("a dict with keys that are neither text nor numbers")
    return dict(zip(keys, items[1::2], strict=True))


def _text_of_python_2(data: memoryview | bytes) -> str:
    return bytes(data).decode("latin1")


def _quoted(line: bytes) -> str:
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise pickle.UnpicklingError("a text without its quotes")
    raw, _ = codecs.escape_decode(line[1:-1])
    return _text_of_python_2(raw)


def _integer(line: bytes) -> int | bool:
    if line in (b"00", b"01"):
        return line == b"01"
    return int(line.rstrip(b"L"))


def _sized(layout: str, make: Callable[[memoryview], Any]) -> Callable[[_Machine], None]:
    return lambda m: m.push(make(m.take(m.number(layout))))


def _utf8(data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


def _long(data: memoryview) -> int:
    if len(data) > 64:
        raise pickle.UnpicklingError("a number of more than 64 bytes")
    return int.from_bytes(data, "little", signed=True)


_ACTIONS: Final[dict[bytes, Callable[[_Machine], Any]]] = {
    pickle.PROTO: lambda m: m.take(1),
    pickle.FRAME: lambda m: m.take(8),
    pickle.MARK: lambda m: m.marks.append(len(m.stack)),
    pickle.POP: lambda m: m.pop(),
    pickle.POP_MARK: lambda m: m.since_mark(),
    pickle.DUP: lambda m: m.push(m.stack[-1]),
    # numbers and words
    pickle.NONE: lambda m: m.push(None),
    pickle.NEWTRUE: lambda m: m.push(True),
    pickle.NEWFALSE: lambda m: m.push(False),
    pickle.INT: lambda m: m.push(_integer(m.line())),
    pickle.LONG: lambda m: m.push(_integer(m.line())),
    pickle.BININT: lambda m: m.push(m.number("<i")),
    pickle.BININT1: lambda m: m.push(m.number("<B")),
    pickle.BININT2: lambda m: m.push(m.number("<H")),
    pickle.LONG1: _sized("<B", _long),
    pickle.LONG4: _sized("<i", _long),
    pickle.FLOAT: lambda m: m.push(float(m.line())),
    pickle.BINFLOAT: lambda m: m.push(m.number(">d")),
    # text and bytes
    pickle.STRING: lambda m: m.push(_quoted(m.line())),
    pickle.BINSTRING: _sized("<i", _text_of_python_2),
    pickle.SHORT_BINSTRING: _sized("<B", _text_of_python_2),
    pickle.UNICODE: lambda m: m.push(m.line().decode("raw-unicode-escape")),
    pickle.BINUNICODE: _sized("<I", _utf8),
    pickle.SHORT_BINUNICODE: _sized("<B", _utf8),
    pickle.BINUNICODE8: _sized("<Q", _utf8),
    pickle.BINBYTES: _sized("<I", lambda data: data),
    pickle.SHORT_BINBYTES: _sized("<B", lambda data: data),
    pickle.BINBYTES8: _sized("<Q", lambda data: data),
    pickle.BYTEARRAY8: _sized("<Q", lambda data: data),
    # containers
    pickle.EMPTY_TUPLE: lambda m: m.push(()),
    pickle.TUPLE1: lambda m: m.tuple_of(1),
    pickle.TUPLE2: lambda m: m.tuple_of(2),
    pickle.TUPLE3: lambda m: m.tuple_of(3),
    pickle.TUPLE: lambda m: m.push(tuple(m.since_mark())),
    pickle.EMPTY_LIST: lambda m: m.push([]),
    pickle.LIST: lambda m: m.push(m.since_mark()),
    pickle.APPEND: lambda m: m.extend([m.pop()]),
    pickle.APPENDS: lambda m: m.extend(m.since_mark()),
    pickle.EMPTY_DICT: lambda m: m.push({}),
    pickle.DICT: lambda m: m.push(_pairs(m.since_mark())),
    pickle.SETITEM: lambda m: m.insert([m.pop(), m.pop()][::-1]),
    pickle.SETITEMS: lambda m: m.insert(m.since_mark()),
    # memo
    pickle.PUT: lambda m: m.put(int(m.line())),
    pickle.BINPUT: lambda m: m.put(m.number("<B")),
    pickle.LONG_BINPUT: lambda m: m.put(m.number("<I")),
    pickle.MEMOIZE: lambda m: m.put(len(m.memo)),
    pickle.GET: lambda m: m.get(int(m.line())),
    pickle.BINGET: lambda m: m.get(m.number("<B")),
    pickle.LONG_BINGET: lambda m: m.get(m.number("<I")),
    # the vocabulary
    pickle.GLOBAL: lambda m: m.word(m.line().decode(), m.line().decode()),
    pickle.STACK_GLOBAL: lambda m: m.word(*[m.pop(), m.pop()][::-1]),
    pickle.REDUCE: lambda m: m.call(),
    pickle.BUILD: lambda m: m.build(),
}
