# SPDX-License-Identifier: Apache-2.0
"""Requests of Apache's wire in both versions, one frame each, for tests that make thousands of them."""

from __future__ import annotations

import random
import struct
from typing import Any, Protocol

from crc32c import crc32c

from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.bodies import COPY_BELOW_BYTES, Bodies, scatter
from bk_core.wire.bookie_rpc.columns import Ints, Rows
from bk_core.wire.bookie_rpc.frames import I64, Buffer
from bk_core.wire.bookie_rpc.runs import BatchRead
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from tests.kit.bookie_wire import KEY, frame

OTHER_KEY = bytes(20)
_HEADER = struct.Struct(">qqqq")
_LAC = struct.Struct(">qq")


class Wire(Protocol):
    """The functions that tests call in the modules of both versions, v3 and v2."""

    def add_answers(self, txns: Ints, ledger_ids: Ints, entry_ids: I64, statuses: Ints = 0) -> bytes: ...
    def read_answers(
        self, txns: Ints, ledger_ids: Ints, entry_ids: Ints, bodies: Bodies, *, max_lacs: Ints | None = None
    ) -> list[Buffer]: ...


def entry(ledger_id: int, entry_id: int, payload: bytes, *, lac: int = -1, length: int = 0) -> bytes:
    """Make an entry with its CRC32C."""
    header = _HEADER.pack(ledger_id, entry_id, lac, length)
    return header + crc32c(payload, crc32c(header)).to_bytes(4, "big") + payload


def lac_body(ledger_id: int, lac: int) -> bytes:
    body = _LAC.pack(ledger_id, lac)
    return body + crc32c(body).to_bytes(4, "big")


def add(
    wire: int,
    txn: int,
    ids: tuple[int, int],
    body: bytes,
    *,
    key: bytes = KEY,
    recovery: bool = False,
    priority: int = 0,
    deferred: bool = False,
) -> bytes:
    """Make an add. ``ids`` are the ids beside the entry, which version 2 does not have."""
    if wire == 2:
        flags = (v2.RECOVERY_ADD if recovery else 0) | (v2.HIGH_PRIORITY if priority else 0)
        return frame(v2._word(v2.VERSION, v2.ADDENTRY, flags) + key + body)
    made = v3.request(pb.ADD_ENTRY, txn, priority)
    asked = made.addRequest
    asked.ledgerId, asked.entryId = ids
    asked.masterKey, asked.body = key, body
    if recovery:
        asked.flag = pb.AddRequest.RECOVERY_ADD
    if deferred:
        asked.writeFlags = 1
    return v3.framed(made)


def read(
    wire: int,
    txn: int,
    ids: tuple[int, int],
    *,
    fence_key: bytes | None = None,
    poll: tuple[int, int | None] | None = None,
    piggyback: bool = False,
    priority: int = 0,
) -> bytes:
    """Make a read. ``poll`` is the known LAC, and the milliseconds to wait for a greater one. Version 2 has no
    polls."""
    if wire == 2:
        flags = (v2.DO_FENCING if fence_key is not None else 0) | (v2.HIGH_PRIORITY if priority else 0)
        return frame(v2._word(v2.VERSION, v2.READENTRY, flags) + struct.pack(">qq", *ids) + (fence_key or b""))
    made = v3.request(pb.READ_ENTRY, txn, priority)
    asked = made.readRequest
    asked.ledgerId, asked.entryId = ids
    if fence_key is not None:
        asked.flag, asked.masterKey = pb.ReadRequest.FENCE_LEDGER, fence_key
    if piggyback:
        asked.flag = pb.ReadRequest.ENTRY_PIGGYBACK
    if poll is not None:
        asked.previousLAC = poll[0]
        if poll[1] is not None:
            asked.timeOut = poll[1]
    return v3.framed(made)


def batch(request_id: int, ids: tuple[int, int], count: int, size: int, *, fence_key: bytes | None = None) -> bytes:
    """Make a batch read of version 2."""
    key = fence_key or b""
    return v2.batch_read(BatchRead(0, 2, *ids, request_id, count, size, fencing=fence_key is not None, key=key))


def force(txn: int, ledger_id: int) -> bytes:
    made = v3.request(pb.FORCE_LEDGER, txn)
    made.forceLedgerRequest.ledgerId = ledger_id
    return v3.framed(made)


def read_lac(txn: int, ledger_id: int) -> bytes:
    made = v3.request(pb.READ_LAC, txn)
    made.readLacRequest.ledgerId = ledger_id
    return v3.framed(made)


def write_lac(txn: int, ledger_id: int, lac: int, body: bytes, key: bytes = KEY) -> bytes:
    made = v3.request(pb.WRITE_LAC, txn)
    asked = made.writeLacRequest
    asked.ledgerId, asked.lac, asked.masterKey, asked.body = ledger_id, lac, key, body
    return v3.framed(made)


