# SPDX-License-Identifier: Apache-2.0
"""The frames that ``make_frames.py`` wrote are still the bytes we write, and still read."""

from __future__ import annotations

import runpy
import struct
from pathlib import Path
from typing import Any

import crc32c
import pytest

from bk_core.entries.digest import Digester
from bk_core.entries.frame import check_frame, decode_frame, record_payload, split_frames
from bk_core.model import DigestType

HERE = Path(__file__).parent
MAKER: dict[str, Any] = runpy.run_path(str(HERE / "make_frames.py"))
FILES = sorted(path.name for path in HERE.glob("frame-*.bin"))


def digester_of(name: str) -> Digester:
    kind = next((kind for kind in DigestType if name.endswith(f"plain-{kind.name.lower()}.bin")), DigestType.CRC32C)
    return MAKER["digester"](kind)


def test_encoders_still_write_the_golden_bytes() -> None:
    made = MAKER["golden_frames"]()
    assert sorted(made) == FILES
    assert {name for name, frame in made.items() if frame != (HERE / name).read_bytes()} == set()


@pytest.mark.parametrize("name", [name for name in FILES if "record" not in name])
def test_golden_entries_are_read_and_verified(name: str) -> None:
    batch = decode_frame((HERE / name).read_bytes(), digester=digester_of(name), verify_digests=True)
    payloads = dict(enumerate(MAKER["PAYLOADS"], start=1000))
    if name == "frame-ids-only.bin":
        payloads = dict(zip([1005, 1000, 1003, 1009, 1001, 1002], MAKER["PAYLOADS"], strict=True))
    assert batch.ledger_id == MAKER["LEDGER_ID"]
    assert batch.to_list() == [payloads[entry_id] for entry_id in batch.entry_ids().tolist()]


def test_golden_stripes_hold_each_entry_on_its_write_set() -> None:
    held = {
        index: decode_frame((HERE / f"frame-striped-{index}.bin").read_bytes()).entry_ids().tolist()
        for index in range(5)
    }
    assert held == {0: [1000, 1004, 1005], 1: [1000, 1001, 1005], 2: [1001, 1002], 3: [1002, 1003], 4: [1003, 1004]}


@pytest.mark.parametrize("name", [name for name in FILES if "record" in name])
def test_golden_records_are_read(name: str) -> None:
    frame = (HERE / name).read_bytes()
    header = check_frame(frame)
    assert (header.ledger_id, header.tag) == (MAKER["LEDGER_ID"], 0xA1B2C3D4)
    if header.kind == 7:
        assert int.from_bytes(record_payload(frame), "little") == 0x123456789A
    if header.kind == 2:
        assert bytes(record_payload(frame)).hex() == "9596625852f7fafc2c9cf0f9f7f3e5995206452b"


def test_golden_files_joined_split_again() -> None:
    frames = [(HERE / name).read_bytes() for name in FILES]
    assert [bytes(frame) for _, frame in split_frames(b"".join(frames))] == frames


def test_plain_frame_is_what_the_format_document_says_field_by_field() -> None:
    frame = (HERE / "frame-plain-crc32c.bin").read_bytes()
    payload = b"".join(MAKER["PAYLOADS"])
    lengths = [len(entry) for entry in MAKER["PAYLOADS"]]
    digests, total = b"", 123456789
    for k, entry in enumerate(MAKER["PAYLOADS"]):
        total += len(entry)
        digests += struct.pack(">I", crc32c.crc32c(struct.pack(">qqqq", 4294967313, 1000 + k, 997, total) + entry))
    columns = struct.pack("<6I", *lengths) + digests
    head = b"BK" + struct.pack("<BBHBBqqqqIII", 1, 1, 0, 3, 0, 4294967313, 1000, 997, 123456789, 6, 48, len(payload))
    crcs = struct.pack("<III", crc32c.crc32c(head + columns), crc32c.crc32c(payload), 7)
    assert frame == head + crcs + columns + payload
