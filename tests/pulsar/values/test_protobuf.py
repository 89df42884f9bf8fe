# SPDX-License-Identifier: Apache-2.0
"""Values of PROTOBUF_NATIVE schemas, beside protobuf's own messages."""

from __future__ import annotations

import base64
import json
import random
import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from bk_core.pulsar.messages.rows import TooManyValuesError
from bk_core.pulsar.values.avro.schema import SchemaError
from bk_core.pulsar.values.protobuf_counts import Counter
from bk_core.pulsar.values.protobuf_values import ProtobufReader
from tests.kit.amount import some
from tests.pulsar.fuzz import mutated
from tests.pulsar.values.kit import places, rows

Field = descriptor_pb2.FieldDescriptorProto


def field(name: str, number: int, kind: Any, **more: Any) -> Field:
    return Field(name=name, number=number, type=kind, label=more.pop("label", Field.LABEL_OPTIONAL), **more)


def order_files() -> descriptor_pb2.FileDescriptorSet:
    """Two files of proto3; the second imports the first, and comes first in the set."""
    item = descriptor_pb2.DescriptorProto(name="Item", field=[field("sku", 1, Field.TYPE_STRING)])
    colour = descriptor_pb2.EnumDescriptorProto(
        name="Colour",
        value=[descriptor_pb2.EnumValueDescriptorProto(name=name, number=k) for k, name in enumerate(("NONE", "RED"))],
    )
    entry = descriptor_pb2.DescriptorProto(
        name="LabelsEntry",
        field=[field("key", 1, Field.TYPE_STRING), field("value", 2, Field.TYPE_INT32)],
        options=descriptor_pb2.MessageOptions(map_entry=True),
    )
    order = descriptor_pb2.DescriptorProto(
        name="Order",
        nested_type=[entry],
        oneof_decl=[descriptor_pb2.OneofDescriptorProto(name="pay"), descriptor_pb2.OneofDescriptorProto(name="_note")],
        field=[
            field("id", 1, Field.TYPE_INT64),
            field("count", 2, Field.TYPE_UINT32),
            field("total", 3, Field.TYPE_UINT64),
            field("price", 4, Field.TYPE_DOUBLE),
            field("ratio", 5, Field.TYPE_FLOAT),
            field("paid", 6, Field.TYPE_BOOL),
            field("data", 7, Field.TYPE_BYTES),
            field("colour", 8, Field.TYPE_ENUM, type_name=".shop.Colour"),
            field("item", 9, Field.TYPE_MESSAGE, type_name=".shop.Item"),
            field("tags", 10, Field.TYPE_STRING, label=Field.LABEL_REPEATED),
            field("items", 11, Field.TYPE_MESSAGE, type_name=".shop.Item", label=Field.LABEL_REPEATED),
            field("labels", 12, Field.TYPE_MESSAGE, type_name=".shop.Order.LabelsEntry", label=Field.LABEL_REPEATED),
            field("note", 13, Field.TYPE_STRING, oneof_index=1, proto3_optional=True),
            field("card", 14, Field.TYPE_STRING, oneof_index=0),
            field("cash", 15, Field.TYPE_SINT32, oneof_index=0),
        ],
    )
    base = descriptor_pb2.FileDescriptorProto(
        name="base.proto", package="shop", syntax="proto3", message_type=[item], enum_type=[colour]
    )
    main = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["base.proto"], message_type=[order]
    )
    return descriptor_pb2.FileDescriptorSet(file=[main, base])


def definition(files: descriptor_pb2.FileDescriptorSet, root: str = "shop.Order") -> bytes:
    """The definition of a schema, as Pulsar's Java client registers it."""
    encoded = base64.b64encode(files.SerializeToString()).decode()
    return json.dumps(
        {"fileDescriptorSet": encoded, "rootMessageTypeName": root, "rootFileDescriptorName": "order.proto"}
    ).encode()


