# SPDX-License-Identifier: Apache-2.0
"""Makes objects from entries as Pulsar's jcloud offloader writes them, according to Pulsar's sources. ``tests/golden``
has an object that Pulsar itself made."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

from bk_core.pulsar.offloaded import blocks

FILL = b"\xfe\xdc\xde\xad"
HEAD_BYTES = 128
RECORD = b"record of the ledger"


def uuid_of(number: int) -> UUID:
    return UUID(int=number << 100 | 7)


def offload(
    ledgers: Mapping[int, Sequence[bytes]], block_bytes: int, *, streaming: bool = False, fill: int = 0
) -> tuple[bytes, bytes]:
    """Return a data object with these ledgers, and its index object. The last block of a ledger ends ``fill`` bytes
    behind its last entry. Only a streaming offloader puts several ledgers into one object."""
    data, rows = b"", dict[int, list[tuple[int, int, int]]]()
    for ledger_id, entries in ledgers.items():
        for first, bodies in _blocks(entries, block_bytes):
            body = b"".join(struct.pack(">iq", len(each), first + n) + each for n, each in enumerate(bodies))
            is_last = first + len(bodies) == len(entries)
            size = HEAD_BYTES + len(body) + fill if is_last else block_bytes
            rest = size - HEAD_BYTES - len(body)
            rows.setdefault(ledger_id, []).append((first, len(data) + 1, len(data)))
            data += _head(size, first, ledger_id, streaming=streaming) + body + (FILL * (rest // 4 + 1))[:rest]
    return data, index_of(rows, len(data), streaming=streaming)


def _blocks(entries: Sequence[bytes], block_bytes: int) -> list[tuple[int, list[bytes]]]:
    found, room = list[tuple[int, list[bytes]]](), 0
    for entry_id, entry in enumerate(entries):
        if not found or len(entry) + 12 > room:
            found.append((entry_id, []))
            room = block_bytes - HEAD_BYTES
        found[-1][1].append(entry)
        room -= len(entry) + 12
    return found


def _head(size: int, first: int, ledger_id: int, *, streaming: bool) -> bytes:
    magic = blocks.STREAMING_BLOCK_MAGIC if streaming else blocks.BLOCK_MAGIC
    head = struct.pack(">IQQQ", magic, HEAD_BYTES, size, first) + (struct.pack(">Q", ledger_id) if streaming else b"")
    return head.ljust(HEAD_BYTES, b"\0")


def index_of(rows: Mapping[int, Sequence[tuple[int, int, int]]], object_bytes: int, *, streaming: bool) -> bytes:
    """Return an index object. A row has the first entry, the part and the offset of a block."""
    body = b""
    for ledger_id, of_ledger in rows.items():
        body += struct.pack(">Q", ledger_id) if streaming else b""
        body += struct.pack(">II", len(of_ledger), len(RECORD)) + RECORD
        body += b"".join(struct.pack(">qiq", *row) for row in of_ledger)
    magic = blocks.STREAMING_INDEX_MAGIC if streaming else blocks.INDEX_MAGIC
    return struct.pack(">IIQQ", magic, 24 + len(body), object_bytes, HEAD_BYTES) + body


def put(folder: Path, name: str, objects: tuple[bytes, bytes]) -> None:
    """Write a data object and its index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(objects[0])
    (folder / f"{name}-index").write_bytes(objects[1])
