# SPDX-License-Identifier: Apache-2.0
"""The measurements measure what they say, on a small scale, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.running.settings import Settings
from benchmarks.storage import compaction, group, startup
from benchmarks.storage.child import told_by
from benchmarks.storage.commits import check_counts, written_for_payload
from benchmarks.storage.reads import RandomReader, fill
from benchmarks.storage.scratch import check_room, scratch
from benchmarks.storage.world import SEGMENT_BYTES_MIN, Store, ledgers_of, scaled_segment
from bk_core.entries.frame import check_frame, decode_frame
from bk_core.errors import BookKeeperError, IntegrityError, InvalidArgumentError
from bookie_server.storage.log.segment_log import AHEAD_BYTES

WAIT_S = 120.0


def test_frames_of_a_ledger_are_whole_and_follow_each_other() -> None:
    ledger = ledgers_of(1, 3000, 1000, first_id=7)[0]
    first, second = ledger.frame(), ledger.frame()
    check_frame(first)
    batch = decode_frame(second)
    assert (batch.ledger_id, batch.first_entry_id, batch.count, batch.lac) == (7, 3, 3, 2)
    assert (batch.length_before, list(batch.lengths)) == (3000, [1000] * 3)


def test_a_small_scale_has_smaller_segments_to_a_least_size() -> None:
    assert scaled_segment(256 << 20, 1.0) == scaled_segment(256 << 20, 3.0) == 256 << 20
    assert scaled_segment(256 << 20, 0.5) == 128 << 20
    assert scaled_segment(256 << 20, 1e-6) == SEGMENT_BYTES_MIN
    assert scaled_segment(256 << 20, 0.3333) % 4096 == 0


def test_our_count_of_written_bytes_is_what_the_disk_was_given(tmp_path: Path) -> None:
    """Ten groups of one block each, known to the byte; the first one writes zeros for those behind it."""
    store = Store(tmp_path, SEGMENT_BYTES_MIN, recycling=False)
    ledger, before = ledgers_of(1, 1000)[0], store.files.written_bytes
    for _ in range(10):
        store.append([ledger.frame()])
    assert store.files.written_bytes - before == AHEAD_BYTES + 9 * 4096
    store.close()


def test_a_store_that_recycles_writes_into_segments_that_were_full(tmp_path: Path) -> None:
    store = Store(tmp_path, SEGMENT_BYTES_MIN)
    assert store.log.pool.recycled >= 2
    generation = store.log.position[0]
    fresh = store.log.stats.segments - store.log.pool.recycled - store.log.pool.spares
    store.close()
    assert generation > fresh >= 1, "the active segment is a recycled one"


@pytest.mark.long
def test_bytes_for_a_byte_of_payload_cover_the_index_of_each_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.storage.commits.check_counts", lambda *_: None)  # may be no disk
    store = Store(tmp_path, SEGMENT_BYTES_MIN, recycling=False)
    before, counted = store.log.stats.index_bytes, written_for_payload(store, tmp_path, 1, 1 << 20, 2)[1]
    assert store.log.stats.index_bytes > before
    assert 1.0 < counted < 1.1
    store.close()


@pytest.mark.parametrize("by_kernel", [900, 1100])
def test_counts_that_do_not_agree_are_no_figure(by_kernel: int) -> None:
    with pytest.raises(IntegrityError, match="other bytes"):
        check_counts(by_kernel, 1000)
    check_counts(1010, 1000)


def test_a_directory_that_is_not_on_a_disk_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="nothing was written to a disk"):
        check_counts(0, 1000)


def test_a_random_read_counts_every_call_that_reads(tmp_path: Path) -> None:
    store = Store(tmp_path, SEGMENT_BYTES_MIN, recycling=False)
    ledgers = ledgers_of(2, 64_000)
    fill(store, ledgers, 1)
    reader = RandomReader(store, tmp_path)
    for entry_id in (0, 77, 1000):
        reader.read(1, entry_id)
    assert reader.asked == [1, 1, 1], "the index block is remembered, the frame is one read"
    store.index.cache.forget(1)
    before = store.files.reads
    reader._once(1, 5)
    assert store.files.reads - before == 3, "and without it the disk is asked for two blocks of the index, too"
    reader.close()
    store.close()


def test_too_little_room_is_said_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(total=100 << 30, free=12 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    check_room(tmp_path, 9 << 30, "all")
    with pytest.raises(InvalidArgumentError, match=r"11\.8 GB are needed .*12\.9 GB are free"):
        check_room(tmp_path, 11 << 30, "all")
    with pytest.raises(InvalidArgumentError, match="the part start_up"):
        list(group.StorageGroup().measure(["commit", "start_up"], tmp_path, Settings(runs=1)))
    assert list(tmp_path.iterdir()) == [], "the first part did not begin"


def test_a_scratch_directory_goes_with_whatever_ends_the_run(tmp_path: Path) -> None:
    def fail() -> None:
        with scratch(tmp_path, 1, "x") as path:
            (path / "data").write_bytes(b"much")
            raise RuntimeError("it failed")

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_goes_with_the_next_and_what_a_living_one_uses_stays(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, used, other = tmp_path / f"storage-{ended.pid}-a", tmp_path / f"storage-{os.getppid()}-b", tmp_path / "mine"
    for path in (left, used, other):
        path.mkdir()
    with scratch(tmp_path, 1, "x"):
        assert (left.exists(), used.exists(), other.exists()) == (False, True, True)


def test_a_terminated_run_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom benchmarks.storage.scratch import scratch\n"
        "with scratch(Path(sys.argv[1]), 1, 'x') as path:\n"
        "    (path / 'data').write_bytes(b'much')\n    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(WAIT_S) != 0
    assert list(tmp_path.iterdir()) == []


def test_a_process_of_a_measurement_that_fails_is_an_error_and_not_a_figure() -> None:
    with pytest.raises(BookKeeperError, match="exit 2"):
        list(told_by(["benchmarks.storage.startup", "nonsense", "x"]))


@pytest.mark.alone
@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_a_start_is_measured_on_a_directory_that_a_killed_process_left(tmp_path: Path) -> None:
    """1,000 ledgers; the same code makes a million."""
    made, scale = tmp_path / "made", "0.001"
    list(told_by(["benchmarks.storage.startup", "make", str(made), "--scale", scale], killed=True))
    names = sorted(path.suffix for path in (made / "segments").iterdir())
    assert names.count(".segment") > names.count(".idx") + 1, "some segments are not sealed"
    assert ".checkpoint" in names
    for _ in range(2):
        told = startup.start_once(made, tmp_path, float(scale))
        assert (told["ledgers"], told["scanned"] > 1, told["copied"] > 0) == (1000, True, True)
        assert told["seconds"] > told["opened"] > 0
        assert told["peak"] >= told["peak_ready"] > 10e6
    assert sorted(path.suffix for path in (made / "segments").iterdir()) == names, "a start is of a copy"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.alone
@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_the_command_prints_an_object_a_figure_and_resumes_from_its_file(tmp_path: Path) -> None:
    kept, started = tmp_path / "kept", time.monotonic()
    command = [sys.executable, "-m", "benchmarks", "storage", "--only", "read_random", "--runs", "1", "--json"]
    done = subprocess.run(
        [*command, "--scale", "0.001", "--data", str(tmp_path / "disk"), "--resume", str(kept)],
        capture_output=True, text=True, check=False, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = [json.loads(line)["name"] for line in done.stdout.splitlines()]
    assert names[0] == "read_random"
    assert "read_random" in kept.read_text()
    assert list((tmp_path / "disk").iterdir()) == []
    assert time.monotonic() - started < WAIT_S


@pytest.mark.alone
@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_compaction_is_measured_until_every_segment_is_given_back(tmp_path: Path) -> None:
    store = Store(tmp_path, SEGMENT_BYTES_MIN, recycling=False)
    outcome = asyncio.run(compaction.compact(store, 0.1))
    store.close()
    segments = compaction.SEGMENTS * SEGMENT_BYTES_MIN
    assert 0.7 < outcome.dead_bytes / segments < 0.8
    assert outcome.back_bytes == segments - outcome.copied_bytes < segments
    assert min(outcome.alone, outcome.meanwhile, outcome.seconds) > 0
    names = sorted(path.name for path in Path(store.directory.segments_path).iterdir())
    assert f"{1:016x}.segment" not in names, "the first of them is gone, or is another one now"
    store.remove()
    assert list(tmp_path.iterdir()) == []
