# SPDX-License-Identifier: Apache-2.0
"""Topics with schemas: compares our columns with the values that Pulsar's Java client decodes, message by message.

The Java client produces every kind of value, with schemas that it makes itself. Its reader, and our read with
``topic_schema="latest"``, must return the same values under the same message ids.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bk_core.pulsar.model.message_id import MessageId
from tests.interop.jars import PULSAR, toolchain
from tests.interop.java_process import JavaProgram
from tests.interop.steps import Steps

if TYPE_CHECKING:
    from tests.interop.pulsar_topics import World

TOPICS = "persistent://public/default/typed-"
WITHIN_S = 120.0
PRIMITIVES = ("BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE", "STRING", "DATE", "TIME", "TIMESTAMP")
PRIMITIVES += ("INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME")
KINDS = ("JSON", "AVRO", "INLINE", "SEPARATED", "PROTOBUF_NATIVE")
DAY_MS = 86_400_000

ENUM = {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "Hash", "size": 2}
INNER = {
    "type": "record",
    "name": "Inner",
    "fields": [{"name": "n", "type": "int"}, {"name": "gone", "type": "string"}],
}
OLD: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": "string"},
        {"name": "kind", "type": ENUM},
        {"name": "hash", "type": FIXED},
        {"name": "either", "type": ["null", "int", "string"]},
        {"name": "inner", "type": INNER},
        {"name": "list", "type": {"type": "array", "items": "int"}},
        {"name": "dropped", "type": {"type": "map", "values": "long"}},
    ],
}
NEW: dict[str, Any] = {
    **OLD,
    "fields": [
        {"name": "list", "type": {"type": "array", "items": "double"}},
        {"name": "title", "type": "string", "aliases": ["name"]},
        {"name": "id", "type": "long"},
        {"name": "kind", "type": {**ENUM, "symbols": ["Z", "B"], "default": "Z"}},
        {"name": "hash", "type": FIXED},
        {"name": "either", "type": ["string", "null", "int"]},
        {
            "name": "inner",
            "type": {**INNER, "fields": [{"name": "more", "type": "string", "default": "-"}, INNER["fields"][0]]},
        },
        {"name": "added", "type": ["null", "string"], "default": None},
        {"name": "filled", "type": {"type": "map", "values": "int"}, "default": {"k": 5}},
    ],
}


def old(number: int) -> str:
    """Return a value of OLD in Avro's JSON."""
    either = [None, {"int": number}, {"string": "é"}][number % 3]
    inner, dropped = {"n": number, "gone": "x" * number}, {"k": number}
    value = {"id": -number, "name": f"old {number}", "kind": "AB"[number % 2], "hash": "\u0001\u00ff"}
    return json.dumps({**value, "either": either, "inner": inner, "list": list(range(number)), "dropped": dropped})


def new(number: int) -> str:
    """Return a value of NEW in Avro's JSON."""
    value = {"list": [0.5] * number, "title": f"new {number}", "id": 1 << 40, "kind": "B", "hash": "ab", "either": None}
    return json.dumps({**value, "inner": {"more": "m", "n": 1}, "added": {"string": "a"}, "filled": {}})


