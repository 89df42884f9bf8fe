# SPDX-License-Identifier: Apache-2.0
"""Builds and reads messages of version 2 of Apache's protocol, in columns. They have fixed layouts of big-endian
numbers.

A packet begins with a header (u32), which is version << 24 | operation << 16 | flags. In version 0 it is only the
operation. The functions for a bookie have the names and arguments of those in ``v3``, so that a bookie only chooses the
module. Our client sends adds and single reads as version 3. Answers carry no transaction, so ``txns`` are the version
bytes that answers repeat. Version 2 has no LAC beside an entry, no deferred sync and no list of entries.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from bk_core.errors import RemoteProtocolError
from bk_core.model import LEDGER_KEY_BYTES
from bk_core.wire.bookie_rpc.bodies import COPY_BELOW_BYTES, Bodies, scatter
from bk_core.wire.bookie_rpc.columns import U8, Ints, Rows, column, gather, only
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX, I64, LENGTH_BYTES, Buffer, frames
from bk_core.wire.bookie_rpc.runs import (
    ABSENT,
    ADD,
    BODY_AT,
    BODY_BYTES,
    ENTRY,
    FEW_FRAMES,
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
    BatchAnswer,
    BatchRead,
    Column,
    CutFrames,
    Found,
    LoneAdd,
    Single,
    WireAnswer,
    read_singly,
)
from bk_core.wire.bookie_rpc.status import BY_CODE, UNKNOWN_CODE, Status, from_v2, to_v2
from bk_core.wire.proto import bookie_rpc_pb2 as pb

VERSION = 2
ADDENTRY, READENTRY, AUTH, BATCH_READ = 1, 2, 3, 7
DO_FENCING, RECOVERY_ADD, HIGH_PRIORITY = 1, 2, 4

_PRIORITY = 100  # the priority in version 3 that HIGH_PRIORITY stands for
_HEADER_BYTES = 4
_READ_BYTES = _HEADER_BYTES + 16
_ENTRY_AT = _HEADER_BYTES + LEDGER_KEY_BYTES
_ADD_BYTES_MIN = _ENTRY_AT + 16
_ANSWER_BYTES = 24
_IDS = struct.Struct(">qq")
_LONE_ADD = struct.Struct(f">II{LEDGER_KEY_BYTES}sqq")
_LONE_ADD_WORD = VERSION << 24 | ADDENTRY << 16
_LONE_BODY_AT = LENGTH_BYTES + _ENTRY_AT
_BATCH = struct.Struct(">qqqiq")
_ANSWER = struct.Struct(">Iiqq")
_FRAMED_ANSWER = struct.Struct(">IIiqq")
_BATCH_ANSWER = struct.Struct(">Iiqqq")


def _header(word: int) -> tuple[int, int, int]:
    """Return the version, the operation and the flags in a packet's header."""
    version = word >> 24
    return (version, word >> 16 & 0xFF, word & 0xFFFF) if version else (0, word & 0xFF, 0)


def _too_short(what: str, length: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"{what} of version 2 is too short", value=f"{length} bytes")


# ── requests, as a bookie reads them ──


def read_requests_of(cut: CutFrames, first: int = 0) -> Found[Single | BatchRead]:
    """Read the requests in the frames from number ``first`` on."""
    buffer, begins, lengths, rows = cut
    if begins.size - first <= FEW_FRAMES:
        return read_singly(cut, range(first, begins.size), read_request)
    begins, lengths, rows = begins[first:], lengths[first:], rows[:, first:]
    heads = gather(np.frombuffer(buffer, dtype=np.uint8), begins, _ADD_BYTES_MIN)
    versions, operations, flags = _headers(heads)
    served = versions <= VERSION
    adds = served & (operations == ADDENTRY) & (lengths >= _ADD_BYTES_MIN)
    reads = served & (operations == READENTRY) & (lengths >= _READ_BYTES) & (flags & DO_FENCING == 0)
    rows[TXN] = versions
    rows[KIND] = adds * ADD + reads * READ
    rows[PRIORITY] = (flags & HIGH_PRIORITY != 0) * _PRIORITY
    rows[RECOVERY] = adds & (flags & RECOVERY_ADD != 0)
    rows[LEDGER] = _chosen(adds, heads, _ENTRY_AT, _HEADER_BYTES)
    rows[ENTRY] = _chosen(adds, heads, _ENTRY_AT + 8, _HEADER_BYTES + 8)
    rows[KEY_AT], rows[KEY_BYTES] = (begins + _HEADER_BYTES) * adds, adds * LEDGER_KEY_BYTES
    rows[BODY_AT], rows[BODY_BYTES] = (begins + _ENTRY_AT) * adds, (lengths - _ENTRY_AT) * adds
    return read_singly(cut, (np.flatnonzero(~(adds | reads)) + first).tolist(), read_request)


