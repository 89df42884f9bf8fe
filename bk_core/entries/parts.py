# SPDX-License-Identifier: Apache-2.0
"""Cuts parts of entries out of frames for readers that want some columns, and verifies such parts. Pure.

A bookie knows no codec. It cuts the bytes that the reader asks for and adds the length of each entry (flag PARTIAL,
docs/formats.md §1.5). The reader sends two requests. The first asks for the *heads* of entries, which hold their
directories. The checksums in a directory combine to the checksum of the whole entry. Together with Apache's header they
give the entry's digest, which binds the directory to ledger and entry id; the directory then binds each column
(docs/decisions/0034). The second request asks for the *regions* of the wanted columns. The reader checks each region by
the entry's directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from bk_core.entries import arrow_directory
from bk_core.entries.arrow_directory import Directory
from bk_core.entries.batch import I64, U32, Bytes, EntryBatch
from bk_core.entries.digest import ENTRY_HEADER, Digester, crc32c
from bk_core.entries.frame import (
    APACHE_BYTES,
    FRAME_HEADER_BYTES,
    KNOWN_FLAGS,
    PARTIAL,
    FrameHeader,
    FrameKind,
    assemble,
    batch_of,
    check_frame,
    column_bytes,
    columns_of,
    decode_frame,
    entry_ids_of,
    split_frames,
)
from bk_core.errors import IntegrityError
from bk_core.model import DigestType, EntryId
from bk_core.wire.lane.reasons import Cut

CUT_ENTRIES_MAX = 1 << 11
"""The maximum number of entries in a frame that is cut. A frame of more entries is returned whole, because a cut costs
time for each entry and would save little."""
_WITH_PARTS = KNOWN_FLAGS | PARTIAL


# --- the bookie ---


def cut_frames(frames: Bytes, cut: Cut) -> list[Bytes]:
    """Return for each intact frame a frame with PARTIAL that has the wanted parts of its entries. A frame is returned
    whole if a reader could not check its parts, or if the parts would not be shorter. A frame that has PARTIAL already
    is returned as it is."""
    return [_cut(header, frame, cut) for header, frame in split_frames(frames, flags_known=_WITH_PARTS)]


def _cut(header: FrameHeader, frame: memoryview, cut: Cut) -> Bytes:
    is_ours = header.kind == FrameKind.ENTRIES and not header.flags & APACHE_BYTES
    can_be = is_ours and DigestType(header.digest_type).has_parts
    if not can_be or header.flags & PARTIAL or header.count > CUT_ENTRIES_MAX:
        return frame
    columns = columns_of(header, frame)
    body = frame[FRAME_HEADER_BYTES + header.columns_bytes :]
    pieces, kept = _pieces(entry_ids_of(header, frame), columns.lengths, body, cut)
    if sum(kept) + 8 * len(kept) >= header.payload_bytes:
        return frame
    own = frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + header.columns_bytes]
    more = column_bytes(np.array(kept, dtype=np.int64), "<i8")
    head = (header.kind, header.flags | PARTIAL, *header[2:8])
    return assemble(head, [own, more], b"".join(pieces), 0)


def _pieces(ids: I64, lengths: U32, payload: memoryview, cut: Cut) -> tuple[list[memoryview], list[int]]:
    """Return the wanted pieces of these entries, and for each entry the total length of its pieces."""
    spans, kept = wanted_spans(ids.tolist(), lengths.tolist(), cut)
    return [payload[start:stop] for start, stop in spans], kept


def wanted_spans(ids: Iterable[int], lengths: Iterable[int], cut: Cut) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the start and the end of each wanted part in the payload of these entries, and for each entry the total
    length of its parts."""
    spans, kept, at = list[tuple[int, int]](), list[int](), 0
    for entry_id, length in zip(ids, lengths, strict=True):
        its = cut.spans(entry_id, length)
        spans += [(at + start, at + stop) for start, stop in its]
        kept.append(sum(stop - start for start, stop in its))
        at += length
    return spans, kept


# --- the reader ---


class Parts(Protocol):
    """Chooses the parts that a reader asks for instead of whole entries, and verifies them."""

    def cut(self, first: EntryId, last: EntryId) -> Cut:
        """Return the parts of the entries ``first`` to ``last`` that the reader asks a bookie for."""
        ...

    def verified(self, frames: memoryview, digester: Digester) -> list[EntryBatch]:
        """Return the verified parts in the frames of an answer, as batches with the ids of the entries and the lengths
        of the parts. Raises IntegrityError unless they are the wanted parts of intact entries of this ledger."""
        ...


