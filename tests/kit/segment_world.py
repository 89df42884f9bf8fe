# SPDX-License-Identifier: Apache-2.0
"""A data directory that a test drives: frames with known entries, crashes, and an oracle that knows the allowed
answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import (
    FrameKind,
    decode_frame,
    encode_frame,
    encode_record,
    encode_striped,
    entry_ids_of,
    parse_header,
    split_frames,
)
from bk_core.errors import IntegrityError
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.membership import Membership
from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.disk.files import Files
from bookie_server.storage.index.index import LedgerIndex, Lookup
from bookie_server.storage.log.segment_log import LogMaintenance, SegmentLog
from bookie_server.storage.log.segment_reader import SegmentReader
from bookie_server.storage.start.replay import OpenReport, open_segments
from tests.kit.index_state import state_of

BOOKIE_ID, CLUSTER = "bookie-1:3181", "cluster-1"
NOW_MS = 1_760_000_000_000
SEGMENT_BYTES = 256 << 10


def payload_of(ledger_id: int, entry_id: int, size: int = 50) -> bytes:
    """Return the payload of an entry. In tests an entry never has another one."""
    return (b"%d/%d " % (ledger_id, entry_id)).ljust(size, b"abcdefghijklmnopqrstuvwxyz"[entry_id % 26 :][:1])


def entries(ledger_id: int, ids: Sequence[int], *, lac: int = -1, size: int = 50) -> bytes:
    """Make a frame of these ids, dense or with a column of ids."""
    payloads = [payload_of(ledger_id, entry_id, size) for entry_id in ids]
    digester = Digester(DigestType.CRC32C, b"", ledger_id)
    dense = list(ids) == list(range(ids[0], ids[0] + len(ids)))
    batch = EntryBatch.from_list(payloads)
    if not dense:
        lengths = np.cumsum(batch.lengths, dtype=np.int64)
        batch = replace(batch, ids=np.array(ids, dtype=np.int64), ledger_lengths=lengths)
    first = min(ids)
    return bytes(
        encode_frame(batch, digester=digester, ledger_id=ledger_id, first_entry_id=first, lac=lac, length_before=0)
    )


def striped(ledger_id: int, first: int, span: int, *, ensemble: int = 3, quorum: int = 2, index: int = 0) -> bytes:
    """Make a STRIPED frame of a span of ids."""
    payloads = [payload_of(ledger_id, first + k) for k in range(span)]
    digester = Digester(DigestType.CRC32C, b"", ledger_id)
    batch = EntryBatch.from_list(payloads)
    whole = decode_frame(
        encode_frame(batch, digester=digester, ledger_id=ledger_id, first_entry_id=first, lac=-1, length_before=0)
    )
    assert whole.digests is not None
    frame = encode_striped(
        batch,
        ledger_id=ledger_id,
        first_entry_id=first,
        lac=-1,
        length_before=0,
        digest_type=DigestType.CRC32C,
        digests=whole.digests,
        ensemble_size=ensemble,
        write_quorum=quorum,
        index=index,
    )
    assert frame is not None
    return bytes(frame)


def ids_in(frame: bytes) -> list[int]:
    """Return the ids of a frame's entries."""
    return [int(entry_id) for entry_id in entry_ids_of(parse_header(frame), frame)]


@dataclass
class Answer:
    """The answer of a bookie about one range."""

    found: dict[int, bytes] = field(default_factory=dict)
    absent: set[int] = field(default_factory=set)
    unknown: dict[int, Reason] = field(default_factory=dict)


