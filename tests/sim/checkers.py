# SPDX-License-Identifier: Apache-2.0
"""Checks after every step of a simulated world that the invariants I1 to I14 of the protocol hold.

The checker knows the entries that each writer got and those that each bookie has made durable. It is called with acks,
records, answers and reads as they happen. A :class:`Violation` names the invariant, and in brackets the TLA+
specification's name for it, if there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from bk_core import quorum
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import ENTRY_HEADER
from bk_core.entries.frame import FrameKind, split_frames
from bk_core.errors import BookKeeperError, EntryUnreadableError, NoSuchLedgerError
from bk_core.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Versioned
from bk_core.protocol.delivery import LaneState
from bk_core.wire.lane.reasons import AttachMode
from bookie_server.machine import events as ev
from tests.sim.apache import ApacheSimBookie
from tests.sim.bookie import SimBookie
from tests.sim.frames import contents, tag_of
from tests.sim.recorder import Recorder
from tests.sim.scheduler import Scheduler

if TYPE_CHECKING:
    from tests.sim.clients import WriterHost
    from tests.sim.host import Host


class Violation(AssertionError):
    """Raised when an invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")


class LedgerTruth:
    """The truth about one ledger."""

    def __init__(self, ledger_id: LedgerId, scheduler: Scheduler) -> None:
        self.ledger_id = ledger_id
        self.history = Recorder(scheduler)
        self.given: list[bytes] = []  # payloads in the order in which the writer got them
        self.acked: EntryId = -1
        self.read: EntryId = -1  # the greatest id that a reader got or that was reported as confirmed
        self.record: Versioned[LedgerMetadata] | None = None
        self.closed_at: EntryId | None = None
        self.deleted = False
        self.writer: WriterHost | None = None
        self.closing = False  # the writer has sent its close
        self.damaged: dict[EntryId, set[BookieId]] = {}  # copies that a fault destroyed


class BookieTruth:
    """Everything that one bookie has made durable and has answered about one ledger."""

    __slots__ = ("durable", "fence_said", "gone")

    def __init__(self) -> None:
        self.durable: dict[EntryId, int] = {}  # id → step at which it became durable
        self.fence_said = False  # it has answered a fencing request
        self.gone = False  # its record of the ledger's deletion is durable


