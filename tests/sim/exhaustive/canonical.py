# SPDX-License-Identifier: Apache-2.0
"""Copies and fingerprints of any machines.

A search over states needs two things of a machine: a copy that shares nothing that is written to, and a short key that
two machines share exactly if no event can tell them apart. Both walk the objects of a machine, so a machine needs no
code for them. Copies share objects that are never written to (configurations, digesters, frozen records, buffers).

Dictionaries whose keys can be sorted are keyed in sorted order: the machines never act on the order in which such keys
came.
"""

from __future__ import annotations

import enum
import marshal
import types
from collections import deque
from dataclasses import fields, is_dataclass
from functools import cache, partial
from hashlib import blake2b
from typing import Any

import numpy as np

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import FrameExtent, FrameHeader
from bk_core.protocol.config import RecoveryConfig, WriterConfig
from bookie_server.machine.state import MachineLimits
from tests.kit.memory_holdings import StoredFrame

ATOMS = (int, str, bytes, bool, float, type(None), complex)
SHARED = (Digester, WriterConfig, RecoveryConfig, MachineLimits, StoredFrame, FrameExtent, FrameHeader, EntryBatch)
"""Classes whose objects are never changed after they are made."""
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type, partial)
SKIPPED = frozenset({"_handlers", "_offsets", "counts", "effects"})
"""Attributes that do not affect what a machine will do: tables of methods, caches, counts, the last step's effects."""


@cache
def _slots(kind: type) -> tuple[str, ...] | None:
    """Return the names of the attributes of a class with slots only, or None for a class whose objects have a
    dictionary."""
    names: list[str] = []
    for base in kind.__mro__[:-1]:
        if base.__dictoffset__:
            return None
        slots = base.__dict__.get("__slots__", ())  # from Python 3.12 on typing.Generic has no slots, and no dictionary
        names += [slots] if isinstance(slots, str) else list(slots)
    return tuple(name for name in names if name != "__weakref__")


def _attributes(thing: Any) -> list[tuple[str, Any]]:
    names = _slots(type(thing))
    if names is None:
        return sorted(vars(thing).items())
    return [(name, getattr(thing, name)) for name in names if hasattr(thing, name)]


@cache
def _frozen(kind: type) -> bool:
    return is_dataclass(kind) and kind.__dataclass_params__.frozen


# --- copies ----------------------------------------------------------------------------------------------------------


def clone(thing: Any) -> Any:
    """Return a copy. A step of the copy does not change the original."""
    return _clone(thing, {})


def _clone(thing: Any, made: dict[int, Any]) -> Any:
    kind = type(thing)
    if kind in ATOMS or kind in SHARED:
        return thing
    known = made.get(id(thing))
    if known is not None:
        return known
    maker = _MAKERS.get(kind)
    if maker is not None:
        return maker(thing, made)
    if isinstance(thing, (enum.Enum, memoryview, bytearray, BaseException, tuple, *FUNCTIONS)) or _frozen(kind):
        return thing
    copy = made[id(thing)] = kind.__new__(kind)
    for name, value in _attributes(thing):
        object.__setattr__(copy, name, _clone(value, made))
    return copy


def _clone_list(thing: list[Any] | deque[Any], made: dict[int, Any]) -> list[Any] | deque[Any]:
    copy: list[Any] | deque[Any] = deque(maxlen=thing.maxlen) if isinstance(thing, deque) else []
    made[id(thing)] = copy
    copy.extend(_clone(value, made) for value in thing)
    return copy


def _clone_dict(thing: dict[Any, Any], made: dict[int, Any]) -> dict[Any, Any]:
    copy: dict[Any, Any] = {}
    made[id(thing)] = copy
    for key, value in thing.items():
        copy[_clone(key, made)] = _clone(value, made)
    return copy


