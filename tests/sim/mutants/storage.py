# SPDX-License-Identifier: Apache-2.0
"""Known defects of storage, put back into the production while a context lasts; the product has no switches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from bk_core.entries.frame import FrameKind, check_header, parse_header
from bk_core.wire.lane.reasons import Reason
from bookie_server.identity import directories
from bookie_server.machine.core import Core
from bookie_server.machine.requests import Requests
from bookie_server.storage.bytes import index_file, run_frames, scan, segment
from bookie_server.storage.bytes.index_file import StateCollector
from bookie_server.storage.bytes.scan import SegmentScanner
from bookie_server.storage.bytes.segment import encode_group_header
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

Planted = Callable[[], AbstractContextManager[None]]


def _planted(*changes: tuple[Any, str, Any]) -> Planted:
    """A context in which these attributes are others."""

    @contextmanager
    def plant() -> Iterator[None]:
        before = [(owner, name, owner.__dict__[name]) for owner, name, _ in changes]
        for owner, name, value in changes:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)

    return plant


class _Instead:
    """Files with one method replaced."""

    def __init__(self, files: Any, **methods: Any) -> None:
        self.files, self.methods = files, methods

    def __getattr__(self, name: str) -> Any:
        return self.methods.get(name) or getattr(self.files, name)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _named_first(self: Any) -> Any:
    """As begin, with the name before the header."""
    files, later = self._files, []
    self._files = _Instead(
        files,
        write=lambda *call: later.append((files.write, call)),
        sync_data=lambda *call: later.append((files.sync_data, call)),
    )
    try:
        spare = _begin(self)
    finally:
        self._files = files
    for act, call in later:
        act(*call)
    return spare


def _named_when_made(self: Any) -> Any:
    """Spares have their own names: that the one which was being written is lost is not noticed."""
    spares, self._spares = self._spares, deque([_make(self)])
    try:
        return _begin(self)
    finally:
        self._spares = spares


def _index_stays(self: Any, generation: int) -> None:
    self._files.rename(f"{self._path}/{generation:016x}.segment", f"{self._path}/{generation:016x}.free")
    self._free.append(generation)


def _any_life(self: Any, block: Any, position: int) -> Any:
    group = scan.decode_group_header(block, self._incarnation)
    return group if group is not None and group.offset == position else None


def _stamp_of_no_life(incarnation: bytes, generation: int, offset: int, crcs: Any) -> Any:
    return _Anything()


class _Anything:
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None


def _written_end(self: Any, position: int) -> int:
    data = self._read(self._size - position, position)
    return position + (len(data.rstrip(b"\0")) + 4095) // 4096 * 4096


def _keep_any_size(files: Any, path: str, name: str, generation: int, segment_bytes: int, found: Any) -> None:
    if not name.endswith(".free"):
        files.rename(f"{path}/{name}", f"{path}/{generation:016x}.free")
    found.free.add(generation)


def _open_any_size(self: Any, path: str, size: int) -> Any:
    return self._open(path, self._find(path))


def _with_files(original: Callable[..., Any], **methods: Callable[[Any], Any]) -> Callable[..., Any]:
    """The method of a SegmentLog, over files of which some methods are others."""

    def call(self: Any, *args: Any) -> Any:
        files = self._files
        self._files = _Instead(files, **{name: make(files) for name, make in methods.items()})
        try:
            return original(self, *args)
        finally:
            self._files = files

    return call


def _synced_again(files: Any) -> Callable[[int], None]:
    def sync(handle: int) -> None:
        try:
            files.sync_data(handle)
        except OSError:
            files.sync_data(handle)

    return sync


_commit, _begin, _make, _recycle = SegmentLog._commit, SegmentPool.begin, SegmentPool._make, SegmentPool.recycle
_add_record, _state_add, _encode_group = LedgerIndex.add_record, StateCollector.add, encode_group_header
_copy_tails, _seal_scanned, _in_limbo = Opening._copy_tails, Opening._seal_scanned, Opening._put_in_limbo
_unnamed, _open_log = Opening._unnamed_damage, Opening._open_log


def _atomically_unsynced(self: Any, path: str, data: bytes) -> None:
    handle = self._create(path + ".tmp")
    self._append(handle, memoryview(data))
    self.close(handle)
    self.rename(path + ".tmp", path)


def _in_place(self: Any, path: str, data: bytes) -> None:
    handle = self._create(path)
    self._append(handle, memoryview(data))
    self._sync_file(handle)
    self.close(handle)


def _record_without(kind: FrameKind) -> Callable[..., None]:
    return lambda self, k, ledger_id, payload: None if k == kind else _add_record(self, k, ledger_id, payload)


def _state_without(kind: FrameKind) -> Callable[..., None]:
    return lambda self, ledger_id, k, payload: None if k == kind else _state_add(self, ledger_id, k, payload)


def _forgetting_deletion(self: Any, kind: int, ledger_id: int, payload: bytes) -> None:
    if kind == FrameKind.DELETED:
        self._forget(ledger_id)
    else:
        _add_record(self, kind, ledger_id, payload)


def _fence_unlogged(self: Any, ledger_id: int, key: bytes) -> Any:
    ledger = self.ledger(ledger_id)
    problem = self.key_problem(ledger, key)
    if problem:
        return problem
    ledger.fenced, ledger.fence_sequence = True, 0
    ledger.sessions += 1  # stays in memory
    return 0


def _key_unlogged(self: Any, ledger: Any) -> None:
    ledger.key_logged = True


def _calls_itself_durable(header: Any, seed: int) -> bytes:
    header = segment.GroupHeader(*header)
    return _encode_group(header._replace(durable=header.offset + header.group_bytes), seed)


def _any_header(block: Any, incarnation: bytes) -> Any:
    """As decode_group_header, without its bound on the position."""
    magic, generation, number, size, frames, offset, durable, _, _, crc, _ = segment._GROUP.unpack_from(block)
    if magic != segment.GROUP_MAGIC or segment.crc32c(block[:56], segment.crc32c(incarnation)) != crc:
        return None
    return segment.GroupHeader(generation, number, size, frames, offset, durable)


def _unchecked(data: Any, place: Any, incarnation: bytes, ledger_id: int | None = None) -> Any:
    return parse_header(data)


def _frame_with_any_payload(self: Any, data: Any, at: int, offset: int) -> Any:
    columns, payload = scan._SIZES.unpack_from(data, at + scan._SIZES_OFFSET)
    frame = data[at : at + scan.FRAME_HEADER_BYTES + columns + payload]
    try:
        return check_header(frame), True
    except scan.IntegrityError:
        return None


def _seal_before_the_copy(self: Any, log: Any) -> None:
    _seal_scanned(self, log, True)
    _copy_tails(self, log)


def _limbo_in_memory(self: Any, log: Any) -> None:
    class _Nowhere:
        def append_group(self, frames: Any, *, reserve: bool = False) -> None: ...

    _in_limbo(self, _Nowhere())


def _no_limbo(self: Any, what: str) -> None:
    self.report.damage.append(what)


def _newest_may_be_missing(self: Any, what: str) -> None:
    if not what.startswith("every segment is sealed"):
        _unnamed(self, what)


def _log_that_goes_on(self: Any, newest: int) -> Any:
    """The next group goes behind the last one of the old segment."""
    log = _open_log(self, newest)
    if self.scanned:
        old = self.scanned[-1]
        handle = self._files.open_read(f"{self._path}/{old.generation:016x}.segment")
        seed = segment.stamp_seed(self._incarnation, old.generation)
        spare = commit.NewSegment(old.generation, handle, recycled=True)
        log._active = commit._Segment(spare, log.segment_bytes, seed)
        log._active.position, log._active.group_number = old.durable, old.groups_below_durable
    return log


def _only_through_the_cache(self: Any, place: Any, *, ledger_id: int | None = None) -> Any:
    try:
        return self._checked(self._pread(place), place, ledger_id)
    except OSError as error:
        raise scan.IntegrityError("a frame cannot be read") from error


def _absent_where_damaged(self: Any, state: Any, pieces: Any, gaps: Any, lost: Any, through: int) -> Any:
    return index.Lookup(pieces, tuple(gaps), (), (), through)


_candidates = ledger_frames._Frames._candidates


def _bisected(self: ledger_frames._Frames, *args: Any) -> Any:
    """Bisection over the frames' own ends, as if none lay inside another."""
    peaks, self._peaks = self._peaks, self._lasts
    try:
        return _candidates(self, *args)
    finally:
        self._peaks = peaks


