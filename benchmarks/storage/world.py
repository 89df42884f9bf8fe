# SPDX-License-Identifier: Apache-2.0
"""Parts that the measurements share: storage in a directory whose file calls are counted, frames, and a bare file."""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.raw_server import open_direct
from benchmarks.report.figures import VariedBytes
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import FRAME_HEADER_BYTES, assemble, encode_frame, parse_header
from bk_core.model import DigestType
from bookie_server.machine.disk_places import Place
from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.disk.files import Files, Handle
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.log.sealing import SealedSegment
from bookie_server.storage.log.segment_log import LogMaintenance, SegmentLog
from bookie_server.storage.start.replay import open_segments

BOOKIE_ID, CLUSTER = "bench:1", "bench"
ENTRY_BYTES = 1_000
"""The bytes of an entry of "1 KB", as in the other groups."""
SEGMENT_BYTES_MIN = 8 << 20
_FILLER_BYTES = 16 << 10
FILLED_SEGMENTS = 4
"""The number of segments that are filled first. After that, each segment of a log that recycles was written before."""


class CountingFiles(Files):
    """The real file system. It counts calls and bytes."""

    def __init__(self) -> None:
        self.reads = 0
        self.written_bytes = 0

    def _pread(self, handle: Handle, size: int, offset: int) -> bytes:
        self.reads += 1
        return super()._pread(handle, size, offset)

    def _read_into(self, handle: Handle, view: memoryview, offset: int) -> int:
        self.reads += 1
        return super()._read_into(handle, view, offset)

    def write(self, handle: Handle, buffers: Sequence[memoryview], offset: int) -> None:
        super().write(handle, buffers, offset)
        self.written_bytes += sum(map(len, buffers))

    def _append(self, handle: Handle, data: memoryview) -> None:
        self.written_bytes += len(data)
        super()._append(handle, data)


class Ledger:
    """Frames of a ledger, one behind the other, each with the same number of entries of one size.

    They are made in a fraction of the time of ``encode_frame``. The digests are those of the first frame, because a
    bookie never checks them; the CRCs are right.
    """

    def __init__(self, ledger_id: int, entries: int, entry_bytes: int, data: VariedBytes) -> None:
        self.ledger_id, self._entries, self._entry_bytes, self._data = ledger_id, entries, entry_bytes, data
        payload = data.take(entries * entry_bytes)
        batch = EntryBatch.from_list([payload[at : at + entry_bytes] for at in range(0, len(payload), entry_bytes)])
        digester = Digester(DigestType.CRC32C, b"", ledger_id)
        frame = encode_frame(batch, digester=digester, ledger_id=ledger_id, first_entry_id=0, lac=-1, length_before=0)
        header = parse_header(frame)
        self._digest_type = header.digest_type
        self._columns = [bytes(frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + header.columns_bytes])]
        self.next_entry = 0

    @property
    def payload_bytes(self) -> int:
        """The bytes of payload in each frame."""
        return self._entries * self._entry_bytes

    def frame(self) -> bytearray:
        """Return the next frame. Its LAC is the entry before it."""
        first, self.next_entry = self.next_entry, self.next_entry + self._entries
        return self.frame_of(self.ledger_id, first)

    def frame_of(self, ledger_id: int, first: int) -> bytearray:
        """Return such a frame for any ledger."""
        payload = self._data.take(self.payload_bytes)
        head = (1, 0, self._digest_type, ledger_id, first, first - 1, first * self._entry_bytes, self._entries)
        return assemble(head, self._columns, payload, 0)


def ledgers_of(count: int, frame_bytes: int, entry_bytes: int = ENTRY_BYTES, first_id: int = 0) -> list[Ledger]:
    """Return ``count`` ledgers with frames of about ``frame_bytes`` bytes of payload."""
    data = VariedBytes(64 << 20)
    return [
        Ledger(ledger_id, max(1, frame_bytes // entry_bytes), entry_bytes, data)
        for ledger_id in range(first_id, first_id + count)
    ]


class Store:
    """A data directory whose log continues in recycled segments. Its maintenance is done in between."""

    def __init__(self, folder: Path, segment_bytes: int, *, recycling: bool = True) -> None:
        self.path = str(folder / "data")
        self.files = CountingFiles()
        self.directory = DataDirectory.create(self.path, BOOKIE_ID, CLUSTER, files=self.files)
        opened = open_segments(self.directory, segment_size_bytes=segment_bytes)
        self.index: LedgerIndex = opened[0]
        self.log: SegmentLog = opened[1]
        self.segment_bytes, self._recycling = segment_bytes, recycling
        self.sealed: list[int] = []
        self._upkeep = LogMaintenance(self.log, self._on_sealed)
        if recycling:
            self._fill()

    def _fill(self) -> None:
        filler = ledgers_of(1, _FILLER_BYTES, first_id=1 << 40)[0]  # small frames leave no room at the end
        while len(self.sealed) < FILLED_SEGMENTS:
            self.append([filler.frame() for _ in range((1 << 20) // _FILLER_BYTES)])
            self.look_after()

    def _on_sealed(self, sealed: SealedSegment) -> None:
        self.index.seal(sealed.generation, sealed.summary)
        self.sealed.append(sealed.generation)
        if self._recycling:  # as if it were empty: checkpoints and garbage collection are measured elsewhere
            self.index.drop_segment(sealed.generation)
            self.log.pool.recycle(sealed.generation)

    def append(self, group: Sequence[bytes | bytearray]) -> list[Place]:
        """Commit one group and add its frames to the index, as a bookie does before it acks."""
        places = self.log.append_group(group)
        for frame, place in zip(group, places, strict=True):
            self.index.add(frame, place)
        return places

    def look_after(self) -> None:
        """Do the work of the maintenance thread: seal full segments and make spare ones."""
        self.log.release_full()
        self._upkeep.run()

    def close(self) -> None:
        self.log.close()
        self.directory.close()

    def remove(self) -> None:
        """Remove the directory of a closed store."""
        shutil.rmtree(self.path)


class Bare:
    """A preallocated file on the same disk with every block written once: the raw disk that ours is compared with."""

    def __init__(self, folder: Path, size: int) -> None:
        self._path, self._size = folder / "raw-disk", size
        self._handle = open_direct(self._path)
        os.posix_fallocate(self._handle, 0, size)
        with mmap.mmap(-1, 1 << 20) as block:
            block.write(os.urandom(1 << 20))
            for at in range(0, size, 1 << 20):
                os.pwrite(self._handle, block, at)
        os.fdatasync(self._handle)
        self._at = 0

    def write(self, buffer: mmap.mmap) -> float:
        """Return the seconds of one ``pwritev`` and one ``fdatasync``."""
        if self._at + len(buffer) > self._size:
            self._at = 0
        began = time.perf_counter()
        os.pwritev(self._handle, [buffer], self._at)
        os.fdatasync(self._handle)
        took = time.perf_counter() - began
        self._at += len(buffer)
        return took

    def close(self) -> None:
        os.close(self._handle)
        self._path.unlink()


def scaled_segment(full: int, scale: float) -> int:
    """Return the bytes of a segment: less than ``full`` for a small scale, so that fewer bytes fill a few segments."""
    return max(SEGMENT_BYTES_MIN, min(full, int(full * scale) // 4096 * 4096))


def block_buffer(size: int) -> mmap.mmap:
    """Return an aligned buffer of whole blocks that are not zeros."""
    buffer = mmap.mmap(-1, (size + 4095) // 4096 * 4096)
    buffer.write(os.urandom(len(buffer)))
    return buffer
