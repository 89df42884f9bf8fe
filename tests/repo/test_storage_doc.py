# SPDX-License-Identifier: Apache-2.0
"""docs/formats.md, docs/storage.md and docs/bookie.md agree with the code about storage: bytes, messages, settings."""

from __future__ import annotations

import ast
import re
import struct
from dataclasses import fields
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from bk_core.entries import arrow_directory, frame
from bk_core.entries.frame import FrameKind
from bk_core.metadata.records import Cookie, decode_cookie, encode_cookie
from bk_core.model import DigestType
from bookie_server.config import BookieConfig
from bookie_server.storage.bytes import index_file, index_rows, segment
from bookie_server.storage.bytes.blocks import records_per_block
from bookie_server.storage.disk import cookie
from bookie_server.storage.disk.cookie import Identity, encode_identity
from bookie_server.storage.disk.space import RESERVE_SEGMENTS
from bookie_server.storage.index import checkpoint
from bookie_server.storage.index.ledger_table import LEDGER_ROW
from bookie_server.storage.log import segment_log as commit
from bookie_server.storage.log import segment_pool
from bookie_server.storage.maintenance import checkpointer
from bookie_server.storage.maintenance.storage_stats import StorageStats

ROOT = Path(__file__).parents[2]
FORMATS = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
STORAGE = (ROOT / "docs" / "storage.md").read_text(encoding="utf-8")
OPERATING = (ROOT / "docs" / "bookie.md").read_text(encoding="utf-8")
FIELD = re.compile(r"(?<![\w.]) *(\d+) +(i64|u64|u32|u16|u8|\d+(?= bytes|  ))")
TYPES = {"H": "u16", "B": "u8", "I": "u32", "Q": "u64", "q": "i64"}
CRC = [(4092, "u32")]

Fields = list[tuple[int, str]]


def fields_in_document(*marks: str) -> Fields:
    """Return (offset, type) of each field in the only block of docs/formats.md that has these words."""
    (block,) = [
        b
        for b in re.findall(r"^```\w*\n(.*?)^```", FORMATS, re.DOTALL | re.MULTILINE)
        if all(mark in b for mark in marks)
    ]
    return sorted((int(at), kind) for at, kind in FIELD.findall(block))


def fields_of_struct(layout: struct.Struct) -> Fields:
    found: Fields = []
    at = 0
    for count, letter in re.findall(r"(\d*)([a-zA-Z])", layout.format):
        for _ in range(1 if letter in "sx" else int(count or 1)):
            size = int(count or 1) if letter in "sx" else struct.calcsize("<" + letter)
            if letter != "x":
                found.append((at, TYPES.get(letter, str(size))))
            at += size
    return found


def fields_of_rows(dtype: np.dtype[np.void]) -> Fields:
    found: Fields = []
    for name in dtype.names or ():
        kind, at = dtype.fields[name][:2]
        found.append((at, str(kind.itemsize) if kind.kind == "V" else f"{kind.kind}{8 * kind.itemsize}"))
    return found


@pytest.mark.parametrize(
    ("marks", "layouts"),
    [
        (["magic 0x4B42", "placement stamp on disk"], [fields_of_struct(frame._HEADER)]),
        (["field of the segment header"], [fields_of_struct(segment._SEGMENT), CRC]),
        (["field of the group header"], [fields_of_struct(segment._GROUP)]),
        (["BKSGMIDX"], [fields_of_struct(index_file._HEADER), CRC]),
        (["BKCHKPT1"], [fields_of_struct(checkpoint._HEADER), CRC]),
        (
            ["index record (sorted"],
            [fields_of_rows(d) for d in (index_rows.INDEX_ROW, index_file.STATE_ROW, index_rows.SPARSE_ROW)],
        ),
        (["summary record (sorted"], [fields_of_rows(index_rows.SUMMARY_ROW)]),
        (["ledger record, 80 bytes"], [fields_of_rows(LEDGER_ROW)]),
        (["field of the directory"], [fields_of_struct(arrow_directory.HEAD), fields_of_struct(arrow_directory.ROW)]),
    ],
    ids=lambda value: value[0] if value and isinstance(value[0], str) else "",
)
def test_tables_of_bytes_are_those_of_the_code(marks: list[str], layouts: list[Fields]) -> None:
    assert fields_in_document(*marks) == sorted(field for layout in layouts for field in layout)


