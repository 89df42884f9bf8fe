# SPDX-License-Identifier: Apache-2.0
"""The product's storage on a simulated disk, as a back end of a simulated bookie (RULES S10).

Opening, replay, commits and reads are the product's own functions. Only the file system below them is
:class:`~tests.sim.disk.SimDisk`. Segments have 64 KiB, so that a few groups fill one.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bk_core.entries.digest import Digester
from bk_core.entries.frame import FrameKind, decode_frame, encode_record, split_frames
from bk_core.errors import BookKeeperError, IntegrityError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, DigestType, EntryId, LedgerId
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import Reason
from bookie_server.config import BookieConfig
from bookie_server.engine.holdings import IndexHoldings, answer_read
from bookie_server.identity.opening import OpenStorage, open_storage
from bookie_server.machine import events as ev
from bookie_server.machine.disk_places import Place
from bookie_server.machine.machine import BookieMachine
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.log.segment_log import LogMaintenance, SegmentLog
from bookie_server.storage.start.replay import OpenReport
from tests.kit.bookie_effects import parted
from tests.kit.index_state import unsealed_places
from tests.kit.memory_store import MemoryCluster, MemoryStore
from tests.kit.whole_files import decode_index_file
from tests.sim.disk import SimDisk, SimulatedCrash
from tests.sim.world import World

SEGMENT_BYTES = 64 << 10
DATA_DIR = "/data"
SEGMENTS_DIR = DATA_DIR + "/segments"
NOW_MS = 1_760_000_000_000
_CLUSTER = b"9d0f5f0e-6f0b-4a57-8a2c-51a3c7e0b1d4"
_LIFE = uuid.UUID("6f0c0d1e-7f11-4a52-9d4e-2f8f0c9b7a10")


def own_store() -> MetadataStore:
    """Return the metadata store of an initialised cluster with a fixed id, for a single bookie."""
    cluster = MemoryCluster(clock_ms=lambda: NOW_MS)
    first = MemoryStore(cluster)
    first.initialize_cluster()
    first.close()
    next(node for path, node in cluster._nodes.items() if path.endswith("/INSTANCEID")).data = _CLUSTER
    return MemoryStore(cluster)


class StorageBackEnd:
    """A bookie's bytes: a disk that survives, and the storage that is open on it.

    ``store`` keeps cookies and state records, which a start compares with the directory. Opening raises the product's
    errors; then ``opened`` is None, and :meth:`restart` may be tried again.
    """

    logs = 1

    def __init__(
        self,
        bookie_id: BookieId = "bookie-1:3181",
        *,
        disk: SimDisk | None = None,
        store: MetadataStore | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.bookie_id = bookie_id
        self.disk = disk or SimDisk()
        self.store = store or own_store()
        self.opened: OpenStorage | None = None
        self._segment_bytes = segment_bytes
        self._lives = 0  # the number of directories made
        self._limbo_after_wipe: tuple[LedgerId, ...] = ()
        self._fenced_after_wipe: tuple[LedgerId, ...] = ()
        self.restart()

    # --- what is open -----------------------------------------------------------------------------------------------

    @property
    def _open(self) -> OpenStorage:
        assert self.opened is not None, "the storage is not open"
        return self.opened

    @property
    def log(self) -> SegmentLog:
        return self._open.log

    @property
    def index(self) -> LedgerIndex:
        return self._open.index

    @property
    def report(self) -> OpenReport:
        return self._open.report

    def restart(self) -> None:
        """Run the product's start-up on the disk. ``holdings`` is new afterwards."""
        assert self.opened is None, "the storage is open already"
        config = BookieConfig(
            data_dir=Path(DATA_DIR), metadata_service_uri="memory://simulated", bookie_id=self.bookie_id
        )
        [opened] = open_storage(
            config,
            self.store,
            "bookie",
            3181,
            files=self.disk,
            segment_size_bytes=self._segment_bytes,
            incarnation=self._incarnation(),
            now_ms=lambda: NOW_MS,
        )
        self.opened = opened
        self.holdings = IndexHoldings(opened.index, opened.reader)
        self.log_maintenance = LogMaintenance(
            opened.log, lambda sealed: opened.index.seal(sealed.generation, sealed.summary)
        )
        if self._fenced_after_wipe:
            self._note_wipe()

    # --- what a bookie does with it ---------------------------------------------------------------------------------

    def commit(self, frames: Sequence[bytes | memoryview]) -> list[Place]:
        """Commit one group, which is durable when this returns, and do the upkeep after it. Raises the errors of
        :meth:`SegmentLog.append_group`."""
        places = self.log.append_group(frames)
        self.log_maintenance.run()
        return places

    def read(self, effect: ev.ReadFrames | ev.ReadMemberships) -> ev.FramesRead | ev.MembershipsRead:
        return answer_read(self._open.reader, effect)

    def idle(self) -> None:
        """Do what the bookie does when it has had nothing to commit for a while. Raises StorageFailedError."""
        self.log.record_position()
        self.log.release_full()
        self.log_maintenance.run()

    # --- ends -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop cleanly, which records the position. If the disk fails now, the storage is stopped all the same."""
        opened, self.opened = self._open, None
        try:
            opened.log.close()
        except BookKeeperError:
            pass
        finally:
            opened.reader.close()
            opened.directory.close()

    def crash(self, random: Random, keep: str | None = None) -> None:
        """Lose power."""
        self.opened = None
        self.disk.crash(random, keep)

    def kill(self) -> None:
        """End the process. The page cache stays."""
        self.opened = None
        self.disk.kill()

    def commit_torn(self, frames: Sequence[bytes | memoryview], random: Random) -> None:
        """Lose power at any operation of a commit that is never answered."""
        self.disk.crash_at(random.randint(1, 3) if random.random() < 0.8 else random.randint(1, 12))
        with contextlib.suppress(SimulatedCrash, BookKeeperError):
            self.commit(frames)
        self.crash(random, random.choice((None, "some sectors")))  # holes in a group are rare otherwise

    # --- damage -----------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the disk has no space for new files."""
        return self.disk.faults.no_space

    @full.setter
    def full(self, full: bool) -> None:
        self.disk.faults.no_space = full

    def fail_next_sync(self) -> None:
        """Let the next sync fail. Its data is lost although the cache shows it, and later syncs succeed."""
        self.disk.faults.syncs = 1

    def frames_on_record(self) -> list[tuple[LedgerId, Place]]:
        """Return the frames of entries that are served and lie below the highest durable position on record of their
        segment. Damage of these must be noticed (RULES S3)."""
        active = self.log._active
        found: list[tuple[LedgerId, Place]] = []
        for ledger_id in self.index.ledger_ids():
            for place in unsealed_places(self.index, ledger_id):
                if active is None or place.generation != active.generation or place.offset < active.data_end:
                    found.append((ledger_id, place))
        return found + self._sealed_frames()

    def _sealed_frames(self) -> list[tuple[LedgerId, Place]]:
        """Return the frames that the indexes on the disk name, with whole runs of small frames as one."""
        found: list[tuple[LedgerId, Place]] = []
        for generation in self.index.sealed_generations():
            stem = f"{SEGMENTS_DIR}/{generation:016x}"
            if not self.disk.exists(stem + ".segment") or not self.disk.exists(stem + ".idx"):
                continue
            try:
                _, rows, _ = decode_index_file(self.disk.durable_bytes(stem + ".idx"))
            except IntegrityError:
                continue
            for row in rows[["ledger", "offset", "size"]].tolist():
                if not self.index.is_deleted(row[0]):
                    found.append((row[0], Place(generation, row[1], row[2])))
        return found

    def flip_bit(self, random: Random) -> tuple[LedgerId, Place] | None:
        """Damage a frame on record, at rest. Return None if there is none."""
        frames = self.frames_on_record()
        if not frames:
            return None
        ledger_id, place = random.choice(frames)
        path = f"{SEGMENTS_DIR}/{place.generation:016x}.segment"
        self.disk.flip_bit(path, place.offset + random.randrange(place.size), random.randrange(8))
        return ledger_id, place

    def eio_on_read(self, random: Random) -> tuple[LedgerId, Place] | None:
        """Let a sector of a frame that is served become unreadable. Whether the frame is on record or not, it must
        never be taken for torn."""
        unsealed = (
            (ledger, place) for ledger in self.index.ledger_ids() for place in unsealed_places(self.index, ledger)
        )
        frames = [*unsealed, *self._sealed_frames()]
        if not frames:
            return None
        ledger_id, place = random.choice(frames)
        path = f"{SEGMENTS_DIR}/{place.generation:016x}.segment"
        self.disk.break_sector(path, place.offset + random.randrange(place.size))
        return ledger_id, place

    def wipe(self, ledgers: Sequence[LedgerId] = (), ended: Sequence[LedgerId] = ()) -> None:
        """Replace the disk by an empty one under the same bookie id, which the operator allowed by removing the cookie.

        The next start fences ``ledgers`` and puts them in limbo, and fences ``ended``, as a new incarnation must (RULES
        S8). This method prepares that, because the product refuses such a start.
        """
        self.opened = None
        self.disk.wipe()
        self._lives += 1
        self._limbo_after_wipe, self._fenced_after_wipe = tuple(ledgers), (*ledgers, *ended)
        self.store.delete_cookie(self.bookie_id)
        state = self.store.read_bookie_state(self.bookie_id)
        if state is not None:
            fields = json.loads(state.value) | {"incarnation": self._incarnation(), "boot_count": 0}
            self.store.write_bookie_state(self.bookie_id, json.dumps(fields).encode(), state.version)

    def _incarnation(self) -> str:
        return str(uuid.uuid5(_LIFE, f"{self.bookie_id} {self._lives}"))

    def _note_wipe(self) -> None:
        records = [encode_record(FrameKind.FENCE, ledger_id) for ledger_id in self._fenced_after_wipe]
        records += [encode_record(FrameKind.LIMBO, ledger_id) for ledger_id in self._limbo_after_wipe]
        for record, place in zip(records, self.commit(records), strict=True):
            self.index.add(record, place)
        self._limbo_after_wipe, self._fenced_after_wipe = (), ()

    # --- what checkers ask ------------------------------------------------------------------------------------------

    def newest_segment(self) -> str:
        """Return the path of the segment that is being written."""
        generation, _ = self.log.position
        return f"{SEGMENTS_DIR}/{generation:016x}.segment"