def _headers(heads: U8) -> tuple[I64, I64, I64]:
    words = column(heads, 0, ">u4")
    versions = words >> 24
    plain = versions == 0
    if plain.any():
        return versions, np.where(plain, words & 0xFF, words >> 16 & 0xFF), np.where(plain, 0, words & 0xFFFF)
    return versions, words >> 16 & 0xFF, words & 0xFFFF


def _chosen(adds: np.ndarray[Any, np.dtype[np.bool_]], heads: U8, of_add: int, of_read: int) -> I64:
    """Return the 64-bit number at byte ``of_add`` of each add, and at byte ``of_read`` of all other requests."""
    if adds.all():
        return column(heads, of_add, ">i8")
    return np.where(adds, column(heads, of_add, ">i8"), column(heads, of_read, ">i8"))


def read_request(data: memoryview, begin: int, frame: int, row: Column) -> Single | BatchRead | None:
    """Read one request (a :data:`~bk_core.wire.bookie_rpc.runs.ReadOne`). Raises RemoteProtocolError for a request at
    which Apache's bookies close the connection."""
    if len(data) < _HEADER_BYTES:
        raise _too_short("a request", len(data))
    version, operation, flags = _header(int.from_bytes(data[:_HEADER_BYTES], "big"))
    status = Status.EOK if version <= VERSION else Status.EBADVERSION
    if operation == ADDENTRY:
        return _read_add(data, begin, frame, row, (version, flags, status))
    if operation == READENTRY:
        return _read_read(data, frame, row, (version, flags, status))
    if operation == BATCH_READ:
        if len(data) < _HEADER_BYTES + _BATCH.size:
            raise _too_short("a batch read", len(data))
        ledger_id, entry_id, request_id, count, size = _BATCH.unpack_from(data, _HEADER_BYTES)
        fencing, key = _key_of(data, flags, version, _HEADER_BYTES + _BATCH.size)
        urgent = flags & HIGH_PRIORITY != 0
        ids = (ledger_id, entry_id, request_id, count, size)
        return BatchRead(frame, version, *ids, fencing=fencing, high_priority=urgent, key=key, status=status)
    if operation == AUTH:
        asked = _request(version, pb.AUTH)
        asked.authRequest.CopyFrom(_auth_message(data[_HEADER_BYTES:]))
        return Single(frame, asked)
    raise RemoteProtocolError("an operation that version 2 does not have", value=f"{operation}, version {version}")


def lone_add(received: memoryview) -> LoneAdd | None:
    """Read a buffer that holds exactly one normal add of version 2 without flags. Return None for anything else, which
    :func:`read_request` then reads."""
    size = len(received)
    if not _LONE_ADD.size <= size <= FRAME_BYTES_MAX:
        return None
    length, word, key, ledger_id, entry_id = _LONE_ADD.unpack_from(received)
    if word != _LONE_ADD_WORD or length != size - LENGTH_BYTES:
        return None
    return VERSION, ledger_id, entry_id, False, key, received[_LONE_BODY_AT:]


def _read_add(data: memoryview, begin: int, frame: int, row: Column, head: tuple[int, int, Status]) -> Single | None:
    version, flags, status = head
    if len(data) < _ADD_BYTES_MIN:
        raise _too_short("an add", len(data))
    ledger_id, entry_id = _IDS.unpack_from(data, _ENTRY_AT)
    if status is not Status.EOK:
        asked = _request(version, pb.ADD_ENTRY)
        asked.addRequest.ledgerId, asked.addRequest.entryId = ledger_id, entry_id
        return Single(frame, asked, status)
    row[KIND], row[TXN], row[LEDGER], row[ENTRY] = ADD, version, ledger_id, entry_id
    row[PRIORITY] = _PRIORITY if flags & HIGH_PRIORITY else 0
    row[RECOVERY] = flags & RECOVERY_ADD != 0
    row[KEY_AT], row[KEY_BYTES] = begin + _HEADER_BYTES, LEDGER_KEY_BYTES
    row[BODY_AT], row[BODY_BYTES] = begin + _ENTRY_AT, len(data) - _ENTRY_AT
    return None


