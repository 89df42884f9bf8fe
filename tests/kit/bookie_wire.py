# SPDX-License-Identifier: Apache-2.0
"""Bursts of Apache's wire for tests: messages in any order of fields, and a reader that takes one frame at a time."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bk_core.errors import RemoteProtocolError
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.columns import encode_varint
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX
from bk_core.wire.bookie_rpc.runs import (
    ADD,
    ANSWER_ROWS,
    BODY_AT,
    BODY_BYTES,
    KEY_AT,
    KEY_BYTES,
    READ,
    REQUEST_ROWS,
    AddAnswers,
    AddRun,
    BatchAnswer,
    CutFrames,
    ReadAnswers,
    ReadRun,
    Run,
    empty_rows,
    items_of,
    read_singly,
)
from bk_core.wire.proto import bookie_rpc_pb2 as pb

KEY = bytes(range(20))


def field(number: int, value: int | bytes) -> bytes:
    """Encode a field of protobuf: a varint or bytes."""
    if isinstance(value, int):
        return encode_varint(number << 3) + encode_varint(value)
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value


def message(fields: Iterable[tuple[int, int | bytes]]) -> bytes:
    """Encode a message with its fields in this order."""
    return b"".join(field(number, value) for number, value in fields)


def frame(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


async def answer_of(reader: asyncio.StreamReader) -> pb.Response:
    """Receive one answer of version 3."""
    return pb.Response.FromString(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))


def told(items: Sequence[Any]) -> list[object]:
    """Return the contents of a burst for comparison: one tuple for each frame of a run, with bytes instead of
    positions."""
    said: list[object] = []
    for item in items:
        if isinstance(item, Run):
            said += [(type(item).__name__, *_values(item, row)) for row in item.rows()]
        elif isinstance(item, BatchAnswer):
            entries = list(map(bytes, item.bodies.pieces()))
            said.append((item.frame, item.request_id, item.status, item.ledger_id, item.first_entry_id, entries))
        else:
            said.append(item)
    return said


def _values(run: Run, row: tuple[int, ...]) -> tuple[object, ...]:
    values: list[object] = list(row)
    places = [(BODY_AT, BODY_BYTES)]
    if isinstance(run, AddRun):
        places.append((KEY_AT, KEY_BYTES))
    for at, size in places:
        if row[size] >= 0:
            values[at] = bytes(run.buffer[row[at] : row[at] + row[size]])
            assert len(bytes(run.buffer[row[at] : row[at] + row[size]])) == row[size]
    return tuple(values)


def one_at_a_time(
    burst: bytes, *, answers: bool, version: int = 3, limit: int = FRAME_BYTES_MAX
) -> tuple[list[Any], int, RemoteProtocolError | None, int]:
    """Parse a burst without numpy. Return the items, the number of bytes used, the fault and the version that a reader
    of ``connection`` should return."""
    begins, lengths, used, fault = cut_simply(burst, limit)
    rows = empty_rows(len(begins), ANSWER_ROWS if answers else REQUEST_ROWS)
    begin_of = np.array(begins, dtype=np.int64)
    cut = CutFrames(memoryview(burst), begin_of, np.array(lengths, dtype=np.int64), rows)
    wrong, end = None, 0
    others: list[Any] = []
    if version == 3:
        found, wrong, end = read_singly(cut, range(len(begins)), v3.read_answer if answers else v3.read_request)
        others += found
        if wrong is not None and not answers:
            version, wrong = 2, None
    if version == 2:
        numbers = range(end, len(begins))
        found, wrong, end = read_singly(cut, numbers, v2._read_answer if answers else v2.read_request)
        others += found
    if wrong is not None:
        used, fault = begins[end] - 4, wrong
    runs: dict[int, type[Run]] = {ADD: AddAnswers, READ: ReadAnswers} if answers else {ADD: AddRun, READ: ReadRun}
    return items_of(cut.buffer, rows[:, :end], others, runs), used, fault, version


def cut_simply(burst: bytes, limit: int) -> tuple[list[int], list[int], int, RemoteProtocolError | None]:
    at, begins, lengths = 0, [], []
    while at + 4 <= len(burst):
        length = struct.unpack_from(">I", burst, at)[0]
        if length + 4 > limit:
            return begins, lengths, at, RemoteProtocolError("too long")
        if at + 4 + length > len(burst):
            break
        begins.append(at + 4)
        lengths.append(length)
        at += 4 + length
    return begins, lengths, at, None


def as_read(burst: bytes, reader: Any) -> tuple[list[object], int, bool, int]:
    """Return what a reader makes of a burst: the contents, the number of bytes used, whether there is a fault, and the
    version afterwards."""
    found = reader.read(burst)
    return told(found.items), found.used, found.fault is not None, reader.version


def as_expected(burst: bytes, *, answers: bool, version: int = 3) -> tuple[list[object], int, bool, int]:
    """Return what :func:`as_read` should return, found one frame at a time."""
    items, used, fault, then = one_at_a_time(burst, answers=answers, version=version)
    return told(items), used, fault is not None, then


# ── bursts ──

NUMBERS = (0, 1, 127, 128, 16_383, 16_384, 2**31 - 1, 2**31, 2**32, 2**35, 2**62, 2**63 - 1, -1)


def number(rng: random.Random) -> int:
    """Return an id that is small, or at a limit."""
    return rng.choice(NUMBERS) if rng.random() < 0.3 else rng.randrange(1000)


FENCE = message([(1, 7), (2, -1), (3, KEY), (100, 1)])
"""A ReadRequest that fences ledger 7."""


def add_fields(rng: random.Random, ledger: int, entry: int, body: bytes) -> list[tuple[int, int | bytes]]:
    fields: list[tuple[int, int | bytes]] = [(1, ledger), (2, entry), (3, KEY), (4, body)]
    if rng.random() < 0.2:
        fields.append((100, 1))
    if rng.random() < 0.1:
        fields.append((5, 1))
    return fields


def v3_request(rng: random.Random, order: random.Random, kind: str, txn: int, entry: int, body: bytes) -> bytes:
    """Make a request. ``order`` shuffles its fields, in the same way for all messages of one writer."""
    header: list[tuple[int, int | bytes]] = [(1, 3), (2, 1 if kind == "read" else 2), (3, txn)]
    if rng.random() < 0.1:
        header.append((4, 100))
    if kind == "other":
        return message([(1, message([(1, 3), (2, 10), (3, txn)])), (107, message([(1, 7)]))])
    if kind == "fence":
        return message(
            [(1, message([(1, 3), (2, 1), (3, txn)])), (100, message([(1, 7), (2, -1), (3, KEY), (100, 1)]))]
        )
    inner = add_fields(rng, 7, entry, body) if kind == "add" else [(1, 7), (2, entry)]
    if rng.random() < 0.05:
        inner.append((77, rng.choice([5, b"unknown"])))
    order.shuffle(header)
    order.shuffle(inner)
    outer = [(1, message(header)), (101 if kind == "add" else 100, message(inner))]
    if rng.random() < 0.03:
        outer.append((200, message([(1, b"key"), (2, b"value")])))
    if rng.random() < 0.03:
        order.shuffle(outer)
    return message(outer)


def v3_answer(rng: random.Random, order: random.Random, kind: str, txn: int, entry: int, body: bytes) -> bytes:
    """Make an answer, as :func:`v3_request` makes a request."""
    status = rng.choice([402, 403, 501, 504, 506]) if rng.random() < 0.1 else 0
    operation = {"add": 2, "read": 1}.get(kind, 10)
    header = message([(1, 3), (2, operation), (3, txn)])
    if operation == 10:
        return message([(1, header), (2, 0), (107, message([(1, status), (2, 7)]))])
    inner: list[tuple[int, int | bytes]] = [(1, status), (2, 7), (3, entry)]
    if kind == "read" and not status:
        inner.append((4, body))
        if rng.random() < 0.8:
            inner.append((5, entry - 1))
        if rng.random() < 0.2:
            inner.append((6, 1_700_000_000_000 + entry))
    if rng.random() < 0.1:
        order.shuffle(inner)
    told_outside = status if rng.random() < 0.9 else 0
    outer: list[tuple[int, int | bytes]] = [(1, header), (2, told_outside)]
    if not told_outside or rng.random() < 0.8:
        outer.append((101 if kind == "add" else 100, message(inner)))
    return message(outer)


def v2_request(rng: random.Random, kind: str, entry: int, body: bytes) -> bytes:
    version = 2 if rng.random() < 0.95 else rng.randrange(4)
    flags = rng.choice([0, 0, 0, 2, 4, 6])
    ids = struct.pack(">qq", 7, entry)
    if kind == "add":
        return v2._word(version, 1, flags) + KEY + ids + body
    if kind == "read":
        return v2._word(version, 2, flags) + ids
    if kind == "fence":
        return v2._word(version, 2, flags | 1) + ids + KEY
    return v2._word(version, 7, flags) + ids + struct.pack(">qiq", entry, 10, 1000)


def v2_answer(rng: random.Random, kind: str, entry: int, body: bytes) -> bytes:
    code = rng.choice([1, 2, 101, 104, 107]) if rng.random() < 0.1 else 0
    head = struct.pack(">Iiqq", 2 << 24 | {"add": 1, "read": 2}.get(kind, 7) << 16, code, 7, entry)
    if kind == "add" or code:
        return head if kind in ("add", "read") else head + struct.pack(">q", entry)
    return head + body if kind == "read" else head + struct.pack(">q", entry) + frame(body) + frame(b"") + frame(body)


def burst_of(
    seed: int, *, answers: bool, version: int, count: int, kinds: Sequence[str], large: int = 200
) -> list[bytes]:
    """Make frames of one writer. Bodies have equal or any lengths, and ids count up or jump."""
    rng, writer = random.Random(seed), random.Random(seed + 1)
    equal, jumps, mixed = rng.random() < 0.5, rng.random() < 0.3, rng.random() < 0.3
    txn, first = rng.choice([0, 100, 127, 16_300, 2**32 - 3, 2**64 - 5]), rng.choice([0, 120, 2**31 - 4, 2**62])
    size = rng.randrange(large)
    order_seed = writer.random()
    made = []
    for k in range(count):
        order = random.Random(order_seed if not mixed else rng.random())
        body = rng.randbytes(size if equal else rng.randrange(large))
        entry = number(rng) if jumps else first + k
        kind = rng.choice(kinds)
        of = (rng, order, kind, (txn + k) % 2**64, entry, body)
        if version == 3:
            made.append(frame(v3_answer(*of) if answers else v3_request(*of)))
        else:
            made.append(frame(v2_answer(rng, kind, entry, body) if answers else v2_request(rng, kind, entry, body)))
    return made
