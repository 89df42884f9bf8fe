# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.pulsar.fuzz --inputs N``: mutated entries of topics through everything that makes rows of them.

Each is rows or a typed error. ``test_hostile.py`` runs a part. Values that become columns by a schema are mutated too.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import random
import resource
import struct
import sys
import time

from google.protobuf import descriptor_pb2

from bk_core.errors import TopicError
from bk_core.pulsar.messages.decoder import DecodeOptions
from bk_core.pulsar.messages.row_maker import RowMaker
from bk_core.pulsar.messages.rows import TYPES, schema_of
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.plan import Bounds
from bk_core.pulsar.model.schemas import TopicSchema, TopicSchemas
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.model.transactions import Transactions
from bk_core.pulsar.values import primitives
from bk_core.pulsar.values.topic_values import TopicValues
from tests.kit import pulsar_entries as kit
from tests.pulsar.values import avro_oracle as oracle

SCHEMA = schema_of(list(TYPES))
TOPIC = TopicName.parse(kit.TOPIC)
KINDS = tuple((many, compacted) for many in (1, 60, 200) for compacted in (False, True))
"""How many entries are read together, and whether they are those of a compacted ledger."""
JSON_FIELDS = {
    "a": "long",
    "b": ["null", "string"],
    "d": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
    "e": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
    "l": {"type": "array", "items": "double"},
    "m": {"type": "map", "values": "int"},
}
PROTOBUF_VALUE = b"\x09\0\0\0\0\0\0\xf8?\x10\x05\x1a\x01x\x22\x01y\x2a\x06\n\x01k\x12\x01v\x30\0"
LENIENT = DecodeOptions(corrupt="skip", encrypted="raw", message_bytes_max=1 << 20)


