# SPDX-License-Identifier: Apache-2.0
"""The port to the file system, on platforms that lack parts of it (RULES S11)."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie_server.storage.disk.files import BLOCK, Files, aligned_buffer
from tests.kit.segment_world import Storage, assert_honest, entries, key_record

NAMES = ["O_DIRECT", "O_CLOEXEC", "O_DIRECTORY", "preadv", "pwritev", "fdatasync", "posix_fallocate", "posix_fadvise"]
NAMES += ["POSIX_FADV_RANDOM", "POSIX_FADV_DONTNEED"]
FRAMES = [key_record(1), entries(1, range(30)), entries(2, [4, 9]), entries(1, [30], size=70_000)]


def live_a_life(path: Path) -> None:
    """Append, read, crash, replay, read."""
    storage = Storage(path)
    for frame in FRAMES:
        memory = memoryview(aligned_buffer(len(frame)))[: len(frame)]
        memory[:] = frame
        storage.append(memory)  # a large one is gathered from there
    assert_honest(storage, FRAMES, healthy=True)
    storage.close(crash=True)
    again = Storage(path)
    assert_honest(again, FRAMES, healthy=True)
    place = again.append(entries(3, [0]))[0]
    path_of_segment = os.path.join(again.directory.segments_path, f"{place.generation:016x}.segment")
    assert again.files.read_past_cache(path_of_segment, place.size, place.offset) == bytes(again.reader.read(place))
    again.close()


@pytest.mark.rule("S11")
@pytest.mark.parametrize("name", [*NAMES, "all of them"])
def test_storage_works_where_the_platform_lacks_a_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for missing in NAMES if name == "all of them" else [name]:
        monkeypatch.delattr(os, missing)
    live_a_life(tmp_path / "d")


@pytest.mark.rule("S11")
def test_o_direct_refused_at_open_falls_back_to_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = os.open, []

    def refusing(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            refused.append(path)
            raise OSError(errno.EINVAL, "O_DIRECT")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    live_a_life(tmp_path / "d")
    assert refused


@pytest.mark.rule("S11")
def test_o_direct_refused_at_the_first_write_falls_back_to_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(real: Callable[..., int]) -> Callable[..., int]:
        def call(handle: int, where: object, offset: int) -> int:
            if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EINVAL, "O_DIRECT")
            return real(handle, where, offset)

        return call

    monkeypatch.setattr(os, "pwrite", refusing(os.pwrite))
    monkeypatch.setattr(os, "pwritev", refusing(os.pwritev))
    monkeypatch.setattr(os, "preadv", refusing(os.preadv))
    live_a_life(tmp_path / "d")


@pytest.mark.rule("S11")
def test_preallocation_refused_falls_back_to_a_sparse_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(handle: int, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "fallocate")

    monkeypatch.setattr(os, "posix_fallocate", refusing)
    live_a_life(tmp_path / "d")


@pytest.mark.rule("S11")
def test_darwin_syncs_with_f_fullfsync_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, full = fcntl.fcntl, []

    def recording(handle: int, command: int, *argument: int) -> int:
        if command == 51:
            full.append(handle)
            return 0
        return real(handle, command, *argument)

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", recording)
    for name in ("fsync", "fdatasync"):
        monkeypatch.delattr(os, name)
    live_a_life(tmp_path / "d")
    assert len(full) > 8


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, buffer, offset: real(handle, buffer[:BLOCK], offset))
    files = Files()
    handle = files.create_preallocated(str(tmp_path / "f"), 4 * BLOCK)
    data = memoryview(aligned_buffer(3 * BLOCK))
    data[:] = os.urandom(3 * BLOCK)
    files.write(handle, [data], BLOCK)
    files.sync_data(handle)
    files.close(handle)
    assert files.read_file(str(tmp_path / "f")) == bytes(BLOCK) + bytes(data)


@pytest.mark.parametrize("most", [1, BLOCK, 2 * BLOCK, 5 * BLOCK, 99 * BLOCK, None])
def test_buffers_are_written_one_behind_the_other_wherever_a_write_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    calls: list[int] = []

    def short(handle: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(len(buffers))
        return os.pwrite(handle, b"".join(buffers)[:most], offset)

    if most == 1:
        monkeypatch.delattr(os, "pwritev")  # a platform without it
    elif most:
        monkeypatch.setattr(os, "pwritev", short)
    files = Files()
    handle = files.create(str(tmp_path / "f"))
    data = [os.urandom(BLOCK * size) for size in (1, 3, 1, 2)]
    files.write(handle, [memoryview(each) for each in data], BLOCK)
    files.close(handle)
    assert files.read_file(str(tmp_path / "f")) == bytes(BLOCK) + b"".join(data)
    assert calls[:1] == ([] if most in (1, None) else [4])
    assert most != 99 * BLOCK or calls == [4], "one call unless it is cut short"


def test_a_segment_that_cannot_be_allocated_leaves_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="no space"):
        Files().create_preallocated(str(tmp_path / "f"), 4 * BLOCK)
    assert list(tmp_path.iterdir()) == []


def test_an_atomic_write_that_fails_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, path = Files(), str(tmp_path / "f")
    files.write_atomically(path, b"old")

    def failing(handle: int) -> None:
        raise OSError(errno.EIO, "fsync")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="fsync"):
            files.write_atomically(path, b"new")
    assert files.read_file(path) == b"old"
    assert files.names(str(tmp_path)) == ["f"]
    files.write_atomically(path, b"newer")
    assert files.read_file(path) == b"newer"


def test_a_lock_is_exclusive_until_it_is_closed(tmp_path: Path) -> None:
    files = Files()
    handle = files.lock(str(tmp_path / "LOCK"))
    with pytest.raises(BlockingIOError):
        files.lock(str(tmp_path / "LOCK"))
    files.close(handle)
    files.close(files.lock(str(tmp_path / "LOCK")))


def test_reads_past_the_cache_end_where_the_file_ends(tmp_path: Path) -> None:
    content = os.urandom(3 * BLOCK)
    path = tmp_path / "f"
    path.write_bytes(content)
    files = Files()
    assert files.read_past_cache(str(path), 100, BLOCK + 7) == content[BLOCK + 7 : BLOCK + 107]
    assert files.read_past_cache(str(path), BLOCK, 3 * BLOCK - 5) == content[-5:]
    assert files.free_bytes(str(tmp_path)) <= files.total_bytes(str(tmp_path))


def test_a_made_directory_is_durable_by_name_with_all_its_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(Files, "sync_directory", lambda self, path: synced.append(path))
    Files().make_directory(str(tmp_path / "a" / "b" / "c"))
    assert synced[-3:] == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    synced.clear()
    Files().make_directory(str(tmp_path / "a"))  # perhaps of a process that ended before it could sync
    assert synced == [str(tmp_path)]


@pytest.mark.rule("S5")
def test_replay_reads_an_unsealed_segment_past_what_the_cache_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(tmp_path / "d")
    storage.append(*FRAMES)
    storage.close(crash=True)
    dropped: list[int] = []
    monkeypatch.setattr(Files, "drop_cache", lambda self, handle: dropped.append(handle))
    Storage(tmp_path / "d").close()
    assert len(dropped) == 1
