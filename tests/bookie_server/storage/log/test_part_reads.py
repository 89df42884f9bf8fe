# SPDX-License-Identifier: Apache-2.0
"""Parts of entries of a long frame: read without the rest of it, and only from frames that prove their columns (RULES
S5, decision 84)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import encode_frame, slice_frame
from bk_core.entries.parts import cut_frames
from bk_core.errors import IntegrityError
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import Cut
from bookie_server.engine.holdings import answer_read
from bookie_server.machine.disk_places import Place
from bookie_server.machine.events import FramesRead, Piece, ReadFrames
from bookie_server.storage.bytes.segment import segment_name
from tests.bookie_server.storage.log.test_entry_cuts import Counting
from tests.kit.segment_world import Storage, entries, striped

FIRST, SIZES = 1000, (90_000, 70_000, 120_000)
LAST = FIRST + len(SIZES) - 1
HEAD = Cut(head=500)
RANGES = Cut(0, FIRST, (((0, 40), (60_000, 9_000)), (), ((119_000, 5_000),)))  # the last one reaches beyond its entry


def frame_of(sizes: Sequence[int] = SIZES, digest_type: DigestType = DigestType.CRC32C) -> bytes:
    dice = Random(4)
    batch = EntryBatch.from_list([dice.randbytes(size) for size in sizes])
    digester = Digester(digest_type, b"", 1)
    return bytes(
        encode_frame(batch, digester=digester, ledger_id=1, first_entry_id=FIRST, lac=900, length_before=12_345)
    )


def stored(path: Path, *frames: bytes) -> tuple[Storage, Counting, list[Place]]:
    files = Counting()
    storage = Storage(path / "d", files=files, segment_bytes=1 << 20)
    places = storage.append(*frames)
    files.bytes = 0
    return storage, files, places


def segment_of(path: Path, place: Place) -> Path:
    return path / "d" / "segments" / segment_name(place.generation)


def cut_of(frame: bytes, cut: Cut, first: int, last: int) -> bytes:
    """What a bookie would cut out of the whole frame."""
    return bytes(cut_frames(slice_frame(frame, first, last) or b"", cut)[0])


def answered(storage: Storage, pieces: Sequence[Piece], cut: Cut | None = None) -> list[bytes | None]:
    answer = answer_read(storage.reader, ReadFrames((1, 1), pieces, cut=cut))
    assert isinstance(answer, FramesRead)
    return [None if frame is None else bytes(frame) for frame in answer.frames]


@pytest.mark.parametrize("cut", [HEAD, RANGES], ids=["head", "ranges"])
@pytest.mark.parametrize(("first", "last"), [(FIRST, LAST), (FIRST + 1, LAST), (FIRST, FIRST), (LAST, LAST + 5)])
def test_parts_that_are_read_are_those_cut_out_of_the_whole_frame(
    tmp_path: Path, cut: Cut, first: int, last: int
) -> None:
    frame = frame_of()
    storage, files, (place,) = stored(tmp_path, frame)
    expected = cut_of(frame, cut, first, last)
    for _ in range(2):  # once with the columns from the disk, once with those in memory
        assert storage.reader.read_parts(place, first, last, cut) == expected
    assert files.bytes < len(frame) / 4
    assert storage.reader.reads == 2
    storage.close()


@pytest.mark.parametrize("digest_type", [kind for kind in DigestType if kind is not DigestType.CRC32C])
def test_frames_of_other_digests_are_read_whole(tmp_path: Path, digest_type: DigestType) -> None:
    storage, _, (place,) = stored(tmp_path, frame_of(digest_type=digest_type))
    assert storage.reader.read_parts(place, FIRST, LAST, HEAD) is None
    storage.close()


def test_frames_that_are_not_plain_or_not_long_are_read_whole(tmp_path: Path) -> None:
    frames = [
        striped(1, 0, 3_000),
        entries(1, [5_000, 5_002], size=70_000),
        entries(1, [6_000], size=1_000),
        frame_of(),
    ]
    storage, _, places = stored(tmp_path, *frames)
    firsts = (0, 5_000, 6_000, LAST + 1)  # the last frame has not the entry that is asked for
    found = [storage.reader.read_parts(place, id_, id_, HEAD) for place, id_ in zip(places, firsts, strict=True)]
    assert found == [None] * 4
    storage.close()


@pytest.mark.parametrize(("size", "is_cut"), [(16_384 + 500, True), (16_383 + 500, False)])
def test_a_part_is_read_alone_only_if_each_read_saves_enough(tmp_path: Path, size: int, is_cut: bool) -> None:
    storage, _, (place,) = stored(tmp_path, frame_of([size] * 8))
    assert (storage.reader.read_parts(place, FIRST, FIRST + 7, HEAD) is not None) == is_cut
    storage.close()


@pytest.mark.rule("S5")
def test_no_part_is_read_by_columns_that_fail_a_check(tmp_path: Path) -> None:
    frame = frame_of()
    storage, _, (place,) = stored(tmp_path, frame)
    path = segment_of(tmp_path, place)
    good = path.read_bytes()
    for at in range(64 + 8 * len(SIZES)):  # header, lengths and digests
        bad = bytearray(good)
        bad[place.offset + at] ^= 1 << at % 8
        path.write_bytes(bad)
        storage.reader.release(place.generation)
        assert storage.reader.read_parts(place, FIRST, LAST, HEAD) is None, at
    path.write_bytes(good[: place.offset] + bytes(4096) + good[place.offset :])
    storage.reader.release(place.generation)
    moved = Place(place.generation, place.offset + 4096, place.size)
    assert storage.reader.read_parts(moved, FIRST, LAST, HEAD) is None, "not written to this place"
    storage.close()


@pytest.mark.rule("S5")
def test_no_part_is_read_beyond_the_end_of_a_file(tmp_path: Path) -> None:
    storage, _, (place,) = stored(tmp_path, frame_of())
    assert storage.reader.read_parts(place, FIRST, LAST, HEAD) is not None
    path = segment_of(tmp_path, place)
    path.write_bytes(path.read_bytes()[: place.offset + place.size - 2_000])
    assert storage.reader.read_parts(place, FIRST, LAST, HEAD) is not None, "the heads are before the end"
    assert storage.reader.read_parts(place, FIRST, LAST, RANGES) is None
    path.unlink()
    storage.reader.release(place.generation)
    assert storage.reader.read_parts(place, FIRST, LAST, HEAD) is None
    storage.close()


def test_an_answer_has_parts_and_whole_frames_in_the_order_of_its_pieces(tmp_path: Path) -> None:
    small = [entries(1, [at], size=1_000) for at in (0, 2_000)]
    storage, _, places = stored(tmp_path, small[0], frame_of(), small[1])
    firsts = (0, FIRST, 2_000)
    pieces = [Piece(place, first, first + 2, is_whole=True) for place, first in zip(places, firsts, strict=True)]
    parts = cut_of(frame_of(), HEAD, FIRST, LAST)
    got = [frame or b"" for frame in answered(storage, pieces, HEAD)]
    assert [got[0][64:], got[1], got[2][64:]] == [small[0][64:], parts, small[1][64:]]
    whole = [len(frame or b"") for frame in answered(storage, pieces)]
    assert whole == [len(small[0]), len(frame_of()), len(small[1])]
    storage.reader.give_up(places[0].generation)
    assert answered(storage, pieces, HEAD) == [None] * 3
    storage.close()


@pytest.mark.rule("S5")
def test_damage_in_a_part_is_found_once_the_entry_is_read_whole(tmp_path: Path) -> None:
    """The bookie cannot check a part. The reader does, and then asks for whole entries."""
    frame = frame_of()
    storage, _, (place,) = stored(tmp_path, frame)
    path = segment_of(tmp_path, place)
    content = bytearray(path.read_bytes())
    content[place.offset + len(frame) - 10] ^= 1
    path.write_bytes(content)
    read = [Piece(place, FIRST, LAST, is_whole=True)]
    assert answered(storage, read, RANGES) != [None]
    assert answered(storage, read) == [None]
    with pytest.raises(IntegrityError):
        storage.reader.read(place)
    storage.close()