def _read_read(data: memoryview, frame: int, row: Column, head: tuple[int, int, Status]) -> Single | None:
    version, flags, status = head
    if len(data) < _READ_BYTES:
        raise _too_short("a read", len(data))
    ledger_id, entry_id = _IDS.unpack_from(data, _HEADER_BYTES)
    fencing, key = _key_of(data, flags, version, _READ_BYTES)
    if fencing or status is not Status.EOK:
        asked = _request(version, pb.READ_ENTRY, flags)
        asked.readRequest.ledgerId, asked.readRequest.entryId = ledger_id, entry_id
        if fencing:
            asked.readRequest.flag = pb.ReadRequest.FENCE_LEDGER
        if key:
            asked.readRequest.masterKey = key
        return Single(frame, asked, status)
    row[KIND], row[TXN], row[LEDGER], row[ENTRY] = READ, version, ledger_id, entry_id
    row[PRIORITY] = _PRIORITY if flags & HIGH_PRIORITY else 0
    return None


def _key_of(data: memoryview, flags: int, version: int, at: int) -> tuple[bool, bytes]:
    """Return whether a read fences, and its ledger key. Versions below 2 have no key. Versions from 128 on have none
    either, because Apache's bookies read the version as a signed byte."""
    fencing = flags & DO_FENCING != 0
    if not fencing or not VERSION <= version < 0x80:
        return fencing, b""
    if len(data) < at + LEDGER_KEY_BYTES:
        raise _too_short("a fencing read", len(data))
    return True, bytes(data[at : at + LEDGER_KEY_BYTES])


def _request(version: int, operation: pb.OperationType, flags: int = 0) -> pb.Request:
    asked = pb.Request()
    asked.header.version = pb.VERSION_TWO
    asked.header.operation = operation
    asked.header.txnId = version
    if flags & HIGH_PRIORITY:
        asked.header.priority = _PRIORITY
    return asked


def _auth_message(data: memoryview) -> pb.AuthMessage:
    try:
        message = pb.AuthMessage.FromString(bytes(data))
    except DecodeError as error:
        raise RemoteProtocolError("a packet has no AuthMessage", value=str(error)) from None
    if not message.IsInitialized():
        raise RemoteProtocolError("an AuthMessage lacks required fields", value=f"{len(data)} bytes")
    return message


# ── answers, as a client reads them ──


def read_answers_of(cut: CutFrames) -> Found[WireAnswer | BatchAnswer]:
    """Read the answers in all frames."""
    buffer, begins, lengths, rows = cut
    if begins.size <= FEW_FRAMES:
        return read_singly(cut, range(begins.size), _read_answer)
    heads = gather(np.frombuffer(buffer, dtype=np.uint8), begins, _ANSWER_BYTES)
    versions, operations, _ = _headers(heads)
    statuses = from_v2(column(heads, 4, ">i4"))
    usual = (lengths >= _ANSWER_BYTES) & (statuses != UNKNOWN_CODE)
    adds, reads = usual & (operations == ADDENTRY), usual & (operations == READENTRY)
    rows[TXN], rows[KIND], rows[STATUS] = versions, adds * ADD + reads * READ, statuses
    rows[LEDGER], rows[ENTRY] = column(heads, 8, ">i8"), column(heads, 16, ">i8")
    if reads.any():
        found = reads & (statuses == Status.EOK)
        rows[BODY_AT] = (begins + _ANSWER_BYTES) * found
        rows[BODY_BYTES] = np.where(found, lengths - _ANSWER_BYTES, -1 * reads)
        rows[MAX_LAC] = rows[LAC_TIME] = ABSENT * reads.astype(np.int64)
    return read_singly(cut, np.flatnonzero(~(adds | reads)).tolist(), _read_answer)


