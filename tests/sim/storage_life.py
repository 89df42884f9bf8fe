# SPDX-License-Identifier: Apache-2.0
"""One scripted life of a bookie's storage: steps, crashes, and the promises that every later answer must keep."""

from __future__ import annotations

import enum
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from bk_core.entries.frame import FrameKind, entry_ids_of, frame_extent, parse_header, record_payload
from bk_core.errors import DataDirectoryError
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine.disk_places import Place
from bookie_server.machine.state import lac_of_body
from tests.kit.index_state import state_of
from tests.kit.segment_world import drop_record, entries
from tests.sim.disk import SimDisk, SimulatedCrash
from tests.sim.storage import StorageBackEnd, ask, own_store


class Event(enum.Enum):
    """A step that is no commit."""

    IDLE = "idle"
    STOP = "a clean stop and a start"
    KILL = "the process ends and starts"
    POWER = "power is lost"


IDLE, STOP, KILL, POWER = Event.IDLE, Event.STOP, Event.KILL, Event.POWER
Step: TypeAlias = "list[bytes] | Event | Callable[[Life], None]"
"""A step: the frames of one commit, an event, or a function of the life."""
NEW_LEDGER = 1_000_000
NO_BODY = b"\xff" * 16


class _Frame(NamedTuple):
    """The contents of a frame, decoded once, because every crash point asks about the same frames."""

    ledger_id: int
    kind: int
    ids: frozenset[int]
    payload: bytes
    lac: int


@lru_cache(maxsize=1 << 16)
def _said(frame: bytes) -> _Frame:
    header = parse_header(frame)
    if header.kind != FrameKind.ENTRIES:
        return _Frame(header.ledger_id, header.kind, frozenset(), bytes(record_payload(frame, header)), -1)
    ids = frozenset(entry_ids_of(header, frame).tolist())
    return _Frame(header.ledger_id, header.kind, ids, b"", frame_extent(frame, header).max_lac)


