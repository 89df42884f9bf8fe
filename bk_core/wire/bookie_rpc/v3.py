# SPDX-License-Identifier: Apache-2.0
"""Builds and reads messages of version 3 of Apache's protocol, which are protobuf messages. They are built in columns
and read one by one; ``connection`` reads bursts of them.

Messages are built with their fields in ascending order, as protobuf writes them. An argument of type Ints is one number
for all rows, or an array with one item for each row.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from bk_core.errors import RemoteProtocolError
from bk_core.wire.bookie_rpc.bodies import COPY_BELOW_BYTES, Bodies, scatter
from bk_core.wire.bookie_rpc.columns import (
    Ints,
    Piece,
    Rows,
    decode_varint,
    encode_varint,
    only,
    varint,
    width_of,
)
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX, I64, LENGTH_BYTES, Buffer
from bk_core.wire.bookie_rpc.layouts import Grammar
from bk_core.wire.bookie_rpc.runs import (
    ABSENT,
    ADD,
    BODY_AT,
    BODY_BYTES,
    ENTRY,
    KEY_AT,
    KEY_BYTES,
    KIND,
    LAC_TIME,
    LEDGER,
    MAX_LAC,
    PRIORITY,
    READ,
    RECOVERY,
    STATUS,
    TXN,
    WRITE_FLAGS,
    Column,
    LoneAdd,
    Single,
    WireAnswer,
)
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.proto import bookie_rpc_pb2 as pb

M = TypeVar("M", pb.Request, pb.Response)

DEFERRED_SYNC = 1
"""A flag of adds. With it, the bookie may answer before it has synced its log."""

HIGH_PRIORITY = 100
"""The priority of a recovery's requests."""

_READ_TAG, _ADD_TAG = b"\xa2\x06", b"\xaa\x06"
_LEDGER_FIELD, _ENTRY_FIELD = 1, 2

_VARINT = rb"([\x80-\xff]{0,8}[\0-\x7f])"  # below 2^63
_LONE_ADD = re.compile(
    b"".join(
        (
            rb"(.{4})\x0a(.)\x08\x03\x10\x02\x18" + _VARINT,  # lengths; VERSION_THREE, ADD_ENTRY, txnId
            rb"\xaa\x06" + _VARINT + rb"\x08" + _VARINT + rb"\x10" + _VARINT,  # length; ledgerId, entryId
            rb"\x1a\x14(.{20})\x22" + _VARINT,  # masterKey; length of the body
        )
    ),
    re.DOTALL,
)
_HEADER_BYTES = 5  # of a header, without its transaction

REQUESTS = {
    ADD: Grammar(_ADD_TAG, {1: LEDGER, 2: ENTRY}, entry=4, key=3, key_at=KEY_AT),
    READ: Grammar(_READ_TAG, {1: LEDGER, 2: ENTRY}),
}
ANSWERS = {
    ADD: Grammar(_ADD_TAG, {2: LEDGER, 3: ENTRY}),
    READ: Grammar(_READ_TAG, {2: LEDGER, 3: ENTRY, 5: MAX_LAC, 6: LAC_TIME}, entry=4),
}

# The fields of a request and an answer for each operation that a bookie serves.
_FIELDS = {
    pb.READ_ENTRY: ("readRequest", "readResponse"),
    pb.ADD_ENTRY: ("addRequest", "addResponse"),
    pb.AUTH: ("authRequest", "authResponse"),
    pb.WRITE_LAC: ("writeLacRequest", "writeLacResponse"),
    pb.READ_LAC: ("readLacRequest", "readLacResponse"),
    pb.GET_BOOKIE_INFO: ("getBookieInfoRequest", "getBookieInfoResponse"),
    pb.START_TLS: ("startTLSRequest", "startTLSResponse"),
    pb.FORCE_LEDGER: ("forceLedgerRequest", "forceLedgerResponse"),
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: ("getListOfEntriesOfLedgerRequest", "getListOfEntriesOfLedgerResponse"),
}
_WITHOUT_STATUS = (pb.AUTH, pb.START_TLS)
_RECOVERY_ADD = int(pb.AddRequest.RECOVERY_ADD)

_again = lru_cache(maxsize=1024)(decode_varint)  # for numbers that are often equal in consecutive requests


# ── one message ──


def framed(message: pb.Request | pb.Response) -> bytes:
    """Make a frame of a message."""
    data = message.SerializeToString()
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def request(operation: pb.OperationType, txn: int, priority: int = 0) -> pb.Request:
    """Make a request whose header is filled in."""
    made = pb.Request()
    made.header.version = pb.VERSION_THREE
    made.header.operation = operation
    made.header.txnId = txn
    if priority:
        made.header.priority = priority
    return made


