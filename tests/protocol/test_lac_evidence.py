# SPDX-License-Identifier: Apache-2.0
"""Evidence of a LAC: what no digest covers proves nothing, and what is no entry is no evidence (RULES P5)."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester, crc32c
from bk_core.entries.frame import encode_frame, encode_record, parse_header
from bk_core.errors import IntegrityError
from bk_core.model import DigestType
from bk_core.protocol import events as ev
from bk_core.protocol.ends.lac import verified_lac
from tests.protocol.kit import LEDGER

MAC = Digester(DigestType.MAC, b"secret", LEDGER)


@pytest.mark.rule("P5")
def test_a_lac_that_stands_beside_the_digested_one_proves_nothing() -> None:
    listed = EntryBatch(
        lengths=np.array([2], dtype=np.uint32),
        payload=memoryview(b"xy"),
        ledger_id=LEDGER,
        first_entry_id=5,
        lac=3,
        lacs=np.array([3], dtype=np.int64),
    )
    frame = encode_frame(listed, digester=MAC)
    assert verified_lac(ev.LacAnswered(0, frame), MAC)[0] == 3
    struct.pack_into("<q", frame, 24, 1_000)  # the header's LAC, which no digest covers
    columns_end = 64 + parse_header(frame).columns_bytes
    struct.pack_into("<I", frame, 52, crc32c(bytes(frame[64:columns_end]), crc32c(bytes(frame[:52]))))
    with pytest.raises(IntegrityError, match="LAC"):
        verified_lac(ev.LacAnswered(0, frame), MAC)


@pytest.mark.rule("P5")
def test_a_record_or_several_frames_are_no_evidence() -> None:
    one = bytes(encode_frame(EntryBatch.from_list([b"x"]), digester=MAC, ledger_id=LEDGER, first_entry_id=0, lac=-1))
    for frame in (encode_record(3, LEDGER), one + one, one[:-1]):
        with pytest.raises(IntegrityError):
            verified_lac(ev.LacAnswered(0, frame), MAC)
