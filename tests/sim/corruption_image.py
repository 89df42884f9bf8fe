# SPDX-License-Identifier: Apache-2.0
"""A small data directory with every kind of frame and record, and the place of each.

It has two segments of 64 KiB. The first is sealed, and the second is full to its last block. There is also an older
life of the second segment's bytes, as a recycled file would show it.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from functools import cache

from bk_core.entries.digest import Digester
from bk_core.entries.frame import (
    FRAME_HEADER_BYTES,
    FrameKind,
    decode_frame,
    encode_record,
    entry_ids_of,
    parse_header,
)
from bk_core.metadata.port import MetadataStore
from bk_core.model import DigestType
from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.segment import GROUP_MAGIC
from bookie_server.storage.maintenance.checkpointer import Checkpointer
from bookie_server.storage.maintenance.index_port import DirectIndexPort
from tests.kit.apache_frames import encode_apache, entry_bytes
from tests.kit.segment_world import (
    drop_record,
    entries,
    fence_record,
    key_record,
    lac_record,
    limbo_record,
    striped,
)
from tests.sim.disk import SimDisk
from tests.sim.storage import SEGMENT_BYTES, SEGMENTS_DIR, StorageBackEnd, own_store

BOOKIE_ID = "bookie-1:3181"
BLOCK = 4096
_GROUP = struct.Struct("<8sQQIIQQ")


@dataclass(frozen=True, slots=True)
class Group:
    """A group as it was written: its place, and the position up to which it says that the log is durable."""

    offset: int
    size: int
    durable: int


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """``files`` has every byte of the directory after a loss of power. ``acked`` has the answered frames and their
    places.

    ``recorded`` says whether a later header records the last group with frames as durable.
    """

    files: dict[str, bytes | None]
    bookie_id: str
    known: MetadataStore
    state: bytes
    incarnation: bytes
    acked: tuple[tuple[bytes, Place], ...]
    groups: tuple[Group, ...]
    older: bytes
    recorded: bool

    @property
    def generation(self) -> int:
        """The generation of the newest segment."""
        return max(place.generation for _, place in self.acked)

    @property
    def newest(self) -> str:
        return f"{SEGMENTS_DIR}/{self.generation:016x}.segment"

    @property
    def sealed(self) -> str:
        return min(path for path in self.files if path.endswith(".segment"))

    def newest_bytes(self) -> bytes:
        data = self.files[self.newest]
        assert data is not None
        return data

    def region(self, offset: int) -> str:
        """Return the part of the newest segment to which a byte belongs."""
        if offset < BLOCK:
            return "segment header"
        group = next((one for one in self.groups if one.offset <= offset < one.offset + one.size), None)
        if group is None:
            return "space never written"
        if offset - group.offset < 64:
            return "group header"
        for at, size, columns in _frames(self):
            if at <= offset < at + FRAME_HEADER_BYTES:
                return "frame header"
            if at <= offset < at + size:
                return "columns" if offset < at + FRAME_HEADER_BYTES + columns else "payload"
        return "padding"

    def store(self) -> MetadataStore:
        """Return the metadata store, which knows this bookie as it was at its last start."""
        now = self.known.read_bookie_state(self.bookie_id)
        if now is None or now.value != self.state:
            self.known.write_bookie_state(self.bookie_id, self.state, now.version if now else None)
        return self.known

    def disk(self, changed: dict[str, bytes | None] | None = None) -> SimDisk:
        """Return a disk on which these files replace those of the image. None means that the file is gone."""
        files = {**self.files, **(changed or {})}
        disk = SimDisk()
        gone = [path for path, data in files.items() if data is None and self.files.get(path) is not None]
        disk.restore({path: data for path, data in files.items() if path not in gone})
        return disk


@cache
def _frames(image: Image) -> tuple[tuple[int, int, int], ...]:
    """Return (offset, bytes, bytes of columns) of everything in the newest segment."""
    data, found = image.newest_bytes(), []
    for group in image.groups:
        at = group.offset + 64
        while at + FRAME_HEADER_BYTES <= group.offset + group.size and data[at : at + 2] == b"BK":
            header = parse_header(data[at : at + FRAME_HEADER_BYTES])
            found.append((at, header.size, header.columns_bytes))
            at = (at + header.size + 63) // 64 * 64
    return tuple(found)


@cache
def make_image(recorded: bool = True, seed: int = 1, bookie_id: str = BOOKIE_ID) -> Image:
    """Return the directory of a bookie that lost power. It has the same bytes for the same arguments."""
    rng, disk, store = random.Random(seed), SimDisk(), own_store()
    back_end = StorageBackEnd(bookie_id, disk=disk, store=store)
    acked: list[tuple[bytes, Place]] = []

    def commit(frames: list[bytes]) -> None:
        places = back_end.commit(frames)
        for frame, place in zip(frames, places, strict=True):
            back_end.index.add(frame, place)
        acked.extend(zip(frames, places, strict=True))

    commit(_every_kind(0))
    first = back_end.log.position[0]
    while back_end.log.position[0] == first:
        commit([entries(20, [_next_id(acked, 20)], size=9000)])
    back_end.log.release_full()
    back_end.log_maintenance.run()
    _checkpoint(back_end)  # it holds the state of the segment that is now sealed
    commit(_every_kind(1))
    _fill(back_end, commit, rng, recorded)
    if recorded:
        back_end.idle()
    assert back_end.log.position[0] == first + 1, "the image has two segments"
    state = store.read_bookie_state(bookie_id)
    assert state is not None
    incarnation = back_end._open.directory.identity.incarnation_bytes
    back_end.crash(rng, "nothing")
    files = disk.snapshot()
    newest = files[f"{SEGMENTS_DIR}/{first + 1:016x}.segment"]
    assert newest is not None
    sealed = files[f"{SEGMENTS_DIR}/{first:016x}.segment"]
    assert sealed is not None
    return Image(
        files, bookie_id, store, state.value, incarnation, tuple(acked), tuple(_groups(newest)), sealed, recorded
    )  # fmt: skip


def _checkpoint(back_end: StorageBackEnd) -> None:
    opened = back_end._open
    made = Checkpointer(opened.directory, DirectIndexPort(opened.index), opened.log.health, opened.report.checkpoint)
    assert made.start()
    while made.busy:
        made.step(BLOCK)


def _fill(back_end: StorageBackEnd, commit: object, rng: random.Random, recorded: bool) -> None:
    """Write groups of all sizes until only the block of an idle group is left (or, if not ``recorded``, that of the
    last group)."""
    assert callable(commit)
    ledger_id, entry_id = 30, 0
    while True:
        room = (SEGMENT_BYTES - BLOCK - back_end.log.position[1]) // BLOCK
        if not room:
            return
        blocks = min(room, rng.choice((1, 1, 2, 3)))
        size = blocks * BLOCK - 64 - 200
        count = rng.choice((1, 3, 8))
        frames = []
        for k in range(count):
            frames.append(entries(ledger_id + k % 3, [entry_id], size=max(20, size // count - 150), lac=entry_id - 1))
            entry_id += 1
        commit(frames)


def _next_id(acked: list[tuple[bytes, Place]], ledger_id: int) -> int:
    ids = [0]
    for frame, _ in acked:
        header = parse_header(frame)
        if header.ledger_id == ledger_id and header.kind == FrameKind.ENTRIES:
            ids.append(int(max(entry_ids_of(header, frame))) + 1)
    return max(ids)


def _every_kind(turn: int) -> list[bytes]:
    """Return each kind of record, and frames with each column. A second call makes them for the second segment."""
    base = 100 * turn
    frames = [
        key_record(1 + base), entries(1 + base, range(5), lac=3), fence_record(2 + base), lac_record(3 + base, 17),
        encode_record(FrameKind.DELETED, 4 + base), limbo_record(5 + base), limbo_record(6 + base),
        drop_record(6 + base, turn), entries(6 + base, range(3)), drop_record(7 + base, turn),
        entries(7 + base, range(4), size=300),
        entries(9, [10 * turn + 5, 10 * turn + 3, 10 * turn + 4]), striped(10, 30 * turn, 20),
        entries(7, range(4 + 4 * turn, 8 + 4 * turn)),
    ]  # fmt: skip
    batch = decode_frame(entries(8, range(4 * turn, 4 * turn + 4)))
    whole = entry_bytes(batch, Digester(DigestType.CRC32C, b"", 8))
    return [*frames, bytes(encode_apache(8, list(whole)))]


def _groups(data: bytes) -> list[Group]:
    found, at = [], BLOCK
    while at < len(data):
        magic, _, _, size, _, offset, durable = _GROUP.unpack_from(data, at)
        if magic != GROUP_MAGIC:
            break
        assert offset == at
        found.append(Group(at, size, durable))
        at += size
    return found
