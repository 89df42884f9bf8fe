# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files of storage and the kept data directory ``data-v1``:
``PYTHONPATH=. python tests/golden/make_storage.py``.

They are final bytes (docs/formats.md §3): a small file that changes is a change of format. ``data-v1`` is made once and
kept, because every later version has to open what this one wrote; it is not made again while it is there. Everything is
fixed: incarnation, clock, content.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np

from bk_core.entries.apache import lac_body
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester, ledger_key
from bk_core.entries.frame import (
    FrameKind,
    decode_frame,
    encode_frame,
    encode_record,
    encode_striped,
    parse_header,
)
from bk_core.model import DigestType
from bookie_server.storage.bytes.index_file import IndexHeader, StateCollector
from bookie_server.storage.bytes.index_rows import index_row
from bookie_server.storage.bytes.segment import (
    GroupHeader,
    SegmentHeader,
    encode_group_header,
    encode_segment_header,
    group_seed,
)
from bookie_server.storage.disk.cookie import DataDirectory, Identity, encode_identity
from bookie_server.storage.start.replay import open_segments
from tests.kit.apache_frames import encode_apache, entry_bytes
from tests.kit.whole_files import encode_index_file

HERE = Path(__file__).parent
BOOKIE_ID, CLUSTER = "bookie-1.example:3181", "6a1e2f30-4b5c-4d6e-8f70-8192a3b4c5d6"
INCARNATION = "0f0e0d0c-0b0a-4908-8706-050403020100"
COOKIE_PATH = "/var/lib/bookie"
NOW_MS = 1_760_000_000_000
SEGMENT_BYTES = 128 << 10
PASSWORD = b"passwd"
DELETED, DENSE, STRIPED, SPARSE, LACS, APACHE, DROPPED, LIMBO, LENGTHS = 3, 17, 18, 19, 20, 21, 22, 23, 4294967313
"""Ledgers of the kept directory, by what is in them."""


def payload(ledger_id: int, entry_id: int) -> bytes:
    """The payload of every entry in the kept directory."""
    return f"ledger {ledger_id} entry {entry_id} ".encode() * (1 + entry_id % 7)


def digester(ledger_id: int, kind: DigestType = DigestType.CRC32C) -> Digester:
    return Digester(kind, PASSWORD, ledger_id)


def run(ledger_id: int, first: int, count: int, *, lac: int = -1, kind: DigestType = DigestType.CRC32C) -> bytes:
    """A dense frame."""
    batch = EntryBatch.from_list([payload(ledger_id, first + k) for k in range(count)])
    before = sum(len(payload(ledger_id, k)) for k in range(first))
    at = {"ledger_id": ledger_id, "first_entry_id": first, "lac": lac, "length_before": before}
    return bytes(encode_frame(batch, digester=digester(ledger_id, kind), **at))


def columns(ledger_id: int, ids: list[int], *, lacs: list[int] | None, lengths: bool) -> bytes:
    """A frame with the optional columns."""
    data = EntryBatch.from_list([payload(ledger_id, entry_id) for entry_id in ids])
    batch = EntryBatch(
        lengths=data.lengths,
        payload=data.payload,
        ledger_id=ledger_id,
        first_entry_id=min(ids),
        ids=None if ids == list(range(ids[0], ids[0] + len(ids))) else np.array(ids),
        lac=max(lacs) if lacs else -1,
        lacs=np.array(lacs) if lacs else None,
        length_before=0,
        ledger_lengths=np.cumsum(data.lengths, dtype=np.int64) if lengths else None,
    )
    return bytes(encode_frame(batch, digester=digester(ledger_id)))


def stripe(first: int, span: int, index: int) -> bytes:
    """What ensemble index ``index`` of E 3, Qw 2 holds of a span."""
    whole = decode_frame(run(STRIPED, first, span, lac=first - 1))
    assert whole.digests is not None
    frame = encode_striped(
        EntryBatch(lengths=whole.lengths, payload=whole.payload),
        ledger_id=STRIPED,
        first_entry_id=first,
        lac=first - 1,
        length_before=whole.length_before,
        digest_type=DigestType.CRC32C,
        digests=whole.digests,
        ensemble_size=3,
        write_quorum=2,
        index=index,
    )
    assert frame is not None
    return bytes(frame)


def apache(first: int, count: int) -> bytes:
    """Entries kept in Apache's own layout."""
    batch = decode_frame(run(APACHE, first, count, lac=first - 1))
    return bytes(encode_apache(APACHE, list(entry_bytes(batch, digester(APACHE)))))


def dropped(ledger_id: int, generation: int) -> bytes:
    return encode_record(FrameKind.COPY_DROPPED, ledger_id, generation.to_bytes(8, "little"))


def key(ledger_id: int) -> bytes:
    return encode_record(FrameKind.LEDGER_KEY, ledger_id, ledger_key(PASSWORD))