class Checker:
    """Gets every event of the world. Raises Violation."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.ledgers: dict[LedgerId, LedgerTruth] = {}
        self.bookies: dict[tuple[BookieId, LedgerId], BookieTruth] = {}
        self.largest_frames = 0  # bytes of the largest add request
        self.asked: dict[tuple[BookieId, int], tuple[Any, int]] = {}  # request stream → its event, step of arrival
        self.acks = 0
        self._brought: dict[tuple[BookieId, int], set[EntryId]] = {}  # ids in the frames of an answer

    def fail(self, invariant: str, what: str) -> NoReturn:
        raise Violation(invariant, what)

    def truth(self, ledger_id: LedgerId) -> LedgerTruth:
        found = self.ledgers.get(ledger_id)
        if found is None:
            found = self.ledgers[ledger_id] = LedgerTruth(ledger_id, self.scheduler)
        return found

    def bookie(self, name: BookieId, ledger_id: LedgerId) -> BookieTruth:
        key = (name, ledger_id)
        found = self.bookies.get(key)
        if found is None:
            found = self.bookies[key] = BookieTruth()
        return found

    # --- the writer ---

    def new_writer(self, writer: WriterHost) -> None:
        self.truth(writer.ledger_id).writer = writer

    def new_entries(self, writer: WriterHost, count: int) -> list[bytes]:
        """Return the next payloads of a ledger. Each names its place."""
        given = self.truth(writer.ledger_id).given
        first = len(given)
        names = [b"%d/%d" % (writer.ledger_id, entry) + b"." * (entry % 5) for entry in range(first, first + count)]
        given += [name.ljust(writer.world.knobs.entry_bytes, b".") for name in names]
        self.truth(writer.ledger_id).history.appended(writer.name, first, given[first:])
        return given[first:]

    def acked(self, writer: WriterHost, lac: EntryId) -> None:
        """Check I1, I2 [AllAckedEntriesAreReadable, AllCommittedEntriesReachAckQuorum]."""
        truth = self.truth(writer.ledger_id)
        if writer.over:
            self.fail("I1", f"{writer.name} acknowledges entry {lac} after it ended")
        if truth.closing:
            self.fail("I1", f"{writer.name} acknowledges entry {lac} after it began to close")
        if lac <= truth.acked or lac >= len(truth.given):
            self.fail("I1", f"{writer.name} acknowledges {lac} after {truth.acked}, of {len(truth.given)} given")
        if truth.closed_at is not None and lac > truth.closed_at:
            self.fail("I3", f"entry {lac} is acknowledged, the ledger was closed at {truth.closed_at}")
        if truth.record is not None:
            for entry in range(truth.acked + 1, lac + 1):
                self._check_copies(truth, truth.record.value, entry)
        self.acks += lac - truth.acked
        truth.history.acked(lac)
        truth.acked = lac

    def _check_copies(self, truth: LedgerTruth, metadata: LedgerMetadata, entry: EntryId) -> None:
        fragment = metadata.fragment_of(entry)
        members = quorum.write_set(entry, metadata.ensemble_size, metadata.write_quorum_size)
        holders = [b for b in (fragment.ensemble[i] for i in members) if self._has(b, truth.ledger_id, entry)]
        lost = truth.damaged.get(entry, set()).intersection(fragment.ensemble[i] for i in members)
        if len(set(holders) | lost) < metadata.ack_quorum_size:
            self.fail(
                "I2",
                f"entry {entry} is acknowledged with copies on {holders} only; "
                f"its write set is {[fragment.ensemble[i] for i in members]}, Qa {metadata.ack_quorum_size}",
            )

    def _durable(self, bookie: BookieId, ledger_id: LedgerId) -> dict[EntryId, int]:
        found = self.bookies.get((bookie, ledger_id))
        return found.durable if found else {}

    def _has(self, bookie: BookieId, ledger_id: LedgerId, entry: EntryId) -> bool:
        return entry in self._durable(bookie, ledger_id)

    def close_began(self, writer: WriterHost) -> None:
        self.truth(writer.ledger_id).closing = True

    def writer_stepped(self, writer: WriterHost) -> None:
        """Check I13: a writer keeps no frame that, as it knows, every bookie has on disk, unless it waits to replace a
        failed bookie (MUST 6)."""
        delivery = writer.machine.delivery
        lanes = [lane for lane in delivery.lanes if not lane.abandoned]
        if not delivery.packets or any(lane.state is LaneState.FAILED for lane in lanes):
            return
        marks = [lane.durable if delivery.deferred else lane.watermark for lane in lanes]
        if all(mark >= delivery.packets[0].last for mark in marks):
            self.fail("I13", f"{writer.name} keeps {writer.machine.retained_bytes} bytes that every bookie has")

    def writer_closed(self, writer: WriterHost, record: Versioned[LedgerMetadata]) -> None:
        truth = self.truth(writer.ledger_id)
        truth.history.ended(writer.name, record.value.last_entry_id)
        if record.value.last_entry_id != truth.acked:
            self.fail("I3", f"{writer.name} closed at {record.value.last_entry_id}, it acknowledged {truth.acked}")
        length = sum(map(len, truth.given[: truth.acked + 1]))
        if record.value.length != length:
            self.fail("I3", f"{writer.name} closed with {record.value.length} bytes, it acknowledged {length}")
        if writer.store.closed_by.get(writer.ledger_id) == writer.name:
            self._check_marked(truth, record.value, range(truth.acked + 1), writer)

    def _check_marked(self, truth: LedgerTruth, metadata: LedgerMetadata, ids: range, by: Host) -> None:
        """Check P7, P8: a copy that is missing when the ledger is closed is marked as missing."""
        marked = by.store.marked(truth.ledger_id)
        for entry in ids:
            ensemble = metadata.fragment_of(entry).ensemble
            for index in quorum.write_set(entry, metadata.ensemble_size, metadata.write_quorum_size):
                bookie = ensemble[index]
                lost = truth.damaged.get(entry, ())
                if bookie not in marked and bookie not in lost and not self._has(bookie, truth.ledger_id, entry):
                    self.fail("P8", f"{by.name} closed, {bookie} misses entry {entry} and nobody knows")

    # --- the store ---

    def on_write(self, ledger_id: LedgerId, record: Versioned[LedgerMetadata] | None, by: str) -> None:
        """Check I3 [NoDivergenceBetweenClientAndMetaData] and I4."""
        truth = self.truth(ledger_id)
        before, truth.record = truth.record, record or truth.record
        if record is None:
            truth.deleted = True
            return
        value = record.value
        self._check_shape(value)
        if before is not None:
            self._check_succession(before, record, by)
        if value.is_closed:
            self._check_end(truth, value.last_entry_id, by)

    def _check_shape(self, value: LedgerMetadata) -> None:
        firsts = [fragment.first_entry_id for fragment in value.fragments]
        if any(a >= b for a, b in pairwise(firsts)) or not firsts or firsts[0] != 0:
            self.fail("I4", f"fragments start at {firsts}")
        for fragment in value.fragments:
            if len(set(fragment.ensemble)) != value.ensemble_size:
                self.fail("I4", f"the ensemble {fragment.ensemble} has not {value.ensemble_size} distinct members")

    def _check_succession(self, before: Versioned[LedgerMetadata], after: Versioned[LedgerMetadata], by: str) -> None:
        old, new = before.value, after.value
        if after.version != before.version + 1:
            self.fail("I4", f"version {after.version} follows {before.version}")
        quorums = [(v.ensemble_size, v.write_quorum_size, v.ack_quorum_size) for v in (old, new)]
        if quorums[0] != quorums[1]:
            self.fail("I4", f"{by} changed the quorums from {quorums[0]} to {quorums[1]}")
        if old.is_closed:
            self.fail("I3", f"{by} wrote over a closed ledger")
        if old.state is LedgerState.IN_RECOVERY and new.state is LedgerState.OPEN:
            self.fail("I3", f"{by} opened a ledger that is in recovery")
        if new.fragments[-1].first_entry_id == old.fragments[-1].first_entry_id and new.fragments != old.fragments:
            self.scheduler.reached("a fragment was replaced by one with the same first id")

    def _check_end(self, truth: LedgerTruth, end: EntryId, by: str) -> None:
        if truth.closed_at is not None and truth.closed_at != end:
            self.fail("I3", f"{by} moved the end from {truth.closed_at} to {end}")
        if end < truth.acked:
            self.fail("I3", f"{by} closed at {end}, entry {truth.acked} was acknowledged")
        if end < truth.read:
            self.fail("I8", f"{by} closed at {end}, a reader was given entry {truth.read}")
        if end >= len(truth.given):
            self.fail("I3", f"{by} closed at {end}, only {len(truth.given)} entries were ever written")
        truth.closed_at = end

    # --- bookies ---

    def on_durable(self, bookie: SimBookie, frames: Sequence[bytes | memoryview]) -> None:
        """Check I5, I6, I7 and the bytes themselves [NoOutOfOrderEntries]."""
        for frame in frames:
            header, extent, ids, payloads, _ = contents(frame)
            known = self.bookie(bookie.name, header.ledger_id)
            known.gone = known.gone or header.kind == FrameKind.DELETED
            if not ids:
                continue
            if known.gone:
                self.fail("D18", f"{bookie.name} took an add of ledger {header.ledger_id}, which it had forgotten")
            if known.fence_said and bookie.modes.get(tag_of(frame)) is AttachMode.WRITE:
                self.fail("I5", f"{bookie.name} stored a normal add of ledger {header.ledger_id} after a fence")
            self._kept(bookie.name, header.ledger_id, zip(ids, payloads, strict=True), extent.max_lac)

    def on_apaches_disk(self, bookie: ApacheSimBookie, entry: bytes, recovery: bool) -> None:
        """Check one entry in Apache's form as :meth:`on_durable` does. Bookies of Apache's keep fences as well as they
        can (I5)."""
        ledger_id, entry_id, lac, _ = ENTRY_HEADER.unpack_from(entry)
        record = self.truth(ledger_id).record
        assert record is not None
        payload = entry[ENTRY_HEADER.size + record.value.digest_type.digest_bytes :]
        self._kept(bookie.name, ledger_id, [(entry_id, payload)], lac)

    def _kept(
        self, bookie: BookieId, ledger_id: LedgerId, entries: Iterable[tuple[EntryId, bytes]], max_lac: EntryId
    ) -> None:
        truth, known = self.truth(ledger_id), self.bookie(bookie, ledger_id)
        for entry, payload in entries:
            if entry >= len(truth.given) or truth.given[entry] != payload:
                self.fail("I10", f"{bookie} stored {payload!r} as entry {entry}")
            if entry in known.durable:
                self.scheduler.reached("an add was applied twice")
            known.durable.setdefault(entry, self.scheduler.steps)
        if max_lac > max(truth.acked, truth.closed_at if truth.closed_at is not None else -1):
            self.fail("I7", f"{bookie} holds LAC {max_lac}, acknowledged is {truth.acked}")

    def on_admitted(self, bookie: SimBookie, event: ev.FramesArrived) -> None:
        """Check I13: frames that wait for a commit stay within the bookie's bound. Only the last of them may exceed
        it."""
        self.largest_frames = max(self.largest_frames, len(event.frames))
        waiting = bookie.machine._adds.normal.bytes
        if waiting > 2 * bookie.knobs.bookie_bytes_max + self.largest_frames:
            self.fail("I13", f"{waiting} bytes wait for a commit on {bookie.name}")

    def on_request(self, bookie: SimBookie, event: Any) -> None:
        if isinstance(event, ev.FenceRequested) and not self._durable(bookie.name, event.ledger_id):
            self.scheduler.reached("unknown ledger fenced")
        self.asked[bookie.name, event.request[0]] = (event, self.scheduler.steps)

    def on_answer(self, bookie: SimBookie, effect: Any) -> None:
        """Check I5 and I9 when a bookie answers."""
        if isinstance(effect, ev.SendTrailer):
            asked = self.asked.get((bookie.name, effect.request[0]))
            if asked is None or effect.reason:
                return
            event, arrived = asked
            known = self.bookie(bookie.name, event.ledger_id)
            if event.fence_key is not None:
                known.fence_said = True
            for gap in effect.trailer.absent:
                for entry, step in known.durable.items():
                    if gap.first <= entry <= gap.last and step < arrived and not self._in_answer(bookie, event, entry):
                        self.fail("I9", f"{bookie.name} denies entry {entry}, which it made durable")
        elif isinstance(effect, ev.SendLac):
            asked = self.asked.get((bookie.name, effect.request[0]))
            if asked is not None and isinstance(asked[0], ev.FenceRequested):
                self.bookie(bookie.name, asked[0].ledger_id).fence_said = True
        elif isinstance(effect, ev.SendPart):
            self._note_parts(bookie, effect)

    def _note_parts(self, bookie: SimBookie, effect: ev.SendPart) -> None:
        """Note the ids that a part of an answer brought. Absent ranges may span ids that a frame of the same answer
        brought (docs/formats.md)."""
        brought = self._brought.setdefault((bookie.name, effect.request[0]), set())
        for part in effect.frames:
            for _, frame in split_frames(part):
                brought.update(contents(frame).ids)

    def _in_answer(self, bookie: SimBookie, event: Any, entry: EntryId) -> bool:
        return entry in self._brought.get((bookie.name, event.request[0]), ())

    def wiped(self, bookie: BookieId) -> None:
        """Note that a bookie lost everything."""
        self.damaged(bookie)
        for (name, _), known in self.bookies.items():
            if name == bookie:
                known.durable.clear()
                known.gone = False

    def damaged(self, bookie: BookieId) -> None:
        """Note that a bookie lost a part of its data. Its copies need not be there any more, but it may not deny
        them."""
        for (name, ledger_id), known in self.bookies.items():
            if name == bookie:
                for entry in known.durable:
                    self.truth(ledger_id).damaged.setdefault(entry, set()).add(bookie)

    # --- readers and recoverers ---

    def read(self, reader: Host, expected: EntryId, batch: EntryBatch) -> EntryId:
        """Check I8 and I10: entries come in order, each once, with the writer's bytes, and none beyond the end. Return
        the next id."""
        truth = self.truth(reader.ledger_id)
        truth.history.read(reader.name, expected, batch.to_list())
        for entry, payload in zip(batch.entry_ids().tolist(), batch.to_list(), strict=True):
            if entry != expected:
                self.fail("I8", f"{reader.name} was given entry {entry}, {expected} was next")
            if entry >= len(truth.given) or truth.given[entry] != payload:
                self.fail("I10", f"{reader.name} read {payload!r} as entry {entry}")
            expected += 1
        self._shown(truth, expected - 1, reader.name)
        return expected

    def lac_seen(self, tail: Host, lac: EntryId, record: Versioned[LedgerMetadata]) -> None:
        """Check the LAC up to which a tail regards entries as confirmed (MUST 14, D30)."""
        truth = self.truth(tail.ledger_id)
        truth.history.lac(tail.name, lac)
        if record.value.is_closed and lac != record.value.last_entry_id:
            self.fail("I8", f"{tail.name} ends at {lac}, the ledger at {record.value.last_entry_id}")
        if not record.value.is_closed and lac > truth.acked and truth.closed_at is None:
            self.fail("I7", f"{tail.name} was told LAC {lac}, acknowledged is {truth.acked}")
        self._shown(truth, lac, tail.name)

    def end_shown(self, reader: Host, last: EntryId, record: Versioned[LedgerMetadata]) -> None:
        """Check I8 for a reader that may show entries up to ``last`` although no LAC covers them (P15)."""
        truth = self.truth(reader.ledger_id)
        truth.history.lac(reader.name, last)
        if record.value.is_closed and last != record.value.last_entry_id:
            self.fail("I8", f"{reader.name} ends at {last}, the ledger at {record.value.last_entry_id}")
        if last >= len(truth.given):
            self.fail("I8", f"{reader.name} was shown entry {last}, only {len(truth.given)} were given")
        self._shown(truth, last, reader.name)

    def _shown(self, truth: LedgerTruth, entry: EntryId, by: str) -> None:
        if truth.closed_at is not None and entry > truth.closed_at:
            self.fail("I8", f"{by} was shown entry {entry}, the ledger ends at {truth.closed_at}")
        truth.read = max(truth.read, entry)

    def entries_recovered(self, by: Any, count: int) -> None:
        """Note that a recoverer took these entries from the bookies' answers."""
        machine, truth = by.machine, self.truth(by.ledger_id)
        for entry in range(machine._end - count + 1, machine._end + 1):
            ensemble = machine.frozen.fragment_of(entry).ensemble
            if sum(entry in self._durable(bookie, truth.ledger_id) for bookie in ensemble) == 1:
                self.scheduler.reached("an entry recovered from exactly one copy")
        if sum(getattr(host, "reading", False) for host in by.world.hosts) > 1:
            self.scheduler.reached("two recoverers read at once")

    def recovered(self, by: Host, record: Versioned[LedgerMetadata], ids: range) -> None:
        """Check that a recoverer returns the stored end. ``ids`` are the entries that its own last attempt wrote back
        (P7)."""
        truth = self.truth(by.ledger_id)
        truth.history.ended(by.name, record.value.last_entry_id)
        # A deleted ledger ends where its last record says, and a client that read this record may return the end later.
        end = truth.record.value.last_entry_id if truth.deleted and truth.record is not None else truth.closed_at
        if end != record.value.last_entry_id:
            self.fail("I3", f"{by.name} says the ledger ends at {record.value.last_entry_id}, it is {end}")
        self._check_marked(truth, record.value, ids, by)
        if len(ids) >= 2:
            self.scheduler.reached("LAC behind by two or more")
        if len(ids) >= 2 and truth.closed_at is not None and truth.closed_at > truth.acked:
            self.scheduler.reached("recovered beyond what was acknowledged")

    # --- the end ---

    def check_history(self, ledger_id: LedgerId) -> None:
        """Check the results of every client against the ledger as it is. All entries of ``given`` up to the end were
        read before."""
        truth = self.truth(ledger_id)
        assert truth.closed_at is not None
        broken = truth.history.check(truth.given[: truth.closed_at + 1])
        if broken:
            self.fail("history", str(broken[0]))

    def check_copies(self, ledger_id: LedgerId) -> None:
        """Check I2 at the end: every entry of a closed ledger is on Qa bookies that its record names."""
        truth = self.truth(ledger_id)
        if truth.record is None or truth.deleted:
            return
        for entry in range(truth.record.value.last_entry_id + 1):
            self._check_copies(truth, truth.record.value, entry)


def is_expected_end(truth: LedgerTruth, error: BookKeeperError) -> bool:
    """Return whether a reader may end with this error. It may only because the ledger was deleted, perhaps while its
    bookies delete their copies."""
    return truth.deleted and isinstance(error, NoSuchLedgerError | EntryUnreadableError)
