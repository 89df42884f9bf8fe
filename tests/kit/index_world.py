# SPDX-License-Identifier: Apache-2.0
"""An index that a test drives. Its segments hold invented frames, and the test seals and drops them. A disk that can be
damaged answers for them. A model knows which entries must be found, may be denied, or are lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np

from bk_core.entries.frame import IDS, STRIPED, FrameExtent, FrameKind
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine.disk_places import IndexBlock, Place
from bookie_server.storage.bytes.index_file import (
    INDEX_RECORDS_PER_BLOCK,
    IndexHeader,
    StateCollector,
    build_index,
    decode_index_block,
    decode_index_header,
    decode_sparse,
)
from bookie_server.storage.bytes.index_rows import DENSE, INDEX_ROW, RUN, STRIPE
from bookie_server.storage.bytes.membership import RunMembers, Striping, runs_of_ids
from bookie_server.storage.index.cache import Remembered, SparseIndex
from bookie_server.storage.index.index import BYTES_MAX, LedgerIndex, Lookup
from bookie_server.storage.index.ledger_frames import BlockFrames
from bookie_server.storage.index.search import SPARSE_SECTION
from tests.kit.whole_files import decode_index_rows, index_range

INCARNATION = bytes(range(16))
IDS_MAX = 400
DROPPABLE = 3


@dataclass(frozen=True, eq=False)
class Fake:
    """A frame, with the facts that the index uses."""

    ledger: int
    ids: tuple[int, ...]
    striping: Striping | None
    lac: int
    place: Place

    @property
    def extent(self) -> FrameExtent:
        dense = self.ids[-1] - self.ids[0] + 1 == len(self.ids)
        return FrameExtent(self.ids[0], self.ids[-1], dense, len(self.ids), self.lac)

    @property
    def flags(self) -> int:
        return STRIPED if self.striping is not None else 0 if self.extent.dense else IDS

    def row(self, with_striping: bool) -> bytes:
        extent, count, bits = self.extent, len(self.ids), DENSE
        if not extent.dense:
            bits = 0
            if with_striping and self.striping is not None:
                bits = STRIPE
                count = self.striping.ensemble_size << 20 | self.striping.write_quorum << 10 | self.striping.index
        row = (self.ledger, extent.first, extent.last, 0, extent.max_lac, self.place.offset)
        return np.array([(*row, self.place.size, count, self.flags, 3, bits, 0)], dtype=INDEX_ROW).tobytes()


@dataclass
class Segment:
    """A segment. Once sealed, it has its ``.idx`` and, for the offset of each frame, the block of the ``.idx`` that
    names it."""

    generation: int
    frames: list[Fake] = field(default_factory=list)
    end: int = 4096
    data: bytes = b""
    block_of: dict[int, int] = field(default_factory=dict)


class World:
    """The index, its segments and the model. All random choices follow from the seed."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.index = LedgerIndex(random.choice([0, 1500, 12_000, 1 << 20]))
        self.ledgers = [1, 2, DROPPABLE, 5, *range(10, 10 + random.choice([0, 3, 90]))]
        self.segments: dict[int, Segment] = {}
        self.generation = 0
        self.next_id: dict[int, int] = {}
        self.drops: dict[int, int] = {}
        self.deleted: set[int] = set()
        self.bad_frames: set[Place] = set()
        self.bad_blocks: set[IndexBlock] = set()
        self.with_striping = random.random() < 0.7

    # --- changes ----------------------------------------------------------------------------------------------------

    def fill(self, frames: int) -> None:
        """Make a new segment with this number of frames."""
        self.generation += self.random.choice([1, 1, 3])
        segment = self.segments[self.generation] = Segment(self.generation)
        for _ in range(frames):
            self.append(segment)
            if self.random.random() < 0.02:
                self.drop_copy(DROPPABLE)

    def append(self, segment: Segment) -> None:
        random = self.random
        ledger = random.choice(self.ledgers[:4]) if random.random() < 0.7 else random.choice(self.ledgers)
        ids, striping = self._ids(ledger)
        self.put(segment, ledger, ids, striping, random.choice([-1, ids[0] - 1]))

    def put(self, segment: Segment, ledger: int, ids: tuple[int, ...], striping: Striping | None, lac: int) -> None:
        if ledger in self.deleted:
            return
        random = self.random
        gap = random.choice([0, 0, 64, 640, 4096, 9000])
        offset = -(-(segment.end + gap) // 64) * 64
        size = random.choice([100, 200, 1000, 30_000]) if random.random() < 0.98 else 70_000
        segment.end = offset + size
        fake = Fake(ledger, ids, striping, lac, Place(segment.generation, offset, size))
        segment.frames.append(fake)
        known = striping if random.random() < 0.5 else None
        self.index.add_frame(ledger, fake.extent, fake.place, striping=known)

    def _ids(self, ledger: int) -> tuple[tuple[int, ...], Striping | None]:
        """Choose the ids of a frame. Most frames begin where the ledger ends. Others overlap older frames or lie inside
        them."""
        random = self.random
        following = random.random() < 0.75
        first = self.next_id.get(ledger, 0) if following else random.randrange(IDS_MAX)
        span = random.choice([1, 1, 2, 5]) if following else random.choice([1, 3, 20, 150])
        span = max(1, min(span, IDS_MAX - first))
        kind = random.random()
        held, striping = tuple(range(first, first + span)), None
        if kind < 0.1:
            held = tuple(sorted(random.sample(held, random.randint(1, span))))
        elif kind < 0.25 or ledger == 5:
            size = random.randint(2, 5)
            striping = Striping(size, random.randint(1, size - 1), random.randrange(size))
            held = tuple(i for i in held if (striping.index - i) % size < striping.write_quorum)
        if not held:
            held, striping = tuple(range(first, first + span)), None
        if random.random() < 0.85:  # otherwise the next frame begins at the same id, like an add that is sent twice
            self.next_id[ledger] = (first + span) % IDS_MAX
        return held, striping

    def seal(self, generation: int) -> None:
        segment = self.segments[generation]
        rows = b"".join(fake.row(self.with_striping) for fake in segment.frames)
        header = IndexHeader(generation, INCARNATION, segment.end, 1)
        built = build_index(header, rows, StateCollector().rows())
        segment.data = built.data
        sections = decode_index_header(built.data)
        index_rows = decode_index_rows(sections, _part(built.data, index_range(sections)))
        bounds = [(int(row["offset"]), int(row["size"]), int(row["bits"])) for row in index_rows]
        for fake in segment.frames:
            at = fake.place.offset
            segment.block_of[at] = next(
                k // INDEX_RECORDS_PER_BLOCK
                for k, (offset, size, bits) in enumerate(bounds)
                if offset == at
                or (bits & RUN and offset < at < offset + size and index_rows[k]["ledger"] == fake.ledger)
            )
        self.index.seal(generation, built.summary)

    def is_sealed(self, generation: int) -> bool:
        return bool(self.segments[generation].data)

    def drop_copy(self, ledger: int) -> None:
        """Drop the ledger's copy: its frames in sealed segments are then dead. Sometimes an older record of a drop
        follows, as at a start."""
        generation = self.index.newest_sealed
        self.drops[ledger] = max(generation, self.drops.get(ledger, 0))
        generations = [generation, self.random.randint(0, generation)] if self.random.random() < 0.5 else [generation]
        for each in self.random.sample(generations, len(generations)):
            self.index.add_record(FrameKind.COPY_DROPPED, ledger, each.to_bytes(8, "little"))

    def delete(self, ledger: int) -> None:
        self.deleted.add(ledger)
        self.index.add_record(FrameKind.DELETED, ledger, b"")

    def compact(self, generation: int) -> None:
        """Write the live frames of a sealed segment to a new one, add them to the index, and drop the old segment."""
        old = self.segments[generation]
        self.generation += 1
        new = self.segments[self.generation] = Segment(self.generation)
        for fake in old.frames:
            if self.is_live(fake):
                self.put(new, fake.ledger, fake.ids, fake.striping, fake.lac)
        del self.segments[generation]
        self.index.drop_segment(generation)

    def damage(self, share: float) -> None:
        """Damage some frames and some index blocks."""
        for fake in self.frames():
            if self.random.random() < share:
                self.bad_frames.add(fake.place)
        for generation in self.segments:
            if self.is_sealed(generation) and self.random.random() < 10 * share:
                blocks = max(self.segments[generation].block_of.values(), default=0)
                self.bad_blocks.add(IndexBlock(generation, self.random.randint(SPARSE_SECTION, blocks)))

    def mend_index(self) -> None:
        """Rebuild the unreadable indexes from their segments."""
        for generation in sorted(self.index.damaged_indexes):
            self.bad_blocks = {block for block in self.bad_blocks if block.generation != generation}
            rows = b"".join(fake.row(self.with_striping) for fake in self.segments[generation].frames)
            built = build_index(IndexHeader(generation, INCARNATION, 0, 1), rows, StateCollector().rows())
            self.index.index_rebuilt(generation, built.summary)
        assert not self.index.damaged_indexes

    # --- the disk ---------------------------------------------------------------------------------------------------

    def answer(self, place: Place | IndexBlock) -> Remembered | None:
        """Return what the reader says of an unresolved place, or None if the place cannot be read."""
        segment = self.segments[place.generation]
        if isinstance(place, IndexBlock):
            return None if place in self.bad_blocks else self._index_block(segment, place.number)
        if place.is_run:
            return self._members(segment, place)
        fake = self.at(place)
        if place in self.bad_frames:
            return None
        return fake.striping or runs_of_ids(np.array(fake.ids))

    def _index_block(self, segment: Segment, number: int) -> Remembered:
        sections = decode_index_header(segment.data)
        if number == SPARSE_SECTION:
            return SparseIndex(decode_sparse(sections, _part(segment.data, sections.sparse_range)))
        data = _part(segment.data, sections.index_block_range(number))
        return BlockFrames(segment.generation, decode_index_block(sections, number, data))

    def _members(self, segment: Segment, run: Place) -> RunMembers:
        intact = [fake for fake in self.inside(run) if fake.place not in self.bad_frames]
        columns = [(f.ids[0], f.ids[-1], f.place.offset, f.place.size) for f in sorted(intact, key=lambda f: f.ids)]
        return RunMembers(*(zip(*columns, strict=True) if columns else ((), (), (), ())))

    def inside(self, run: Place) -> list[Fake]:
        """Return the frames of a run, as a reader finds them."""
        frames = self.segments[run.generation].frames
        end = run.offset + run.size
        return [f for f in frames if f.ledger == run.run_of and run.offset <= f.place.offset < end]

    def of(self, place: Place) -> list[Fake]:
        return self.inside(place) if place.is_run else [self.at(place)]

    def at(self, place: Place) -> Fake:
        return next(fake for fake in self.segments[place.generation].frames if fake.place == place)

    # --- asking -----------------------------------------------------------------------------------------------------

    def ask(self, ledger: int, first: int, last: int, frames_max: int, bytes_max: int) -> Lookup:
        """Look entries up as the machine does: read unresolved places, mark damaged ones, and look up again."""
        resolved: dict[Place | IndexBlock, Remembered] = {}
        for _ in range(3000):
            found = self.index.lookup(
                ledger, first, last, frames_max=frames_max, bytes_max=bytes_max, resolved=resolved
            )
            if found.unresolved:
                for place in found.unresolved:
                    said = self.answer(place)
                    if said is None:
                        self.index.mark_damaged(ledger, place)
                    else:
                        resolved[place] = said
                        self.index.learn(ledger, place, said)
                continue
            bad = next((piece.place for piece in found.pieces if not self._is_read(ledger, piece)), None)
            if bad is None:
                return found
            self.index.mark_damaged(ledger, bad)
        raise AssertionError("the look-up never ends")

    def _is_read(self, ledger: int, piece: object) -> bool:
        """Return whether the piece's entries can be read. Fail if they are not those that the piece names."""
        held: set[int] = set()
        place, first, last = piece.place, piece.first, piece.last
        for fake in self.of(place):
            wanted = {i for i in fake.ids if first <= i <= last}
            if wanted and fake.place in self.bad_frames:
                return False
            assert fake.ledger == ledger
            assert not wanted or self.is_live(fake), "the piece is in a copy that was dropped"
            held |= wanted
        assert {first, last} <= held, "the piece does not begin and end with entries that exist"
        assert not place.is_run or len(held) == last - first + 1, "the run lacks an id"
        return True

    # --- the model --------------------------------------------------------------------------------------------------

    def frames(self) -> Iterator[Fake]:
        return (fake for segment in self.segments.values() for fake in segment.frames)

    def served(self, ledger: int) -> list[Fake]:
        """Return the live frames of the ledger, damaged or not."""
        return [f for f in self.frames() if f.ledger == ledger and self.is_live(f)]

    def is_live(self, fake: Fake) -> bool:
        """Return whether the frame is live. A frame in an unsealed segment is live unless its ledger was deleted."""
        generation = fake.place.generation
        is_dropped = self.is_sealed(generation) and generation <= self.drops.get(fake.ledger, 0)
        return fake.ledger not in self.deleted and not is_dropped

    def is_hidden(self, fake: Fake) -> bool:
        """Return whether an index block that names the frame is unreadable."""
        generation = fake.place.generation
        number = self.segments[generation].block_of.get(fake.place.offset)
        blocks = {IndexBlock(generation, SPARSE_SECTION), IndexBlock(generation, number or 0)}
        return number is not None and not self.bad_blocks.isdisjoint(blocks)

    def check(self, ledger: int, first: int, last: int, frames_max: int, bytes_max: int = BYTES_MAX) -> None:
        """Look up the whole range, and compare every answer with the model."""
        holders: dict[int, list[Fake]] = {}
        for fake in self.served(ledger):
            for entry_id in fake.ids:
                holders.setdefault(entry_id, []).append(fake)
        while first <= last:
            found = self.ask(ledger, first, last, frames_max, bytes_max)
            assert first <= found.through <= last
            said = said_of(found, self, first, min(found.through, IDS_MAX + 10))
            for entry_id, word in said.items():
                self._check_word(ledger, word, holders.get(entry_id, []))
            assert len(said) == max(min(found.through, IDS_MAX + 10) - first + 1, 0), (
                "the look-up says nothing about some ids"
            )
            first = found.through + 1

    def _check_word(self, ledger: int, word: object, holders: list[Fake]) -> None:
        if word == "absent":
            assert not holders, "the look-up denies an entry that is here"
            assert ledger not in self.drops, "the look-up denies an entry of a copy that was given up"
        elif isinstance(word, Fake):
            assert word in holders
            assert word.place not in self.bad_frames
        else:
            intact = [f for f in holders if f.place not in self.bad_frames and not self.is_hidden(f)]
            assert not intact, "the look-up does not serve an intact entry"
            assert word is not Reason.DAMAGED or self.bad_frames or self.bad_blocks

    def check_end(self, ledger: int) -> None:
        served = self.served(ledger)
        intact = [fake for fake in served if fake.place not in self.bad_frames]
        end = self.index.last_entry(ledger)
        greatest = max((fake.ids[-1] for fake in intact), default=-1)
        assert end.bound >= greatest, "an add over the greatest id must be compared"
        assert (end.place is None) == (end.entry_id < 0)
        lac, carrier = self.index.carried_lac(ledger)
        assert (carrier is None) == (lac < 0)
        if not self.bad_frames and not self.bad_blocks and ledger not in self.deleted:
            assert (end.entry_id, end.bound) == (greatest, greatest)
            assert lac >= max((fake.lac for fake in intact), default=-1)
            assert end.place is None or self._holds(end.place, "last", greatest)
            assert carrier is None or self._holds(carrier, "lac", lac)

    def _holds(self, place: Place, what: str, value: int) -> bool:
        return value in [fake.ids[-1] if what == "last" else fake.lac for fake in self.of(place)]

    def check_live_bytes(self) -> None:
        wanted = {generation: 0 for generation in self.segments if self.is_sealed(generation)}
        here: dict[int, set[int]] = {generation: set() for generation in wanted}
        for ledger in self.ledgers:
            for fake in self.served(ledger):
                if fake.place.generation in wanted:
                    wanted[fake.place.generation] += fake.place.size
                    here[fake.place.generation].add(ledger)
        assert self.index.live_bytes() == wanted
        assert {generation: set(self.index.ledgers_in(generation).tolist()) for generation in wanted} == here


def said_of(found: Lookup, world: World, first: int, top: int) -> dict[int, object]:
    """Return for each id from ``first`` to ``top`` what a look-up says: the frame that serves it, "absent", or a
    reason."""
    said: dict[int, object] = {}
    for piece in found.pieces:
        assert first <= piece.first <= piece.last <= found.through
        for fake in world.of(piece.place):
            for entry_id in fake.ids:
                if piece.first <= entry_id <= min(piece.last, top):
                    assert said.setdefault(entry_id, fake) is fake
    ranges: list[tuple[int, int, object]] = [(low, high, "absent") for low, high in found.absent]
    ranges += [(gap.first, gap.last, gap.reason) for gap in found.unknown]
    for low, high, word in ranges:
        for entry_id in range(low, min(high, top) + 1):
            assert entry_id not in said
            said[entry_id] = word
    return said


def _part(data: bytes, where: tuple[int, int]) -> bytes:
    return data[where[0] : where[0] + where[1]]