def _read_answer(data: memoryview, begin: int, frame: int, row: Column) -> WireAnswer | BatchAnswer | None:
    """Read one answer. Raises RemoteProtocolError for an answer at which Java's client closes the connection."""
    if len(data) < _HEADER_BYTES:
        raise _too_short("an answer", len(data))
    version, operation, _ = _header(int.from_bytes(data[:_HEADER_BYTES], "big"))
    if operation == AUTH:
        told = pb.Response(status=pb.EOK, authResponse=_auth_message(data[_HEADER_BYTES:]))
        told.header.version, told.header.operation, told.header.txnId = pb.VERSION_TWO, pb.AUTH, version
        return WireAnswer(frame, told)
    if operation not in (ADDENTRY, READENTRY, BATCH_READ):
        raise RemoteProtocolError("an operation that version 2 does not have", value=f"{operation}, version {version}")
    if len(data) < (_BATCH_ANSWER.size if operation == BATCH_READ else _ANSWER_BYTES):
        raise _too_short("an answer", len(data))
    _, code, ledger_id, entry_id = _ANSWER.unpack_from(data)
    status = BY_CODE.get(code)
    if status is None:
        raise RemoteProtocolError("a status that version 2 does not have", value=str(code))
    if operation == BATCH_READ:
        cut = frames(data[_BATCH_ANSWER.size :], len(data))
        if cut.fault is not None or cut.used + _BATCH_ANSWER.size != len(data):
            raise RemoteProtocolError("entries of a batch do not fit their frame", value=f"{len(data)} bytes")
        bodies = Bodies(data[_BATCH_ANSWER.size :], cut.offsets, cut.lengths)
        request_id = _BATCH_ANSWER.unpack_from(data)[4]
        return BatchAnswer(frame, request_id, status, ledger_id, entry_id, bodies)
    row[KIND] = ADD if operation == ADDENTRY else READ
    row[TXN], row[LEDGER], row[ENTRY], row[STATUS] = version, ledger_id, entry_id, status
    if operation == READENTRY:
        row[MAX_LAC] = row[LAC_TIME] = ABSENT
        row[BODY_BYTES] = -1
        if status == Status.EOK:
            row[BODY_AT], row[BODY_BYTES] = begin + _ANSWER_BYTES, len(data) - _ANSWER_BYTES
    return None


# ── frames to send ──


def batch_read(asked: BatchRead) -> bytes:
    """Make the frame of a batch read; ``frame`` and ``status`` are ignored."""
    flags = (DO_FENCING if asked.fencing else 0) | (HIGH_PRIORITY if asked.high_priority else 0)
    ids = (asked.ledger_id, asked.first_entry_id, asked.request_id, asked.max_count, asked.max_bytes)
    return _framed(_word(asked.version, BATCH_READ, flags) + _BATCH.pack(*ids) + asked.key)


def auth(message: pb.AuthMessage, version: int = VERSION) -> bytes:
    """Make the frame of an AuthMessage. A request and an answer have the same form."""
    return _framed(_word(version, AUTH, 0) + message.SerializeToString())


def add_answers(txns: Ints, ledger_ids: Ints, entry_ids: I64, statuses: Ints = 0) -> bytes:
    """Make answers to adds, one for each entry id, joined."""
    return _answers(ADDENTRY, txns, ledger_ids, entry_ids, statuses)


def add_answer(txn: int, ledger_id: int, entry_id: int, status: int) -> bytes:
    """Make the answer to one add, with the same bytes as :func:`add_answers`."""
    return _answer(ADDENTRY, txn, ledger_id, entry_id, status)