STORAGE_MUTANTS: list[tuple[str, str, Planted]] = [
    ("look-up by bisection alone", "S2", _planted((ledger_frames._Frames, "_candidates", _bisected))),
    (
        "a group is acked without a sync", "S6",
        _planted((SegmentLog, "_commit", _with_files(_commit, sync_data=lambda _: _nothing))),
    ),
    (
        "a segment's name is not synced", "S6",
        _planted((SegmentPool, "begin", _with_files(_begin, rename=lambda f: f._replace))),
    ),
    (
        "a segment's header is not synced", "S3",
        _planted((SegmentPool, "begin", _with_files(_begin, sync_data=lambda _: _nothing))),
    ),
    ("a segment is named before its header is durable", "S3", _planted((SegmentPool, "begin", _named_first))),
    (
        "a segment is named before it is begun", "S3",
        _planted(
            (SegmentPool, "_make", _named_when_made),
            (SegmentPool, "begin", lambda self: self._spares.popleft()),
        ),
    ),
    (
        "a drained segment is renamed and not synced", "S4",
        _planted(
            (SegmentPool, "recycle", _with_files(_recycle, rename=lambda f: f._replace)),
            (SegmentPool, "_make", _with_files(_make, rename=lambda f: f._replace)),
        ),
    ),
    ("the index of a drained segment stays", "S4", _planted((SegmentPool, "recycle", _index_stays))),
    (
        "stale frames of a recycled segment are replayed", "S4",
        _planted((SegmentScanner, "_checked_group", _any_life), (scan, "placement_stamp", _stamp_of_no_life)),
    ),
    ("bytes of an older life are called a tail", "S3", _planted((SegmentScanner, "_torn_end", _written_end))),
    ("a torn group is an older life", "S3", _planted((SegmentScanner, "_torn_end", lambda _, position: position))),
    (
        "a pool file of another size is used", "S4",
        _planted((listing, "_keep", _keep_any_size), (SimDisk, "open_preallocated", _open_any_size)),
    ),
    ("a generation is used twice", "S3", _planted((listing.Listing, "newest", property(lambda _: 0)))),
    (
        "small files are renamed before they are synced", "S6",
        _planted((Files, "write_atomically", _atomically_unsynced)),
    ),
    ("small files are written in place", "S6", _planted((Files, "write_atomically", _in_place))),
    (
        "a failed sync is tried again", "S6",
        _planted((SegmentLog, "_commit", _with_files(_commit, sync_data=_synced_again))),
    ),
    (
        "frames are served unchecked", "S5",
        _planted((reader, "check_stored_frame", _unchecked), (run_frames, "check_stored_frame", _unchecked)),
    ),
    ("a mismatch is not read again past the cache", "S5", _planted((SegmentReader, "read", _only_through_the_cache))),
    ("replay trusts the page cache", "S5", _planted((SimDisk, "drop_cache", _nothing))),
    ("a torn tail is accepted", "S3", _planted((SegmentScanner, "_frame_at", _frame_with_any_payload))),
    ("a gap in group numbers is ignored", "S3", _planted((SegmentScanner, "_note_gap", _nothing))),
    ("damage is skipped in silence (D9)", "S8", _planted((Opening, "_unnamed_damage", _nothing))),
    ("damage is reported and nothing else (D9)", "S8", _planted((Opening, "_unnamed_damage", _no_limbo))),
    (
        "a start that is cut off hides the loss it found", "S8",
        _planted((DataDirectory, "set_mark", _nothing), (DataDirectory, "clear_mark", _nothing)),
    ),
    ("limbo is forgotten by the next start", "S8", _planted((Opening, "_put_in_limbo", _limbo_in_memory))),
    ("a damaged frame's ids are ABSENT (D9)", "S5", _planted((LedgerIndex, "_answer", _absent_where_damaged))),
    ("limbo is not asked", "S8", _planted((LedgerStates, "trouble", lambda self, state: Reason.REASON_NONE))),
    ("the newest segment may be missing", "S3", _planted((Opening, "_unnamed_damage", _newest_may_be_missing))),
    ("the tail is not copied", "S6", _planted((Opening, "_copy_tails", _nothing))),
    (
        "segments are sealed before their tail is copied", "S6",
        _planted((Opening, "_copy_tails", _seal_before_the_copy)),
    ),
    ("an old segment is appended to", "S3", _planted((Opening, "_open_log", _log_that_goes_on))),
    (
        "a group's header calls its own group durable (D21)", "S3",
        _planted((commit, "encode_group_header", _calls_itself_durable), (scan, "decode_group_header", _any_header)),
    ),
    ("the position of an idle log is not recorded", "S3", _planted((SegmentLog, "record_position", _nothing))),
    ("a fence is answered and not logged (D5)", "S1", _planted((Core, "fence", _fence_unlogged))),
    (
        "a fence is answered before it is durable (D6)", "S1",
        _planted((Requests, "_waits_for_fence", lambda self, request: False)),
    ),
    ("a fence is not replayed (D5)", "S4", _planted((LedgerIndex, "add_record", _record_without(FrameKind.FENCE)))),
    (
        "a fence is not in a sealed segment's index (D5)", "S4",
        _planted((StateCollector, "add", _state_without(FrameKind.FENCE))),
    ),
    (
        "a tombstone is not in a sealed segment's index (D18)", "S4",
        _planted((StateCollector, "add", _state_without(FrameKind.DELETED))),
    ),
    ("a deleted ledger is forgotten (D18)", "S4", _planted((LedgerIndex, "add_record", _forgetting_deletion))),
    ("a ledger's key is not logged", "S4", _planted((Core, "log_key", _key_unlogged))),
    (
        "the last LAC holds and not the greatest", "S4",
        _planted(
            (ledger_table, "newer_lac", lambda one, other: other), (index_file, "newer_lac", lambda one, other: other)
        ),
    ),
    (
        "an older copy of the directory is served from", "S8",
        _planted((directories._Opening, "_state_problem", _nothing)),
    ),
]  # fmt: skip
"""Name, rule, context."""
