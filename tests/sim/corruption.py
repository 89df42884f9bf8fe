# SPDX-License-Identifier: Apache-2.0
"""Judges what a start does with a directory in which some bytes have changed (RULES S3, S4, S8).

:func:`judge` starts the product on a damaged copy of an image and asks for everything. The bookie may invent nothing,
deny no synced record, and forget none silently. There is one stated exception: a record may be gone if no intact group
header says that it is durable, because nothing on the disk says that it was ever there.

A start takes about ten milliseconds, and half a million are needed. So :class:`Judge` first runs the product's scanner
over the changed segment. If the scanner finds exactly what it found in an earlier copy, opening does exactly the same,
and the verdict is known. One case in ``FULL_EVERY`` is started all the same.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from bk_core.entries.frame import FrameHeader, FrameKind, entry_ids_of, parse_header, record_payload
from bk_core.errors import BookieIdentityError, BookKeeperError, DataDirectoryError, IntegrityError
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine.disk_places import Place
from bookie_server.machine.state import lac_of_body
from bookie_server.storage.bytes.scan import ScannedSegment, SegmentScanner
from bookie_server.storage.bytes.segment import decode_segment_header
from tests.sim.corruption_image import BLOCK, Image
from tests.sim.disk import SECTOR
from tests.sim.storage import SEGMENT_BYTES, StorageBackEnd, ask

FULL_EVERY = 1009
"""One of this number of cases is started even if its verdict is known."""
NO_BODY = b"\xff" * 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one case. ``outcome`` is "damage" (found and reported), "tail" (dropped, like a group whose sync
    never returned), "refused" (the directory is not opened), "rebuilt" (an index was rebuilt from its segment) or "no
    effect". ``problems`` are broken promises."""

    outcome: str
    problems: tuple[str, ...] = ()


def recorded_position(image: Image, data: bytes) -> int:
    """Return the position up to which the unchanged group headers say that the newest segment is durable."""
    original = image.newest_bytes()
    intact = (one for one in image.groups if data[one.offset : one.offset + 64] == original[one.offset :][:64])
    return max([BLOCK, *(one.durable for one in intact)])


def judge(image: Image, changed: dict[str, bytes | None], *, recorded: int | None = None) -> Verdict:
    """Start on the image with these files changed, and compare every answer with the promises. ``recorded`` is the
    position up to which the newest segment must be answered for. By default its changed bytes determine it."""
    disk = image.disk(changed)
    try:
        with warnings.catch_warnings():  # protobuf's text reader warns about unexpected backslashes
            warnings.simplefilter("ignore", DeprecationWarning)
            back_end = StorageBackEnd(image.bookie_id, disk=disk, store=image.store())
    except (BookieIdentityError, DataDirectoryError):
        return Verdict("refused")
    except BookKeeperError as error:
        return Verdict("refused", (f"an error that does not say what to do: {error}",))
    if recorded is None:
        recorded = recorded_position(image, changed.get(image.newest, image.newest_bytes()) or b"")
    problems = _problems(image, back_end, recorded)
    report = back_end.report
    if report.damage:
        return Verdict("damage", tuple(problems))
    if report.tail_bytes_dropped:
        return Verdict("tail", tuple(problems))
    is_rebuilt = report.indexes_rebuilt or report.segments_scanned > 1  # a lost index is rebuilt like a damaged one
    return Verdict("rebuilt" if is_rebuilt else "no effect", tuple(problems))


def judge_refused(image: Image, sector: int) -> Verdict:
    """Start on the image while the disk refuses to read one sector of the newest segment, and again when it can be
    read. Both starts must answer for everything that was acked, whether on record or not, because a failed read says
    nothing about the contents. If the second start denies nothing, all must be there again or be UNKNOWN."""
    disk = image.disk()
    disk.break_sector(image.newest, sector * SECTOR)
    store, chance = image.store(), random.Random(sector)
    problems: list[str] = []
    outcome = "no effect"
    for when in ("refused", "read again", "a start later"):
        back_end = StorageBackEnd(image.bookie_id, disk=disk, store=store)
        problems += [f"{when}: {problem}" for problem in _problems(image, back_end, SEGMENT_BYTES)]
        outcome = "damage" if back_end.report.damage else outcome
        back_end.crash(chance, "nothing")
        disk.mend_sectors(image.newest)
    return Verdict(outcome, tuple(problems))


def _problems(image: Image, back_end: StorageBackEnd, recorded: int) -> list[str]:
    """Return the promises that this start breaks."""
    problems: list[str] = []
    for ledger_id in sorted({parse_header(frame).ledger_id for frame, _ in image.acked}):
        try:
            _check_ledger(image, back_end, ledger_id, recorded, problems)
        except (AssertionError, IntegrityError) as error:
            problems.append(f"ledger {ledger_id}: {error or 'an answer that makes no sense'}")
    return problems


