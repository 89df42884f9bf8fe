# SPDX-License-Identifier: Apache-2.0
"""The scrubber finds damage before it is asked for, and what it finds is never denied (RULES S2, S5)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from bookie_server.machine.disk_places import Place
from bookie_server.storage.disk.files import BLOCK
from bookie_server.storage.maintenance.sealed.scrub import Scrubber
from tests.kit.damaged_world import LARGE, PLAIN, RUNS, DamagedWorld
from tests.kit.segment_world import entries
from tests.kit.whole_files import decode_index_file, encode_index_file


@pytest.fixture
def world() -> DamagedWorld:
    return DamagedWorld()


def place_of(world: DamagedWorld, ledger_id: int, entry_id: int) -> Place:
    [piece] = world.storage.lookup(ledger_id, entry_id, entry_id).pieces
    return piece.place


def member_of(world: DamagedWorld, run: Place, k: int) -> Place:
    """One of the frames of a run."""
    members = world.storage.reader.membership(run)
    return Place(run.generation, members.offsets[k], members.sizes[k])


def test_healthy_directory_is_looked_at_to_its_last_byte_and_nothing_is_found(world: DamagedWorld) -> None:
    world.scrub()
    stats = world.scrubber.stats
    assert (stats.passes, stats.segments) == (1, len(world.sealed))
    assert (stats.damaged_frames, stats.damaged_index_blocks, stats.refused) == (0, 0, 0)
    read = sum(world.sections(g).header.data_end + world.sections(g).file_bytes for g in world.sealed)
    assert stats.bytes >= read - 2 * BLOCK * len(world.sealed)
    world.check(healthy=True)


def test_step_keeps_to_its_budget_and_says_when_a_pass_is_over(world: DamagedWorld) -> None:
    done = []
    while not done or done[-1]:
        done.append(world.scrubber.step(10_000))
    assert max(done) < 10_000 + (90 << 10), "a group of frames at most is more"
    assert sum(done) == world.scrubber.stats.bytes
    assert (world.scrubber.stats.passes, world.scrubber.step(1) > 0) == (1, True)


def test_directory_without_sealed_segments_gives_nothing_to_do() -> None:
    world = DamagedWorld(0)
    assert world.scrubber.step(1 << 20) == 0
    assert world.scrubber.stats.passes == 0


@pytest.mark.rule("S5")
@pytest.mark.parametrize("where", ["header", "columns", "payload"])
def test_flipped_bit_of_a_frame_is_found_marked_and_told_once_a_pass(
    world: DamagedWorld, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = place_of(world, PLAIN, 45)
    at = {"header": 20, "columns": 66, "payload": place.size - 1}[where]
    world.disk.flip_bit(world.segment(place.generation), place.offset + at, 3)
    for passes in (1, 2):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            world.scrub()
        assert len([record for record in caplog.records if "damage" in record.message]) == 1
        assert world.scrubber.stats.damaged_frames == passes
    reads = world.storage.reader.reads
    found = world.storage.lookup(PLAIN, 40, 49)
    assert [(gap.first, gap.last) for gap in found.unknown] == [(40, 49)]
    assert not found.pieces
    assert world.storage.reader.reads == reads, "no read had to find out"
    world.check()


@pytest.mark.rule("S2")
@pytest.mark.parametrize("at", [20, -1])
def test_damaged_frame_of_a_run_takes_no_neighbour_along_however_often_it_is_found(
    world: DamagedWorld, at: int
) -> None:
    run = place_of(world, RUNS, 33)
    assert run.is_run
    lost = member_of(world, run, 2)
    world.disk.flip_bit(world.segment(run.generation), lost.offset + at % lost.size)
    for _ in range(3):
        world.scrub()
    assert world.scrubber.stats.damaged_frames == 3
    answer = world.storage.read(RUNS, 0, 8 * 24 - 1)
    assert len(answer.unknown) == 1
    assert not answer.absent


@pytest.mark.rule("S3")
def test_zeroed_group_header_is_found_and_its_frames_are_served(world: DamagedWorld) -> None:
    place = place_of(world, LARGE, 4)
    before = world.disk.durable_bytes(world.segment(place.generation))
    header = before.rindex(b"BKGROUP1", 0, place.offset)
    world.disk.put_at_rest(world.segment(place.generation), header, bytes(64))
    world.scrub()
    assert world.scrubber.stats.damaged_frames == 1
    world.check(healthy=True)


@pytest.mark.rule("S5")
@pytest.mark.parametrize("damage", ["zeroed", "refused"])
def test_end_of_a_segment_is_not_taken_for_a_tail(world: DamagedWorld, damage: str) -> None:
    """Nothing behind the zeros says that something was there, but the index does."""
    generation = world.sealed[0]
    path, end = world.segment(generation), world.sections(generation).header.data_end
    start = end - 6 * BLOCK
    if damage == "zeroed":
        world.disk.put_at_rest(path, start, bytes(len(world.disk.durable_bytes(path)) - start))
    else:
        for at in range(start, end, 512):
            world.disk.break_sector(path, at)
    world.scrub()
    stats = world.scrubber.stats
    assert stats.damaged_frames
    assert not stats.damaged_index_blocks
    assert (stats.refused > 0) == (damage == "refused")
    answers = world.check()
    assert any(answer.unknown for answer in answers.values())


@pytest.mark.rule("S5")
def test_sector_that_cannot_be_read_is_damage_and_the_rest_of_the_segment_is_looked_at(world: DamagedWorld) -> None:
    first, second = place_of(world, PLAIN, 5), place_of(world, PLAIN, 65)
    assert first.generation == second.generation
    world.disk.break_sector(world.segment(first.generation), first.offset + 100)
    world.disk.flip_bit(world.segment(first.generation), second.offset + 20)
    world.scrub()
    assert world.scrubber.stats.refused
    for entry_id in (5, 65):
        assert not world.storage.lookup(PLAIN, entry_id, entry_id).pieces
    world.check()


BLOCKS: list[tuple[str, Callable[[DamagedWorld, int], int]]] = [
    ("header", lambda world, generation: 0),
    ("index", lambda world, generation: BLOCK),
    ("states", lambda world, generation: world.sections(generation).state_range[0]),
    ("sparse", lambda world, generation: world.sections(generation).sparse_range[0]),
    ("summary", lambda world, generation: world.sections(generation).summary_range[0]),
]


@pytest.mark.long
@pytest.mark.rule("S7")
@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("offset_of", [b[1] for b in BLOCKS], ids=[b[0] for b in BLOCKS])
def test_every_block_of_an_index_is_checked(
    world: DamagedWorld, offset_of: Callable[[DamagedWorld, int], int], refused: bool
) -> None:
    generation = world.sealed[1]
    offset = offset_of(world, generation) + 600
    if refused:
        world.disk.break_sector(world.idx(generation), offset)
    else:
        world.disk.flip_bit(world.idx(generation), offset)
    world.scrub()
    assert world.scrubber.stats.damaged_index_blocks == 1
    assert world.scrubber.stats.damaged_frames == 0
    assert world.storage.index.damaged_indexes == {generation}
    world.check()


def swap(world: DamagedWorld, generation: int) -> None:
    """A record names another frame's ids."""
    header, rows, states = decode_index_file(world.disk.durable_bytes(world.idx(generation)))
    rows = rows.copy()
    mine = (rows["ledger"] == PLAIN).nonzero()[0][:2]
    rows["offset"][mine], rows["size"][mine] = rows["offset"][mine[::-1]], rows["size"][mine[::-1]]
    put_index(world, generation, encode_index_file(header, rows, states))


