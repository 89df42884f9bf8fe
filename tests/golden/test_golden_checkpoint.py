# SPDX-License-Identifier: Apache-2.0
"""The golden checkpoint is still what we write, and reads field by field as docs/formats.md §3.6 says."""

from __future__ import annotations

import runpy
import struct
from pathlib import Path

from bookie_server.storage.index.checkpoint import Checkpoint
from tests.kit.whole_files import decode_checkpoint, encode_checkpoint

HERE = Path(__file__).parent
MAKER = runpy.run_path(str(HERE / "make_checkpoint.py"))
DATA = (HERE / "checkpoint.bin").read_bytes()


def test_the_codec_still_writes_the_golden_bytes() -> None:
    assert encode_checkpoint(MAKER["golden_checkpoint"]()) == DATA


def test_the_golden_checkpoint_is_read() -> None:
    read, written = decode_checkpoint(DATA), MAKER["golden_checkpoint"]()
    assert isinstance(read, Checkpoint)
    assert (read.number, read.incarnation, read.through) == (0x1234, MAKER["INCARNATION"], 0x4567)
    assert read.ledgers.tobytes() == written.ledgers.tobytes()
    assert read.deleted.tolist() == [[0, 16], [70, 70], [1000, 4294967312]]
    assert read.segments == (2, 3, 0x4500, 0x4567)


def test_offsets_are_those_of_the_document() -> None:
    """Read as another program would."""
    assert DATA[:8] == b"BKCHKPT1"
    assert struct.unpack_from("<II", DATA, 8) == (1, 4096)
    assert struct.unpack_from("<Q", DATA, 16) == (0x1234,)
    assert DATA[24:40] == MAKER["INCARNATION"]
    assert struct.unpack_from("<7Q", DATA, 40) == (0x4567, 2, 54, 1, 3, 1, 4)
    assert len(DATA) == 5 * 4096
    records = [DATA[4096 + 80 * k :][:80] for k in range(50)] + [DATA[8192 + 80 * k :][:80] for k in range(4)]
    assert [struct.unpack_from("<I", DATA, 4096 * k + 4032)[0] for k in (1, 2, 3, 4)] == [50, 4, 3, 4]
    ledger_ids = [struct.unpack_from("<q", record)[0] for record in records]
    assert ledger_ids == sorted(ledger_ids)
    assert (records[0][76], records[1][76], records[2][76]) == (1, 5, 3)
    assert records[5][56:76] == bytes([5]) * 20
    assert (records[3][77], records[3][16:36]) == (20, bytes(range(100, 120)))
    assert [struct.unpack_from("<Q", record, 8)[0] for record in records[50:]] == [0, 0x4566, 7, 0]
    assert [struct.unpack_from("<BBH", record, 76) for record in records[50:]] == [
        (24, 0, 0),
        (12, 0, 0),
        (24, 0, 0),
        (24, 0, 0),
    ]
    assert struct.unpack_from("<6q", DATA, 3 * 4096) == (0, 16, 70, 70, 1000, 4294967312)
    assert struct.unpack_from("<8Q", DATA, 4 * 4096) == (2, 0, 3, 0, 0x4500, 0, 0x4567, 0)
