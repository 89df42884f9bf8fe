# SPDX-License-Identifier: Apache-2.0
"""Known defects of storage, and of ``.unsealed``, the mark beside a segment that has no index yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

from bk_core.entries.frame import FrameKind, check_header, parse_header
from bk_core.wire.lane.reasons import Reason
from bookie_server.identity import directories
from bookie_server.machine.core import Core
from bookie_server.machine.requests import Requests
from bookie_server.storage.bytes import index_file, run_frames, scan, segment
from bookie_server.storage.bytes.index_file import StateCollector
from bookie_server.storage.bytes.scan import SegmentScanner
from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.disk.files import Files
from bookie_server.storage.index import index, ledger_frames, ledger_table
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.index.ledger_states import LedgerStates
from bookie_server.storage.log import segment_log as commit
from bookie_server.storage.log import segment_reader as reader
from bookie_server.storage.log.segment_log import SegmentLog
from bookie_server.storage.log.segment_pool import SegmentPool
from bookie_server.storage.log.segment_reader import SegmentReader
from bookie_server.storage.start import listing
from bookie_server.storage.start.replay import Opening
from tests.sim.disk import SimDisk
from tests.sim.mutants.mutant import Change, Mutants, changed

MUTANTS = Mutants()


class FilesInstead:
    """Files with one method replaced."""

    def __init__(self, files: Any, **methods: Any) -> None:
        self.files, self.methods = files, methods

    def __getattr__(self, name: str) -> Any:
        return self.methods.get(name) or getattr(self.files, name)


def nothing(*_: Any, **__: Any) -> None:
    return None


def over_files(owner: type, name: str, **methods: Callable[[Any], Any]) -> Change:
    """Return the change that runs this method of ``owner`` over files with some methods replaced."""

    def over(original: Any, self: Any, *args: Any) -> Any:
        files = self._files
        self._files = FilesInstead(files, **{name: make(files) for name, make in methods.items()})
        try:
            return original(self, *args)
        finally:
            self._files = files

    return changed(owner, name, over)


@MUTANTS.instead(SegmentPool, "begin", "a segment is named before its header is durable", "S3")
def named_first(begin: Any, self: Any) -> Any:
    """As begin, with the name before the header."""
    files, later = self._files, []
    self._files = FilesInstead(
        files,
        write=lambda *call: later.append((files.write, call)),
        sync_data=lambda *call: later.append((files.sync_data, call)),
    )
    try:
        spare = begin(self)
    finally:
        self._files = files
    for act, call in later:
        act(*call)
    return spare


_begin = SegmentPool.begin


@MUTANTS.instead(
    SegmentPool, "_make", "a segment is named before it is begun", "S3",
    (SegmentPool, "begin", lambda self: self._spares.popleft()),
)  # fmt: skip
def named_when_made(make: Any, self: Any) -> Any:
    """Spares have their own names: that the one which was being written is lost is not noticed."""
    spares, self._spares = self._spares, deque([make(self)])
    try:
        return _begin(self)
    finally:
        self._spares = spares


@MUTANTS.instead(SegmentPool, "recycle", "the index of a drained segment stays", "S4")
def index_stays(_: Any, self: Any, generation: int) -> None:
    self._files.rename(f"{self._path}/{generation:016x}.segment", f"{self._path}/{generation:016x}.free")
    self._free.append(generation)


@MUTANTS.instead(
    SegmentScanner, "_checked_group", "stale frames of a recycled segment are replayed", "S4",
    (scan, "placement_stamp", lambda *_: ANY),
)  # fmt: skip
def any_life(_: Any, self: Any, block: Any, position: int) -> Any:
    group = scan.decode_group_header(block, self._incarnation)
    return group if group is not None and group.offset == position else None


@MUTANTS.instead(SegmentScanner, "_torn_end", "bytes of an older life are called a tail", "S3")
def written_end(_: Any, self: Any, position: int) -> int:
    data = self._read(self._size - position, position)
    return position + (len(data.rstrip(b"\0")) + 4095) // 4096 * 4096


@MUTANTS.instead(
    listing, "_keep", "a pool file of another size is used", "S4",
    (SimDisk, "open_preallocated", lambda self, path, size: self._open(path, self._find(path))),
)  # fmt: skip
def keep_any_size(_: Any, files: Any, path: str, name: str, generation: int, segment_bytes: int, found: Any) -> None:
    if not name.endswith(".free"):
        files.rename(f"{path}/{name}", f"{path}/{generation:016x}.free")
    found.free.add(generation)


def _synced_again(files: Any) -> Callable[[int], None]:
    def sync(handle: int) -> None:
        try:
            files.sync_data(handle)
        except OSError:
            files.sync_data(handle)

    return sync


@MUTANTS.instead(Files, "write_atomically", "small files are renamed before they are synced", "S6")
def atomically_unsynced(_: Any, self: Any, path: str, data: bytes) -> None:
    handle = self._create(path + ".tmp")
    self._append(handle, memoryview(data))
    self.close(handle)
    self.rename(path + ".tmp", path)


@MUTANTS.instead(Files, "write_atomically", "small files are written in place", "S6")
def in_place(_: Any, self: Any, path: str, data: bytes) -> None:
    handle = self._create(path)
    self._append(handle, memoryview(data))
    self._sync_file(handle)
    self.close(handle)


def _without(owner: type, name: str, argument: int, kind: FrameKind) -> Change:
    """Return the change by which a method ignores records of this kind, which this argument of it says."""
    return changed(owner, name, lambda original, *args: None if args[argument] == kind else original(*args))


@MUTANTS.instead(LedgerIndex, "add_record", "a deleted ledger is forgotten (D18)", "S4")
def forgetting_deletion(add_record: Any, self: Any, kind: int, ledger_id: int, payload: bytes) -> None:
    if kind == FrameKind.DELETED:
        self._forget(ledger_id)
    else:
        add_record(self, kind, ledger_id, payload)


@MUTANTS.instead(Core, "fence", "a fence is answered and not logged (D5)", "S1")
def fence_unlogged(_: Any, self: Any, ledger_id: int, key: bytes) -> Any:
    ledger = self.ledger(ledger_id)
    problem = self.key_problem(ledger, key)
    if problem:
        return problem
    ledger.fenced, ledger.fence_sequence = True, 0
    ledger.sessions += 1  # stays in memory
    return 0


@MUTANTS.instead(Core, "log_key", "a ledger's key is not logged", "S4")
def key_unlogged(_: Any, self: Any, ledger: Any) -> None:
    ledger.key_logged = True


def _any_header(block: Any, incarnation: bytes) -> Any:
    """As decode_group_header, without its bound on the position."""
    magic, generation, number, size, frames, offset, durable, _, _, crc, _ = segment._GROUP.unpack_from(block)
    if magic != segment.GROUP_MAGIC or segment.crc32c(block[:56], segment.crc32c(incarnation)) != crc:
        return None
    return segment.GroupHeader(generation, number, size, frames, offset, durable)


@MUTANTS.instead(
    commit, "encode_group_header", "a group's header calls its own group durable (D21)", "S3",
    (scan, "decode_group_header", _any_header),
)  # fmt: skip
def calls_itself_durable(encode: Any, header: Any, seed: int) -> bytes:
    header = segment.GroupHeader(*header)
    return encode(header._replace(durable=header.offset + header.group_bytes), seed)


def _unchecked(data: Any, place: Any, incarnation: bytes, ledger_id: int | None = None) -> Any:
    return parse_header(data)


@MUTANTS.instead(SegmentScanner, "_frame_at", "a torn tail is accepted", "S3")
def frame_with_any_payload(_: Any, self: Any, data: Any, at: int, offset: int) -> Any:
    columns, payload = scan._SIZES.unpack_from(data, at + scan._SIZES_OFFSET)
    frame = data[at : at + scan.FRAME_HEADER_BYTES + columns + payload]
    try:
        return check_header(frame), True
    except scan.IntegrityError:
        return None


@MUTANTS.instead(Opening, "_copy_tails", "segments are sealed before their tail is copied", "S6")
def seal_before_the_copy(copy_tails: Any, self: Any, log: Any) -> None:
    Opening._seal_scanned(self, log, True)
    copy_tails(self, log)


@MUTANTS.instead(Opening, "_put_in_limbo", "limbo is forgotten by the next start", "S8")
def limbo_in_memory(in_limbo: Any, self: Any, log: Any) -> None:
    class _Nowhere:
        def append_group(self, frames: Any, *, reserve: bool = False) -> None: ...

    in_limbo(self, _Nowhere())


@MUTANTS.instead(Opening, "_unnamed_damage", "damage is reported and nothing else (D9)", "S8")
def no_limbo(_: Any, self: Any, what: str) -> None:
    self.report.damage.append(what)


@MUTANTS.instead(Opening, "_unnamed_damage", "the newest segment may be missing", "S3")
def newest_may_be_missing(unnamed: Any, self: Any, what: str) -> None:
    if not what.startswith("every segment is sealed"):
        unnamed(self, what)


@MUTANTS.instead(Opening, "_open_log", "an old segment is appended to", "S3")
def log_that_goes_on(open_log: Any, self: Any, newest: int) -> Any:
    """The next group goes behind the last one of the old segment."""
    log = open_log(self, newest)
    if self.scanned:
        old = self.scanned[-1]
        handle = self._files.open_read(f"{self._path}/{old.generation:016x}.segment")
        seed = segment.stamp_seed(self._incarnation, old.generation)
        spare = commit.NewSegment(old.generation, handle, recycled=True)
        log._active = commit._Segment(spare, log.segment_bytes, seed)
        log._active.position, log._active.group_number = old.durable, old.groups_below_durable
    return log


@MUTANTS.instead(SegmentReader, "read", "a mismatch is not read again past the cache", "S5")
def only_through_the_cache(_: Any, self: Any, place: Any, *, ledger_id: int | None = None) -> Any:
    try:
        return self._checked(self._pread(place), place, ledger_id)
    except OSError as error:
        raise scan.IntegrityError("a frame cannot be read") from error


@MUTANTS.instead(LedgerIndex, "_answer", "a damaged frame's ids are ABSENT (D9)", "S5")
def absent_where_damaged(_: Any, self: Any, state: Any, pieces: Any, gaps: Any, lost: Any, through: int) -> Any:
    return index.Lookup(pieces, tuple(gaps), (), (), through)


@MUTANTS.instead(ledger_frames._Frames, "_candidates", "look-up by bisection alone", "S2")
def bisected(candidates: Any, self: ledger_frames._Frames, *args: Any) -> Any:
    """Bisection over the frames' own ends, as if none lay inside another."""
    peaks, self._peaks = self._peaks, self._lasts
    try:
        return candidates(self, *args)
    finally:
        self._peaks = peaks