def forget_a_frame(world: DamagedWorld, generation: int) -> None:
    header, rows, states = decode_index_file(world.disk.durable_bytes(world.idx(generation)))
    put_index(world, generation, encode_index_file(header, rows[1:], states))


def forget_a_record(world: DamagedWorld, generation: int) -> None:
    header, rows, states = decode_index_file(world.disk.durable_bytes(world.idx(generation)))
    put_index(world, generation, encode_index_file(header, rows, states[1:]))


def forget_the_file(world: DamagedWorld, generation: int) -> None:
    world.disk.lose_file(world.idx(generation))


def put_index(world: DamagedWorld, generation: int, data: bytes) -> None:
    path = world.idx(generation)
    world.disk.lose_file(path)
    world.disk.write_atomically(path, data)


@pytest.mark.long
@pytest.mark.rule("S7")
@pytest.mark.parametrize("lie", [swap, forget_a_frame, forget_a_record, forget_the_file])
def test_index_that_is_whole_and_lies_is_found_and_made_anew(
    world: DamagedWorld, lie: Callable[[DamagedWorld, int], None]
) -> None:
    generation = world.sealed[1]
    lie(world, generation)
    world.scrub()
    assert world.storage.index.damaged_indexes == {generation}
    assert world.scrubber.stats.damaged_frames == 0
    world.checkpointed = generation
    world.mend()
    assert not world.storage.index.damaged_indexes
    world.storage.reader.release(generation)
    world.check(healthy=True)
    world.scrub()
    assert not world.storage.index.damaged_indexes
    world.restart()
    world.check(healthy=True)


