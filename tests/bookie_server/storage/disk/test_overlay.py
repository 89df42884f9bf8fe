# SPDX-License-Identifier: Apache-2.0
"""Files that are written to in memory only: read back as written, and nothing below them changes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bookie_server.storage.disk.files import BLOCK, Files
from bookie_server.storage.disk.overlay import Overlay
from tests.sim.disk import SimDisk

COMPOSED = {"write_atomically", "create", "append", "rename", "read_file"}
"""Of methods that :class:`Overlay` has itself."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in {"one": b"first", "two": b"second", "segment": bytes(range(256)) * 64}.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_call_of_the_system_is_replaced() -> None:
    """One that is not would go past the files below, and might write."""
    public = {name for name in vars(Files) if not name.startswith("_")}
    assert public - set(vars(Overlay)) == COMPOSED
    assert {"_create", "_append", "_sync_file", "_replace"} <= set(vars(Overlay))


def test_what_is_written_is_read_back_and_nothing_below_changes(folder: Path) -> None:
    before, files = contents(folder), Overlay(Files())
    one, two, made = (str(folder / name) for name in ("one", "two", "made"))
    files.write_atomically(one, b"another")
    files.rename(two, made)
    assert files.read_past_cache(made, 3, 1) == b"eco"
    assert (files.read_file(one), files.read_file(made)) == (b"another", b"second")
    assert files.names(str(folder)) == ["made", "one", "segment"]
    files.remove(made)
    assert not files.exists(made)
    for gone in (two, made):
        with pytest.raises(FileNotFoundError):
            files.open_read(gone)
        with pytest.raises(FileNotFoundError):
            files.remove(gone)
    files.close(files.create(made))
    assert files.read_file(made) == b""
    assert contents(folder) == before


def test_a_file_that_was_open_before_is_read_as_it_was(folder: Path) -> None:
    files, one = Overlay(Files()), str(folder / "one")
    handle = files.open_read(one)
    files.remove(one)
    assert files.read(handle, 10, 0) == b"first"
    assert files.size(handle) == 5
    files.close(handle)


@pytest.mark.parametrize("made", [False, True], ids=["recycled", "new"])
def test_a_preallocated_file_has_what_was_written_to_it(folder: Path, made: bool) -> None:
    before, files, chance = contents(folder), Overlay(Files()), random.Random(3)
    path = str(folder / ("new" if made else "segment"))
    size = len(before["segment"])
    expected = bytearray(size)
    handle = files.create_preallocated(path, size) if made else files.open_preallocated(path, size)
    assert handle is not None
    assert files.open_preallocated(path, size + 1) is None
    with pytest.raises(FileExistsError):
        files.create_preallocated(path, size)
    for _ in range(20):
        offset = chance.randrange(size // BLOCK) * BLOCK
        data = chance.randbytes(BLOCK)
        files.write(handle, [memoryview(data)], offset)
        files.sync_data(handle)
        expected[offset : offset + BLOCK] = data
        at = chance.randrange(size)
        assert files.read(handle, 3 * BLOCK, at) == expected[at : at + 3 * BLOCK]
        assert files.read_past_cache(path, 100, at) == expected[at : at + 100]
    assert files.deallocate(path, BLOCK) == 0
    files.rename(path, path + ".moved")
    again = files.open_preallocated(path + ".moved", size)
    assert again is not None
    assert files.read(again, size, 0) == files.read_file(path + ".moved") == expected
    assert contents(folder) == before


def test_it_lies_over_a_simulated_disk_too() -> None:
    disk = SimDisk()
    disk.make_directory("/d")
    disk.write_atomically("/d/one", b"first")
    operations, files = disk.operations, Overlay(disk)
    files.write_atomically("/d/one", b"another")
    files.write_atomically("/d/two", b"second")
    files.sync_directory("/d")
    assert files.names("/d") == ["one", "two"]
    assert (disk.operations, disk.names("/d"), disk.read_file("/d/one")) == (operations, ["one"], b"first")
    with pytest.raises(OSError, match="no directory"):
        files.make_directory("/e")