@dataclass
class Answer:
    """The answer of a bookie about a range of ids."""

    found: dict[EntryId, bytes] = field(default_factory=dict)
    absent: set[EntryId] = field(default_factory=set)
    unknown: dict[EntryId, Reason] = field(default_factory=dict)


def ask(back_end: StorageBackEnd, ledger_id: LedgerId, first: EntryId, last: EntryId) -> Answer:
    """Read the ids ``first`` to ``last`` through a new machine of the product on the back end. Raises AssertionError
    for a wrong digest of a payload, or for an answer that omits an id."""
    machine, answer = BookieMachine(back_end.holdings, logs=back_end.logs), Answer()
    while first <= last:
        events: deque[ev.Event] = deque([ev.ReadRequested((1, 1), ledger_id, first, last, 0)])
        trailer: ev.SendTrailer | None = None
        while events:
            for effect in parted(machine.step(events.popleft())):
                match effect:
                    case ev.ReadFrames() | ev.ReadMemberships():
                        events.append(back_end.read(effect))
                    case ev.SendPart(request, frames):
                        for frame in frames:
                            _take(answer, ledger_id, bytes(frame))
                        events.append(ev.PartSent(request))
                    case ev.SendTrailer():
                        trailer = effect
        assert trailer is not None, f"no answer for {first} to {last} of ledger {ledger_id}"
        if trailer.reason:
            answer.unknown.update(dict.fromkeys(range(first, last + 1), trailer.reason))
            return answer
        _take_trailer(answer, trailer.trailer)
        first = trailer.trailer.answered_through + 1
    return answer


def _take(answer: Answer, ledger_id: LedgerId, frame: bytes) -> None:
    for _, one in split_frames(frame):
        batch = decode_frame(one, digester=Digester(DigestType.CRC32C, b"", ledger_id), verify_digests=True)
        answer.found.update(zip(batch.entry_ids().tolist(), batch.to_list(), strict=True))


def _take_trailer(answer: Answer, trailer: ReadTrailer) -> None:
    for gap in trailer.absent:
        answer.absent.update(set(range(gap.first, gap.last + 1)) - set(answer.found))
    for gap in trailer.unknown:
        answer.unknown.update(dict.fromkeys(range(gap.first, gap.last + 1), gap.reason))


class StorageWorld(World):
    """A world whose bookies have the product's storage."""

    def back_end(self, name: BookieId) -> StorageBackEnd:
        return StorageBackEnd(name)

    def _read_closed(self, ledger_id: LedgerId) -> None:
        """Check that a restart of every bookie changes nothing."""
        super()._read_closed(ledger_id)
        for name, bookie in self.bookies.items():
            if bookie.alive:
                bookie.kill(in_commit=False)
                self.restart(name)
        self.scheduler.reached("all bookies were restarted at the end")
        self._read_all(ledger_id, f"again{ledger_id}")