@dataclass(frozen=True, slots=True)
class Heads:
    """Asks for the first ``bytes`` bytes of each entry of codec ``arrow``, and checks the directory in them by the
    entry's digest. ``_parsed`` has the checked directories and their bytes, until :meth:`directory` returns them."""

    bytes: int
    _parsed: dict[EntryId, tuple[memoryview, Directory]] = field(default_factory=dict, repr=False, compare=False)

    def cut(self, first: EntryId, last: EntryId) -> Cut:
        return Cut(head=self.bytes)

    def verified(self, frames: memoryview, digester: Digester) -> list[EntryBatch]:
        return [self._checked(part, digester) for part in _parts(frames, digester, self.cut(0, 0))]

    def _checked(self, part: _Part, digester: Digester) -> EntryBatch:
        if part.is_proven:
            return part.batch
        whole = part.whole
        digests = whole.digests if digester.digest_bytes else None
        ids = whole.entry_ids().tolist()
        views = part.batch.entry_views()
        found = [
            arrow_directory.parse(view, length) for view, length in zip(views, whole.lengths.tolist(), strict=True)
        ]
        if digests is not None:
            numbers = zip(ids, whole.entry_lacs().tolist(), whole.cumulative_lengths().tolist(), strict=True)
            headers = [crc32c(ENTRY_HEADER.pack(digester.ledger_id, *its)) for its in numbers]
            wrong = arrow_directory.crcs_behind(headers, found) != digests.reshape(-1).view(">u4")
            if wrong.any():
                raise IntegrityError(
                    "a directory does not belong to its entry",
                    value=f"ledger {digester.ledger_id}, entry {ids[int(wrong.argmax())]}",
                    remedy="read another copy",
                )
        for entry_id, view, directory in zip(ids, views, found, strict=True):
            self._parsed[entry_id] = view[: directory.size], directory
        return part.batch

    def directory(self, entry_id: EntryId, head: memoryview) -> Directory:
        """Return the directory in a verified head. :meth:`verified` has parsed the directories of entries that the
        bookie cut. Those of whole entries are parsed here, because their digests were verified instead. Raises
        IntegrityError if the entry has no directory."""
        data, directory = self._parsed.pop(entry_id, (None, None))
        return directory if directory and data == head[: directory.size] else arrow_directory.parse(head, None)


@dataclass(frozen=True, slots=True)
class Regions:
    """Asks for the head of the Arrow message and the columns ``wanted`` of each entry from ``first`` on, and checks
    them by the entry's directory. An entry whose directory is None is not wanted."""

    first: EntryId
    directories: Sequence[Directory | None]
    wanted: Sequence[int]
    _all: Cut = field(init=False, repr=False)  # made once, because each answer is compared with it

    def __post_init__(self) -> None:
        ranges = tuple(tuple(_ranges(self._slices(directory))) for directory in self.directories)
        object.__setattr__(self, "_all", Cut(0, self.first, ranges))

    def cut(self, first: EntryId, last: EntryId) -> Cut:
        return Cut(0, first, self._all.ranges[first - self.first : last + 1 - self.first])

    def verified(self, frames: memoryview, digester: Digester) -> list[EntryBatch]:
        low, high = self.first, self.first + len(self.directories) - 1
        parts = _parts(frames, digester, self._all)
        for part in parts:
            for entry_id, view in zip(part.batch.entry_ids().tolist(), part.batch.entry_views(), strict=True):
                if low <= entry_id <= high:  # the caller refuses all other ids
                    self._check(self.directories[entry_id - low], view)
        return [part.batch for part in parts]

    def _check(self, directory: Directory | None, view: memoryview) -> None:
        if directory is None:
            return
        head, *regions = self.regions(directory, view)
        directory.check_head(head)
        for k, region in zip(self.wanted, regions, strict=True):
            directory.check_column(k, region)

    def regions(self, directory: Directory, view: memoryview) -> list[memoryview]:
        """Cut an entry's part into the message's head and the wanted columns. Raises IntegrityError if the part has
        another size."""
        found, at = list[memoryview](), 0
        for each in self._slices(directory):
            size = each.stop - each.start
            found.append(view[at : at + size])
            at += size
        if at != len(view):
            raise IntegrityError("a bookie did not answer with the wanted parts", value=f"{len(view)} bytes")
        return found

    def _slices(self, directory: Directory | None) -> list[slice]:
        if directory is None:
            return []
        return [directory.head, *(directory.column(k) for k in self.wanted)]


