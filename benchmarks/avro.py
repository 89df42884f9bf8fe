# SPDX-License-Identifier: Apache-2.0
"""``uv run --with polars --with polars-avro --with pyruhvro python -m benchmarks.avro``: decoders of Avro datums.

Each decoder decodes the same 100,000 datums. The time of ``bk_core`` is that of its whole work: from the positions of
the datums' bytes to Arrow columns, which are resolved to the schema of the read. The time of the other decoders does
not include the preparation of their input, which is a list of the datums, or an Avro file in memory with all datums in
one block. Decision 0077 has the figures.
"""

from __future__ import annotations

import importlib
import io
import json
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from bk_core.pulsar.values.avro import schema as avro_schema
from bk_core.pulsar.values.avro.reader import AvroReader
from bk_core.pulsar.values.part import Places

ROWS, ROUNDS = 100_000, 5
ADDRESS = {
    "type": "record",
    "name": "Address",
    "fields": [{"name": "street", "type": "string"}, {"name": "zip", "type": "int"}],
}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "quantity", "type": "int"},
        {"name": "paid", "type": "boolean"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "address", "type": ADDRESS},
    ],
}
NEWER = {**ORDER, "fields": [*ORDER["fields"][:8], {"name": "state", "type": "string", "default": "new"}]}


def order(dice: random.Random, number: int) -> dict[str, Any]:
    return {
        "id": dice.randrange(1 << 40),
        "customer": f"c{dice.randrange(10**6)}",
        "amount": dice.random() * 100,
        "quantity": dice.randrange(100),
        "paid": dice.random() < 0.5,
        "note": None if dice.random() < 0.5 else f"note {dice.randrange(1000)}",
        "at": 1_700_000_000_000 + number,
        "tags": [f"t{dice.randrange(9)}" for _ in range(dice.randrange(4))],
        "address": {"street": f"street {dice.randrange(1000)}", "zip": dice.randrange(99_999)},
    }


def container(schema: Any, count: int, body: bytes) -> bytes:
    """Return an Avro file with one block."""
    sync, text = b"0123456789abcdef", json.dumps(schema).encode()
    named = _long(11) + b"avro.schema" + _long(len(text)) + text + _long(10) + b"avro.codec" + _long(4) + b"null"
    return b"Obj\x01" + _long(2) + named + b"\0" + sync + _long(count) + _long(len(body)) + body + sync


def _long(number: int) -> bytes:
    rest, made = number << 1, bytearray()
    while rest > 127:
        made.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*made, rest])


def candidates(datums: list[bytes]) -> dict[str, tuple[str, Callable[[Any], Callable[[], object]]]]:
    """Return by title the module of a decoder, and a function of the module that returns what to measure."""
    body, text = b"".join(datums), json.dumps(ORDER)
    file, kind = container(ORDER, len(datums), body), avro_schema.arrow_type(avro_schema.parse(text.encode()))
    parsed = importlib.import_module("fastavro").parse_schema(json.loads(text))

    def read_block(fastavro: Any) -> list[Any]:
        return list(fastavro.reader(io.BytesIO(file)))

    return {
        "fastavro, each datum": (
            "fastavro",
            lambda module: lambda: [module.schemaless_reader(io.BytesIO(each), parsed, None) for each in datums],
        ),
        "fastavro, one block": ("fastavro", lambda module: lambda: read_block(module)),
        "fastavro, one block, to Arrow": ("fastavro", lambda module: lambda: pa.array(read_block(module), kind)),
        "polars.read_avro, to Arrow": ("polars", lambda module: lambda: module.read_avro(io.BytesIO(file)).to_arrow()),
        "polars_avro": ("polars_avro", lambda module: lambda: module.read_avro(io.BytesIO(file))),
        "pyruhvro": ("pyruhvro", lambda module: lambda: module.deserialize_array(datums, text)),
    }


def ours(datums: list[bytes], reader: Any) -> Callable[[], object]:
    length = np.array([len(each) for each in datums], dtype=np.int64)
    ends = np.cumsum(length)
    data = np.frombuffer(b"".join(datums), dtype=np.uint8)
    places = Places(data, ends - length, length, np.zeros(len(datums), dtype=np.int64))
    writer, to = (avro_schema.parse(json.dumps(each).encode()) for each in (ORDER, reader))
    decoder = AvroReader(to, {0: writer})
    wanted = frozenset(decoder.columns)
    assert not decoder.read(places, wanted).problems
    return lambda: decoder.read(places, wanted)


def orders(count: int) -> list[bytes]:
    """Return ``count`` orders, each encoded as an Avro datum."""
    fastavro = importlib.import_module("fastavro")
    dice, datums, parsed = random.Random(1), list[bytes](), fastavro.parse_schema(json.loads(json.dumps(ORDER)))
    for number in range(count):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, order(dice, number))
        datums.append(out.getvalue())
    return datums


def main() -> None:
    datums = orders(ROWS)
    size = sum(map(len, datums))
    measured = {"bk_core": ours(datums, ORDER), "bk_core, resolved to a newer schema": ours(datums, NEWER)}
    for title, (module, make) in candidates(datums).items():
        try:
            measured[title] = make(importlib.import_module(module))
        except ImportError:
            print(f"{title}: not installed")
    print(f"{ROWS:,} datums of {size / ROWS:.0f} bytes; the best of {ROUNDS} rounds")
    for title, work in measured.items():
        best = min(_seconds(work) for _ in range(ROUNDS))
        print(f"{title:36} {best * 1e6 / ROWS:6.2f} us a datum  {size / best / 1e6:6.0f} MB/s")


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