def order_class() -> Any:
    pool, (main, base) = descriptor_pool.DescriptorPool(), order_files().file
    pool.AddSerializedFile(base.SerializeToString())
    pool.AddSerializedFile(main.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


FULL = {
    "id": -5,
    "count": (1 << 32) - 1,
    "total": Decimal((1 << 64) - 1),
    "price": 1.25,
    "ratio": 0.5,
    "paid": True,
    "data": b"\xff",
    "colour": "RED",
    "item": {"sku": "a"},
    "tags": ["x", ""],
    "items": [{"sku": "b"}, {"sku": ""}],
    "labels": [("k", 1)],
    "note": "",
    "card": None,
    "cash": -3,
}
EMPTY = {
    "id": 0,
    "count": 0,
    "total": Decimal(0),
    "price": 0.0,
    "ratio": 0.0,
    "paid": False,
    "data": b"",
    "colour": "NONE",
    "item": None,
    "tags": [],
    "items": [],
    "labels": [],
    "note": None,
    "card": None,
    "cash": None,
}


def full_message() -> Any:
    order = order_class()
    made = order(
        id=-5, count=(1 << 32) - 1, total=(1 << 64) - 1, price=1.25, ratio=0.5, paid=True, data=b"\xff", colour=1
    )
    made.item.sku, made.note, made.cash = "a", "", -3
    made.tags.extend(["x", ""])
    made.items.add(sku="b")
    made.items.add()
    made.labels["k"] = 1
    return made


def test_values() -> None:
    reader = ProtobufReader(definition(order_files()))
    assert rows(reader, [full_message().SerializeToString(), b""]) == [FULL, EMPTY]
    assert reader.columns["total"] == pa.decimal128(20, 0)
    unknown = order_class()(colour=7).SerializeToString()
    assert rows(reader, [unknown])[0]["colour"] == "7"


def test_a_bad_value_spoils_no_other_and_unknown_fields_are_ignored() -> None:
    reader = ProtobufReader(definition(order_files()))
    assert rows(reader, [b"\x08\x01", b"\x08", b"\xa2\x06\x01x\x08\x02"]) == [
        {**EMPTY, "id": 1},
        "bad",
        {**EMPTY, "id": 2},
    ]


def test_mutated_values_are_rows_or_bad() -> None:
    reader, dice, value = (
        ProtobufReader(definition(order_files())),
        random.Random(1),
        full_message().SerializeToString(),
    )
    found = rows(reader, [mutated(value, dice) for _ in range(some(3000, 500))])
    assert 0 < found.count("bad") < len(found)


def proto2(*fields: Field, nested: descriptor_pb2.DescriptorProto | None = None) -> ProtobufReader:
    """The reader of one message of proto2."""
    message = descriptor_pb2.DescriptorProto(name="M", field=fields, nested_type=[nested] if nested else [])
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto2", message_type=[message])
    return ProtobufReader(definition(descriptor_pb2.FileDescriptorSet(file=[file]), "M"))


def test_texts_of_proto2_that_are_not_utf_8_are_replaced_as_in_java() -> None:
    entry = descriptor_pb2.DescriptorProto(
        name="LabelsEntry",
        field=[field("key", 1, Field.TYPE_STRING), field("value", 2, Field.TYPE_STRING)],
        options=descriptor_pb2.MessageOptions(map_entry=True),
    )
    reader = proto2(
        field("text", 1, Field.TYPE_STRING),
        field("texts", 2, Field.TYPE_STRING, label=Field.LABEL_REPEATED),
        field("labels", 3, Field.TYPE_MESSAGE, type_name=".M.LabelsEntry", label=Field.LABEL_REPEATED),
        nested=entry,
    )
    value, labels = b"\x0a\x02a\xff" + b"\x12\x01\xff" + b"\x1a\x06\x0a\x01k\x12\x01\xff", {"labels": [("k", "\ufffd")]}
    assert rows(reader, [value]) == [{"text": "a\ufffd", "texts": ["\ufffd"], **labels}]
    bad_key = b"\x1a\x06\x0a\x01\xfe\x12\x01v"
    for wanted in (["labels"], ["text"], []):
        assert list(reader.read(places([value, bad_key]), frozenset(wanted)).problems) == [1]


def test_very_many_files_are_put_in_order_at_once() -> None:
    """Each file imports the one behind it in the set."""
    files = [descriptor_pb2.FileDescriptorProto(name=f"{n}.proto", dependency=[f"{n + 1}.proto"]) for n in range(3000)]
    message = descriptor_pb2.DescriptorProto(name="M", field=[field("n", 1, Field.TYPE_INT32)])
    files.append(descriptor_pb2.FileDescriptorProto(name="3000.proto", message_type=[message]))
    began = time.monotonic()
    assert rows(ProtobufReader(definition(descriptor_pb2.FileDescriptorSet(file=files), "M")), [b"\x08\x07"])
    assert time.monotonic() - began < 2
    files[-1].dependency.append("0.proto")
    with pytest.raises(SchemaError, match="cycle"):
        ProtobufReader(definition(descriptor_pb2.FileDescriptorSet(file=files), "M"))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"fileDescriptorSet": "x", "rootMessageTypeName": "a"}',
        b'{"fileDescriptorSet": "/w==", "rootMessageTypeName": "a"}',
        definition(order_files(), "shop.Nothing"),
        definition(descriptor_pb2.FileDescriptorSet(file=[order_files().file[0]])),
    ],
)
def test_definitions_without_a_message_are_refused(text: bytes) -> None:
    with pytest.raises(SchemaError):
        ProtobufReader(text)