def test_magic_numbers_and_versions_are_those_of_the_code() -> None:
    said = set(re.findall(r'"(BK[A-Z0-9]{6})"', FORMATS))
    assert said == {
        magic.decode()
        for magic in (segment.SEGMENT_MAGIC, segment.GROUP_MAGIC, index_file.INDEX_MAGIC, checkpoint.CHECKPOINT_MAGIC)
    }
    assert f'magic 0x{frame.FRAME_MAGIC:X} (bytes "BK")' in FORMATS
    versions = [int(number) for number in re.findall(r"u(?:8|32) +version = (\d+)", FORMATS)]
    assert versions == [
        frame.FRAME_VERSION, segment.FORMAT_VERSION, index_file.FORMAT_VERSION, checkpoint.FORMAT_VERSION,
    ]  # fmt: skip


def test_kinds_flags_and_digests_are_those_of_the_code() -> None:
    kinds = {int(number): name for number, name in re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", FORMATS, re.MULTILINE)}
    assert kinds == {int(kind): kind.name for kind in FrameKind}
    flags = {int(bit, 16): name for bit, name in re.findall(r"^\| (0x\d{4}) \| ([A-Z_]+) \|", FORMATS, re.MULTILINE)}
    assert sorted(flags) == [1 << bit for bit in range(8)]
    assert all(getattr(frame, name) == bit for bit, name in flags.items())
    digests = re.search(r"digest type: 0 none((?: · \d \w+)+)", FORMATS)
    assert digests is not None
    names = {int(number): name for number, name in re.findall(r"(\d) (\w+)", digests[1])}
    assert names == {1: "CRC32", 2: "HMAC", 3: "CRC32C", 4: "DUMMY"}
    assert {kind.digest_bytes for kind in DigestType} == {8, 20, 4, 0}


def test_records_a_block_are_those_of_the_code() -> None:
    said = re.search(r"index (\d+) × (\d+), state (\d+) × (\d+), sparse (\d+) × (\d+), summary (\d+) × (\d+)", FORMATS)
    assert said is not None
    rows = (index_rows.INDEX_ROW, index_file.STATE_ROW, index_rows.SPARSE_ROW, index_rows.SUMMARY_ROW)
    assert [int(number) for number in said.groups()] == [
        number for dtype in rows for number in (records_per_block(dtype), dtype.itemsize)
    ]
    assert f"ledger record, {LEDGER_ROW.itemsize} bytes, {records_per_block(LEDGER_ROW)} a block" in FORMATS
    pair = f"record, {checkpoint.PAIR_ROW.itemsize} bytes, {records_per_block(checkpoint.PAIR_ROW)} a block"
    assert FORMATS.count(pair) == 2


def test_small_files_are_those_of_the_code() -> None:
    (text,) = re.findall(r"```\n(5\nbookieHost.*?)```", FORMATS, re.DOTALL)
    known = decode_cookie(text.encode())
    path = "/var/lib/bookie"
    assert known == Cookie(
        bookie_host=known.bookie_host, journal_dirs=(path,), ledger_dirs=(path,), instance_id=known.instance_id
    )
    assert encode_cookie(known) == text.encode()
    written = encode_identity(Identity("b", "c", "6a1e2f30-4b5c-4d6e-8f70-8192a3b4c5d6", 3, 4)).decode()
    assert re.findall(r'"(\w+)":', written) == [
        "bookie_id", "boot_count", "checkpoint", "cluster", "crc", "incarnation", "v",
    ]  # fmt: skip
    said = re.search(r'`(\{"bookie_id".*?\})`', FORMATS)
    assert said is not None
    assert re.findall(r'"(\w+)":', said[1]) == [k for k in re.findall(r'"(\w+)":', written) if k != "checkpoint"]


def test_every_name_of_a_file_is_in_the_list() -> None:
    (chapter,) = re.findall(r"^## 1\. (.*?)^## ", STORAGE, re.DOTALL | re.MULTILINE)
    listed = set(re.findall(r"^- `([^`]+)`:", chapter, re.MULTILINE))
    shown = {"<generation>": f"{7:016x}", "<number>": f"{7:016x}"}
    names = {re.sub(r"<\w+>", lambda found: shown[found[0]], name) for name in listed}
    inside = {segment.segment_name(7), segment.index_name(7), segment.free_name(7), checkpoint.checkpoint_name(7)}
    inside |= {segment.segment_name(7) + ".tmp", segment.unsealed_name(7), checkpointer.ROOM_NAME}
    assert names - {"*.tmp"} == {
        cookie.COOKIE_NAME, cookie.IDENTITY_NAME, cookie.LOCK_NAME, cookie.LOSS_NAME, cookie.LIMBO_NAME,
        *(f"{cookie.SEGMENTS_NAME}/{name}" for name in inside),
    }  # fmt: skip


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    text = " ".join(STORAGE.split())
    assert f"`SEGMENTS_KEPT_FREE` = {segment_pool.SEGMENTS_KEPT_FREE}" in text
    assert f"in chunks of {checkpointer.LEDGERS_PER_COPY} " in text
    assert f"`BACKLOG_BYTES_MAX` = {commit.BACKLOG_BYTES_MAX >> 20} MiB" in text
    assert RESERVE_SEGMENTS == 2, "docs/storage.md says: two of them are the reserve"


@cache
def messages() -> str:
    """Return all texts in the sources of the bookie, with the constant parts of formatted ones on lines of their
    own."""
    found: list[str] = []
    for path in sorted((ROOT / "bookie_server").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_what_the_log_is_said_to_say_it_says() -> None:
    (chapter,) = re.findall(r"^## 5\. (.*?)^## ", STORAGE, re.DOTALL | re.MULTILINE)
    quoted = re.findall(r'"([^"]+)"', " ".join(chapter.split()))
    parts = [part.strip() for quote in quoted for part in quote.split("…")]
    known = messages()
    assert len(parts) > 25
    assert [part for part in parts if part not in known] == []


def test_every_setting_that_is_named_exists_and_every_link_to_a_heading_too() -> None:
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", STORAGE))
    settings = {field.name for field in fields(BookieConfig)}
    counters = {field.name for field in fields(StorageStats)}
    assert words - settings - counters == set()
    headings = re.findall(r"^#+ (.*)$", FORMATS, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"formats\.md#([\w-]+)", STORAGE)) - anchors == set()


def test_every_number_of_the_statistics_is_explained() -> None:
    (chapter,) = re.findall(r"^## What to watch\n(.*)", OPERATING, re.DOTALL | re.MULTILINE)
    chapter = chapter.partition("a line `storage:`")[2]
    items = re.findall(r"^- (`.*?): ", chapter, re.DOTALL | re.MULTILINE)
    listed = [name for item in items for name in re.findall(r"`(\w+)`", item)]
    assert sorted(listed) == sorted(field.name for field in fields(StorageStats))


def test_lines_worth_an_alarm_are_logged() -> None:
    (items,) = re.findall(r"^Log lines worth an alarm:\n(.*?)^Every ten", OPERATING, re.DOTALL | re.MULTILINE)
    lines = re.findall(r"`([^`]+)`", items)
    known = messages()
    assert len(lines) >= 5
    assert [line for line in lines if line not in known] == []
