# SPDX-License-Identifier: Apache-2.0
"""Random Avro schemas and values, and what fastavro, another implementation of Avro, says that they are."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import fastavro

from bk_core.pulsar.values.avro.schema import Node, values_of, widened

SIMPLE = ("boolean", "int", "long", "float", "double", "bytes", "string")
DISTINCT = ("boolean", "long", "double", "bytes", "string")
"""The types whose values fastavro tells apart in Python."""


class Schemas:
    """Makes schemas; every named type has a name of its own."""

    def __init__(self, dice: random.Random) -> None:
        self._dice, self._number = dice, 0

    def name(self) -> str:
        self._number += 1
        return f"n{self._number}"

    def record(self, depth: int = 3) -> dict[str, Any]:
        fields = [{"name": self.name(), "type": self.kind(depth - 1)} for _ in range(self._dice.randrange(1, 5))]
        return {"type": "record", "name": self.name(), "fields": fields}

    def kind(self, depth: int) -> Any:
        dice = self._dice
        if depth <= 0 or dice.random() < 0.4:
            return dice.choice(SIMPLE)
        match dice.randrange(7):
            case 0:
                return self.record(depth)
            case 1:
                return {"type": "array", "items": self.kind(depth - 1)}
            case 2:
                return {"type": "map", "values": self.kind(depth - 1)}
            case 3:
                return {"type": "enum", "name": self.name(), "symbols": ["A", "B", "C"]}
            case 4:
                return {"type": "fixed", "name": self.name(), "size": dice.randrange(1, 5)}
            case 5:
                return dice.choice((["null", dice.choice(SIMPLE)], [dice.choice(SIMPLE), "null"]))
        return ["null", *dice.sample(DISTINCT, dice.randrange(1, 4)), self.record(depth - 1)]


def value_of(schema: Any, dice: random.Random) -> Any:
    """Return a random value. A value of a union is a pair of the branch's name and the value."""
    if isinstance(schema, list):
        branch = dice.choice(schema)
        if branch == "null":
            return None
        name = branch if isinstance(branch, str) else branch.get("name", branch["type"])
        return name, value_of(branch, dice)
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "record":
            return {each["name"]: value_of(each["type"], dice) for each in schema["fields"]}
        case "array":
            return [value_of(schema["items"], dice) for _ in range(_count(dice))]
        case "map":
            return {f"k{number}": value_of(schema["values"], dice) for number in range(_count(dice))}
        case "enum":
            return dice.choice(schema["symbols"])
        case "fixed":
            return dice.randbytes(schema["size"])
    return _SIMPLE_VALUES[kind](dice)


_SIMPLE_VALUES: Mapping[str, Callable[[random.Random], Any]] = {
    "null": lambda dice: None,
    "boolean": lambda dice: dice.random() < 0.5,
    "int": lambda dice: dice.choice((0, -1, 63, 64, -65, (1 << 31) - 1, -(1 << 31), dice.randrange(1000))),
    "long": lambda dice: dice.choice((0, -1, (1 << 63) - 1, -(1 << 63), dice.randrange(-(1 << 40), 1 << 40))),
    "float": lambda dice: float(dice.randrange(-1000, 1000)) / 8,
    "double": lambda dice: dice.uniform(-1e9, 1e9),
    "bytes": lambda dice: dice.randbytes(dice.randrange(6)),
    "string": lambda dice: dice.choice(("", "x", "é€", "longer than a few bytes " * 4)),
}


def _count(dice: random.Random) -> int:
    return dice.choice((0, 0, 1, 2, 3, dice.randrange(80) if dice.random() < 0.1 else 1))


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def decoded(schema: Any, datum: bytes, reader: Any = None) -> Any:
    """What fastavro reads; values of unions come with the names of their records only."""
    parsed, to = (
        None if each is None else fastavro.parse_schema(json.loads(json.dumps(each))) for each in (schema, reader)
    )
    assert parsed is not None
    return fastavro.schemaless_reader(io.BytesIO(datum), parsed, to, return_named_type=True)


def as_columns(node: Node, value: Any) -> Any:
    """Return what fastavro read in the form of our columns: unions of several types are structs, maps are pairs."""
    match node.kind:
        case "record":
            if isinstance(value, tuple):
                value = value[1]
            return {each.name: as_columns(each.node, value[each.name]) for each in node.fields}
        case "array":
            return [as_columns(node.inside, each) for each in value]
        case "map":
            return [(key, as_columns(node.inside, each)) for key, each in value.items()]
        case "union":
            return _of_union(node, value)
    return value[1] if isinstance(value, tuple) else value


def _of_union(node: Node, value: Any) -> Any:
    values = values_of(node)
    if value is None:
        return None
    if len(values) == 1 or widened(node):
        return as_columns(values[0], value)
    place = next(number for number, each in enumerate(values) if _is_of(each, value))
    found = as_columns(values[place], value)
    return {f"member{number}": found if number == place else None for number in range(len(values))}


def _is_of(node: Node, value: Any) -> bool:
    if isinstance(value, tuple):
        return node.name == value[0]
    kinds = {
        bool: ("boolean",),
        int: ("int", "long"),
        float: ("float", "double"),
        bytes: ("bytes", "fixed"),
        str: ("string", "enum"),
    }
    return node.kind in kinds.get(type(value), ()) or (isinstance(value, dict) and node.kind in ("record", "map"))