def groups() -> list[list[bytes]]:
    """The content, group by group: every kind of frame and record, small frames and large ones."""
    first: list[list[bytes]] = [
        [key(ledger_id) for ledger_id in (DELETED, DENSE, STRIPED, SPARSE, LACS, APACHE, DROPPED, LIMBO, LENGTHS)],
        [run(DELETED, 0, 5), run(DENSE, 0, 100), stripe(0, 40, 1), run(DROPPED, 0, 20), run(LIMBO, 0, 10)],
        [
            columns(SPARSE, [9, 4, 30, 5], lacs=None, lengths=True),
            columns(LACS, [0, 1, 2, 3], lacs=[-1, 0, 0, 2], lengths=False),
        ],
        [apache(0, 6), columns(LENGTHS, [7, 8, 9], lacs=None, lengths=True)],
        [run(DENSE, 100, 900, lac=99)],
        [encode_record(FrameKind.FENCE, STRIPED), encode_record(FrameKind.DELETED, DELETED)],
        [encode_record(FrameKind.LIMBO, LIMBO)],
        [run(LIMBO, 10, 5)],
        [encode_record(FrameKind.LAC, DENSE, lac_body(lac, digester(DENSE))) for lac in (500, 999)],
        [run(DENSE, 1000, 5, lac=999, kind=DigestType.MAC), run(DENSE, 1005, 5, kind=DigestType.CRC32)],
    ]
    second = [[run(DENSE, 1010 + 50 * k, 50, lac=1009 + 50 * k), run(DROPPED, 20 + k, 1)] for k in range(12)]
    third = [
        [run(DENSE, 200, 10), stripe(40, 40, 1)],  # re-added entries overlap what stands there
        [dropped(DROPPED, 1), run(LIMBO, 15, 1), run(DROPPED, 32, 1)],
        [run(DENSE, 1610, 3, lac=1609, kind=DigestType.DUMMY)],
    ]
    return [*first, *second, *third]


def make_directory(path: Path) -> None:
    """The kept directory: sealed segments and one that a crash left, with a group above its durable position."""
    directory = DataDirectory.create(str(path), BOOKIE_ID, CLUSTER, incarnation=INCARNATION, cookie_paths=[COOKIE_PATH])
    _, log, _ = open_segments(directory, segment_size_bytes=SEGMENT_BYTES, now_ms=lambda: NOW_MS)
    for number, frames in enumerate(groups()):
        log.append_group(frames)
        log.release_full()
        while log.seal_next() is not None:
            pass
        if number % 8 == 7:
            log.record_position()
    log.close(record=False)
    directory.close()
    for left in (path / "LOCK", *(path / "segments").glob("*.tmp")):
        left.unlink()


def golden_files() -> dict[str, bytes]:
    """Name to bytes of the small golden files."""
    identity = Identity(BOOKIE_ID, CLUSTER, INCARNATION, 42)
    incarnation = identity.incarnation_bytes
    segment = SegmentHeader(0x1234, incarnation, 256 << 20, NOW_MS, 42, 0x1230, BOOKIE_ID)
    return {
        "segment-header.bin": encode_segment_header(segment),
        "group-header.bin": encode_group_header(
            GroupHeader(0x1234, 5, 3 << 12, 7, 9 << 12, 8 << 12), group_seed(incarnation)
        ),
        "group-header-idle.bin": encode_group_header(
            GroupHeader(0x1234, 6, 1 << 12, 0, 12 << 12, 12 << 12), group_seed(incarnation)
        ),
        "segment.idx": index_file(incarnation),
        "IDENTITY": encode_identity(identity),
    }


def index_file(incarnation: bytes) -> bytes:
    """An ``.idx`` of 78 frames, which is two blocks: 8 of them are two runs, one frame is striped. A state record of
    every kind."""
    rows, states = bytearray(), StateCollector()
    frames = [run(DENSE, 10 * k, 10, lac=10 * k - 1) for k in range(66)]
    frames += [
        run(DENSE, 100, 300),
        stripe(0, 40, 1),
        columns(SPARSE, [9, 4, 30], lacs=None, lengths=True),
        apache(0, 2),
    ]
    for number, frame in enumerate(reversed(frames)):
        header = parse_header(frame)
        rows += index_row(frame, header, 8192 + 4096 * number)
    for number, frame in enumerate(run(LENGTHS, 5 * k, 5, lac=k) for k in range(8)):
        header = parse_header(frame)
        offset = (6 << 16) - 4096 + 1024 * number  # four on either side of a window's border
        rows += index_row(frame, header, offset)
    for kind in FrameKind:
        if kind != FrameKind.ENTRIES:
            states.add(DENSE, kind, record_payload(kind))
    return encode_index_file(IndexHeader(0x1234, incarnation, 400 << 10, 79), rows, states.rows())


def record_payload(kind: FrameKind) -> bytes:
    if kind == FrameKind.LEDGER_KEY:
        return ledger_key(PASSWORD)
    if kind == FrameKind.LAC:
        return lac_body(649, digester(DENSE, DigestType.MAC))
    return (0x1200).to_bytes(8, "little") if kind == FrameKind.COPY_DROPPED else b""


def main() -> None:
    for name, data in golden_files().items():
        (HERE / name).write_bytes(data)
    target = HERE / "data-v1"
    if not target.exists():
        with tempfile.TemporaryDirectory() as scratch:
            make_directory(Path(scratch) / "data-v1")
            shutil.copytree(Path(scratch) / "data-v1", target)


if __name__ == "__main__":
    main()