MUTANTS.add("a group is acked without a sync", "S6", over_files(SegmentLog, "_commit", sync_data=lambda _: nothing))
MUTANTS.add("a segment's name is not synced", "S6", over_files(SegmentPool, "begin", rename=lambda f: f._replace))
MUTANTS.add("a segment's header is not synced", "S3", over_files(SegmentPool, "begin", sync_data=lambda _: nothing))
MUTANTS.add(
    "a drained segment is renamed and not synced", "S4",
    *(over_files(SegmentPool, name, rename=lambda f: f._replace) for name in ("recycle", "_make")),
)  # fmt: skip
MUTANTS.add("a torn group is an older life", "S3", (SegmentScanner, "_torn_end", lambda _, position: position))
MUTANTS.add("a generation is used twice", "S3", (listing.Listing, "newest", property(lambda _: 0)))
MUTANTS.add("a failed sync is tried again", "S6", over_files(SegmentLog, "_commit", sync_data=_synced_again))
MUTANTS.add(
    "frames are served unchecked", "S5",
    *((module, "check_stored_frame", _unchecked) for module in (reader, run_frames)),
)  # fmt: skip
MUTANTS.add("replay trusts the page cache", "S5", (SimDisk, "drop_cache", nothing))
MUTANTS.add("a gap in group numbers is ignored", "S3", (SegmentScanner, "_note_gap", nothing))
MUTANTS.add("damage is skipped in silence (D9)", "S8", (Opening, "_unnamed_damage", nothing))
MUTANTS.add(
    "a start that is cut off hides the loss it found", "S8",
    (DataDirectory, "set_mark", nothing), (DataDirectory, "clear_mark", nothing),
)  # fmt: skip
MUTANTS.add("limbo is not asked", "S8", (LedgerStates, "trouble", lambda self, state: Reason.REASON_NONE))
MUTANTS.add("the tail is not copied", "S6", (Opening, "_copy_tails", nothing))
MUTANTS.add("the position of an idle log is not recorded", "S3", (SegmentLog, "record_position", nothing))
MUTANTS.add(
    "a fence is answered before it is durable (D6)", "S1", (Requests, "_waits_for_fence", lambda self, request: False)
)
MUTANTS.add("a fence is not replayed (D5)", "S4", _without(LedgerIndex, "add_record", 1, FrameKind.FENCE))
MUTANTS.add(
    "a fence is not in a sealed segment's index (D5)", "S4", _without(StateCollector, "add", 2, FrameKind.FENCE)
)
MUTANTS.add(
    "a tombstone is not in a sealed segment's index (D18)", "S4", _without(StateCollector, "add", 2, FrameKind.DELETED)
)
MUTANTS.add(
    "the last LAC holds and not the greatest", "S4",
    *((module, "newer_lac", lambda one, other: other) for module in (ledger_table, index_file)),
)  # fmt: skip
MUTANTS.add("an older copy of the directory is served from", "S8", (directories._Opening, "_state_problem", nothing))
MUTANTS.add("segments are made without a mark", "S3", (SegmentPool, "_mark_unsealed", nothing))
MUTANTS.add("marks that stand alone are ignored", "S3", (Opening, "_note_lost", nothing))
MUTANTS.add("marks beside a spare tell of a loss", "S3", (listing, "_unmark", nothing))
MUTANTS.add(
    "a mark stands before its segment", "S3", over_files(SegmentPool, "_create", sync_directory=lambda _: nothing)
)