def test_segment_that_is_gone_is_told_and_its_entries_are_unknown(world: DamagedWorld) -> None:
    generation = world.sealed[0]
    world.disk.lose_file(world.segment(generation))
    world.scrub()
    assert world.scrubber.stats.damaged_frames == 1
    assert any(answer.unknown for answer in world.check().values())


@pytest.mark.rule("S4")
def test_segment_that_begins_another_life_while_it_is_read_is_not_damaged(world: DamagedWorld) -> None:
    """Dropped, recycled and written anew: what is read then is nothing of this segment."""
    generation, index = world.sealed[0], world.storage.index
    while not world.scrubber.stats.bytes > 3 * BLOCK:
        world.scrubber.step(1)
    index.drop_segment(generation)
    world.disk.put_at_rest(world.segment(generation), 0, b"\xaa" * (100 << 10))
    world.disk.lose_file(world.idx(generation))
    world.scrub()
    stats = world.scrubber.stats
    assert (stats.passes, stats.damaged_frames, stats.damaged_index_blocks) == (1, 0, 0)
    assert not index.damaged_segments()


def test_segments_sealed_meanwhile_wait_for_the_next_pass(world: DamagedWorld) -> None:
    """Else a bookie that seals faster than it scrubs would never look at its old segments again."""
    count = len(world.sealed)
    world.scrubber.step(1)
    while len(world.sealed) == count:
        world.append(entries(9, [1], size=30_000))
    world.scrub()
    assert world.scrubber.stats.segments == count
    world.scrub()
    assert world.scrubber.stats.segments == 2 * count + 1


def test_what_the_index_could_not_be_told_is_told_by_the_next_step(world: DamagedWorld) -> None:
    place = place_of(world, PLAIN, 45)
    world.disk.flip_bit(world.segment(place.generation), place.offset + 20)
    ask, calls = world.port.ask, []

    def refuses_once(question: object) -> object:
        calls.append(question)
        if len(calls) == 2:  # the first is for the list of segments
            raise TimeoutError
        return ask(question)

    world.port.ask = refuses_once
    with pytest.raises(TimeoutError):
        world.scrub()
    assert world.storage.lookup(PLAIN, 45, 45).pieces
    world.scrub()
    assert world.scrubber.stats.damaged_frames == 1
    assert not world.storage.lookup(PLAIN, 45, 45).pieces


@pytest.mark.parametrize("at", [20, -1])
def test_ledgers_that_lost_entries_are_suspects_with_their_entries_in_the_log(
    world: DamagedWorld, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    place = place_of(world, PLAIN, 45)
    world.disk.flip_bit(world.segment(place.generation), place.offset + at % place.size)
    world.scrub()
    assert world.storage.index.take_suspects() == [PLAIN]
    assert world.storage.index.take_suspects() == []
    assert any(word in caplog.text for word in ("entries 40 to 49 of ledger 1", "10 entries from 40 of ledger 1"))
    world.scrub()
    assert world.storage.index.take_suspects() == [PLAIN], "each pass tells: a mark may have gone since"


def test_ledgers_of_a_segment_that_is_gone_are_suspects_and_so_are_those_of_records_of_what_was_lost(
    world: DamagedWorld,
) -> None:
    gone, bad = world.sealed[:2]
    ledgers = world.storage.index.ledgers_in(gone).tolist()
    world.disk.lose_file(world.segment(gone))
    world.scrub()
    assert sorted(world.storage.index.take_suspects()) == ledgers

    lost = place_of(world, LARGE, 13)
    world.disk.put_at_rest(world.segment(lost.generation), lost.offset, bytes(lost.size))
    sections = world.sections(lost.generation)
    for number in range(sections.index_blocks):
        world.disk.put_at_rest(world.idx(lost.generation), sections.index_block_range(number)[0], bytes(BLOCK))
    world.scrub()
    world.checkpointed = max(world.sealed)
    world.mend()
    assert LARGE in world.storage.index.take_suspects(), "the new index names what the old one may have named"
    world.restart()
    assert bad in world.sealed
    world.scrub()
    assert LARGE in world.storage.index.take_suspects()


def test_first_pass_begins_where_it_is_told_and_meets_every_segment(
    world: DamagedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    storage = world.storage
    scrubber = Scrubber(
        world.disk, storage.directory.segments_path, storage.directory.identity.incarnation_bytes, world.port,
        first_at=0.5,
    )  # fmt: skip
    monkeypatch.setattr(scrubber, "_look_at", lambda generation: iter([looked_at.append(generation) or 1]))
    for _ in range(2):
        while scrubber.step(1):
            pass
    half, sealed = len(world.sealed) // 2, world.sealed
    assert len(sealed) > 2
    assert looked_at == sealed[half:] + sealed[:half] + sealed
