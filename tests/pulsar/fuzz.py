# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.pulsar.fuzz --inputs N --resume FILE``: mutated inputs through everything that makes rows of them.

Each is rows or a typed error. ``test_hostile.py`` runs a part. There are three groups: entries with all around them;
values that become columns by a schema, thousands at a time; and the objects of offloaded ledgers with their indexes.
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
from dataclasses import replace
from pathlib import Path

import numpy as np
from google.protobuf import descriptor_pb2

from bk_core.errors import TopicError, UnsupportedTopicError
from bk_core.pulsar.messages.decoder import DecodeOptions
from bk_core.pulsar.messages.row_maker import RowMaker
from bk_core.pulsar.messages.rows import TYPES, TooManyValuesError, schema_of
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.plan import Bounds
from bk_core.pulsar.model.schemas import TopicSchema, TopicSchemas
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.model.transactions import Transactions
from bk_core.pulsar.offloaded import blocks
from bk_core.pulsar.values import primitives
from bk_core.pulsar.values.part import PartReader, Places
from bk_core.pulsar.values.topic_values import TopicValues
from tests.kit import pulsar_entries as kit
from tests.kit.offloaded import offload
from tests.pulsar.values import avro_oracle as oracle
from tests.pulsar.values.kit import places

SCHEMA = schema_of(list(TYPES))
TOPIC = TopicName.parse(kit.TOPIC)
AT_ONCE, SIMPLE_AT_ONCE, DEFINITIONS, OBJECTS = 2000, 200, 20, 500
"""How many values of a schema are read together, and of a primitive type; how often a definition is mutated; and how
many objects and indexes are made of one ledger."""
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


def evolved(schema: TopicSchema) -> TopicSchema:
    """Return the next version of a record: without its first field, and with another one."""
    record = json.loads(schema.definition)
    added = {"name": "added", "type": ["null", "long"], "default": None}
    record["fields"] = [*record["fields"][1:], added]
    return TopicSchema(1, schema.kind, json.dumps(record).encode())


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


def columns_of(number: int) -> int:
    """Read many mutated values of every type of schema at once, and mutated definitions of schemas; returns how many.

    What the reader of values makes is checked, for all columns and for none: the same values are bad."""
    dice, done = random.Random(f"columns {number}"), 0
    for schema, values in schemas(dice):
        versions = (schema, evolved(schema)) if schema.kind == "AVRO" else (schema,)
        reader = TopicValues(TopicSchemas(TOPIC, versions, len(versions) - 1))._reader
        many = AT_ONCE if schema.definition else SIMPLE_AT_ONCE
        version = [dice.randrange(len(versions)) for _ in range(many)]
        found = places([mutated(dice.choice(values), dice) for _ in range(many)], version)
        whole = _read_column(reader, found, frozenset(reader.columns))
        assert _read_column(reader, found, frozenset()) == whole, schema.kind
        done += many
        for _ in range(DEFINITIONS if schema.definition else 0):
            changed = replace(schema, definition=mutated(schema.definition, dice))
            with contextlib.suppress(UnsupportedTopicError):
                _read_column(
                    TopicValues(TopicSchemas(TOPIC, (changed,), 0))._reader, found.take(np.arange(5)), frozenset()
                )
            done += 1
    return done


def _read_column(reader: PartReader, found: Places, wanted: frozenset[str]) -> set[int]:
    """Return which values are bad. Halves of halves are read if all have too many values."""
    try:
        part = reader.read(found, wanted)
    except TooManyValuesError:
        assert len(found) > 1
        half = len(found) // 2
        first = _read_column(reader, found.take(np.arange(half)), wanted)
        return first | {half + each for each in _read_column(reader, found.take(np.arange(half, len(found))), wanted)}
    for column in part.columns.values():
        assert len(column) == len(found)
        column.validate(full=True)
    assert wanted <= part.columns.keys()
    return set(part.problems)


