# SPDX-License-Identifier: Apache-2.0
"""Few entries of a long frame: read without the rest of it, proven by their digests, and at once where memory has them
(RULES S5)."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import decode_frame, encode_frame, parse_header, slice_frame
from bk_core.errors import IntegrityError
from bk_core.model import DigestType
from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.segment import segment_name
from bookie_server.storage.disk.files import Files, Handle
from bookie_server.storage.log import segment_reader
from tests.kit.segment_world import Storage, entries

COUNT, FIRST = 300, 1000


class Counting(Files):
    """Says how many bytes were read, and whether memory has what is wanted at once."""

    bytes = 0
    in_memory = True
    failing = False

    def read(self, handle: Handle, size: int, offset: int) -> bytes:
        self.bytes += size
        return super().read(handle, size, offset)

    def read_at_once(self, handle: Handle, size: int, offset: int) -> bytes | None:
        if self.failing:
            raise OSError(errno.EIO, "made to fail")
        return self._pread(handle, size, offset) if self.in_memory else None

    def read_into(self, handle: Handle, view: memoryview, offset: int) -> int:
        self.bytes += len(view)
        return super().read_into(handle, view, offset)


def long_frame(digest_type: DigestType, *, lac: int = 7, before: int = 123) -> bytes:
    dice = Random(int(digest_type))
    batch = EntryBatch.from_list([dice.randbytes(dice.randrange(0, 700)) for _ in range(COUNT)])
    digester = Digester(digest_type, b"", 1)
    frame = encode_frame(batch, digester=digester, ledger_id=1, first_entry_id=FIRST, lac=lac, length_before=before)
    assert len(frame) > 64 << 10
    return bytes(frame)


def stored(path: Path, frame: bytes) -> tuple[Storage, Counting, Place, Path]:
    files = Counting()
    storage = Storage(path / "d", files=files)
    place = storage.append(frame)[0]
    files.bytes = 0
    return storage, files, place, path / "d" / "segments" / segment_name(place.generation)


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_what_is_cut_is_what_a_cut_of_the_whole_frame_is(tmp_path: Path, digest_type: DigestType) -> None:
    frame = long_frame(digest_type)
    storage, _, place, _ = stored(tmp_path, frame)
    for first, last in ((0, 0), (17, 17), (COUNT - 1, COUNT - 1), (50, 65), (40, 90), (0, COUNT - 1)):
        first, last = first + FIRST, last + FIRST
        found, at_once = (
            read(place, first, last) for read in (storage.reader.read_entries, storage.reader.read_at_once)
        )
        whole = slice_frame(frame, first, last)
        assert (bytes(found)[:60], bytes(found)[64:]) == (bytes(whole)[:60], bytes(whole)[64:])
        keyless = digest_type.is_checksum
        assert (at_once is not None) == (keyless and last - first < 16)
        assert at_once is None or bytes(at_once) == bytes(found)
    storage.close()


@pytest.mark.parametrize("first", [FIRST - 1, FIRST + COUNT - 1, FIRST + COUNT])
def test_entries_beside_the_frame_are_not_cut_out_of_it(tmp_path: Path, first: int) -> None:
    frame = long_frame(DigestType.CRC32C)
    storage, _, place, _ = stored(tmp_path, frame)
    found, expected = storage.reader.read_entries(place, first, first + 1), slice_frame(frame, first, first + 1)
    assert bytes(found or b"") == bytes(expected or b"")
    assert storage.reader.read_at_once(place, first, first + 1) is None
    storage.close()


def test_one_entry_costs_the_columns_once_and_then_its_own_bytes(tmp_path: Path) -> None:
    frame = long_frame(DigestType.CRC32C)
    storage, files, place, _ = stored(tmp_path, frame)
    storage.reader.read_entries(place, FIRST + 10, FIRST + 10)
    assert files.bytes < len(frame) / 3
    files.bytes = 0
    for k in range(20):
        cut = storage.reader.read_entries(place, FIRST + k, FIRST + k)
        assert cut is not None
    assert files.bytes <= 20 * 700
    storage.close()


@pytest.mark.long
@pytest.mark.rule("S5")
@pytest.mark.parametrize("digest_type", [each for each in DigestType if each.is_checksum])
def test_every_byte_that_is_used_is_checked(tmp_path: Path, digest_type: DigestType) -> None:
    frame = long_frame(digest_type)
    storage, _, place, path = stored(tmp_path, frame)
    header, batch = parse_header(frame), decode_frame(frame)
    wanted = 123
    begin = 64 + header.columns_bytes + int(batch.offsets()[wanted])
    end = begin + int(batch.lengths[wanted])
    good, dice = path.read_bytes(), Random(3)
    used = [*range(64), *dice.sample(range(64, 64 + header.columns_bytes), 40), *range(begin, end)]
    for at in used:
        bad = bytearray(good)
        bad[place.offset + at] ^= 1 << dice.randrange(8)
        path.write_bytes(bad)
        storage.reader.release(place.generation)
        with pytest.raises(IntegrityError):
            storage.reader.read_entries(place, FIRST + wanted, FIRST + wanted)
        assert storage.reader.read_at_once(place, FIRST + wanted, FIRST + wanted) is None
    path.write_bytes(good)
    assert storage.reader.read_entries(place, FIRST + wanted, FIRST + wanted) is not None
    assert storage.reader.read_at_once(place, FIRST + wanted, FIRST + wanted) is not None
    path.write_bytes(bad)
    assert storage.reader.read_at_once(place, FIRST + wanted, FIRST + wanted) is None, "its columns are remembered"
    storage.close()


@pytest.mark.rule("S5")
def test_every_byte_of_a_small_frame_is_checked_before_it_is_read_at_once(tmp_path: Path) -> None:
    frame = entries(2, [5], size=30)
    storage, _, place, path = stored(tmp_path, frame)
    reader, good = storage.reader, path.read_bytes()
    reader.read_entries(place, 5, 5)
    found = reader.read_at_once(place, 5, 5, ledger_id=2)
    assert bytes(found[:60] + found[64:]) == frame[:60] + frame[64:]
    assert reader.read_at_once(place, 5, 5, ledger_id=3) is None, "of another ledger"
    assert reader.read_at_once(place, 6, 6, ledger_id=2) is None, "of another entry"
    assert reader.read_at_once(Place(place.generation, place.offset, place.size - 1), 5, 5) is None
    for at in range(len(frame)):
        bad = bytearray(good)
        bad[place.offset + at] ^= 1 << at % 8
        path.write_bytes(bad)
        assert reader.read_at_once(place, 5, 5) is None, at
    path.write_bytes(good)
    assert reader.read_at_once(place, 5, 5) is not None
    storage.close()


@pytest.mark.rule("S5")
def test_a_system_that_refuses_the_read_leaves_it_to_the_reader_thread(tmp_path: Path) -> None:
    storage, files, place, _ = stored(tmp_path, entries(2, [5]))
    storage.reader.read_entries(place, 5, 5)
    files.failing = True
    assert storage.reader.read_at_once(place, 5, 5) is None
    storage.close()


@pytest.mark.rule("S5")
def test_a_frame_of_another_place_is_not_cut(tmp_path: Path) -> None:
    storage, _, place, path = stored(tmp_path, long_frame(DigestType.CRC32C))
    content = bytearray(path.read_bytes())
    other = Place(place.generation, place.offset + 4096, place.size)
    content[other.offset : other.offset + other.size] = content[place.offset : place.offset + place.size]
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match="not written to this place"):
        storage.reader.read_entries(other, FIRST, FIRST)
    storage.close()


def test_at_once_only_what_takes_no_disk(tmp_path: Path) -> None:
    storage, files, place, _ = stored(tmp_path, long_frame(DigestType.CRC32C))
    small = storage.append(entries(2, range(5)))[0]
    reader = storage.reader
    cases = ((place, FIRST), (small, 3))
    for where, first in cases:
        assert reader.read_at_once(where, first, first) is None, "its segment is not open"
    for where, first in cases:
        assert reader.read_entries(where, first, first) is not None
        files.in_memory = False
        assert reader.read_at_once(where, first, first) is None
        files.in_memory = True
        assert reader.read_at_once(where, first, first) is not None
    reader.give_up(place.generation)
    assert all(reader.read_at_once(where, first, first) is None for where, first in cases)
    storage.close()


def test_the_columns_that_are_remembered_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "COLUMNS_BYTES_MAX", 12_000)
    storage = Storage(tmp_path / "d", segment_bytes=1 << 20)
    places = [storage.append(long_frame(DigestType.CRC32C))[0] for _ in range(4)]
    for place in places:
        storage.reader.read_entries(place, FIRST, FIRST)
    assert [storage.reader.read_at_once(place, FIRST, FIRST) is not None for place in places] == [
        False,
        False,
        True,
        True,
    ]
    storage.close()


def test_the_system_reads_at_once_what_its_cache_has(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(200)))
    files = Files()
    handle = files.open_read(str(tmp_path / "file"))
    assert files.read_at_once(handle, 50, 10) in (bytes(range(10, 60)), None)  # a file system may not tell
    assert files.read_at_once(handle, 50, 180) is None, "the file ends before"
    files.close(handle)
    assert files.read_at_once(handle, 50, 10) is None
