# SPDX-License-Identifier: Apache-2.0
"""Random schedules of one bookie: the product's machine and storage, a simulated disk, crashes and damage, from a seed.

:func:`run_storage_schedule` raises :class:`Violation` if an answer breaks a promise: an acked entry denied or gone (I8,
I9), a fence or key forgotten (I5), a normal entry stored after it was denied in a fencing read (I6), bytes that were
never written (I10), UNKNOWN on a healthy disk.

This file has over 400 lines because one bookie's life and the memory of its promises are one story.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bk_core.entries.apache import lac_body
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import FrameKind, decode_frame, encode_frame, parse_header, record_payload, split_frames
from bk_core.errors import BookieIdentityError, BookKeeperError, DataDirectoryError, StorageFailedError
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.state import MachineLimits, lac_of_body
from tests.kit.bookie_effects import parted
from tests.kit.segment_world import payload_of
from tests.sim.disk import SimulatedCrash
from tests.sim.storage import SEGMENTS_DIR, StorageBackEnd, ask
from tests.sim.storage_upkeep import assert_covered, maintenance_on

LEDGERS = 3
"""The number of ledgers in use at a time. A new one replaces one that is deleted."""
PROFILES = (
    "crashes",
    "crashes",
    "flips",
    "unreadable sectors",
    "lost files",
    "failing syncs",
    "full",
    "stale",
    "copies",
)
_LIMITS = MachineLimits(
    read_part_bytes=4000, reads_active_max=3, stream_bytes_max=60_000, in_flight_bytes_max=90_000, lac_persist_ms=50
)


class Violation(AssertionError):
    """Raised for a broken promise. The message names seed, step and ledger."""


@dataclass
class Outcome:
    """The results of one schedule. ``fingerprint`` is equal for the same seed."""

    seed: int
    profile: str
    steps: int = 0
    acked: int = 0
    fingerprint: int = 0
    counts: Counter[str] = field(default_factory=Counter)


@dataclass
class _Session:
    ledger_id: int
    mode: AttachMode
    # (ids, whether offered after a fence was answered)
    frames: list[tuple[list[int], bool]] = field(default_factory=list)
    durable: int = 0


@dataclass
class _Request:
    """A read or fence under way, with the entries that were acked before it."""

    ledger_id: int
    first: int
    last: int
    fencing: bool
    acked: set[int]
    found: set[int] = field(default_factory=set)


def run_storage_schedule(seed: int, steps: int = 120) -> Outcome:
    """Run one schedule. Raises Violation."""
    run = _Run(seed)
    try:
        return run.run(steps)
    except BookKeeperError as error:
        raise run.violated(f"an error that nothing explains: {error}") from error


class _Run:
    """One bookie's life, and all promises that it made."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.outcome = Outcome(seed, self.chance.choice(PROFILES))
        self.back_end = StorageBackEnd(segment_bytes=self.chance.choice((32, 64, 64, 128)) << 10)
        self.acked: dict[int, set[int]] = defaultdict(set)
        self.offered: dict[int, set[int]] = defaultdict(set)
        self.recovered: dict[int, set[int]] = defaultdict(set)  # ids that a recoverer offered
        self.shown: dict[int, set[int]] = defaultdict(set)
        self.denied: dict[int, set[int]] = defaultdict(set)  # ids that were denied in a fencing read
        self.fenced: set[int] = set()
        self.keyed: set[int] = set()
        self.lacs: dict[int, int] = {}  # durable explicit LACs
        self.ledgers = list(range(1, LEDGERS + 1))
        self.deleting: dict[int, bool] = {}  # by ledger: whether the record of its deletion is durable
        self.now_s = 0.0
        self.uncovered = ""
        self.damaged = False
        self.copy: tuple[int, dict[str, bytes | None]] | None = None
        self.boots = 1
        self.streams = 0
        self.begin()

    def violated(self, what: str) -> Violation:
        return Violation(f"seed {self.outcome.seed} ({self.outcome.profile}), step {self.outcome.steps}: {what}")

    def need(self, holds: object, what: str) -> None:
        if not holds:
            raise self.violated(what)

    def heard(self, *what: object) -> None:
        self.outcome.fingerprint = zlib.crc32(repr(what).encode(), self.outcome.fingerprint)

    # --- the process ---

    def begin(self) -> None:
        """Start a new process on the open storage."""
        self.machine = BookieMachine(self.back_end.holdings, _LIMITS)
        self.queue: list[bytes | memoryview] = []
        self.reads: deque[ev.ReadFrames | ev.ReadMemberships] = deque()
        self.sessions: dict[tuple[int, int], _Session] = {}
        self.requests: dict[ev.RequestId, _Request] = {}
        self.hinted: dict[int, int] = {}  # the greatest LAC hinted for each ledger
        self.persisting: dict[int, int] = {}  # LACs that were given to the log
        self.lac_timer = False
        self.deleting_now: set[int] = set()  # ledgers whose deletion is in the queue to the log
        self.failed = False
        self.numbers = 0
        self.streams += 2
        self.maintenance = maintenance_on(self.back_end._open, lambda: self.now_s, self.release, self.recycled)

    def restart(self) -> None:
        """Open the storage again, perhaps with more crashes on the way, and check everything."""
        chance, disk = self.chance, self.back_end.disk
        for _ in range(3):
            if chance.random() < 0.2:
                disk.crash_at(chance.randint(1, 15))
            failing = disk.faults.syncs
            try:
                self.back_end.restart()
                break
            except SimulatedCrash:
                self.outcome.counts["crash in a restart"] += 1
                self.back_end.crash(chance)
            except (DataDirectoryError, StorageFailedError):
                ill = disk.faults.no_space or self.damaged or disk.faults.syncs < failing
                self.need(ill, "a start was refused on a healthy disk")
                disk.kill()
                disk.faults.no_space = False
        disk.crash_at(None)
        if self.back_end.opened is None:
            disk.faults.no_space = False
            self.back_end.restart()
        self.boots += 1
        self.outcome.counts["restarts"] += 1
        if self.back_end.report.damage:
            self.outcome.counts["damage found"] += 1
            self.need(self.damaged, f"damage on a healthy disk: {self.back_end.report.damage}")
        self.begin()
        self.verify()

    # --- steps ---

    def run(self, steps: int) -> Outcome:
        acts = [
            (self.attach, 4), (self.offer, 14), (self.commit, 12), (self.serve, 8), (self.read, 6), (self.fence, 1),
            (self.hint, 1), (self.idle, 2), (self.crash, 2), (self.damage, 2), (self.maintain, 4), (self.delete, 1),
        ]  # fmt: skip
        calls, weights = [act for act, _ in acts], [weight for _, weight in acts]
        for self.outcome.steps in range(steps):
            self.chance.choices(calls, weights)[0]()
            if self.failed and self.chance.random() < 0.5:
                self.crash()
        self.back_end.crash(self.chance, "nothing")
        self.restart()
        self.outcome.acked = sum(map(len, self.acked.values()))
        return self.outcome

    def feed(self, event: ev.Event) -> None:
        events = deque([event])
        while events:
            for effect in parted(self.machine.step(events.popleft())):
                match effect:
                    case ev.Commit(frames):
                        self.queue.extend(frames)
                        self.note_lacs(frames)
                    case ev.ReadFrames() | ev.ReadMemberships():
                        self.reads.append(effect)
                    case ev.SendPart(request, frames):
                        self.part(request, [bytes(frame) for frame in frames])
                        events.append(ev.PartSent(request))
                    case ev.SetTimer(None):
                        self.lac_timer = True
                    case _:
                        self.answered(effect)

    def note_lacs(self, frames: Sequence[bytes | memoryview]) -> None:
        """Note the LACs that are durable once everything in the queue is."""
        for frame in frames:
            header = parse_header(frame)
            if header.kind == FrameKind.LAC:
                lac = lac_of_body(bytes(record_payload(frame, header)))
                self.persisting[header.ledger_id] = max(lac, self.persisting.get(header.ledger_id, -1))

    def attach(self) -> None:
        self.numbers += 1
        ledger_id = self.chance.choice(self.ledgers)
        mode = AttachMode.RECOVER if self.chance.random() < 0.3 else AttachMode.WRITE
        stream = self.streams
        wrong = self.chance.random() < 0.1 and ledger_id in self.keyed
        self.sessions[stream, self.numbers] = _Session(ledger_id, mode)
        key = bytes([99] * 20) if wrong else bytes([ledger_id] * 20)
        self.feed(ev.SessionAttached(stream, self.numbers, ledger_id, key, mode))
        if wrong:
            refused = (stream, self.numbers) not in self.sessions
            self.need(refused or self.damaged, f"a wrong key opened ledger {ledger_id}")

    def offer(self) -> None:
        if not self.sessions:
            return self.attach()
        chance = self.chance
        (stream, number), session = chance.choice(list(self.sessions.items()))
        ledger_id = session.ledger_id
        top = max(self.offered[ledger_id], default=-1)
        first = top + 1 if chance.random() < 0.8 else chance.randint(0, top + 2)
        count = chance.choice((1, 1, 2, 5, 12))
        size = chance.choice((60, 60, 300, 2000, 6000 // count + 60))
        ids = list(range(first, first + count))
        session.frames.append((ids, ledger_id in self.fenced))
        self.offered[ledger_id].update(ids)
        if session.mode is AttachMode.RECOVER:
            self.recovered[ledger_id].update(ids)
        # Each id has one payload, whichever client writes it, so the size must not depend on the frame.
        batch = EntryBatch.from_list([payload_of(ledger_id, i, 60 + i * 37 % 1500) for i in ids])
        frame = encode_frame(
            batch, digester=Digester(DigestType.CRC32C, b"", ledger_id), ledger_id=ledger_id, first_entry_id=first,
            lac=first - 1, length_before=0, session=number,
        )  # fmt: skip
        self.heard("offer", ledger_id, first, count, size)
        self.feed(ev.FramesArrived(stream, memoryview(bytes(frame))))
        return None

    def commit(self) -> None:
        if not self.queue or self.failed:
            return
        group = self.queue[: self.chance.randint(1, len(self.queue))]
        try:
            places = self.back_end.commit(group)
        except DataDirectoryError as error:
            self.outcome.counts["no space"] += 1
            self.queue.clear()
            self.persisting.clear()
            self.deleting_now.clear()
            self.feed(ev.CommitFailed(Reason.NO_SPACE, error.what, False))
            return
        except StorageFailedError as error:
            self.fail(error)
            return
        del self.queue[: len(group)]
        self.outcome.counts["groups"] += 1
        self.feed(ev.GroupCommitted(places))
        if not self.queue:  # then everything given to the log is durable
            self.lacs.update({i: max(lac, self.lacs.get(i, -1)) for i, lac in self.persisting.items()})
            self.persisting.clear()
            self.deleting.update(dict.fromkeys(self.deleting_now, True))
            self.deleting_now.clear()

    def delete(self) -> None:
        """Delete a ledger for good."""
        at = self.chance.randrange(len(self.ledgers))
        if self.failed or not self.acked[self.ledgers[at]]:
            return
        ledger_id, self.ledgers[at] = self.ledgers[at], LEDGERS + 1 + len(self.deleting)
        self.deleting[ledger_id] = False
        self.deleting_now.add(ledger_id)
        self.feed(ev.LedgersDeleted((ledger_id,)))
        self.outcome.counts["ledgers deleted"] += 1

    def maintain(self) -> None:
        """Let time pass, and do some of the work that is due."""
        if self.failed:
            return
        maintenance, disk = self.maintenance, self.back_end.disk
        self.now_s += self.chance.choice((0.5, 2.0, 6.0))
        errors, copied = maintenance.tasks.errors, maintenance.compaction.compactor.stats.segments
        try:
            for _ in range(self.chance.choice((1, 3, 10, 40))):
                if not maintenance.step():
                    break
        except StorageFailedError as error:
            self.fail(error)
        self.outcome.counts["segments compacted"] += maintenance.compaction.compactor.stats.segments - copied
        self.need(not self.uncovered, f"I11: {self.uncovered}")
        ill = self.damaged or self.failed or disk.faults.no_space
        self.need(ill or maintenance.tasks.errors == errors, "maintenance failed on a healthy disk")

    def release(self, generation: int) -> None:
        """Release a segment as the reader thread does, after the reads that were requested before."""
        while self.reads:
            self.serve()
        self.back_end._open.reader.release(generation)

    def recycled(self, generation: int) -> None:
        self.outcome.counts["segments recycled"] += 1
        try:
            assert_covered(self.back_end.disk, generation)
        except AssertionError as error:
            self.uncovered = str(error)

    def fail(self, error: StorageFailedError) -> None:
        self.outcome.counts["sync failed"] += 1
        self.failed = True
        self.queue.clear()
        self.feed(ev.CommitFailed(Reason.STORAGE_FAILED, error.what, True))

    def serve(self) -> None:
        """Do some of the reader thread's work."""
        for _ in range(self.chance.randint(1, 3)):
            if self.reads:
                self.feed(self.back_end.read(self.reads.popleft()))

    def read(self) -> None:
        ledger_id = self.chance.choice(self.ledgers)
        top = max(self.offered[ledger_id], default=0) + 3
        first = self.chance.randint(0, top)
        last = self.chance.randint(first, top)
        fencing = self.chance.random() < 0.15
        request = self.request(ledger_id, first, last, fencing)
        self.feed(ev.ReadRequested(request, ledger_id, first, last, 0, bytes([ledger_id] * 20) if fencing else None))

    def request(self, ledger_id: int, first: int, last: int, fencing: bool) -> ev.RequestId:
        self.numbers += 1
        request = (self.streams + 1, self.numbers)
        self.requests[request] = _Request(ledger_id, first, last, fencing, set(self.acked[ledger_id]))
        return request

    def fence(self) -> None:
        ledger_id = self.chance.choice(self.ledgers)
        self.feed(ev.FenceRequested(self.request(ledger_id, 0, -1, True), ledger_id, bytes([ledger_id] * 20)))

    def hint(self) -> None:
        """Send a writer's LAC. The timer makes it durable later."""
        ledger_id = self.chance.choice(self.ledgers)
        if self.lac_timer and self.chance.random() < 0.7:
            self.lac_timer = False
            self.feed(ev.TimerFired(None))
            return
        lac = max(self.acked[ledger_id], default=-1)
        if lac > self.hinted.get(ledger_id, -1):
            body = lac_body(lac, Digester(DigestType.CRC32C, b"", ledger_id))
            request = self.request(ledger_id, 0, lac, False)
            self.feed(ev.WriteLacRequested(request, ledger_id, bytes([ledger_id] * 20), bytes(body)))

    def idle(self) -> None:
        if not self.queue and not self.failed:
            try:
                self.back_end.idle()
            except StorageFailedError as error:
                self.fail(error)

    def crash(self) -> None:
        chance, back_end = self.chance, self.back_end
        self.outcome.counts["crashes"] += 1
        kind = chance.random()
        if self.queue and not self.failed and kind < 0.4:
            back_end.commit_torn(self.queue[: chance.randint(1, len(self.queue))], chance)
        elif not self.failed and kind < 0.5:
            self.crash_in_maintenance()
        elif kind < 0.6:
            back_end.kill()
        elif kind < 0.7:
            back_end.stop()
        else:
            back_end.crash(chance)
        self.heard("crash", kind)
        if self.outcome.profile == "copies":
            self.restore_copy()
        self.restart()

    def crash_in_maintenance(self) -> None:
        self.back_end.disk.crash_at(self.chance.randint(1, 15))
        try:
            for _ in range(3):
                self.maintain()
        except SimulatedCrash:
            self.outcome.counts["crash in maintenance"] += 1
        self.back_end.crash(self.chance)

    def restore_copy(self) -> None:
        """Mount an older copy of the disk, which must be refused, and then the right one again."""
        disk = self.back_end.disk
        disk.crash(self.chance)
        now = disk.snapshot()
        if self.copy is None or self.chance.random() < 0.3:
            self.copy = (self.boots, now)
        elif self.copy[0] < self.boots:
            disk.restore(self.copy[1])
            try:
                self.back_end.restart()
            except BookieIdentityError:
                self.outcome.counts["older copy refused"] += 1
            else:
                raise self.violated("an older copy of the directory was served from")
            disk.restore(now)

    # --- damage ---

    def damage(self) -> None:
        chance, back_end, disk = self.chance, self.back_end, self.back_end.disk
        match self.outcome.profile:
            case "flips":
                if back_end.flip_bit(chance):
                    self.damaged = True
            case "unreadable sectors":
                if back_end.eio_on_read(chance):
                    self.damaged = True
            case "lost files":
                self.lose_file()
            case "failing syncs" if chance.random() < 0.3:
                back_end.fail_next_sync()
            case "full":
                disk.faults.no_space = chance.random() < 0.85
            case "stale":
                disk.faults.stale_writes = chance.randint(1, 3)
                disk.faults.short_reads = chance.randint(0, 3)
        self.heard("damage", self.damaged)

    def lose_file(self) -> None:
        """Remove one file before the next start. Only one is removed at a time, so that other files still show what is
        lost."""
        if self.outcome.counts["files lost"]:
            return
        back_end, chance = self.back_end, self.chance
        self.idle()
        back_end.crash(chance)
        names = [path for path in back_end.disk.paths() if path.startswith(SEGMENTS_DIR) and path[-4:] != ".tmp"]
        path = chance.choice(names)
        self.damaged |= path.endswith((".segment", ".checkpoint"))
        self.outcome.counts["files lost"] += 1
        back_end.disk.lose_file(path)
        self.restart()

    # --- what is heard ---

    def answered(self, effect: Any) -> None:
        match effect:
            case ev.SendAcks(stream, sessions, frames, ended):
                for session, count in zip(sessions, frames, strict=True):
                    self.acknowledged(self.sessions.get((stream, session)), count)
                for end in ended:
                    self.acknowledged(self.sessions.pop((stream, end.session), None), end.frames)
                    self.heard("ended", end.session, end.frames, end.reason)
            case ev.SendTrailer(request, trailer, reason):
                self.heard("trailer", request, reason, trailer)
                self.ended(self.requests.pop(request), trailer, reason)
            case ev.SendLac(request):
                asked = self.requests.pop(request)
                if asked.fencing:
                    self.fenced.add(asked.ledger_id)
                    self.keyed.add(asked.ledger_id)
            case ev.SendReply(request, reason):
                asked = self.requests.pop(request)
                if not reason and not asked.fencing:
                    self.hinted[asked.ledger_id] = asked.last

    def acknowledged(self, session: _Session | None, count: int) -> None:
        if session is None:
            return
        ledger_id = session.ledger_id
        for ids, after_fence in session.frames[session.durable : count]:
            if session.mode is AttachMode.WRITE:
                self.need(not after_fence, f"a normal add of {ids} was acked after ledger {ledger_id} was fenced")
                refused = self.denied[ledger_id].intersection(ids)
                self.need(not refused, f"{refused} of ledger {ledger_id} were denied to a fencer and acked later")
            self.acked[ledger_id].update(ids)
            self.keyed.add(ledger_id)
        session.durable = max(session.durable, count)

    def part(self, request: ev.RequestId, frames: list[bytes]) -> None:
        asked = self.requests[request]
        for _, frame in (one for part in frames for one in split_frames(part)):
            batch = decode_frame(frame, digester=Digester(DigestType.CRC32C, b"", asked.ledger_id), verify_digests=True)
            self.see(asked.ledger_id, dict(zip(batch.entry_ids().tolist(), batch.to_list(), strict=True)))
            asked.found.update(batch.entry_ids().tolist())

    def see(self, ledger_id: int, found: dict[int, bytes]) -> None:
        for entry_id, payload in found.items():
            right = payload_of(ledger_id, entry_id, 60 + entry_id * 37 % 1500)
            self.need(bytes(payload) == right, f"entry {entry_id} of ledger {ledger_id} has other bytes")
        invented = set(found) - self.offered[ledger_id]
        self.need(not invented, f"{invented} of ledger {ledger_id} were never offered")
        late = set(found) & self.denied[ledger_id] - self.recovered[ledger_id]
        self.need(not late, f"{late} of ledger {ledger_id} were denied to a fencer and are here")
        self.shown[ledger_id].update(found)

    def ended(self, asked: _Request, trailer: Any, reason: Reason) -> None:
        if reason:
            healthy = reason not in (Reason.DAMAGED, Reason.LIMBO, Reason.UNAUTHORIZED, Reason.DELETED)
            healthy |= reason is Reason.DELETED and asked.ledger_id in self.deleting
            self.need(healthy or self.damaged, f"a read of ledger {asked.ledger_id} was refused: {reason.name}")
            return
        absent: set[int] = set()
        for gap in trailer.absent:
            absent.update(range(gap.first, gap.last + 1))
        absent -= asked.found
        self.need(self.damaged or not trailer.unknown, f"UNKNOWN on a healthy disk: {trailer.unknown}")
        lies = absent & (
            self.acked[asked.ledger_id] - self.recovered[asked.ledger_id] if asked.fencing else asked.acked
        )
        self.need(not lies, f"acked entries {sorted(lies)} of ledger {asked.ledger_id} are ABSENT")
        if asked.fencing:
            self.fenced.add(asked.ledger_id)
            self.keyed.add(asked.ledger_id)
            self.denied[asked.ledger_id] |= absent

    # --- after a restart ---

    def verify(self) -> None:
        """Check every promise with the new process."""
        for ledger_id, durable in self.deleting.items():
            facts = self.back_end.holdings.facts(ledger_id)
            self.need(facts.deleted or not durable or self.damaged, f"the tombstone of ledger {ledger_id} is lost")
            found = ask(self.back_end, ledger_id, 0, 50).found if facts.deleted else {}
            self.need(not found, f"entries {sorted(found)} of ledger {ledger_id} are back after its deletion")
        for ledger_id in self.ledgers:
            facts = self.back_end.holdings.facts(ledger_id)
            trouble = facts.trouble is not Reason.REASON_NONE
            self.need(self.damaged or not trouble, f"ledger {ledger_id} is in trouble on a healthy disk")
            if not trouble:
                self.need(ledger_id not in self.fenced or facts.fenced, f"the fence of ledger {ledger_id} is lost")
                keyed = ledger_id not in self.keyed or facts.ledger_key == bytes([ledger_id] * 20)
                self.need(keyed, f"the key of ledger {ledger_id} is lost")
                lac = lac_of_body(facts.lac_body) if facts.lac_body else -1
                self.need(lac >= self.lacs.get(ledger_id, -1), f"the LAC of ledger {ledger_id} is lost")
            top = max(self.offered[ledger_id], default=0) + 3
            answer = ask(self.back_end, ledger_id, 0, top)
            must = self.acked[ledger_id] | self.shown[ledger_id]
            self.need(not must & answer.absent, f"{sorted(must & answer.absent)} of ledger {ledger_id} are ABSENT")
            if not self.damaged:
                self.need(not answer.unknown, f"UNKNOWN on a healthy disk: {answer.unknown}")
                lost = must - set(answer.found)
                self.need(not lost, f"{sorted(lost)} of ledger {ledger_id} are gone")
            self.see(ledger_id, answer.found)
            self.heard("verified", ledger_id, sorted(answer.found), sorted(answer.unknown), facts.fenced)