def _ranges(slices: Sequence[slice]) -> list[tuple[int, int]]:
    """Return slices, which are in ascending order, as pairs of offset and size. Adjacent slices become one pair."""
    found = list[tuple[int, int]]()
    for each in slices:
        if found and sum(found[-1]) == each.start:
            found[-1] = (found[-1][0], each.stop - found[-1][0])
        else:
            found.append((each.start, each.stop - each.start))
    return found


@dataclass(frozen=True, slots=True)
class ColumnsWanted:
    """The columns that a reader wants. ``places`` are their indices among the ``count`` columns of each entry.
    ``may_have`` decides by an entry's directory whether the entry may have wanted rows."""

    count: int
    places: tuple[int, ...]
    may_have: Callable[[Directory], bool] = lambda directory: True

    @property
    def heads(self) -> Heads:
        return Heads(arrow_directory.bytes_max(self.count))


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """The wanted columns of some entries, all checked. ``directories`` has the directory of each entry. ``parts`` has
    for each entry the head of its Arrow message and the wanted columns."""

    directories: Sequence[Directory]
    parts: EntryBatch

    @property
    def payload_bytes(self) -> int:
        return self.parts.payload_bytes

    def entry_ids(self) -> I64:
        return self.parts.entry_ids()

    def entry_lengths(self) -> U32:
        """Return the length in bytes that each entry has with all its columns."""
        return np.array([directory.offsets[-1] for directory in self.directories], dtype=np.uint32)


@dataclass(frozen=True, slots=True)
class _Part:
    """The parts of the entries of one frame. ``batch`` has the parts, ``whole`` the lengths and digests of the entries.
    ``is_proven`` says that the bookie did not cut the frame and that the digests of its entries were verified."""

    batch: EntryBatch
    whole: EntryBatch
    is_proven: bool


def _parts(frames: memoryview, digester: Digester, cut: Cut) -> list[_Part]:
    """Return the parts in the frames of an answer. Raises IntegrityError for a frame that fails a check or that has
    other parts than ``cut`` names."""
    found = []
    for header, frame in split_frames(frames, flags_known=_WITH_PARTS):
        if header.kind != FrameKind.ENTRIES:
            raise IntegrityError("a bookie answered with a record", value=f"kind {header.kind}")
        found.append(_partial(header, frame, digester, cut) if header.flags & PARTIAL else _whole(frame, digester, cut))
    return found


def _whole(frame: memoryview, digester: Digester, cut: Cut) -> _Part:
    """Return the wanted parts of the entries of a frame that the bookie did not cut. This function verifies the
    digests, because the caller does not check the parts."""
    batch = decode_frame(frame, digester=digester, verify_digests=True)
    pieces, kept = _pieces(batch.entry_ids(), batch.lengths, batch.payload, cut)
    return _Part(_with_parts(batch, kept, memoryview(b"".join(pieces))), batch, True)


def _partial(header: FrameHeader, frame: memoryview, digester: Digester, cut: Cut) -> _Part:
    check_frame(frame, header)
    if header.ledger_id != digester.ledger_id or header.digest_type != digester.digest_type:
        raise IntegrityError("a bookie answered with parts of another ledger", value=f"ledger {header.ledger_id}")
    if not digester.digest_type.has_parts:
        raise IntegrityError("a bookie answered with parts that cannot be checked", value=digester.digest_type.name)
    columns = columns_of(header, frame)
    assert columns.kept is not None
    payload = frame[FRAME_HEADER_BYTES + header.columns_bytes :].toreadonly()
    whole = batch_of(header, columns, payload)
    for entry_id, length, kept in zip(
        whole.entry_ids().tolist(), columns.lengths.tolist(), columns.kept.tolist(), strict=True
    ):
        if kept != sum(stop - start for start, stop in cut.spans(entry_id, length)):
            raise IntegrityError("a bookie did not answer with the wanted parts", value=f"entry {entry_id}")
    return _Part(_with_parts(whole, columns.kept.tolist(), payload), whole, False)


def _with_parts(whole: EntryBatch, kept: Sequence[int], payload: memoryview) -> EntryBatch:
    """Return a batch of the same entries that has only the kept bytes. Fields that hold only for whole entries are
    removed."""
    lengths = np.array(kept, dtype=np.uint32)
    return replace(
        whole,
        lengths=lengths,
        payload=payload,
        digests=None,
        digest_type=None,
        length_before=-1,
        ledger_lengths=None,
        lacs=None,
        payload_crcs=None,
        _offsets=None,
    )