def answer(asked: pb.Request, status: Status = Status.EOK) -> pb.Response:
    """Make the answer to a request. It has a header, both statuses and, if the answer has fields for them, the
    request's ids. The caller fills in the other fields."""
    made = pb.Response(status=int(status))  # type: ignore[arg-type]  # the stubs ask for their own enum
    made.header.version = pb.VERSION_THREE
    made.header.operation = asked.header.operation
    made.header.txnId = asked.header.txnId
    operation = asked.header.operation
    names = _FIELDS.get(operation)
    if names is None or operation in _WITHOUT_STATUS:
        return made
    body, of_request = getattr(made, names[1]), getattr(asked, names[0])
    body.status = int(status)
    for name in ("ledgerId", "entryId"):
        if name in body.DESCRIPTOR.fields_by_name:
            setattr(body, name, getattr(of_request, name))
    return made


def refusal(single: Single) -> bytes:
    """Make the frame that refuses a request. It carries the request's status and ids. For an operation that is not
    served, it carries the request's header and a status, as from Apache's bookies."""
    asked = single.request
    if asked.header.operation in _FIELDS:
        return framed(answer(asked, single.status))
    return framed(header_only(asked, single.status))


def header_only(asked: pb.Request, status: Status) -> pb.Response:
    """Make an answer with only the request's header and a status. Apache's bookies answer so to operations for which
    the protocol has no response."""
    return pb.Response(header=asked.header, status=int(status))  # type: ignore[arg-type]  # as above


def _parsed(kind: type[M], data: bytes) -> M:
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise RemoteProtocolError("a frame is no message of version 3", value=str(error)) from None
    if not message.IsInitialized():
        raise RemoteProtocolError("a message of version 3 lacks required fields", value=f"{len(data)} bytes")
    return message


def read_request(content: memoryview, begin: int, frame: int, column: Column) -> Single | None:
    """Read one request, as a :data:`~bk_core.wire.bookie_rpc.runs.ReadOne`."""
    data = bytes(content)
    asked = _parsed(pb.Request, data)
    header = asked.header
    operation = header.operation
    names = _FIELDS.get(operation)
    if names is None:
        return Single(frame, asked, Status.EBADREQ)
    if operation in _WITHOUT_STATUS:
        return Single(frame, asked)
    if header.version != pb.VERSION_THREE:
        return Single(frame, asked, Status.EBADVERSION)
    if not asked.HasField(names[0]):
        return Single(frame, asked, Status.EBADREQ)
    if operation == pb.ADD_ENTRY:
        add = asked.addRequest
        key, body = add.masterKey, add.body
        column[KIND] = ADD
        column[LEDGER], column[ENTRY] = add.ledgerId, add.entryId
        column[RECOVERY] = add.flag == _RECOVERY_ADD and add.HasField("flag")
        column[WRITE_FLAGS] = add.writeFlags
        # The message contains a bytes field unchanged, so any position with the same bytes may serve as its position.
        column[KEY_AT], column[KEY_BYTES] = begin + data.find(key), len(key)
        column[BODY_AT], column[BODY_BYTES] = begin + data.find(body), len(body)
    elif operation == pb.READ_ENTRY:
        read = asked.readRequest
        if read.HasField("flag") or read.HasField("previousLAC"):
            return Single(frame, asked)
        column[KIND] = READ
        column[LEDGER], column[ENTRY] = read.ledgerId, read.entryId
    else:
        return Single(frame, asked)
    txn = header.txnId
    column[TXN] = txn - (1 << 64) if txn >> 63 else txn
    column[PRIORITY] = header.priority
    return None


def lone_add(received: memoryview) -> LoneAdd | None:
    """Read a buffer that holds exactly one normal add, in the form in which all known clients write it. Return None for
    anything else, which :func:`read_request` then reads. The result is that of protobuf, because each byte is compared,
    or belongs to a number, the key or the entry, and all four lengths are checked."""
    size = len(received)
    found = _LONE_ADD.match(received) if size <= FRAME_BYTES_MAX else None
    if found is None:
        return None
    length, head, txn, inner, ledger_id, entry_id, key, of_body = found.groups()
    body = received[found.end() :]
    if (
        int.from_bytes(length, "big") != size - LENGTH_BYTES
        or head[0] != _HEADER_BYTES + len(txn)
        or _again(inner) != size - found.end(4)
        or _again(of_body) != len(body)
    ):
        return None
    return decode_varint(txn), _again(ledger_id), decode_varint(entry_id), False, key, body


