# SPDX-License-Identifier: Apache-2.0
"""Copies and fingerprints of machines, for exhaustive search (RULES P11). Pure.

One walk over slots and dictionaries serves every machine, and a whole world of machines. Copies share immutable
objects: frozen dataclasses, buffers, enum members, errors, classes. They also share objects that a machine got from
outside (``injected``: callables, sources of randomness), unless these have ``copy()`` and ``fingerprint()`` of their
own.
"""

from __future__ import annotations

import enum
import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import Any, TypeVar

import numpy as np

from bk_core.entries.digest import Digester

T = TypeVar("T")

_VALUES = (type(None), bool, int, float, str, bytes, range)
_SHARED = (
    *(*_VALUES, np.generic, bytearray, memoryview, enum.Enum),
    *(type, BaseException, frozenset, BuiltinFunctionType, Digester),
)
_BUFFERS = (bytes, bytearray, memoryview, np.ndarray)
_PLAIN = frozenset((type(None), int, float, str, range))
_NOT_SET = object()
_LONG = 64  # the bytes from which on a buffer is printed as its digest


def copied(root: T, injected: Iterable[object] = ()) -> T:
    """Return an independent copy of ``root``, in which references to one object stay references to one object. Raises
    TypeError for an object that it cannot copy."""
    memo: dict[int, Any] = {id(thing): _own(thing, "copy", thing) for thing in injected}
    keep = list(injected)  # keeps the objects alive, so that no id is used twice
    try:
        return _Copier(memo).copy(root)  # type: ignore[no-any-return]  # a twin is of the same type
    finally:
        del keep


def fingerprint_of(root: object, injected: Iterable[object] = ()) -> tuple[object, ...]:
    """Return a hashable value that is equal for equal states, whatever the objects' addresses and the hash seed."""
    seen: dict[int, object] = {id(thing): _own(thing, "fingerprint", "injected") for thing in injected}
    return ("state", _Printer(seen).print(root))


def fields_of(thing: object) -> dict[str, Any] | None:
    """Return an object's attributes by name, or None if it has none."""
    names = _slots(type(thing))
    found = {name: value for name in names if (value := getattr(thing, name, _NOT_SET)) is not _NOT_SET}
    own = getattr(thing, "__dict__", None)
    if own is None:
        return found if names else None
    return {**found, **own} if found else own


# Facts that depend only on the class are found once: a search needs them millions of times.


@cache
def _sorted_slots(kind: type) -> tuple[str, ...]:
    return tuple(sorted(_slots(kind)))


@cache
def _slots(kind: type) -> tuple[str, ...]:
    named = (name for base in kind.__mro__ for name in _names(base.__dict__.get("__slots__", ())))
    return tuple(name for name in named if not name.startswith("__"))


def _names(slots: str | Iterable[str]) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


@cache
def _is_shared(kind: type) -> bool:
    return issubclass(kind, _SHARED)


def _own(thing: Any, method: str, otherwise: object) -> Any:
    if hasattr(thing, "copy") and hasattr(thing, "fingerprint"):
        return getattr(thing, method)()
    return otherwise


