# SPDX-License-Identifier: Apache-2.0
"""A damaged index is made anew from its segment, and forgets nothing that the old one named (RULES S2, S7, S8). Nobody
takes blocks of both for one index."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from bk_core.errors import IntegrityError, StorageFailedError
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine.disk_places import IndexBlock, Place
from bookie_server.storage.bytes.segment import index_name, segment_name
from bookie_server.storage.disk.files import BLOCK
from bookie_server.storage.index.ledger_frames import BlockFrames
from bookie_server.storage.index.search import SPARSE_SECTION
from bookie_server.storage.maintenance.sealed import stored
from bookie_server.storage.maintenance.sealed.reindex import PUT_OFF_STEPS
from tests.kit.amount import some
from tests.kit.damaged_world import LARGE, PLAIN, RUNS, DamagedWorld
from tests.kit.maintained import Kept, limits
from tests.kit.segment_world import assert_honest, entries
from tests.kit.whole_files import decode_index_file, encode_index_file
from tests.sim.disk import SimDisk


@pytest.fixture
def world() -> DamagedWorld:
    return DamagedWorld()


def spoil(world: DamagedWorld, generation: int, number: int) -> None:
    """A block of the index section is bad."""
    world.disk.flip_bit(world.idx(generation), world.sections(generation).index_block_range(number)[0] + 700)


def spoil_states(world: DamagedWorld, generation: int) -> None:
    world.disk.flip_bit(world.idx(generation), world.sections(generation).state_range[0] + 70)


def lose(world: DamagedWorld, place: Place, at: int = 20) -> None:
    """A frame's header is bad: no scan finds it."""
    world.disk.flip_bit(world.segment(place.generation), place.offset + at)


def place_of(world: DamagedWorld, ledger_id: int, entry_id: int) -> Place:
    [piece] = world.storage.lookup(ledger_id, entry_id, entry_id).pieces
    return piece.place


def repair(world: DamagedWorld) -> None:
    world.scrub()
    world.mend()