def read_answer(content: memoryview, begin: int, frame: int, column: Column) -> WireAnswer | None:
    """Read one answer, as a :data:`~bk_core.wire.bookie_rpc.runs.ReadOne`."""
    data = bytes(content)
    told = _parsed(pb.Response, data)
    operation = told.header.operation
    if operation not in (pb.ADD_ENTRY, pb.READ_ENTRY):
        return WireAnswer(frame, told)
    adds = operation == pb.ADD_ENTRY
    body = told.addResponse if adds else told.readResponse
    there = told.HasField("addResponse" if adds else "readResponse")
    if not there and not told.status:
        raise RemoteProtocolError("an answer says EOK and nothing else", value=f"operation {operation}")
    column[KIND] = ADD if adds else READ
    txn = told.header.txnId
    column[TXN] = txn - (1 << 64) if txn >> 63 else txn
    column[STATUS] = told.status or body.status
    column[LEDGER], column[ENTRY] = (body.ledgerId, body.entryId) if there else (-1, -1)
    if adds:
        return None
    read = told.readResponse
    column[MAX_LAC] = read.maxLAC if read.HasField("maxLAC") else ABSENT
    column[LAC_TIME] = read.lacUpdateTimestamp if read.HasField("lacUpdateTimestamp") else ABSENT
    if read.HasField("body"):
        column[BODY_AT], column[BODY_BYTES] = begin + data.find(read.body), len(read.body)
    else:
        column[BODY_AT], column[BODY_BYTES] = 0, -1
    return None


# ── many messages ──


def add_requests(
    txns: Ints,
    ledger_ids: Ints,
    entry_ids: Ints,
    key: bytes,
    bodies: Bodies,
    *,
    recovery: bool = False,
    priority: int = 0,
    write_flags: int = 0,
    copy_below: int = COPY_BELOW_BYTES,
) -> list[Buffer]:
    """Make adds, one for each entry of ``bodies``, as buffers for a gathering write. If entries are small, there is
    only
    one buffer.

    ``txns`` and ``entry_ids`` are arrays with one item for each entry. The same bytes may go to every bookie of the
    write set if the caller uses the same transactions for all of them. The size of a frame is not checked here, because
    an entry of ENTRY_BYTES_MAX fits.
    """
    if not len(bodies):
        return []
    ledger, entry = varint(ledger_ids), varint(entry_ids)
    sizes = bodies.sizes()
    size = varint(sizes)
    fields: list[Piece] = [b"\x08", ledger, b"\x10", entry, b"\x1a", varint(len(key)), key, b"\x22", size]
    behind = b""
    if write_flags:
        behind += b"\x28" + _bytes(varint(write_flags))
    if recovery:
        behind += b"\xa0\x06\x01"
    inner = width_of(*fields) + sizes + len(behind)
    outer = varint(inner)
    head = _header(pb.ADD_ENTRY, txns, priority)
    length = _length(width_of(*head, _ADD_TAG, outer) + inner)
    before = Rows(len(bodies), [length, *head, _ADD_TAG, outer, *fields, *bodies.head_pieces()])
    return scatter(before, bodies, Rows(len(bodies), [behind]), copy_below)


def read_requests(txns: Ints, ledger_ids: Ints, entry_ids: I64, *, priority: int = 0) -> bytes:
    """Make plain reads, one for each entry id."""
    if not entry_ids.size:
        return b""
    fields: list[Piece] = [b"\x08", varint(ledger_ids), b"\x10", varint(entry_ids)]
    return _message(entry_ids.size, _header(pb.READ_ENTRY, txns, priority), _READ_TAG, fields)


def add_answers(txns: Ints, ledger_ids: Ints, entry_ids: I64, statuses: Ints = 0) -> bytes:
    """Make answers to adds, one for each entry id, joined."""
    return _plain_answers(pb.ADD_ENTRY, _ADD_TAG, txns, ledger_ids, entry_ids, statuses)


def add_answer(txn: int, ledger_id: int, entry_id: int, status: int) -> bytes:
    """Make the answer to one add, with the same bytes as :func:`add_answers`."""
    return _plain_answer(pb.ADD_ENTRY, _ADD_TAG, txn, ledger_id, entry_id, status)


def refused_reads(txns: Ints, ledger_ids: Ints, entry_ids: I64, statuses: Ints) -> bytes:
    """Make answers to reads that return no entry, one for each entry id, joined."""
    return _plain_answers(pb.READ_ENTRY, _READ_TAG, txns, ledger_ids, entry_ids, statuses)


def bare_answers(operation: int, count: int, txns: Ints, status: int) -> bytes:
    """Make ``count`` answers that have only a header and a status, joined."""
    fields = [*_header(operation, txns, 0), b"\x10", varint(status)]
    return Rows(count, [_length(width_of(*fields)), *fields]).joined()


