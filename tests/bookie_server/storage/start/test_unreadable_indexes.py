# SPDX-License-Identifier: Apache-2.0
"""A sealed segment has an index, which says that it held something. If nothing of both can be read, that is a loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_core.wire.lane.reasons import Reason
from bookie_server.storage.check.check import examine
from tests.kit.segment_world import Storage, entries, key_record

SEGMENT = 64 << 10


def sealed(path: Path) -> Path:
    """Ledger 1 in a sealed segment, ledger 2 in the newest one. The index of the sealed one."""
    storage = Storage(path, segment_bytes=SEGMENT)
    storage.append(key_record(1), *[entries(1, range(k, k + 10), size=1400) for k in range(0, 40, 10)])
    storage.append(key_record(2), *[entries(2, range(k, k + 10), size=1400) for k in range(0, 40, 10)])
    storage.close()
    return min((path / "segments").glob("*.idx"))


@pytest.mark.rule("S3", "S8")
def test_a_sealed_segment_of_which_nothing_can_be_read_is_no_empty_one(tmp_path: Path) -> None:
    index = sealed(tmp_path / "d")
    index.write_bytes(bytes(index.stat().st_size))
    segment = index.with_suffix(".segment")
    kept = segment.read_bytes()[:4096]
    segment.write_bytes(kept + bytes(segment.stat().st_size - len(kept)))  # its header is there, and no frame
    predicted = examine(str(tmp_path / "d"), verify=True).start
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert storage.report.limbo
    assert any(segment.name in line for line in storage.report.damage)
    assert predicted.damage == storage.report.damage
    answer = storage.read(1, 0, 9)
    assert not answer.absent
    assert set(answer.unknown.values()) == {Reason.LIMBO}
    storage.close()


@pytest.mark.rule("S3")
def test_an_unreadable_index_of_a_sound_segment_loses_nothing(tmp_path: Path) -> None:
    index = sealed(tmp_path / "d")
    index.write_bytes(bytes(index.stat().st_size))
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert not storage.report.limbo
    assert set(storage.read(1, 0, 39).found) == set(range(40))
    storage.close()