def blocks_of(world: DamagedWorld, generation: int, ledger_id: int) -> set[int]:
    """The index blocks that name frames of the ledger."""
    _, rows, _ = decode_index_file(world.disk.durable_bytes(world.idx(generation)))
    return {k // 63 for k in (rows["ledger"] == ledger_id).nonzero()[0].tolist()}


@pytest.mark.long
@pytest.mark.rule("S7")
@pytest.mark.parametrize("number", [0, SPARSE_SECTION])
def test_index_of_a_whole_segment_is_made_anew_to_the_same_bytes(world: DamagedWorld, number: int) -> None:
    generation = world.sealed[1]
    before = world.disk.durable_bytes(world.idx(generation))
    if number == SPARSE_SECTION:
        world.disk.flip_bit(world.idx(generation), world.sections(generation).sparse_range[0])
    else:
        spoil(world, generation, number)
    assert any(answer.unknown for answer in world.check().values()), "a read finds out; no scrubber is needed"
    world.mend()
    after = world.disk.durable_bytes(world.idx(generation))
    assert after[BLOCK:] == before[BLOCK:]
    assert world.sections(generation).header.edition == 1
    assert world.reindexer.stats.rebuilt == 1
    assert world.reindexer.stats.lost_records == 0
    assert world.released == [generation]
    assert not world.reindexer.step()
    world.check(healthy=True)
    world.restart()
    assert not world.storage.report.indexes_rebuilt
    world.check(healthy=True)


@pytest.mark.long
@pytest.mark.rule("S2", "S7")
@pytest.mark.parametrize("ledger_id", [PLAIN, RUNS])
@pytest.mark.parametrize("named", [True, False], ids=["its block is intact", "its block is lost, too"])
def test_frame_that_the_old_index_named_and_the_scan_does_not_find_stays_unknown(
    world: DamagedWorld, ledger_id: int, named: bool
) -> None:
    entry_id = 45 if ledger_id == PLAIN else 11
    place = place_of(world, ledger_id, entry_id)
    generation = place.generation
    lost = place if not place.is_run else Place(generation, place.offset + 256, 122)
    lose(world, lost)
    assert blocks_of(world, generation, ledger_id) == {0}
    spoil(world, generation, 1 if named else 0)
    repair(world)
    assert world.reindexer.stats.rebuilt == 1
    assert world.reindexer.stats.lost_records >= 1
    for _ in range(3):
        answer = world.check()[ledger_id]
        assert answer.unknown
        assert set(answer.unknown.values()) == {Reason.DAMAGED}
        must = {i for i in range(240) if i % 20 < 10} if ledger_id == PLAIN else set(range(192))
        assert len(must - set(answer.found)) == (10 if ledger_id == PLAIN else 1), "intact frames are served"
        world.restart()
        repair(world)
    assert world.storage.report.limbo is False


@pytest.mark.long
@pytest.mark.rule("S2")
def test_what_is_lost_is_remembered_by_later_indexes_too(world: DamagedWorld) -> None:
    """The index made anew is damaged again."""
    place = place_of(world, PLAIN, 45)
    generation = place.generation
    lose(world, place)
    spoil(world, generation, min(blocks_of(world, generation, PLAIN)))
    repair(world)
    for _ in range(3):
        number = random.Random(3).choice(sorted(blocks_of(world, generation, PLAIN)))
        spoil(world, generation, number)
        repair(world)
        world.restart()
        assert 45 in world.check()[PLAIN].unknown
    assert world.sections(generation).header.edition == 4


@pytest.mark.rule("S2")
def test_what_the_disk_gives_again_is_served_again(world: DamagedWorld) -> None:
    place = place_of(world, PLAIN, 45)
    generation = place.generation
    lose(world, place)
    spoil(world, generation, min(blocks_of(world, generation, PLAIN)))
    repair(world)
    assert 45 in world.check()[PLAIN].unknown
    lose(world, place)  # the bit is back
    world.restart()
    repair(world)
    world.restart()
    world.check(healthy=True)
    world.scrub()
    assert not world.storage.index.damaged_indexes


def lose_segment(world: DamagedWorld, generation: int) -> None:
    world.disk.lose_file(world.segment(generation))


def zero_all(world: DamagedWorld, generation: int) -> None:
    world.disk.put_at_rest(world.segment(generation), 0, bytes(128 << 10))


def zero_the_end(world: DamagedWorld, generation: int) -> None:
    start = world.sections(generation).header.data_end // 2 // BLOCK * BLOCK
    world.disk.put_at_rest(world.segment(generation), start, bytes((128 << 10) - start))


@pytest.mark.long
@pytest.mark.rule("S7")
@pytest.mark.parametrize("what", ["a block", "the header", "all of it"])
@pytest.mark.parametrize("harm", [lose_segment, zero_all, zero_the_end])
def test_bad_index_of_a_segment_that_is_gone_denies_nothing(
    world: DamagedWorld, harm: Callable[[DamagedWorld, int], None], what: str
) -> None:
    generation = world.sealed[1]
    harm(world, generation)
    if what == "a block":
        spoil(world, generation, 0)
    elif what == "the header":
        world.disk.flip_bit(world.idx(generation), 30)
    else:
        world.disk.lose_file(world.idx(generation))
    world.checkpointed = generation
    repair(world)
    assert world.reindexer.stats.rebuilt == 1
    for _ in range(2):
        assert any(answer.unknown for answer in world.check().values())
        repair(world)


@pytest.mark.rule("S4", "S8")
@pytest.mark.parametrize("part", ["states", "header"])
def test_index_waits_for_a_checkpoint_where_records_may_be_lost_with_both(world: DamagedWorld, part: str) -> None:
    """A start believes an index that it can read: a fence that stands in neither would be forgotten."""
    generation = next(g for g in world.sealed if world.sections(g).state_records)
    path = world.segment(generation)
    world.disk.put_at_rest(path, BLOCK, bytes(len(world.disk.durable_bytes(path)) - BLOCK))
    if part == "states":
        spoil_states(world, generation)
    else:
        world.disk.flip_bit(world.idx(generation), 30)
    before = world.disk.durable_bytes(world.idx(generation))
    world.scrub()
    for _ in range(3):
        world.mend()
    assert world.reindexer.wants_checkpoint
    assert world.reindexer.stats.put_off == 1, "it is not scanned again before there is one"
    assert world.disk.durable_bytes(world.idx(generation)) == before
    world.check()
    world.checkpointed = generation
    world.mend()
    assert not world.reindexer.wants_checkpoint
    assert not world.storage.index.damaged_indexes
    world.check()


def test_states_of_a_whole_segment_need_no_checkpoint(world: DamagedWorld) -> None:
    generation = next(g for g in world.sealed if world.sections(g).state_records)
    before = world.disk.durable_bytes(world.idx(generation))
    spoil_states(world, generation)
    repair(world)
    assert world.disk.durable_bytes(world.idx(generation))[BLOCK:] == before[BLOCK:]
    world.restart()
    world.check(healthy=True)


def test_full_disk_puts_a_new_index_off(world: DamagedWorld) -> None:
    generation = world.sealed[0]
    spoil(world, generation, 0)
    world.scrub()
    world.disk.faults.no_byte = True
    world.mend()
    assert (world.reindexer.stats.put_off, world.reindexer.stats.rebuilt) == (1, 0)
    world.check()
    world.disk.faults.no_byte = False
    steps = 0
    while world.storage.index.damaged_indexes:
        world.reindexer.step()
        steps += 1
    assert steps >= PUT_OFF_STEPS - 1
    world.check(healthy=True)


@pytest.mark.rule("S6")
def test_failed_sync_of_a_new_index_is_final(world: DamagedWorld) -> None:
    spoil(world, world.sealed[0], 0)
    world.scrub()
    world.disk.faults.syncs = 1
    with pytest.raises(StorageFailedError):
        world.mend()
    assert world.storage.log.failed


def test_segment_that_is_dropped_meanwhile_gets_no_index(world: DamagedWorld) -> None:
    generation = world.sealed[0]
    spoil(world, generation, 0)
    world.scrub()
    before = world.disk.durable_bytes(world.idx(generation))
    work = world.reindexer._rebuild(generation)
    next(work)
    world.storage.index.drop_segment(generation)
    assert list(work)
    assert world.disk.durable_bytes(world.idx(generation)) == before
    assert world.reindexer.stats.rebuilt == 0


@pytest.mark.rule("S7")
def test_blocks_of_two_editions_are_never_taken_together(world: DamagedWorld) -> None:
    """A read that is under way has the old index in part, and asks for the rest when the new one stands."""
    place = place_of(world, LARGE, 4)
    generation = place.generation
    for entry_id in range(0, 192, 3):
        run = world.storage.lookup(RUNS, entry_id, entry_id).pieces[0].place
        if run.generation == generation:
            break
    index, reader = world.storage.index, world.storage.reader
    sparse, block = IndexBlock(generation, SPARSE_SECTION), IndexBlock(generation, 0)
    told = {sparse: reader.membership(sparse)}
    lose(world, run)
    spoil(world, generation, min(blocks_of(world, generation, RUNS)))
    repair(world)
    told[block] = reader.membership(block)
    assert told[sparse].edition != told[block].edition
    found = index.lookup(PLAIN, 0, 0, resolved=told)
    if found.unresolved:
        assert set(found.unresolved) == {sparse, block}
    else:
        assert not found.absent
    index.learn(PLAIN, sparse, told[sparse])
    world.check()


@pytest.mark.long
@pytest.mark.rule("S2", "S7")
@pytest.mark.parametrize("seed", range(some(30, few=8)))
def test_whatever_is_damaged_nothing_is_denied_after_repairs_and_starts(seed: int) -> None:
    chance = random.Random(seed)
    world = DamagedWorld(seed=seed % 3)
    ends = {g: world.sections(g).header.data_end for g in world.sealed[:2]}
    for _ in range(chance.choice((2, 3, 6))):
        generation = chance.choice([*ends])
        if chance.random() < 0.5:
            world.harm(chance, world.segment(generation), ends[generation])
        else:
            world.harm(chance, world.idx(generation), len(world.disk.durable_bytes(world.idx(generation))))
    if chance.random() < 0.5:
        world.check()
    repair(world)
    world.check()
    repair(world)
    if not world.reindexer.wants_checkpoint:
        assert not world.storage.index.damaged_indexes, "an index that was made anew is right"
    world.check()
    world.restart(crash=chance.random() < 0.5)
    world.check()


# --- while somebody is at the old index ---


SEGMENTS = "/data/segments/"


class ReplacingDisk(SimDisk):
    """``replacement``: path and bytes of a file that takes the place of another once its first block was read."""

    replacement: tuple[str, bytes] | None = None

    def read_past_cache(self, path: str, size: int, offset: int) -> bytes:
        data = super().read_past_cache(path, size, offset)
        if self.replacement is not None and (path, offset) == (self.replacement[0], 0):
            (path, content), self.replacement = self.replacement, None
            self.write_atomically(path, content)
        return data


@pytest.mark.rule("S4", "S7")
def test_compaction_lets_go_of_a_segment_whose_index_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of a deleted ledger are bad, so that the new index has fewer records, and all others stand elsewhere."""
    monkeypatch.setattr(stored, "_BLOCKS_AT_ONCE", 1)
    disk = SimDisk()
    kept = Kept(files=disk, limits=limits(compaction_threshold=0.9))
    dead = kept.append(*(entries(1, [2 * k]) for k in range(63)))  # apart, so that each has a record
    alive = [entries(2, [2 * k]) for k in range(100)]
    kept.append(*alive)
    generation = dead[0].generation
    while kept.log.newest_sealed < generation:
        kept.append(entries(3, range(10), size=1700))
    kept.delete(1, 3)
    compactor, reindexer = kept.maintenance.compaction.compactor, kept.maintenance.reindexer
    compactor.step(1)  # the first block of the index
    assert compactor.generation == generation
    for place in dead[:2]:
        disk.flip_bit(SEGMENTS + segment_name(generation), place.offset)
    for block in (0, 1):
        disk.flip_bit(SEGMENTS + index_name(generation), (1 + block) * BLOCK + 9)
        kept.index.mark_damaged(2, IndexBlock(generation, block))
    while not reindexer.stats.rebuilt:
        assert reindexer.step()
    while compactor.step(1 << 20):
        pass
    assert_honest(kept, alive)


@pytest.mark.rule("S7")
def test_a_block_of_a_new_index_is_not_taken_for_one_of_the_old() -> None:
    disk = ReplacingDisk()
    kept = Kept(files=disk)
    kept.append(*(entries(ledger_id, [2 * k]) for ledger_id in (1, 2) for k in range(63)))
    generation = 1
    while kept.log.newest_sealed < generation:
        kept.append(entries(3, range(10), size=1700))
    path = SEGMENTS + index_name(generation)
    header, rows, states = decode_index_file(disk.read_file(path))
    new = encode_index_file(replace(header, edition=header.edition + 1), rows[2:], states)
    disk.flip_bit(path, 2 * BLOCK + 9)
    disk.replacement = path, new
    with pytest.raises(IntegrityError, match="was rebuilt"):
        kept.reader.membership(IndexBlock(generation, 1))
    kept.reader.release(generation)
    found = kept.reader.membership(IndexBlock(generation, 1))
    assert isinstance(found, BlockFrames)
    assert found.edition == header.edition + 1