@cache
def _is_frozen(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


class _Copier:
    def __init__(self, memo: dict[int, Any]) -> None:
        self.memo = memo

    def copy(self, thing: Any) -> Any:
        kind = type(thing)
        if _is_shared(kind):
            return thing
        found = self.memo.get(id(thing))
        if found is None:
            found = thing if _is_frozen(kind) else self._new(thing)
        return found

    def _new(self, thing: Any) -> Any:
        kind = type(thing)
        if isinstance(thing, tuple):
            items = [self.copy(item) for item in thing]
            return kind._make(items) if hasattr(kind, "_make") else tuple(items)
        if isinstance(thing, MethodType):
            return MethodType(thing.__func__, self.copy(thing.__self__))
        if isinstance(thing, FunctionType):
            return self._function(thing)
        if isinstance(thing, np.ndarray):
            return self._made(thing, thing.copy())
        if isinstance(thing, dict):
            twin = self._made(thing, kind())
            twin.update((self.copy(key), self.copy(value)) for key, value in thing.items())
            return twin
        if isinstance(thing, (list, deque)):
            twin = self._made(thing, deque(maxlen=thing.maxlen) if isinstance(thing, deque) else kind())
            twin.extend(self.copy(item) for item in thing)
            return twin
        if isinstance(thing, set):
            return self._made(thing, {self.copy(item) for item in thing})
        return self._object(thing)

    def _made(self, thing: Any, twin: Any) -> Any:
        self.memo[id(thing)] = twin
        return twin

    def _object(self, thing: Any) -> Any:
        found = fields_of(thing)
        if found is None:
            raise TypeError(f"cannot copy {thing!r}: say that it is injected")
        twin = self._made(thing, object.__new__(type(thing)))
        for name, value in found.items():
            object.__setattr__(twin, name, self.copy(value))
        return twin

    def _function(self, thing: FunctionType) -> FunctionType:
        """Copy a function. If it is a closure over copied objects, the new one is over their copies."""
        cells = thing.__closure__ or ()
        twins = tuple(self.copy(cell.cell_contents) for cell in cells)
        if all(twin is cell.cell_contents for twin, cell in zip(twins, cells, strict=True)):
            return thing
        closure = tuple(CellType(twin) for twin in twins)
        return FunctionType(thing.__code__, thing.__globals__, thing.__name__, thing.__defaults__, closure)


class _Printer:
    """Prints a state. Objects that may occur again are numbered in the order of the walk, which is the same for equal
    states."""

    def __init__(self, seen: dict[int, object]) -> None:
        self.seen = seen

    def print(self, thing: Any) -> object:
        kind = type(thing)
        if kind in _PLAIN:  # by far the most common case
            return thing
        atom = _atom(kind)
        if atom is not None:
            return atom(thing)
        found = self.seen.get(id(thing))
        if found is not None:
            return found
        if isinstance(thing, tuple):
            return tuple([item if type(item) in _PLAIN else self.print(item) for item in thing])
        if isinstance(thing, MethodType):
            return ("method", thing.__func__.__qualname__, self.print(thing.__self__))
        self.seen[id(thing)] = ("again", len(self.seen))
        return (kind.__name__, *self._parts(thing))

    def _parts(self, thing: Any) -> Iterable[object]:
        if isinstance(thing, dict):
            items = sorted(thing.items(), key=_by_key) if len(thing) > 1 else thing.items()
            return [(self.print(key), self.print(value)) for key, value in items]
        if isinstance(thing, set):
            return sorted((self.print(item) for item in thing), key=repr)
        if isinstance(thing, (list, deque)):
            return [item if type(item) in _PLAIN else self.print(item) for item in thing]
        if hasattr(thing, "__dict__"):
            return self._named(sorted((fields_of(thing) or {}).items()))
        names = _sorted_slots(type(thing))
        if not names:
            raise TypeError(f"no fingerprint of {thing!r}: say that it is injected")
        return self._named([(name, getattr(thing, name)) for name in names if hasattr(thing, name)])

    def _named(self, fields: Iterable[tuple[str, Any]]) -> Iterable[object]:
        return [(name, value if type(value) in _PLAIN else self.print(value)) for name, value in fields]


def _by_key(item: tuple[Any, Any]) -> str:
    """Return a sort key. Simple keys are sorted by value; objects and classes stay in order of insertion, because
    sorting is stable."""
    key = item[0]
    plain = isinstance(key, _VALUES) or (isinstance(key, tuple) and all(isinstance(part, _VALUES) for part in key))
    return repr(key) if plain else ""


def _buffer(thing: Any) -> object:
    data = bytes(thing)
    return data if len(data) < _LONG else ("bytes", len(data), hashlib.blake2b(data, digest_size=16).digest())


_ATOMS: tuple[tuple[Any, Callable[[Any], object]], ...] = (
    (enum.Enum, lambda thing: (type(thing).__name__, thing.name)),
    (_BUFFERS, _buffer),
    (bool, lambda thing: ("bool", thing)),  # 1 == True, and a fingerprint must tell them apart
    (_VALUES, lambda thing: thing),
    (np.generic, lambda thing: thing.item()),
    (Digester, lambda thing: (thing.ledger_id, int(thing.digest_type))),
    (type, lambda thing: thing.__qualname__),
    (BaseException, lambda thing: (type(thing).__name__, str(thing))),
    (frozenset, lambda thing: ("frozenset", *sorted(map(repr, thing)))),
    ((FunctionType, BuiltinFunctionType), lambda thing: thing.__qualname__),
)


@cache
def _atom(kind: type) -> Callable[[Any], object] | None:
    return next((printed for kinds, printed in _ATOMS if issubclass(kind, kinds)), None)