def list_entries(txn: int, ledger_id: int) -> bytes:
    made = v3.request(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, txn)
    made.getListOfEntriesOfLedgerRequest.ledgerId = ledger_id
    return v3.framed(made)


def info(txn: int, requested: int | None = 3) -> bytes:
    made = v3.request(pb.GET_BOOKIE_INFO, txn)
    made.getBookieInfoRequest.SetInParent()
    if requested is not None:
        made.getBookieInfoRequest.requested = requested
    return v3.framed(made)


def start_tls(txn: int) -> bytes:
    made = v3.request(pb.START_TLS, txn)
    made.startTLSRequest.SetInParent()
    return v3.framed(made)


def auth(wire: int, txn: int, plugin: str = "any", payload: bytes = b"token") -> bytes:
    message = pb.AuthMessage(authPluginName=plugin, payload=payload)
    if wire == 2:
        return v2.auth(message)
    made = v3.request(pb.AUTH, txn)
    made.authRequest.CopyFrom(message)
    return v3.framed(made)


def some_request(rng: random.Random, wire: int, txn: int, ledgers: int, entries: int) -> bytes:
    """Make a random request about one of a few ledgers and entries."""
    ids = rng.randrange(ledgers), rng.randrange(entries)
    key = OTHER_KEY if rng.random() < 0.03 else KEY
    kind = rng.choices(range(10), (40, 20, 5, 4, 3, 3, 3, 2, 1, 1))[0]
    if kind == 0 or (wire == 2 and kind in (4, 5, 6, 7, 8)):
        body = entry(*ids, rng.randbytes(rng.choice((0, 9, 9, 200))), lac=rng.randrange(-1, entries))
        return add(wire, txn, ids, body, key=key, recovery=rng.random() < 0.2, priority=rng.choice((0, 0, 100)))
    if kind == 1:
        return read(wire, txn, ids)
    if kind == 2:
        return read(wire, txn, (ids[0], -1))
    if kind == 3:
        return read(wire, txn, (ids[0], rng.choice((-1, ids[1]))), fence_key=key)
    if kind == 4:
        piggyback = rng.random() < 0.7
        at = -1 if piggyback or rng.random() < 0.5 else ids[1]
        return read(
            wire, txn, (ids[0], at), poll=(rng.randrange(-1, entries), rng.choice((0, 50))), piggyback=piggyback
        )
    if kind == 5:
        return write_lac(txn, ids[0], ids[1], lac_body(*ids), key)
    if kind == 6:
        return read_lac(txn, ids[0])
    if kind == 7:
        return rng.choice((force, list_entries))(txn, ids[0])
    if kind == 8:
        return rng.choice((info, start_tls))(txn)
    return auth(wire, txn) if wire == 3 else batch(txn, ids, rng.choice((0, 5)), rng.choice((0, 300)))


def fencing_read(ledger_id: int, entry_id: int, key: bytes, *, priority: int = 0) -> bytes:
    """Make a read of version 2 that fences the ledger first. No client of ours sends such a read."""
    flags = v2.DO_FENCING | (v2.HIGH_PRIORITY if priority else 0)
    packet = struct.pack(">Iqq", v2.VERSION << 24 | v2.READENTRY << 16 | flags, ledger_id, entry_id) + key
    return len(packet).to_bytes(4, "big") + packet


def add_requests(
    wire: Wire, txns: Ints, ledger_ids: Ints, entry_ids: Ints, key: bytes, bodies: Bodies, **more: Any
) -> list[Buffer]:
    """Make adds as ``v3.add_requests`` does, in either version. Version 2 has only the ids inside the entries, which
    the answer names; it carries no ``txns`` and no ``write_flags``."""
    if wire is v3:
        return v3.add_requests(txns, ledger_ids, entry_ids, key, bodies, **more)
    flags = (v2.RECOVERY_ADD if more.get("recovery") else 0) | (v2.HIGH_PRIORITY if more.get("priority") else 0)
    head = v2._word(v2.VERSION, v2.ADDENTRY, flags) + key
    before = Rows(len(bodies), [v2._u32(bodies.sizes() + len(head)), head, *bodies.head_pieces()])
    return scatter(before, bodies, Rows(len(bodies), []), more.get("copy_below", COPY_BELOW_BYTES))


def read_requests(wire: Wire, txns: Ints, ledger_ids: Ints, entry_ids: I64, *, priority: int = 0) -> bytes:
    """Make reads as ``v3.read_requests`` does, in either version. In version 2 the answer names the ids."""
    if wire is v3:
        return v3.read_requests(txns, ledger_ids, entry_ids, priority=priority)
    head = v2._word(v2.VERSION, v2.READENTRY, v2.HIGH_PRIORITY if priority else 0)
    ids = [v2._i64(each, entry_ids.size) for each in (ledger_ids, entry_ids)]
    return Rows(entry_ids.size, [(len(head) + 16).to_bytes(4, "big") + head, *ids]).joined()