def plain(value: Any) -> Any:
    """Return a value of ours in the form of the Java program. In a union of several types, only one member is not
    null."""
    if isinstance(value, dict):
        if value and all(name.startswith("member") for name in value):
            return next((plain(each) for each in value.values() if each is not None), None)
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return dict(value) if value and isinstance(value[0], tuple) else [plain(each) for each in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times as numbers of their unit."""
    if pa.types.is_temporal(column.type):
        return column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return column


def ours(world: World, topic: str) -> list[dict[str, Any]]:
    with world.topic(topic) as found:
        table = found.to_arrow(topic_schema="latest")
        more = found.to_arrow(columns=["__schemaVersion"])
    names = [name for name in table.schema.names if not name.startswith("__")]
    columns = {name: numbers(table[name]).to_pylist() for name in names}
    rows = []
    for place, raw in enumerate(table["__messageId"].to_pylist()):
        value: Any = {name: plain(columns[name][place]) for name in names}
        if names == ["value"]:
            value = value["value"]
        version = plain(more["__schemaVersion"][place].as_py())
        rows.append({"id": base64.b64encode(raw).decode(), "version": version, "value": value})
    return rows


def same(theirs: list[dict[str, Any]], found: list[dict[str, Any]], least: int) -> str:
    """Compare the messages of both. Raises AssertionError at the first message that differs. In our rows a null value
    is a row of nulls, and an empty map looks like an empty list."""
    assert len(theirs) == len(found) >= least, f"{len(theirs)} messages of Pulsar's client, {len(found)} of ours"
    for at, (a, b) in enumerate(zip(theirs, found, strict=True)):
        identity = base64.b64encode(MessageId.deserialize(base64.b64decode(a["id"])).serialize()).decode()
        wanted = a["value"]
        if wanted is None and isinstance(b["value"], dict):
            wanted = dict.fromkeys(b["value"])
        mine = {"id": b["id"], "version": b["version"], "value": _with_maps(wanted, b["value"])}
        assert mine == {"id": identity, "version": a["version"], "value": wanted}, f"message {at}: {a} {b}"
    return f"{len(found)} messages, equal"


def _with_maps(wanted: Any, value: Any) -> Any:
    if isinstance(wanted, dict) and isinstance(value, dict):
        return {name: _with_maps(wanted.get(name), each) for name, each in value.items()}
    return {} if wanted == {} and value == [] else value


def schema_kinds(steps: Steps, world: World) -> None:
    world.broker.admin("PUT", "namespaces/public/default/schemaCompatibilityStrategy", b'"ALWAYS_COMPATIBLE"')
    program = JavaProgram(toolchain(PULSAR), "SchemaCalls", world.cluster.data_dir / "schemas.log")
    try:
        program.call("connect", url=world.broker.url)
        with steps.step("primitive schemas", go_on=True) as step:
            for kind in PRIMITIVES:
                topic = f"{TOPICS}{kind}"
                program.call("produce", within_s=WITHIN_S, topic=topic, kind=kind, batched=kind != "STRING")
                theirs = program.call("read", within_s=WITHIN_S, topic=topic, kind=kind)["rows"]
                if kind == "TIME":  # our value is the time of the day, in UTC
                    theirs = [
                        each if each["value"] is None else {**each, "value": each["value"] % DAY_MS} for each in theirs
                    ]
                same(theirs, ours(world, topic), 3)
            step.found = f"{len(PRIMITIVES)} types, equal"
        for kind in KINDS:
            with steps.step(f"schema {kind}", go_on=True) as step:
                topic = f"{TOPICS}{kind}"
                program.call(
                    "produce", within_s=WITHIN_S, topic=topic, kind=kind, batched=kind in ("JSON", "SEPARATED")
                )
                theirs = program.call("read", within_s=WITHIN_S, topic=topic, kind=kind)["rows"]
                step.found = same(theirs, ours(world, topic), 2)
        with steps.step("AVRO with two schema versions, resolved to the newest", go_on=True) as step:
            step.found = _two_versions(world, program, f"{TOPICS}versions")
    finally:
        program.kill()


def _two_versions(world: World, program: JavaProgram, topic: str) -> str:
    definitions = [json.dumps(each) for each in (OLD, NEW)]
    for which, numbers_of in ((0, range(6)), (1, range(4)), (0, range(6, 90))):
        values = [(old, new)[which](number) for number in numbers_of]
        program.call(
            "produce_avro",
            within_s=WITHIN_S,
            topic=topic,
            definition=definitions[which],
            values=values,
            batched=which == 0,
        )
    theirs = program.call("read_avro", within_s=WITHIN_S, topic=topic, definition=definitions[1])["rows"]
    assert len({each["version"] for each in theirs}) == 2
    return same(theirs, ours(world, topic), 94)