def read_answers(
    txns: Ints,
    ledger_ids: Ints,
    entry_ids: Ints,
    bodies: Bodies,
    *,
    max_lacs: Ints | None = None,
    lac_times: Ints | None = None,
    copy_below: int = COPY_BELOW_BYTES,
) -> list[Buffer]:
    """Make answers to reads that found their entries, as buffers for a gathering write. If entries are small, there is
    only one buffer.

    ``txns`` and ``entry_ids`` are arrays with one item for each entry. ``entry_ids`` are those of the requests, so the
    answer to a request for −1 has −1. ``max_lacs`` is the LAC that this bookie has recorded, and ``lac_times`` the time
    at which it recorded this LAC, in ms since 1970.
    """
    if not len(bodies):
        return []
    sizes = bodies.sizes()
    size = varint(sizes)
    fields: list[Piece] = [b"\x08\x00\x10", varint(ledger_ids), b"\x18", varint(entry_ids), b"\x22", size]
    behind: list[Piece] = []
    for tag, values in ((b"\x28", max_lacs), (b"\x30", lac_times)):
        if values is not None:
            behind += [tag, varint(values)]
    inner = width_of(*fields, *behind) + sizes
    outer = varint(inner)
    head = [*_header(pb.READ_ENTRY, txns, 0), b"\x10\x00"]
    length = _length(width_of(*head, _READ_TAG, outer) + inner)
    before = Rows(len(bodies), [length, *head, _READ_TAG, outer, *fields, *bodies.head_pieces()])
    return scatter(before, bodies, Rows(len(bodies), behind), copy_below)


def _plain_answers(operation: int, tag: bytes, txns: Ints, ledger_ids: Ints, entry_ids: I64, statuses: Ints) -> bytes:
    if not entry_ids.size:
        return b""
    if entry_ids.size == 1:
        return _plain_answer(operation, tag, *map(only, (txns, ledger_ids, entry_ids, statuses)))
    status = varint(statuses)
    head = [*_header(operation, txns, 0), b"\x10", status]
    fields: list[Piece] = [b"\x08", status, b"\x10", varint(ledger_ids), b"\x18", varint(entry_ids)]
    return _message(entry_ids.size, head, tag, fields)


def _plain_answer(operation: int, tag: bytes, txn: int, ledger_id: int, entry_id: int, status: int) -> bytes:
    """Make one answer, with the same bytes as :func:`_plain_answers`, but without arrays of one item."""
    number, entry = encode_varint(txn), encode_varint(entry_id)
    before, between = _around(operation, tag, len(number), ledger_id, len(entry), status)
    return before + number + between + entry


@lru_cache(maxsize=1024)  # the arguments repeat from answer to answer
def _around(
    operation: int, tag: bytes, txn_bytes: int, ledger_id: int, entry_bytes: int, status: int
) -> tuple[bytes, bytes]:
    """Make the bytes of an answer before the transaction, and the bytes between the transaction and the entry id, which
    comes last. Numbers have at most ten bytes, so each length is one byte."""
    code, ledger = encode_varint(status), encode_varint(ledger_id)
    fields = b"\x08%b\x10%b\x18" % (code, ledger)
    between = b"\x10%b%b%c%b" % (code, tag, len(fields) + entry_bytes, fields)
    head = b"\x0a%c\x08%c\x10%c\x18" % (_HEADER_BYTES + txn_bytes, pb.VERSION_THREE, operation)
    size = len(head) + txn_bytes + len(between) + entry_bytes
    return size.to_bytes(LENGTH_BYTES, "big") + head, between


def _message(count: int, head: list[Piece], tag: bytes, fields: list[Piece]) -> bytes:
    inner = width_of(*fields)
    outer = varint(inner)
    length = _length(width_of(*head, tag, outer) + inner)
    return Rows(count, [length, *head, tag, outer, *fields]).joined()


def _header(operation: int, txns: Ints, priority: int) -> list[Piece]:
    txn = varint(txns)
    behind = b"\x20" + _bytes(varint(priority)) if priority else b""
    length = varint(width_of(txn) + 5 + len(behind))
    return [b"\x0a", length, bytes((0x08, pb.VERSION_THREE, 0x10, operation, 0x18)), txn, behind]


def _length(sizes: Ints) -> Piece:
    """Make the length field of frames. An int makes one field for all rows, an array one for each row."""
    if isinstance(sizes, int):
        return sizes.to_bytes(LENGTH_BYTES, "big")
    return sizes.astype(">u4").view(np.uint8).reshape(-1, LENGTH_BYTES)


def _bytes(piece: Piece) -> bytes:
    assert isinstance(piece, bytes)
    return piece