class Storage:
    """The storage objects of one directory, called as the server calls them. Upkeep runs after each append."""

    bookie_id, cluster, password = BOOKIE_ID, CLUSTER, b""

    def __init__(self, path: Path, *, files: Files | None = None, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.path, self.files = path, files or Files()
        name = str(path)
        if DataDirectory.exists(name, files=self.files):
            self.directory = DataDirectory.open(name, self.bookie_id, self.cluster, files=self.files)
        else:
            self.directory = DataDirectory.create(name, self.bookie_id, self.cluster, files=self.files)
        try:
            opened = open_segments(self.directory, segment_size_bytes=segment_bytes, now_ms=lambda: NOW_MS)
        except BaseException:
            self.directory.close()
            raise
        self.index: LedgerIndex = opened[0]
        self.log: SegmentLog = opened[1]
        self.report: OpenReport = opened[2]
        self.log_maintenance = LogMaintenance(
            self.log, lambda sealed: self.index.seal(sealed.generation, sealed.summary)
        )
        self.reader = SegmentReader(self.directory.segments_path, self.directory.identity, files=self.files)

    def append(self, *frames: bytes | memoryview) -> list[Place]:
        """Append a group as the commit thread does, and update the index."""
        places = self.log.append_group(frames)
        for frame, place in zip(frames, places, strict=True):
            self.index.add(frame, place)
        self.log.release_full()
        self.log_maintenance.run()
        return places

    def close(self, *, crash: bool = False) -> None:
        self.log.close(record=not crash)
        self.reader.close()
        self.directory.close()

    def lookup(self, ledger_id: int, first: int, last: int) -> Lookup:
        """Look entries up, and read from the disk what the look-up needs."""
        resolved: dict[Place, Membership] = {}
        while True:
            answer = self.index.lookup(ledger_id, first, last, resolved=resolved)
            for place in answer.unresolved:
                try:
                    resolved[place] = self.reader.membership(place)
                except IntegrityError:
                    self.index.mark_damaged(ledger_id, place)
            if not answer.unresolved:
                return answer

    def read(self, ledger_id: int, first: int, last: int) -> Answer:
        """Read every id from ``first`` to ``last`` as a server would. A frame that fails its check is marked as
        damaged."""
        answer = Answer()
        while first <= last:
            found = self.lookup(ledger_id, first, last)
            if self._collect(ledger_id, found, answer):
                continue
            for low, high in found.absent:
                answer.absent.update(range(low, high + 1))
            for unknown in found.unknown:
                answer.unknown.update(dict.fromkeys(range(unknown.first, unknown.last + 1), unknown.reason))
            first = found.through + 1
        return answer

    def _collect(self, ledger_id: int, found: Lookup, answer: Answer) -> bool:
        """Collect the pieces of a look-up. Return True if damage was found, so that the look-up must be repeated."""
        for piece in found.pieces:
            try:
                frame = self.reader.read_entries(piece.place, piece.first, piece.last, ledger_id=ledger_id)
            except IntegrityError:
                self.index.mark_damaged(ledger_id, piece.place)
                return True
            assert frame is not None
            for header, one in split_frames(frame):
                kind = DigestType(header.digest_type or DigestType.CRC32C)
                digester = Digester(kind, self.password, ledger_id)
                batch = decode_frame(one, digester=digester, verify_digests=True)
                answer.found.update(zip(batch.entry_ids().tolist(), batch.to_list(), strict=True))
        return False


def assert_honest(
    storage: Storage, must: Iterable[bytes], may: Iterable[bytes] = (), *, healthy: bool = False
) -> dict[int, Answer]:
    """Check all answers with the oracle. ``must`` are frames that were acked. Each of their entries must be found with
    its bytes or be UNKNOWN, never ABSENT. Their records must hold, or their ledger must be in trouble. ``may`` are
    frames of the tail, which may be found or lost. Nothing else may be found. With ``healthy``, UNKNOWN and trouble are
    not allowed either."""
    must, may = list(must), list(may)
    must_ids, may_ids = _ids_by_ledger(must), _ids_by_ledger(may)
    answers: dict[int, Answer] = {}
    for ledger_id in sorted({*must_ids, *may_ids}):
        required, allowed = must_ids.get(ledger_id, set()), may_ids.get(ledger_id, set())
        answer = answers[ledger_id] = storage.read(ledger_id, 0, max(required | allowed) + 5)
        assert not required & answer.absent, (ledger_id, sorted(required & answer.absent)[:5])
        assert set(answer.found) <= required | allowed
        for entry_id, payload in answer.found.items():
            assert payload.startswith(b"%d/%d " % (ledger_id, entry_id))
        if healthy:
            assert not answer.unknown
            assert required <= set(answer.found)
            assert not required or state_of(storage.index, ledger_id).trouble is Reason.REASON_NONE
    for frame in must:
        _assert_record_holds(storage, frame, healthy)
    return answers


def _assert_record_holds(storage: Storage, frame: bytes, healthy: bool) -> None:
    header = parse_header(frame)
    if header.kind == FrameKind.ENTRIES:
        return
    state = state_of(storage.index, header.ledger_id)
    if state.trouble is not Reason.REASON_NONE and not healthy:
        return
    assert state.trouble is Reason.REASON_NONE
    if header.kind == FrameKind.FENCE:
        assert state.fenced
    elif header.kind == FrameKind.LEDGER_KEY:
        assert state.key == frame[64:]
    elif header.kind == FrameKind.LAC:
        assert state.lac_body == frame[64:]


def _ids_by_ledger(frames: Iterable[bytes]) -> dict[int, set[int]]:
    ids: dict[int, set[int]] = {}
    for frame in frames:
        ledger_id, found = _entries_of(frame)
        if found:
            ids.setdefault(ledger_id, set()).update(found)
    return ids


@lru_cache(maxsize=4096)  # a test checks its world after each step
def _entries_of(frame: bytes) -> tuple[int, frozenset[int]]:
    header = parse_header(frame)
    return header.ledger_id, frozenset(ids_in(frame) if header.kind == FrameKind.ENTRIES else ())


def key_record(ledger_id: int) -> bytes:
    return encode_record(FrameKind.LEDGER_KEY, ledger_id, bytes([ledger_id % 256]) * 20)


def fence_record(ledger_id: int) -> bytes:
    return encode_record(FrameKind.FENCE, ledger_id)


def limbo_record(ledger_id: int) -> bytes:
    return encode_record(FrameKind.LIMBO, ledger_id)


def drop_record(ledger_id: int, generation: int) -> bytes:
    """Make the record that a copy was given up. The copy's frames in segments up to this generation are dead."""
    return encode_record(FrameKind.COPY_DROPPED, ledger_id, generation.to_bytes(8, "little"))


def lac_record(ledger_id: int, lac: int) -> bytes:
    body = ledger_id.to_bytes(8, "big") + lac.to_bytes(8, "big", signed=True)
    return encode_record(FrameKind.LAC, ledger_id, body + b"\1\2\3\4")