def refused_reads(txns: Ints, ledger_ids: Ints, entry_ids: I64, statuses: Ints) -> bytes:
    """Make answers to reads that return no entry, one for each entry id, joined."""
    return _answers(READENTRY, txns, ledger_ids, entry_ids, statuses)


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
    only one buffer. ``max_lacs`` and ``lac_times`` are ignored, because version 2 carries neither the LAC nor its
    time."""
    count = len(bodies)
    pieces = [_words(READENTRY, txns, count), _codes(0, count), _i64(ledger_ids, count), _i64(entry_ids, count)]
    before = Rows(count, [_u32(bodies.sizes() + _ANSWER_BYTES), *pieces, *bodies.head_pieces()])
    return scatter(before, bodies, Rows(count, []), copy_below)


def batch_answer(asked: BatchRead, bodies: Bodies, *, copy_below: int = COPY_BELOW_BYTES) -> list[Buffer]:
    """Make the answer to a batch read that found at least one entry. The caller chooses the entries so that the frame
    does not exceed the limit of a frame."""
    sizes = bodies.sizes()
    length = _BATCH_ANSWER.size + LENGTH_BYTES * len(bodies) + int(np.sum(sizes))
    word = int.from_bytes(_word(asked.version, BATCH_READ, 0), "big")
    head = _BATCH_ANSWER.pack(word, 0, asked.ledger_id, asked.first_entry_id, asked.request_id)
    entries = scatter(
        Rows(len(bodies), [_u32(sizes), *bodies.head_pieces()]), bodies, Rows(len(bodies), []), copy_below
    )
    return [length.to_bytes(LENGTH_BYTES, "big") + head, *entries]


def refusal(asked: Single | BatchRead) -> bytes:
    """Make the frame that refuses a request. It carries the request's status and ids, and no entry."""
    code = int(to_v2(int(asked.status)))
    if isinstance(asked, BatchRead):
        word = int.from_bytes(_word(asked.version, BATCH_READ, 0), "big")
        return _framed(_BATCH_ANSWER.pack(word, code, asked.ledger_id, asked.first_entry_id, asked.request_id))
    request = asked.request
    adds = request.header.operation == pb.ADD_ENTRY
    ids = request.addRequest if adds else request.readRequest
    word = int.from_bytes(_word(request.header.txnId, ADDENTRY if adds else READENTRY, 0), "big")
    return _framed(_ANSWER.pack(word, code, ids.ledgerId, ids.entryId))


def _answers(operation: int, txns: Ints, ledger_ids: Ints, entry_ids: I64, statuses: Ints) -> bytes:
    count = entry_ids.size
    if count == 1:
        return _answer(operation, *map(only, (txns, ledger_ids, entry_ids, statuses)))
    pieces = [_words(operation, txns, count), _codes(statuses, count), _i64(ledger_ids, count)]
    return Rows(count, [_ANSWER_BYTES.to_bytes(LENGTH_BYTES, "big"), *pieces, _i64(entry_ids, count)]).joined()


def _answer(operation: int, version: int, ledger_id: int, entry_id: int, status: int) -> bytes:
    """Make one answer, with the same bytes as :func:`_answers`, but without arrays of one item."""
    word = version << 24 | operation << 16 if version else operation
    return _FRAMED_ANSWER.pack(_ANSWER_BYTES, word, int(to_v2(status)) if status else 0, ledger_id, entry_id)


def _framed(packet: bytes) -> bytes:
    return len(packet).to_bytes(LENGTH_BYTES, "big") + packet


def _word(version: int, operation: int, flags: int) -> bytes:
    word = version << 24 | operation << 16 | flags if version else operation
    return word.to_bytes(_HEADER_BYTES, "big")


def _words(operation: int, versions: Ints, count: int) -> bytes | U8:
    """Make the packet headers of answers: one header if all have the same version, otherwise one for each answer."""
    if isinstance(versions, int):
        return _word(versions, operation, 0)
    same = int(versions[0]) if count else VERSION
    if (versions == same).all():
        return _word(same, operation, 0)
    words = np.where(versions == 0, operation, versions.astype(np.int64) << 24 | operation << 16)
    return _u32(words)


def _codes(statuses: Ints, count: int) -> bytes | U8:
    return _u32(int(to_v2(statuses))) if isinstance(statuses, int) else _u32(to_v2(statuses.astype(np.int64)))


def _u32(values: Ints) -> bytes | U8:
    if isinstance(values, int):
        return values.to_bytes(4, "big")
    return values.astype(">u4").view(np.uint8).reshape(-1, 4)


def _i64(values: Ints, count: int) -> bytes | U8:
    if isinstance(values, int):
        return values.to_bytes(8, "big", signed=True)
    return values.astype(">i8").view(np.uint8).reshape(-1, 8)