class Life:
    """A disk, a metadata store, and what was acked. ``maybe`` has the frames of commits that were never answered.
    ``denied`` has the ids, by ledger, that a bookie called ABSENT and that were not written since (I6: they must stay
    absent). ``expects_damage`` says that the workload itself damages the disk."""

    def __init__(self) -> None:
        self.disk, self.store = SimDisk(), own_store()
        self.acked: list[bytes] = []
        self.maybe: list[bytes] = []
        self.was_damaged = False
        self.expects_damage = False
        self.denied: defaultdict[int, set[int]] = defaultdict(set)
        self.drops: dict[int, int] = {}  # ledger: how much was acked when its copy was last dropped
        self.dead_through: dict[int, int] = {}  # ledger: the greatest generation of an acked drop
        self.recycled = self.compacted = 0
        self.now_s = 0.0
        self.violations: list[str] = []
        self.picture: dict[int, object] = {}
        self.maintenance: tuple[object, object] | None = None  # the maintenance of the process that it belongs to
        self._back_end: StorageBackEnd | None = None
        self._new = 0

    @property
    def back_end(self) -> StorageBackEnd:
        assert self._back_end is not None, "not open"
        return self._back_end

    @property
    def is_open(self) -> bool:
        return self._back_end is not None

    # --- steps ---

    def open(self) -> None:
        self._back_end = StorageBackEnd(disk=self.disk, store=self.store)
        self.was_damaged |= bool(self._back_end.report.damage)

    def run(self, steps: Sequence[Step]) -> None:
        if self._back_end is None:
            self.open()
        for step in steps:
            if isinstance(step, list):
                self.commit(step)
            elif isinstance(step, Event):
                self._happen(step)
            else:
                step(self)

    def _happen(self, event: Event) -> None:
        if event is IDLE:
            self.back_end.idle()
            return
        if event is STOP:
            self.back_end.stop()
        elif event is KILL:
            self.kill()
        else:
            self.crash(random.Random(len(self.acked)))
        self.open()

    def commit(self, frames: list[bytes]) -> list[Place]:
        """Commit as the bookie does: write to the log, update the index, and ack."""
        self.maybe += frames
        for one in map(_said, frames):
            self.denied[one.ledger_id] -= one.ids
            if one.kind == FrameKind.COPY_DROPPED:
                self.drops[one.ledger_id] = len(self.acked)
        try:
            places = self.back_end.commit(frames)
        except DataDirectoryError:  # nothing was written
            del self.maybe[-len(frames) :]
            raise
        for frame, place in zip(frames, places, strict=True):
            self.back_end.index.add(frame, place)
        del self.maybe[-len(frames) :]
        self.acked += frames
        for one in map(_said, frames):
            if one.kind == FrameKind.COPY_DROPPED:
                through = int.from_bytes(one.payload, "little")
                self.dead_through[one.ledger_id] = max(through, self.dead_through.get(one.ledger_id, 0))
        return places

    def crashes(self, act: Callable[[], None]) -> bool:
        """Return whether the machine stopped during ``act``."""
        try:
            act()
        except SimulatedCrash:
            return True
        self.disk.crash_at(None)
        return False

    def crash(self, chance: random.Random, keep: str | None = None, names: str | None = None) -> None:
        """Lose power. A later point at which the machine is to stop stays."""
        self._back_end, ahead = None, self.disk.operations_left
        self.disk.crash(chance, keep, names)
        self.disk.crash_at(ahead)

    def kill(self) -> None:
        """End the process. A later point at which the machine is to stop stays."""
        self._back_end, ahead = None, self.disk.operations_left
        self.disk.kill()
        self.disk.crash_at(ahead)

    # --- what must hold ---

    def _ledgers(self) -> list[int]:
        return sorted({_said(frame).ledger_id for frame in (*self.acked, *self.maybe)})

    def check(self, *, damaged: bool = False, more: bool = True, lost: Iterable[int] = ()) -> None:
        """Check that everything acked is found and nothing invented. Whatever is found counts as acked from now on,
        because a reader may have seen it. With ``damaged``, UNKNOWN and limbo are also right, but ABSENT is not. With
        ``more``, the log goes on. ``picture`` is then the answer of the bookie about every ledger that a test wrote
        to."""
        self.picture.clear()
        if not damaged and not self.expects_damage:
            assert not self.back_end.report.damage, self.back_end.report.damage
            assert not self.back_end.report.limbo
        damaged |= self.expects_damage
        for ledger_id in self._ledgers():
            self._check_entries(ledger_id, damaged, set(lost))
            self._check_records(ledger_id, damaged)
        self._check_dead()
        self._settle_maybe()
        if more:
            self._new += 1
            self.commit([entries(NEW_LEDGER, [self._new])])

    def _check_dead(self) -> None:
        """Check that no sealed segment up to a drop's generation counts the ledger's frames as live, so that their
        space comes back."""
        index = self.back_end.index
        for ledger_id, through in self.dead_through.items():
            for generation in index.sealed_generations():
                dead = generation <= through and ledger_id in index.ledgers_in(generation).tolist()
                assert not dead, f"segment {generation} counts on ledger {ledger_id}, which was dropped"

    def acked_ids(self, ledger_id: int) -> set[int]:
        """Return the entries of a ledger that were acked."""
        return self._ids(self.acked, ledger_id)

    def _ids(self, frames: list[bytes], ledger_id: int) -> set[int]:
        return {k for one in map(_said, frames) if one.ledger_id == ledger_id for k in one.ids}

    def _records(self, frames: list[bytes], ledger_id: int, kind: FrameKind) -> list[bytes]:
        return [one.payload for one in map(_said, frames) if one.kind == kind and one.ledger_id == ledger_id]

    def _check_entries(self, ledger_id: int, damaged: bool, lost: set[int]) -> None:
        required, allowed = self._ids(self.acked, ledger_id), self._ids(self.maybe, ledger_id)
        answer = ask(self.back_end, ledger_id, 0, max(required | allowed, default=0) + 3)
        absent, facts = answer.absent - set(answer.found), self.back_end.holdings.facts(ledger_id)
        self.picture[ledger_id] = (answer.found, absent, set(answer.unknown), facts)
        for entry_id, payload in answer.found.items():
            assert payload.startswith(b"%d/%d " % (ledger_id, entry_id)), (ledger_id, entry_id, payload[:30])
        invented = set(answer.found) - required - allowed
        assert not invented, f"entries {sorted(invented)} of ledger {ledger_id} were never given"
        back = set(answer.found) & self.denied[ledger_id]
        assert not back, f"entries {sorted(back)} of ledger {ledger_id} were ABSENT and are back"
        if self._deleted(ledger_id):
            gone = self._records(self.acked, ledger_id, FrameKind.DELETED)
            assert not (gone and answer.found), f"ledger {ledger_id} was deleted and answers with entries"
            return
        denied = required & answer.absent - (lost if damaged else set())
        assert not denied, f"acked entries {sorted(denied)} of ledger {ledger_id} are ABSENT"
        self.denied[ledger_id] |= answer.absent - set(answer.found) - lost
        if ledger_id in self.drops:
            dropped = self._records(self.acked, ledger_id, FrameKind.COPY_DROPPED)
            assert not (dropped and answer.absent), f"what was dropped of ledger {ledger_id} is denied"
            required = self._ids(self.acked[self.drops[ledger_id] :], ledger_id)
        if not damaged:
            missing = required - set(answer.found)
            assert not missing, f"acked entries {sorted(missing)} of ledger {ledger_id} are not found"
            in_limbo = state_of(self.back_end.index, ledger_id).trouble is not Reason.REASON_NONE
            assert not answer.unknown or in_limbo, f"UNKNOWN {answer.unknown} of ledger {ledger_id} on a healthy disk"

    def _deleted(self, ledger_id: int) -> bool:
        return bool(self._records([*self.acked, *self.maybe], ledger_id, FrameKind.DELETED))

    def _check_records(self, ledger_id: int, damaged: bool) -> None:
        facts, state = self.back_end.holdings.facts(ledger_id), state_of(self.back_end.index, ledger_id)
        if damaged and (facts.trouble or self.was_damaged):
            assert facts.trouble or facts.fenced or not self._records(self.acked, ledger_id, FrameKind.FENCE)
            return
        if self._records(self.acked, ledger_id, FrameKind.DELETED):
            assert facts.deleted, f"the tombstone of ledger {ledger_id} is lost"
        if facts.deleted:
            assert self._deleted(ledger_id)
            return
        if self._records(self.acked, ledger_id, FrameKind.FENCE):
            assert facts.fenced, f"the fence of ledger {ledger_id} is lost"
        elif facts.fenced:
            assert self._records(self.maybe, ledger_id, FrameKind.FENCE), f"ledger {ledger_id} was never fenced"
        keys = set(self._records(self.acked, ledger_id, FrameKind.LEDGER_KEY))
        sent = keys | set(self._records(self.maybe, ledger_id, FrameKind.LEDGER_KEY))
        assert not keys or facts.ledger_key in sent, f"the key of ledger {ledger_id} is lost"
        assert facts.ledger_key is None or facts.ledger_key in sent, f"a key of ledger {ledger_id} that nobody gave"
        if len(keys) > 1:
            assert facts.trouble is Reason.DAMAGED, f"ledger {ledger_id} has two keys and is not in trouble"
        for body in self._records(self.acked, ledger_id, FrameKind.LAC):
            assert lac_of_body(facts.lac_body or NO_BODY) >= lac_of_body(body), f"the LAC of ledger {ledger_id} is lost"
        if not damaged and ledger_id not in self.drops:
            lac = self._carried_lac(ledger_id)
            assert state.carried_lac >= lac, f"the LAC {lac} that a frame of ledger {ledger_id} carries is lost"
        self._check_bits(ledger_id, facts.trouble, damaged)

    def _carried_lac(self, ledger_id: int) -> int:
        """Return the greatest LAC that an acked frame of entries carries."""
        return max((one.lac for one in map(_said, self.acked) if one.ledger_id == ledger_id), default=-1)

    def _check_bits(self, ledger_id: int, trouble: Reason, damaged: bool) -> None:
        """Check that limbo is permanent, that a dropped copy reports only that, and that no other ledger is in trouble
        on a healthy disk."""
        limbo, dropped = FrameKind.LIMBO, FrameKind.COPY_DROPPED
        if len(set(self._records(self.acked, ledger_id, FrameKind.LEDGER_KEY))) > 1:
            return
        if self._records(self.acked, ledger_id, limbo):
            assert trouble is Reason.LIMBO, f"ledger {ledger_id} is not in limbo any more"
        elif self._records(self.acked, ledger_id, dropped):
            assert trouble, f"it is forgotten that the copy of ledger {ledger_id} was dropped"
        if not damaged and trouble in (Reason.LIMBO, Reason.COPY_DROPPED):
            sent = [*self.acked, *self.maybe]
            causes = (limbo,) if trouble is Reason.LIMBO else (limbo, dropped)
            assert any(self._records(sent, ledger_id, kind) for kind in causes), f"ledger {ledger_id}: {trouble.name}"

    def _settle_maybe(self) -> None:
        """Settle what was in doubt. Whatever is here may have been answered to a reader, so it must stay (I8, I5). The
        rest may stay absent."""
        kept: list[bytes] = []
        for frame in self.maybe:
            one = _said(frame)
            if one.ids:
                answer = ask(self.back_end, one.ledger_id, min(one.ids), max(one.ids))
                if one.ids <= set(answer.found):
                    self.acked.append(frame)
                    continue
            elif one.kind == FrameKind.FENCE and self.back_end.holdings.facts(one.ledger_id).fenced:
                self.acked.append(frame)
                continue
            kept.append(frame)
        self.maybe = kept


def drop(ledger_id: int, life: Life) -> None:
    """Give up the ledger's copy as the product does. Its frames in sealed segments are then dead."""
    life.commit([drop_record(ledger_id, life.back_end.index.newest_sealed)])