def _check_ledger(image: Image, back_end: StorageBackEnd, ledger_id: int, recorded: int, problems: list[str]) -> None:
    mine = [(frame, place) for frame, place in image.acked if parse_header(frame).ledger_id == ledger_id]
    must = [frame for frame, place in mine if place.generation != image.generation or place.offset < recorded]
    facts = back_end.holdings.facts(ledger_id)
    sent = {kind: _records([frame for frame, _ in mine], kind) for kind in FrameKind}
    records = {kind: _records(must, kind) for kind in FrameKind}
    _check_entries(back_end, ledger_id, _ids([frame for frame, _ in mine]), _ids(must), problems)
    invented = {
        "was never fenced": facts.fenced and not facts.deleted and not sent[FrameKind.FENCE],
        "was never deleted": facts.deleted and not sent[FrameKind.DELETED],
        "never had this key": facts.ledger_key is not None and facts.ledger_key not in sent[FrameKind.LEDGER_KEY],
    }
    lac = max(map(lac_of_body, records[FrameKind.LAC]), default=-1)
    forgotten = {
        "has lost its fence": bool(records[FrameKind.FENCE]) and not facts.fenced,
        "has lost its deletion": bool(records[FrameKind.DELETED]) and not facts.deleted,
        "has lost its key": bool(records[FrameKind.LEDGER_KEY]) and facts.ledger_key is None,
        "has lost its LAC": lac >= 0 and lac_of_body(facts.lac_body or NO_BODY) < lac,
        "is not in limbo any more": bool(records[FrameKind.LIMBO]),  # it may be in trouble instead, see below
        "has forgotten that its copy was dropped": bool(records[FrameKind.COPY_DROPPED]) and not facts.trouble,
    }
    if facts.deleted:  # nothing else of the ledger is kept
        forgotten = {what: held for what, held in forgotten.items() if "deletion" in what}
    # the bookie reports the trouble, and nothing of the ledger is trusted
    troubled = facts.trouble not in (Reason.REASON_NONE, Reason.COPY_DROPPED)
    wrong = invented if troubled else {**invented, **forgotten}
    problems += [f"ledger {ledger_id} {what}" for what, is_so in wrong.items() if is_so]


def _check_entries(
    back_end: StorageBackEnd, ledger_id: int, every: set[int], required: set[int], problems: list[str]
) -> None:
    answer = ask(back_end, ledger_id, 0, max(every, default=0) + 3)
    other = [k for k, payload in answer.found.items() if not payload.startswith(b"%d/%d " % (ledger_id, k))]
    denied = sorted(required & answer.absent - set(answer.found))
    for what, ids in (
        ("have other bytes", other),
        ("were never written", sorted(set(answer.found) - every)),
        ("are synced and ABSENT", denied),
    ):
        if ids:
            problems.append(f"entries {ids[:5]} of ledger {ledger_id} {what}")


def _ids(frames: list[bytes]) -> set[int]:
    found: set[int] = set()
    for frame in frames:
        header = parse_header(frame)
        if header.kind == FrameKind.ENTRIES:
            found.update(entry_ids_of(header, frame).tolist())
    return found


def _records(frames: list[bytes], kind: FrameKind) -> list[bytes]:
    found = ((parse_header(frame), frame) for frame in frames)
    if kind == FrameKind.ENTRIES:
        return []
    return [bytes(record_payload(frame, header)) for header, frame in found if header.kind == kind]


# --- many of the newest segment ---------------------------------------------------------------------------------------


class _Scanner(SegmentScanner):
    """The product's scanner with a cache of the contents of groups. It notes what it would add to the index."""

    known: dict[tuple[int, int, bytes], list[tuple[int, FrameHeader, bool]]]

    def scan_of(self, size: int) -> tuple[ScannedSegment, tuple[Hashable, ...]]:
        self._size = size // BLOCK * BLOCK
        self.taken: list[Hashable] = []
        return self.scan(), tuple(self.taken)

    def _collect(self, data: memoryview, offset: int, count: int) -> list[tuple[int, FrameHeader, bool]]:
        key = (offset, count, bytes(data))
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = super()._collect(data, offset, count)
            if len(self.known) > 4096:
                self.known.pop(next(iter(self.known)))
        return found

    def _take(
        self, data: memoryview, at: int, header: FrameHeader, place: Place, intact: bool, result: ScannedSegment
    ) -> None:
        self.taken.append((place.offset, header.size, header.kind, header.ledger_id, intact))


@dataclass
class Judge:
    """Verdicts on changed copies of the newest segment of an image. ``starts`` counts the starts that these took."""

    image: Image
    starts: int = 0
    verdicts: dict[Hashable, Verdict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._data: bytes | bytearray | memoryview = b""
        self._scanner = _Scanner(self._fetch, self.image.generation, self.image.incarnation, SEGMENT_BYTES)
        self._scanner.known = {}

    def _fetch(self, size: int, offset: int) -> bytes:
        return bytes(self._data[offset : offset + size])

    def verdict(self, data: bytes | bytearray, *, full: bool = False) -> Verdict:
        """Return the verdict on the newest segment with these bytes. With ``full``, always start. Raises AssertionError
        if the start contradicts the known verdict."""
        found = self._what_a_scan_finds(data)
        known = self.verdicts.get(found)
        if known is not None and not full:
            return known
        self.starts += 1
        verdict = judge(self.image, {self.image.newest: bytes(data)})
        assert known is None or known == verdict, f"a scan does not decide a start: {known} and {verdict}"
        self.verdicts[found] = verdict
        return verdict

    def _what_a_scan_finds(self, data: bytes | bytearray) -> Hashable:
        self._data = memoryview(data)
        found, taken = self._scanner.scan_of(len(data))
        header: Any
        try:
            header = decode_segment_header(bytes(data[:BLOCK]))
            header = (header.generation, header.incarnation, header.segment_bytes == len(data), header.newest_sealed)
        except IntegrityError as error:
            header = error.what
        recorded = recorded_position(self.image, bytes(data))
        return (
            header, found.durable, found.groups_below_durable, tuple(found.damage), tuple(found.tail), taken, recorded
        )  # fmt: skip