def seeds() -> list[bytes]:
    singles = [kit.single(b"v" * k, properties={"a": "b"}, partition_key=b"k", event_time=5) for k in range(9)]
    found = [kit.batch_entry(singles, compression=kind, checksum=False, broker={"index": 3}) for kind in range(5)]
    found.append(kit.entry(b"plain", properties={"k": "v"}, checksum=False, partition_key=b"x", ordering_key=b"y"))
    found.append(kit.entry(marker_type=22, txnid_most_bits=1, txnid_least_bits=2, checksum=False))
    found.append(
        kit.entry(b"abc", uuid=b"u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=6, checksum=False)
    )
    head = kit.proto.MessageMetadata(producer_name=b"p", publish_time=1, encryption_param=b"n" * 12)
    head.encryption_keys.add(key=b"client", value=b"wrapped")
    found.append(kit.framed(head, b"secret", checksum=False))
    return found


def mutated(data: bytes, dice: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(dice.choice((0, 1, 1, 2, 5))):
        if found:
            found[dice.randrange(len(found))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
    if dice.random() < 0.3:
        del found[dice.randrange(len(found) + 1) :]
    if dice.random() < 0.2:
        at = dice.randrange(len(found) + 1)
        found[at:at] = dice.randbytes(dice.randrange(6))
    return bytes(found)


def read(entries: list[bytes], options: DecodeOptions, *, compacted: bool = False) -> int:
    """Make rows of these entries, with all that goes before; returns how many."""
    maker = RowMaker(TOPIC, SCHEMA, options)
    heads = maker.heads(kit.ledger(entries), compacted=compacted)
    heads.note(Transactions())
    look_back = maker.missing(heads)
    if look_back is not None:
        look_back.add(heads)
        look_back.finish()
    return sum(batch.num_rows for batch in maker.rows(heads, Bounds()))


def schemas(dice: random.Random) -> list[tuple[TopicSchema, list[bytes]]]:
    """Return a schema of every type, each with some values."""
    avro = oracle.Schemas(dice).record()
    text = json.dumps(avro).encode()
    datums = [oracle.encoded(avro, oracle.value_of(avro, dice)) for _ in range(3)]
    fields = [{"name": name, "type": kind} for name, kind in JSON_FIELDS.items()]
    as_json, at_once = (
        json.dumps({"type": "record", "name": "R", "fields": some}).encode() for some in (fields, fields[:-1])
    )
    objects = [b'{"a": -12, "b": "x\\n", "d": 1.25, "e": "A", "l": [1, 2.5, null], "m": {"k": 1}}', b"{}"]
    pair = struct.pack(">i", len(text)) + text + struct.pack(">i", len(as_json)) + as_json
    of_pair = (("key.schema.type", "AVRO"), ("value.schema.type", "JSON"))
    inline = [b"".join(struct.pack(">i", len(each)) + each for each in (datums[0], value)) for value in objects]
    found = [
        (TopicSchema(0, "AVRO", text), datums),
        (TopicSchema(0, "JSON", as_json), objects),
        (TopicSchema(0, "JSON", at_once), objects),
        (TopicSchema(0, "PROTOBUFNATIVE", protobuf_definition()), [PROTOBUF_VALUE]),
        (TopicSchema(0, "KEYVALUE", pair, False, of_pair), inline),
        (TopicSchema(0, "KEYVALUE", pair, False, (*of_pair, ("kv.encoding.type", "SEPARATED"))), objects),
    ]
    return found + [
        (TopicSchema(0, kind, b""), [dice.randbytes(n) for n in (1, 2, 4, 8, 12, 16)])
        for kind in sorted(primitives.NAMES)
    ]


def protobuf_definition() -> bytes:
    """Return the definition of a message of proto2, whose texts may be any bytes."""
    field = descriptor_pb2.FieldDescriptorProto
    entry = descriptor_pb2.DescriptorProto(
        name="LEntry",
        field=[field(name=name, number=n, type=9, label=1) for n, name in ((1, "key"), (2, "value"))],
        options=descriptor_pb2.MessageOptions(map_entry=True),
    )
    kinds = ((1, 1, ""), (3, 1, ""), (9, 3, ""), (12, 1, ""), (11, 3, ".M.LEntry"), (14, 1, ".E"))
    fields = [
        field(name=f"f{n}", number=n, type=kind, label=label, type_name=name)
        if name
        else field(name=f"f{n}", number=n, type=kind, label=label)
        for n, (kind, label, name) in enumerate(kinds, 1)
    ]
    fields[4].name = "l"
    message = descriptor_pb2.DescriptorProto(name="M", field=fields, nested_type=[entry])
    colour = descriptor_pb2.EnumDescriptorProto(
        name="E", value=[descriptor_pb2.EnumValueDescriptorProto(name="A", number=0)]
    )
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", message_type=[message], enum_type=[colour])
    files = base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).decode()
    return json.dumps({"fileDescriptorSet": files, "rootMessageTypeName": "M"}).encode()


def values_of(number: int, options: DecodeOptions) -> int:
    """Read mutated values of every type of schema as columns; returns how many."""
    dice, done = random.Random(f"values {number}"), 0
    for schema, values in schemas(dice):
        decoder = TopicValues(TopicSchemas(TOPIC, (schema,), 0))
        many = dice.choice((1, 30))
        singles = [
            kit.single(mutated(dice.choice(values), dice), partition_key=b"AAE=", partition_key_b64_encoded=True)
            for _ in range(many)
        ]
        maker = RowMaker(TOPIC, schema_of(None, decoder.columns), options, decoder)
        version = dice.choice((bytes(8), bytes(8), bytes(8), dice.randbytes(8), b""))
        heads = maker.heads(kit.ledger([kit.batch_entry(singles, schema_version=version)]))
        with contextlib.suppress(TopicError):
            rows = list(maker.rows(heads, Bounds()))
            assert all(each.validate(full=True) is None for each in rows)
        done += many
    return done


def round_of(number: int, kind: tuple[int, bool], options: DecodeOptions) -> int:
    """Read some mutated entries; returns how many."""
    (many, compacted), dice = kind, random.Random(f"{number} {kind}")
    originals = seeds()
    if compacted:
        originals = [kit.compacted(EntryPosition(1, 2), each) for each in originals]
    entries = [mutated(dice.choice(originals), dice) for _ in range(many)]
    with contextlib.suppress(TopicError):
        read(entries, options, compacted=compacted)
    return many


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.pulsar.fuzz", description="Mutated entries of topics.")
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first round")
    ask = parser.parse_args()
    began, done, number = time.monotonic(), 0, ask.seed
    while done < ask.inputs:
        for kind in KINDS:
            try:
                done += round_of(number, kind, LENIENT)
            except Exception:
                print(f"round {number} of {kind} failed: round_of({number}, {kind}, LENIENT)", file=sys.stderr)
                raise
        try:
            done += values_of(number, LENIENT)
        except Exception:
            print(f"round {number} of values failed: values_of({number}, LENIENT)", file=sys.stderr)
            raise
        number += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{done:,} mutated entries in {time.monotonic() - began:.0f} s, all rows or typed errors; at most {peak} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
