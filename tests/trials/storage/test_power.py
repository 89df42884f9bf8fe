# SPDX-License-Identifier: Apache-2.0
"""The file layer of the power-loss trial loses what was not synced and keeps what was synced."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bk_core.errors import StorageFailedError
from bookie_server.storage.disk.files import BLOCK, aligned_buffer
from tests.kit.segment_world import Storage, assert_honest, entries, fence_record, key_record
from tests.trials.storage.power import PowerLossFiles


def test_unsynced_bytes_and_names_are_seen_by_the_process_and_lost_with_it(tmp_path: Path) -> None:
    files, path = PowerLossFiles(str(tmp_path), 1, leak=0), str(tmp_path / "a.segment")
    handle = files.create_preallocated(path, 3 * BLOCK)
    buffer = memoryview(aligned_buffer(BLOCK))
    buffer[:5] = b"first"
    files.write(handle, [buffer], BLOCK)
    assert files.read(handle, 5, BLOCK) == b"first"
    assert files.exists(path)
    assert files.names(str(tmp_path)) == ["a.segment"]
    assert not (tmp_path / "a.segment").exists(), "the name was not synced"
    files.sync_directory(str(tmp_path))
    assert (tmp_path / "a.segment").read_bytes() == bytes(3 * BLOCK), "the bytes were not synced"
    files.sync_data(handle)
    buffer[:5] = b"other"
    files.write(handle, [buffer], 2 * BLOCK)
    files.rename(path, str(tmp_path / "b.segment"))
    assert files.unsynced_bytes == BLOCK
    after = PowerLossFiles(str(tmp_path), 2)
    assert after.names(str(tmp_path)) == ["b.segment"]
    kept = after.read_file(str(tmp_path / "b.segment"))
    assert kept[BLOCK : BLOCK + 5] == b"first"
    assert kept[2 * BLOCK :] == bytes(BLOCK)


def test_a_rename_that_was_not_synced_is_undone(tmp_path: Path) -> None:
    files = PowerLossFiles(str(tmp_path), 1, leak=0)
    files.write_atomically(str(tmp_path / "IDENTITY"), b"one")
    files._replace(str(tmp_path / "IDENTITY"), str(tmp_path / "ELSEWHERE"))
    assert files.names(str(tmp_path)) == ["ELSEWHERE"]
    assert PowerLossFiles(str(tmp_path), 1).names(str(tmp_path)) == ["IDENTITY"]


def test_sectors_leak_so_that_groups_are_torn(tmp_path: Path) -> None:
    files = PowerLossFiles(str(tmp_path), 3, leak=1)
    handle = files.create_preallocated(str(tmp_path / "x"), 64 * BLOCK)
    files.sync_directory(str(tmp_path))
    files.write(handle, [memoryview(b"\1" * 32 * BLOCK)], 0)
    leaked = (tmp_path / "x").read_bytes().count(1)
    assert 0 < leaked < 32 * BLOCK


@pytest.mark.parametrize("leak", [0, 1])
def test_blocks_that_are_given_back_read_as_zeros_and_may_come_back_until_they_are_synced(
    tmp_path: Path, leak: float
) -> None:
    files, path = PowerLossFiles(str(tmp_path), 1, leak=0), str(tmp_path / "a.segment")
    handle = files.create_preallocated(path, 8 * BLOCK)
    files.write(handle, [memoryview(b"\1" * 8 * BLOCK)], 0)
    files.sync_data(handle)
    files.sync_directory(str(tmp_path))
    files = PowerLossFiles(str(tmp_path), 1, leak=leak)
    assert files.deallocate(path, 2 * BLOCK) == 6 * BLOCK
    assert files.read_file(path) == b"\1" * 2 * BLOCK + bytes(6 * BLOCK)
    kept = PowerLossFiles(str(tmp_path), 2).read_file(path)
    assert len(kept) == 8 * BLOCK
    assert kept.count(1) == (2 if leak else 8) * BLOCK


@pytest.mark.rule("S6")
def test_a_storage_that_loses_power_keeps_what_it_acked(tmp_path: Path) -> None:
    rng, acked = random.Random(5), []
    for life in range(12):
        files = PowerLossFiles(str(tmp_path), life)
        storage = Storage(tmp_path / "data", files=files)
        assert storage.report.damage == []
        assert_honest(storage, acked, healthy=True)
        for k in range(rng.randrange(1, 6)):
            frames = [key_record(life), entries(life, range(9 * k, 9 * k + 9), size=rng.choice((50, 3000)))]
            frames.append(fence_record(100 + life))
            storage.append(*frames)
            acked += frames
        storage.reader.close()
        storage.directory.close()  # the rest of the storage is dropped


def test_the_layer_finds_a_log_that_does_not_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without syncs acked entries are lost, and the check finds that."""
    files = PowerLossFiles(str(tmp_path), 1, leak=0)
    storage = Storage(tmp_path / "data", files=files)
    frames = [key_record(1), entries(1, range(5))]
    monkeypatch.setattr(files, "sync_data", lambda handle: None)
    storage.append(*frames)
    storage.reader.close()
    storage.directory.close()
    again = Storage(tmp_path / "data", files=PowerLossFiles(str(tmp_path), 2))
    with pytest.raises((AssertionError, StorageFailedError)):
        assert_honest(again, frames, healthy=True)
    again.close()
