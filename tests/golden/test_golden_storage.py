# SPDX-License-Identifier: Apache-2.0
"""The golden files of storage are still the bytes we write, and the kept data directory is still opened and right."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from bk_core.entries.digest import ledger_key
from bk_core.entries.frame import FrameKind, entry_ids_of, parse_header
from bk_core.wire.lane.reasons import Reason
from bookie_server.storage.bytes.segment import decode_group_header, decode_segment_header
from bookie_server.storage.disk.cookie import decode_identity
from tests.kit.index_state import state_of
from tests.kit.segment_world import Storage
from tests.kit.whole_files import decode_index_file

HERE = Path(__file__).parent
MAKER: dict[str, Any] = runpy.run_path(str(HERE / "make_storage.py"))
INCARNATION = bytes.fromhex(MAKER["INCARNATION"].replace("-", ""))


def test_codecs_still_write_the_golden_bytes() -> None:
    made = MAKER["golden_files"]()
    assert {name for name, data in made.items() if data != (HERE / name).read_bytes()} == set()


def test_golden_files_are_read() -> None:
    segment = decode_segment_header((HERE / "segment-header.bin").read_bytes())
    assert (segment.generation, segment.segment_bytes, segment.newest_sealed) == (0x1234, 256 << 20, 0x1230)
    group = decode_group_header((HERE / "group-header.bin").read_bytes(), segment.incarnation)
    assert group is not None
    assert (group.number, group.group_bytes, group.frames, group.offset, group.durable) == (5, 12288, 7, 36864, 32768)
    header, rows, states = decode_index_file((HERE / "segment.idx").read_bytes())
    assert (header.generation, header.data_end, header.group_count) == (0x1234, 400 << 10, 79)
    assert (rows.size, states.size) == (72, 6)
    assert sorted(set(states["kind"].tolist())) == list(range(2, 8))
    assert decode_identity((HERE / "IDENTITY").read_bytes()).boot_count == 42
    assert segment.incarnation == INCARNATION


def test_offsets_of_the_headers_are_those_of_the_document() -> None:
    """Read field by field, as another program would (docs/formats.md §3.2, §3.3)."""
    segment = (HERE / "segment-header.bin").read_bytes()
    assert segment[:8] == b"BKSEGMNT"
    assert [int.from_bytes(segment[at : at + 4], "little") for at in (8, 12)] == [1, 4096]
    assert segment[24:40] == INCARNATION
    numbers = [int.from_bytes(segment[at : at + 8], "little") for at in (16, 40, 48, 56, 64)]
    assert numbers == [0x1234, 256 << 20, MAKER["NOW_MS"], 42, 0x1230]
    length = int.from_bytes(segment[72:74], "little")
    assert segment[74 : 74 + length].decode() == MAKER["BOOKIE_ID"]
    group = (HERE / "group-header.bin").read_bytes()
    assert group[:8] == b"BKGROUP1"
    assert [int.from_bytes(group[at : at + 8], "little") for at in (8, 16, 32, 40)] == [0x1234, 5, 36864, 32768]
    assert [int.from_bytes(group[at : at + 4], "little") for at in (24, 28, 48, 52, 60)] == [12288, 7, 0, 0, 0]


class Kept(Storage):
    """The kept directory, copied and open."""

    bookie_id, cluster, password = MAKER["BOOKIE_ID"], MAKER["CLUSTER"], MAKER["PASSWORD"]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    shutil.copytree(HERE / "data-v1", tmp_path / "data")
    return Kept(tmp_path / "data", segment_bytes=MAKER["SEGMENT_BYTES"])


def test_the_kept_directory_opens_whole(kept: Kept) -> None:
    assert kept.report.damage == []
    assert not kept.report.limbo
    assert kept.report.indexes_loaded >= 1
    assert kept.report.segments_scanned == 1
    assert kept.report.frames_copied == 1, "the last group lies above the durable position"
    assert kept.directory.identity.boot_count == 2
    kept.close()


def test_every_entry_of_the_kept_directory_is_there(kept: Kept) -> None:
    expected: dict[int, set[int]] = {}
    for group in MAKER["groups"]():
        for frame in group:
            header = parse_header(frame)
            if header.kind == FrameKind.ENTRIES:
                expected.setdefault(header.ledger_id, set()).update(entry_ids_of(header, frame).tolist())
    dropped = {i for i in expected[MAKER["DROPPED"]] if not kept.read(MAKER["DROPPED"], 0, i).found.get(i)}
    assert {*range(20)} <= dropped, "what stood in the first segment was dropped"
    assert {30, 31, 32}.isdisjoint(dropped), "what came later was not"
    expected[MAKER["DROPPED"]] -= dropped
    deleted = MAKER["DELETED"]
    del expected[deleted]
    for _ in range(2):
        for ledger_id, ids in expected.items():
            top = max(ids) + 3
            answer = kept.read(ledger_id, 0, top)
            assert answer.found == {i: MAKER["payload"](ledger_id, i) for i in ids}
            reason = {MAKER["DROPPED"]: Reason.COPY_DROPPED, MAKER["LIMBO"]: Reason.LIMBO}.get(ledger_id)
            rest = set(range(top + 1)) - ids
            assert (answer.absent, answer.unknown) == (
                (rest, {}) if reason is None else (set(), dict.fromkeys(rest, reason))
            )
        assert state_of(kept.index, deleted).deleted
        assert set(kept.read(deleted, 0, 4).unknown.values()) == {Reason.DELETED}
        kept.close()
        kept = Kept(kept.path, segment_bytes=MAKER["SEGMENT_BYTES"])
    kept.close()


def test_the_state_of_every_ledger_of_the_kept_directory_is_there(kept: Kept) -> None:
    def state(name: str) -> Any:
        return state_of(kept.index, MAKER[name])

    assert sorted(kept.index.ledger_ids()) == sorted(MAKER[name] for name in LEDGERS)
    assert {state(name).key for name in LEDGERS} == {ledger_key(MAKER["PASSWORD"])}
    assert {name for name in LEDGERS if state(name).fenced} == {"STRIPED"}
    troubles = {name: state(name).trouble for name in LEDGERS if state(name).trouble}
    assert troubles == {"DROPPED": Reason.COPY_DROPPED, "LIMBO": Reason.LIMBO}
    assert (state("DENSE").lac, len(state("DENSE").lac_body)) == (999, 20)
    assert (state("DENSE").carried_lac, state("LACS").carried_lac) == (1609, 2)
    assert kept.index.last_entry(MAKER["DENSE"]).entry_id == 1612
    kept.close()


LEDGERS = ["DENSE", "STRIPED", "SPARSE", "LACS", "APACHE", "DROPPED", "LIMBO", "LENGTHS"]
