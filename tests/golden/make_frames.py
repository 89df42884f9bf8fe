# SPDX-License-Identifier: Apache-2.0
"""Writes the golden frames, ``frame-*.bin``, beside this file: ``PYTHONPATH=. python tests/golden/make_frames.py``.

They are final bytes (docs/formats.md §1): a run of this script that changes one is a change of format.
"""

from __future__ import annotations

from dataclasses import replace
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
    with_session,
)
from bk_core.model import DigestType
from tests.kit.apache_frames import encode_apache, entry_bytes

LEDGER_ID = 4294967313
PASSWORD = b"passwd"
PAYLOADS = [b"hello", b"", b"BookKeeper", bytes(range(256)), b"\x00", b"last"]
AT = {"ledger_id": LEDGER_ID, "first_entry_id": 1000, "lac": 997, "length_before": 123456789}


def digester(digest_type: DigestType = DigestType.CRC32C) -> Digester:
    return Digester(digest_type, PASSWORD, LEDGER_ID)


def entries_frames() -> dict[str, bytes]:
    """Every form of an ENTRIES frame."""
    batch, crc = EntryBatch.from_list(PAYLOADS), digester()
    frames: dict[str, bytes | bytearray | None] = {
        f"plain-{kind.name.lower()}": encode_frame(batch, digester=digester(kind), session=7, **AT)
        for kind in DigestType
    }
    numbered = decode_frame(bytes(frames["plain-crc32c"] or b""))
    lacs = np.array([995, 995, 996, 996, 997, 997])
    frames["lacs"] = encode_frame(replace(batch, lacs=lacs, lac=997), digester=crc, **AT)
    frames["ids"] = encode_frame(numbered.select(np.array([0, 2, 3, 5])), digester=None)
    odd = replace(batch, ids=np.array([1005, 1000, 1003, 1009, 1001, 1002]))
    frames["ids-only"] = encode_frame(odd, digester=crc, **AT)
    sums = np.cumsum(batch.lengths, dtype=np.int64)
    frames["ledger-lengths"] = encode_frame(replace(batch, ledger_lengths=5_000_000 + 2 * sums), digester=crc, **AT)
    frames["striped-lacs"] = encode_striped(
        replace(batch, lacs=lacs, lac=997),
        digest_type=DigestType.CRC32C,
        digests=crc.for_batch(replace(numbered, lacs=lacs)),
        ensemble_size=3,
        write_quorum=2,
        index=1,
        **AT,
    )
    for index in range(5):
        frames[f"striped-{index}"] = encode_striped(
            batch,
            digest_type=DigestType.CRC32C,
            digests=crc.for_batch(numbered),
            ensemble_size=5,
            write_quorum=2,
            index=index,
            **AT,
        )
    frames["apache-bytes"] = encode_apache(LEDGER_ID, list(entry_bytes(numbered, crc)))
    frames["apache-bytes-ids"] = encode_apache(LEDGER_ID, list(entry_bytes(numbered.select(np.array([1, 4])), crc)))
    return {name: bytes(frame) for name, frame in frames.items() if frame is not None}


def record_frames() -> dict[str, bytes]:
    """Every kind of record."""
    frames = {
        "ledger_key": encode_record(FrameKind.LEDGER_KEY, LEDGER_ID, ledger_key(PASSWORD)),
        "fence": encode_record(FrameKind.FENCE, LEDGER_ID),
        "deleted": encode_record(FrameKind.DELETED, LEDGER_ID),
        "limbo": encode_record(FrameKind.LIMBO, LEDGER_ID),
        "copy_dropped": encode_record(FrameKind.COPY_DROPPED, LEDGER_ID, (0x123456789A).to_bytes(8, "little")),
    }
    for kind in DigestType:
        frames[f"lac-{kind.name.lower()}"] = encode_record(FrameKind.LAC, LEDGER_ID, lac_body(997, digester(kind)))
    return {f"record-{name}": with_session(frame, 0xA1B2C3D4) for name, frame in frames.items()}


def golden_frames() -> dict[str, bytes]:
    """File name to bytes."""
    return {f"frame-{name}.bin": frame for name, frame in (entries_frames() | record_frames()).items()}


if __name__ == "__main__":
    for name, frame in golden_frames().items():
        (Path(__file__).parent / name).write_bytes(frame)