def _clone_function(thing: types.FunctionType, made: dict[int, Any]) -> types.FunctionType:
    """Return a closure over copies of the objects that the original closes over."""
    if not thing.__closure__ or "<locals>" not in thing.__qualname__:
        return thing
    cells = tuple(types.CellType() for _ in thing.__closure__)
    copy = types.FunctionType(thing.__code__, thing.__globals__, thing.__name__, thing.__defaults__, cells)
    copy.__kwdefaults__ = thing.__kwdefaults__
    made[id(thing)] = copy
    for cell, old in zip(cells, thing.__closure__, strict=True):
        cell.cell_contents = _clone(old.cell_contents, made)
    return copy


_MAKERS: dict[type, Any] = {
    list: _clone_list,
    deque: _clone_list,
    dict: _clone_dict,
    set: lambda thing, made: {_clone(value, made) for value in thing},
    tuple: lambda thing, made: tuple(_clone(value, made) for value in thing),
    np.ndarray: lambda thing, _: thing.copy(),
    types.FunctionType: _clone_function,
    types.MethodType: lambda thing, made: types.MethodType(thing.__func__, _clone(thing.__self__, made)),
}

# --- fingerprints ----------------------------------------------------------------------------------------------------


def fingerprint(thing: Any) -> bytes:
    """Return 16 bytes that are equal, also in other processes, for states that no event can tell apart."""
    return blake2b(marshal.dumps(_tree(thing, {}), 2), digest_size=16).digest()


def _tree(thing: Any, seen: dict[int, int]) -> Any:
    kind = type(thing)
    if kind in ATOMS:
        return thing
    reader = _READERS.get(kind)
    if reader is not None:
        return reader(thing, seen)
    if isinstance(thing, enum.Enum):
        return thing.name
    if isinstance(thing, FUNCTIONS):
        return getattr(thing, "__qualname__", "partial")
    if isinstance(thing, BaseException):
        return kind.__name__, str(thing)
    if isinstance(thing, tuple):
        return tuple(_tree(value, seen) for value in thing)
    if _frozen(kind):
        return (kind.__name__, *(_tree(getattr(thing, f.name), seen) for f in fields(thing)))
    if id(thing) in seen:
        return "@", seen[id(thing)]
    seen[id(thing)] = len(seen)
    return (kind.__name__, *(_tree(value, seen) for name, value in _attributes(thing) if name not in SKIPPED))


def _dict_tree(thing: dict[Any, Any], seen: dict[int, int]) -> Any:
    items = list(thing.items())
    if len(items) > 1 and isinstance(items[0][0], (int, str, tuple)):
        items.sort(key=lambda item: item[0])
    return "{}", *((_tree(key, seen), _tree(value, seen)) for key, value in items)


def _batch_tree(batch: EntryBatch, seen: dict[int, int]) -> Any:
    digests = batch.digests.tobytes() if batch.digests is not None else None
    return bytes(batch.payload), batch.entry_ids().tobytes(), batch.lengths.tobytes(), batch.lac, digests


_READERS: dict[type, Any] = {
    list: lambda thing, seen: ("[]", *(_tree(value, seen) for value in thing)),
    deque: lambda thing, seen: ("[]", *(_tree(value, seen) for value in thing)),
    tuple: lambda thing, seen: ("()", *(_tree(value, seen) for value in thing)),
    set: lambda thing, seen: ("set", *sorted(_tree(value, seen) for value in thing)),
    frozenset: lambda thing, seen: ("set", *sorted(_tree(value, seen) for value in thing)),
    dict: _dict_tree,
    memoryview: lambda thing, _: bytes(thing),
    bytearray: lambda thing, _: bytes(thing),
    np.ndarray: lambda thing, _: (thing.dtype.str, thing.tobytes()),
    types.MethodType: lambda thing, seen: (thing.__func__.__qualname__, _tree(thing.__self__, seen)),
    types.MappingProxyType: lambda thing, seen: _dict_tree(dict(thing), seen),
    EntryBatch: _batch_tree,
    StoredFrame: lambda thing, _: thing.data,
    FrameExtent: lambda thing, _: (thing.first, thing.last),
    FrameHeader: lambda thing, _: (thing.first_entry_id, int(thing.kind), thing.tag),
    **{kind: lambda thing, _: type(thing).__name__ for kind in (Digester, WriterConfig, RecoveryConfig, MachineLimits)},
}