def objects_of(number: int) -> int:
    """Read mutated objects of an offloaded ledger, and mutated indexes of them; returns how many."""
    dice, sizes = random.Random(f"objects {number}"), [7 * n for n in range(20)]
    streaming, block_bytes = dice.random() < 0.5, dice.choice((400, 1500, 4000, 4000))
    ledgers = {7: [bytes([65 + n % 26]) * size for n, size in enumerate(sizes)]}
    if streaming and dice.random() < 0.5:
        ledgers = {3: [b"other"] * 5, **ledgers}
    data, index = offload(ledgers, block_bytes, streaming=streaming, fill=dice.randrange(9))
    parsed = blocks.parse_index(index, 7)
    for _ in range(OBJECTS):
        with contextlib.suppress(blocks.OffloadFormatError):
            wrong = blocks.parse_index(mutated(index, dice), 7)
            if wrong.object_bytes == len(data):  # the reader compares these two
                assert are_entries(_entries_in(data, wrong, dice), sizes, parsed)
        with contextlib.suppress(blocks.OffloadFormatError):
            changed = mutated(data, dice).ljust(len(data), b"\0")[: len(data)]
            assert are_entries(_entries_in(changed, parsed, dice), sizes, parsed)
    return 2 * OBJECTS


def are_entries(found: list[int], sizes: list[int], index: blocks.OffloadIndex) -> bool:
    """Return whether these are the sizes of the entries. If the length of the last entry of a block is wrong by a
    multiple of four, it takes fill for its own: only the checksum of the message can tell."""
    ends = {*(index.firsts[1:] - 1).tolist(), len(sizes) - 1}
    longer = {n for n, (a, b) in enumerate(zip(found, sizes, strict=True)) if a != b}
    return longer <= ends and all(found[n] > sizes[n] and (found[n] - sizes[n]) % 4 == 0 for n in longer)


def _entries_in(data: bytes, index: blocks.OffloadIndex, dice: random.Random) -> list[int]:
    """Return the sizes of all entries, which are fed in pieces of any size. Their ids ascend by one from 0 on."""
    found, step = list[int](), dice.choice((150, 1 << 20, 1 << 20))
    for number, last in enumerate([*(index.firsts[1:] - 1).tolist(), 19]):
        begin = int(index.offsets[number])
        end, parser = begin + int(index.lengths[number]), blocks.BlockParser(index, number, last)
        for at in range(begin, end, step):
            batch = parser.feed(data[at : min(at + step, end)])
            if batch is not None:
                assert batch.first_entry_id == len(found)
                found += batch.lengths.tolist()
        parser.finish()
    return found


def entries_of(number: int) -> int:
    """Read mutated entries, together and alone, and values within entries; returns how many."""
    return sum(round_of(number, kind, LENIENT) for kind in KINDS) + values_of(number, LENIENT)


GROUPS = {"entries": entries_of, "columns": columns_of, "objects": objects_of}


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.pulsar.fuzz", description="Mutated entries, values and objects.")
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N", help="inputs of each group, in all")
    parser.add_argument("--only", choices=tuple(GROUPS), action="append", help="only these groups")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first round")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the figures there, and go on from them")
    ask = parser.parse_args()
    kept: dict[str, dict[str, float]] = {}
    if ask.resume is not None and ask.resume.exists():
        kept = json.loads(ask.resume.read_text(encoding="utf-8"))
    for name in ask.only or GROUPS:
        figures = kept.setdefault(name, {"round": ask.seed, "inputs": 0, "seconds": 0.0, "peakMb": 0})
        while figures["inputs"] < ask.inputs:
            began, number = time.monotonic(), int(figures["round"])
            try:
                figures["inputs"] += GROUPS[name](number)
            except Exception:
                print(f"round {number} failed: --only {name} --seed {number} --inputs 1", file=sys.stderr)
                raise
            figures["round"] = number + 1
            figures["seconds"] += time.monotonic() - began
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            figures["peakMb"] = max(figures["peakMb"], peak)
            if ask.resume is not None:
                ask.resume.write_text(json.dumps(kept), encoding="utf-8")
        print(
            f"{name}: {figures['inputs']:,} mutated inputs in {figures['seconds']:.0f} s, all rows or typed errors; "
            f"at most {figures['peakMb']:.0f} MB",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
