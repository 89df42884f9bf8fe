# SPDX-License-Identifier: Apache-2.0
"""A storage of small segments with checkpoints. Its first segment has every kind of state, and is drained and
recycled."""

from __future__ import annotations

from pathlib import Path

from bk_core.entries.frame import FrameKind, encode_record
from bookie_server.storage.disk.files import Files
from bookie_server.storage.maintenance.checkpointer import Checkpointer
from bookie_server.storage.maintenance.index_port import DirectIndexPort
from tests.kit.index_state import LedgerStatus, state_of
from tests.kit.segment_world import (
    Storage,
    drop_record,
    entries,
    fence_record,
    key_record,
    lac_record,
    limbo_record,
)

SEGMENT = 64 << 10
DEAD, LIVE, FENCED, WITH_LAC, CONFLICT, LIMBO, DROPPED, BOTH, GONE = LEDGERS = range(1, 10)
UNHEARD = 77


RECORDS = [
    *(key_record(ledger_id) for ledger_id in LEDGERS),
    encode_record(FrameKind.LEDGER_KEY, CONFLICT, bytes(20)),
    encode_record(FrameKind.DELETED, GONE),
    fence_record(FENCED),
    lac_record(WITH_LAC, 41),
    limbo_record(LIMBO),
    drop_record(DROPPED, 5),
    drop_record(DROPPED, 3),
    limbo_record(BOTH),
    drop_record(BOTH, 1),
    limbo_record(GONE),
]
"""The records of the first segment, which is recycled."""


class World:
    """A storage whose first segments hold state and a deleted ledger; the later segments hold a live ledger."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path, self.files = path, files
        self.open()

    def open(self) -> Storage:
        self.storage = Storage(self.path, files=self.files, segment_bytes=SEGMENT)
        newest = self.storage.report.checkpoint
        source = DirectIndexPort(self.storage.index)
        self.checkpointer = Checkpointer(self.storage.directory, source, self.storage.log.health, newest)
        return self.storage

    def again(self, *, crash: bool = False) -> Storage:
        self.storage.close(crash=crash)
        return self.open()

    def fill(self) -> None:
        self.storage.append(*RECORDS)
        for k in range(16):
            self.storage.append(entries(DEAD, range(10 * k, 10 * k + 10), size=1000))
        for k in range(16):
            self.storage.append(entries(LIVE, range(10 * k, 10 * k + 10), size=1000))
        self.storage.append(encode_record(FrameKind.DELETED, DEAD))

    def checkpoint(self) -> None:
        assert self.checkpointer.start()
        while self.checkpointer.busy:
            self.checkpointer.step(4096)

    def drain(self) -> list[int]:
        """Remove segments without live frames from the index, and return their generations."""
        drained = [generation for generation, live in self.storage.index.live_bytes().items() if not live]
        for generation in drained:
            self.storage.index.drop_segment(generation)
        return drained

    def recycle(self) -> list[int]:
        drained = self.drain()
        self.checkpoint()
        for generation in drained:
            assert self.checkpointer.may_recycle(generation)
            self.storage.log.pool.recycle(generation)
        return drained

    def picture(self) -> dict[int, LedgerStatus]:
        return {ledger_id: state_of(self.storage.index, ledger_id) for ledger_id in (*LEDGERS, UNHEARD)}

    @property
    def segments(self) -> Path:
        return self.path / "segments"

    def checkpoints(self) -> list[Path]:
        return sorted(self.segments.glob("*.checkpoint"))


def filled(path: Path) -> World:
    world = World(path)
    world.fill()
    return world


def stripped(picture: dict[int, LedgerStatus]) -> list[tuple[object, ...]]:
    """Return the state without the places of frames, which change when a tail is copied."""
    return [(k, s.known, s.key, s.fenced, s.deleted, s.lac_body, s.trouble) for k, s in picture.items()]