def test_recursive_and_very_large_messages_are_refused() -> None:
    again = field("again", 1, Field.TYPE_MESSAGE, type_name=".R0")
    loop = descriptor_pb2.FileDescriptorProto(
        name="l", message_type=[descriptor_pb2.DescriptorProto(name="R0", field=[again])]
    )
    with pytest.raises(SchemaError, match="contains itself"):
        ProtobufReader(definition(descriptor_pb2.FileDescriptorSet(file=[loop]), "R0"))
    messages = [descriptor_pb2.DescriptorProto(name="R0")]
    for number in range(1, 41):
        inside = [field(name, k, Field.TYPE_MESSAGE, type_name=f".R{number - 1}") for k, name in enumerate("ab", 1)]
        messages.append(descriptor_pb2.DescriptorProto(name=f"R{number}", field=inside))
    wide = descriptor_pb2.FileDescriptorSet(file=[descriptor_pb2.FileDescriptorProto(name="w", message_type=messages)])
    with pytest.raises(SchemaError, match="more than"):
        ProtobufReader(definition(wide, "R40"))


def wide() -> descriptor_pb2.FileDescriptorSet:
    """Message M of proto2 with repeated messages of 1000 fields, also as values of a map and as groups."""
    rows = descriptor_pb2.DescriptorProto(
        name="Wide", field=[field(f"f{n}", n, Field.TYPE_INT64) for n in range(1, 1001)]
    )
    entry = descriptor_pb2.DescriptorProto(
        name="LabelsEntry",
        field=[field("key", 1, Field.TYPE_INT32), field("value", 2, Field.TYPE_MESSAGE, type_name=".M.Wide")],
        options=descriptor_pb2.MessageOptions(map_entry=True),
    )
    many = {"label": Field.LABEL_REPEATED}
    message = descriptor_pb2.DescriptorProto(
        name="M",
        nested_type=[rows, entry, descriptor_pb2.DescriptorProto(name="Grp", field=[field("x", 1, Field.TYPE_INT32)])],
        field=[
            field("rows", 1, Field.TYPE_MESSAGE, type_name=".M.Wide", **many),
            field("labels", 2, Field.TYPE_MESSAGE, type_name=".M.LabelsEntry", **many),
            field("grp", 3, Field.TYPE_GROUP, type_name=".M.Grp", **many),
            field("numbers", 4, Field.TYPE_SINT64, options=descriptor_pb2.FieldOptions(packed=True), **many),
            field("halves", 5, Field.TYPE_FLOAT, options=descriptor_pb2.FieldOptions(packed=True), **many),
            field("texts", 6, Field.TYPE_BYTES, **many),
            field("one", 7, Field.TYPE_MESSAGE, type_name=".M.Wide"),
        ],
    )
    file = descriptor_pb2.FileDescriptorProto(name="wide.proto", syntax="proto2", message_type=[message])
    return descriptor_pb2.FileDescriptorSet(file=[file])


@pytest.mark.parametrize(
    "hostile",
    [b"\x0a\x00" * 40_000, b"\x12\x02\x12\x00" * 40_000, b"\x22\xff\xff\xff\x7f" + b"\0" * (1 << 23)],
    ids=["messages", "a map", "packed, cut off"],
)
def test_few_bytes_that_stand_for_very_many_values_are_bad(hostile: bytes) -> None:
    """Each of the items would be a message of 1000 fields."""
    reader = ProtobufReader(definition(wide(), "M"))
    began = time.monotonic()
    part = reader.read(places([hostile]), frozenset(reader.columns))
    assert list(part.problems) == [0]
    assert all(len(column) == 1 for column in part.columns.values())
    assert time.monotonic() - began < 5
    with pytest.raises(TooManyValuesError):
        reader.read(places([hostile, b""]), frozenset(reader.columns))
    if hostile[0] != 0x22:
        assert part.problems[0] == f"its arrays and maps have more than {1 << 25} values"


def test_values_are_counted_as_protobuf_finds_them() -> None:
    """The count never stops before protobuf's library does, which would make what was not counted."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wide().file[0].SerializeToString())
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("M"))
    counter = Counter(pool.FindMessageTypeByName("M"))
    value = kind(numbers=[1, -(1 << 60), 0], halves=[0.5] * 4, texts=[b"", b"abc"])
    value.rows.add(f1=7)
    value.labels[5].f9 = 1
    value.one.f2 = 3
    value.grp.add(x=1)
    value.grp.add()
    whole = value.SerializeToString()
    assert counter.values(memoryview(whole), 1 << 40) == 3 + 4 + 2 + 1001 + 1003 + 2 * 2
    assert counter.values(memoryview(whole * 50), 1 << 40) == 50 * 2017
    assert 2000 < counter.values(memoryview(whole * 50), 2000) < 3 * 2017
    dice, parsed = random.Random(3), 0
    for _ in range(some(20_000, 2000)):
        data = mutated(whole, dice)
        counted = counter.values(memoryview(data), 1 << 40)
        assert counted <= counter.values_at_most(len(data)) + counter.widest, data.hex()
        try:
            found = kind.FromString(data)
        except DecodeError:
            continue
        parsed += 1
        of_library = len(found.numbers) + len(found.halves) + len(found.texts) + 1001 * len(found.rows)
        assert counted >= of_library + 1003 * len(found.labels) + 2 * len(found.grp), data.hex()
    assert parsed > 100
