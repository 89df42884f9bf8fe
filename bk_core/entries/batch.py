# SPDX-License-Identifier: Apache-2.0
"""The in-memory form of a run of entries of one ledger, in columns.

No Python runs per entry: lengths, ids and digests are numpy arrays, the payload is one buffer, and slices are views.
Only the Arrow methods import pyarrow, so that a bookie does not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bk_core.errors import EntryTooLargeError, InvalidArgumentError
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

Bytes: TypeAlias = bytes | bytearray | memoryview
Join: TypeAlias = Callable[[Sequence[Bytes]], Any]
"""A function that joins pieces of bytes. It chooses the memory of the result."""
joined: Join = bytearray().join
"""The default :data:`Join`: returns a new bytearray."""
U8: TypeAlias = npt.NDArray[np.uint8]
U32: TypeAlias = npt.NDArray[np.uint32]
I64: TypeAlias = npt.NDArray[np.int64]
Selector: TypeAlias = npt.NDArray[np.bool_] | npt.NDArray[np.integer[Any]]


def byte_view(buffer: Bytes) -> memoryview:
    """Return ``buffer`` as a one-dimensional view of format ``B``, without copying."""
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def array_view(array: U8) -> memoryview:
    """Return the bytes of a contiguous array, read only."""
    return memoryview(array.reshape(-1).data).toreadonly()


def check_entry_sizes(lengths: U32 | I64) -> None:
    """Raise EntryTooLargeError if an entry exceeds ENTRY_BYTES_MAX, the limit of all lanes (L5)."""
    if lengths.size:
        check_entry_size(int(lengths.max()), lengths)


def check_entry_size(size: int, lengths: U32 | I64 | None = None) -> None:
    """Raise EntryTooLargeError if an entry of ``size`` bytes is over the limit. If the entry is the longest of a batch,
    ``lengths`` are the lengths of that batch, and the error names the entry's position."""
    if size > ENTRY_BYTES_MAX:
        raise EntryTooLargeError(
            f"an entry may have at most {ENTRY_BYTES_MAX} bytes",
            value=f"entry {0 if lengths is None else int(lengths.argmax())} of the batch has {size}",
            remedy="split the value over several entries",
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EntryBatch:
    """A run of entries of one ledger, in columns. No code changes the arrays or the payload of a batch.

    ``lengths`` has the number of payload bytes of each entry; ``payload`` holds all payloads one after another. Entry k
    has the id ``first_entry_id + k`` unless ``ids`` is given; then ``first_entry_id`` is the least id. ``lac`` is the
    LAC of all entries, or the greatest LAC if ``lacs`` gives each entry its own. ``length_before`` is the ledger's
    length in payload bytes before the first entry, or −1 if it is unknown. ``ledger_lengths`` has the ledger's length
    including each entry, and is given only if it does not follow from ``length_before``. ``digests`` has a row of bytes
    per entry, Apache's digest of type ``digest_type``. ``payload_crcs`` has the CRC32C of each payload, if the check of
    the digests computed it.

    If ``heads`` is given, each entry in ``payload`` has bytes before its own payload, which are those of Apache's entry
    and of frames. ``heads`` has their number, and ``lengths`` includes them. Only a read with ``keep_heads`` returns
    such batches.
    """

    lengths: U32
    payload: memoryview
    ledger_id: int = -1
    first_entry_id: int = 0
    digests: U8 | None = None
    digest_type: DigestType | None = None
    ids: I64 | None = None
    lac: int = -1
    lacs: I64 | None = None
    length_before: int = 0
    ledger_lengths: I64 | None = None
    payload_crcs: U32 | None = None
    heads: U32 | None = None
    _offsets: I64 | None = field(default=None, repr=False)

    @classmethod
    def from_list(cls, entries: Sequence[Bytes], *, first_entry_id: int = 0) -> EntryBatch:
        """Join payloads into a batch, with one copy. Raises EntryTooLargeError for an entry over the limit, and
        InvalidArgumentError for an entry that is not bytes."""
        try:
            payload = b"".join(entries)
            lengths = np.fromiter(map(len, entries), dtype=np.uint32, count=len(entries))
        except TypeError as error:
            raise InvalidArgumentError("entries must be bytes", value=str(error), remedy="encode text first") from None
        if int(lengths.sum()) != len(payload):
            raise InvalidArgumentError("entries must be bytes or views of bytes", remedy="cast views to format B")
        check_entry_sizes(lengths)
        return cls(lengths=lengths, payload=memoryview(payload), first_entry_id=first_entry_id)

    @classmethod
    def from_arrow(cls, array: pa.Array | pa.ChunkedArray) -> EntryBatch:
        """Return the values of an Arrow binary or string column as entries that belong to no ledger yet. Only a column
        of several chunks is copied. Raises InvalidArgumentError for other types and for nulls, and EntryTooLargeError
        for an entry over the limit (L5)."""
        sizes, payload = _arrow().columns_of(array)
        check_entry_sizes(sizes)
        return cls(lengths=sizes.astype(np.uint32), payload=payload)

    def to_arrow(self) -> pa.Array:
        """Return the payloads as an Arrow ``binary`` array over the same memory."""
        return _arrow().array_of(self.offsets(), self.payload)

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Implement Arrow's PyCapsule interface, by which polars, duckdb and pyarrow read a batch without a copy."""
        capsules: tuple[object, object] = self.to_arrow().__arrow_c_array__(requested_schema)
        return capsules

    def __len__(self) -> int:
        return int(self.lengths.size)

    @property
    def count(self) -> int:
        return int(self.lengths.size)

    @property
    def payload_bytes(self) -> int:
        return self.payload.nbytes

    @property
    def last_entry_id(self) -> int:
        """The greatest entry id, or ``first_entry_id − 1`` if the batch is empty."""
        if self.ids is None or not self.ids.size:
            return self.first_entry_id + self.count - 1
        return int(self.ids.max())

    @property
    def lists_nothing(self) -> bool:
        """Whether the batch has no column of ids, LACs or ledger lengths. The numbers of its entries then follow from
        ``first_entry_id``, ``lac`` and ``length_before``."""
        return self.ids is None and self.lacs is None and self.ledger_lengths is None

    def entry_ids(self) -> I64:
        if self.ids is not None:
            return self.ids
        return np.arange(self.first_entry_id, self.first_entry_id + self.count, dtype=np.int64)

    def entry_lacs(self) -> I64:
        return self.lacs if self.lacs is not None else np.full(self.count, self.lac, dtype=np.int64)

    def offsets(self) -> I64:
        """Return the position in the payload at which each entry begins, and then the position at which the last entry
        ends. These are ``count + 1`` numbers."""
        if self._offsets is None:
            offsets = np.zeros(self.count + 1, dtype=np.int64)
            np.cumsum(self.lengths, dtype=np.int64, out=offsets[1:])
            object.__setattr__(self, "_offsets", offsets)  # a cache: the value is always the same
            return offsets
        return self._offsets

    def cumulative_lengths(self) -> I64:
        """Return for each entry the ledger's length in payload bytes up to and including the entry. Raises
        InvalidArgumentError if the length is unknown."""
        if self.ledger_lengths is not None:
            return self.ledger_lengths
        if self.length_before < 0:
            raise InvalidArgumentError("the ledger length of this batch is not known", value=f"ledger {self.ledger_id}")
        return self.length_before + np.cumsum(self.lengths, dtype=np.int64)

    def entry_views(self) -> list[memoryview]:
        """Return a view of the payload of each entry, for callers that need one object per entry."""
        bounds = self.offsets().tolist()
        return list(map(self.payload.__getitem__, map(slice, bounds[:-1], bounds[1:])))

    def to_list(self) -> list[bytes]:
        """Return a copy of the payload of each entry."""
        return list(map(bytes, self.entry_views()))

    def slice(self, start: int, stop: int) -> EntryBatch:
        """Return the entries at positions ``start`` to ``stop`` − 1, as views. ``start`` and ``stop`` are those of a
        Python slice."""
        start, stop, _ = slice(start, stop).indices(self.count)
        if stop - start == self.count:
            return self
        stop = max(start, stop)
        if self._offsets is not None:
            begin, end = int(self._offsets[start]), int(self._offsets[stop])
        else:
            begin = int(self.lengths[:start].sum())
            end = begin + int(self.lengths[start:stop].sum())
        return self._part(slice(start, stop), self.lengths[start:stop], self.payload[begin:end], start, begin)

    def select(self, selector: Selector) -> EntryBatch:
        """Return the entries that a boolean mask or an array of positions selects, in the order of the selector. Copies
        the payload unless the positions are one ascending run. Raises IndexError for a position outside the batch."""
        mask = np.asarray(selector)
        at = np.flatnonzero(mask) if mask.dtype == np.bool_ else mask.astype(np.int64, copy=False)
        if at.size == 0:
            return self.slice(0, 0)
        if int(at.min()) < 0 or int(at.max()) >= self.count:
            raise IndexError(f"positions {int(at.min())} to {int(at.max())} of {self.count} entries")
        if int(at[-1]) - int(at[0]) == at.size - 1 and bool((np.diff(at) == 1).all()):
            return self.slice(int(at[0]), int(at[-1]) + 1)
        numbered = replace(
            self,
            ids=self.entry_ids(),
            ledger_lengths=self.cumulative_lengths() if self.length_before >= 0 else self.ledger_lengths,
        )
        return numbered._part(at, self.lengths[at], gather_payload(self, at), 0, 0)

    def _part(self, at: Any, lengths: U32, payload: memoryview, skipped: int, skipped_bytes: int) -> EntryBatch:
        """Return a batch of the entries at the positions ``at``, with these lengths and payload. If ``at`` is a run,
        ``skipped`` entries of ``skipped_bytes`` bytes come before it; otherwise both are 0."""
        ids, lacs, ledger_lengths = (c if c is None else c[at] for c in (self.ids, self.lacs, self.ledger_lengths))
        first, before, lac = self.first_entry_id + skipped, self.length_before, self.lac
        if lengths.size:
            first = first if ids is None else int(ids.min())
            lac = lac if lacs is None else int(lacs.max())
        if ledger_lengths is not None and lengths.size:
            before = int(ledger_lengths[0]) - int(lengths[0])
        elif before >= 0:
            before += skipped_bytes
        return replace(
            self,
            lengths=lengths,
            payload=payload,
            first_entry_id=first,
            digests=None if self.digests is None else self.digests[at],
            ids=ids,
            lac=lac,
            lacs=lacs,
            length_before=before,
            ledger_lengths=ledger_lengths,
            payload_crcs=None if self.payload_crcs is None else self.payload_crcs[at],
            heads=None if self.heads is None else self.heads[at],
            _offsets=None,
        )

    def compact(self) -> EntryBatch:
        """Return the same batch without the columns that follow from other fields. These are consecutive ids, equal
        LACs, and ledger lengths that are sums of the lengths."""
        ids, lacs, ledger_lengths = self.ids, self.lacs, self.ledger_lengths
        if ids is not None and ids.size and bool((np.diff(ids) == 1).all()):
            ids = None
        if lacs is not None and bool((lacs == self.lac).all()):
            lacs = None
        if ledger_lengths is not None and self.length_before >= 0:
            follows = self.length_before + np.cumsum(self.lengths, dtype=np.int64)
            ledger_lengths = None if np.array_equal(follows, ledger_lengths) else ledger_lengths
        if ids is self.ids and lacs is self.lacs and ledger_lengths is self.ledger_lengths:
            return self
        return replace(self, ids=ids, lacs=lacs, ledger_lengths=ledger_lengths)

    @classmethod
    def concat(cls, batches: Sequence[EntryBatch]) -> EntryBatch:
        """Return one batch of all entries in the given order, with a copy of the payload. Entries without a ledger (−1)
        get consecutive ids from the first id of the first batch on. Raises InvalidArgumentError if the batches have
        different ledgers or digest types."""
        batches = [batch for batch in batches if batch.count] or list(batches[:1])
        if not batches:
            return cls.from_list([])
        if len(batches) == 1:
            return batches[0]
        _check_same(batches)
        lengths = np.concatenate([batch.lengths for batch in batches])
        payload = memoryview(b"".join([batch.payload for batch in batches]))
        first = batches[0]
        if first.ledger_id < 0 and all(batch.ids is None for batch in batches):  # not numbered yet
            return cls(lengths=lengths, payload=payload, first_entry_id=first.first_entry_id)
        digests = None
        if all(batch.digests is not None for batch in batches):
            digests = np.concatenate([batch.digests for batch in batches if batch.digests is not None])
        known = all(batch.length_before >= 0 or batch.ledger_lengths is not None for batch in batches)
        return cls(
            lengths=lengths,
            payload=payload,
            ledger_id=first.ledger_id,
            first_entry_id=min(batch.first_entry_id for batch in batches),
            digests=digests,
            digest_type=first.digest_type,
            ids=_column(batches, cls.entry_ids),
            lac=max(batch.lac for batch in batches),
            lacs=_column(batches, cls.entry_lacs),
            length_before=first.length_before if known else -1,
            ledger_lengths=_column(batches, cls.cumulative_lengths) if known else None,
            heads=joined_heads(batches),
        ).compact()

    @classmethod
    def merge_by_id(cls, batches: Sequence[EntryBatch]) -> EntryBatch:
        """Return one batch of all entries in order of entry id, for striped reads. If an id occurs several times, the
        first of its entries is used."""
        joined = cls.concat(batches)
        if joined.ids is None:
            return joined
        order = np.argsort(joined.ids, kind="stable")
        ids = joined.ids[order]
        once = np.ones(ids.size, dtype=np.bool_)
        once[1:] = ids[1:] != ids[:-1]
        return joined.select(order[once]).compact()


def _column(batches: Sequence[EntryBatch], of: Callable[[EntryBatch], Any]) -> I64:
    return np.concatenate([of(batch) for batch in batches])


def joined_heads(batches: Sequence[EntryBatch]) -> U32 | None:
    """Return the column ``heads`` of these batches together, or None if no batch has it."""
    if all(batch.heads is None for batch in batches):
        return None
    return np.concatenate(
        [np.zeros(len(batch), np.uint32) if batch.heads is None else batch.heads for batch in batches]
    )


def _check_same(batches: Sequence[EntryBatch]) -> None:
    ledgers = {batch.ledger_id for batch in batches}
    types = {batch.digest_type for batch in batches}
    if len(ledgers) > 1 or len(types) > 1:
        raise InvalidArgumentError(
            "batches of several ledgers or digest types cannot be joined", value=f"ledgers {ledgers}, digests {types}"
        )


def _arrow() -> Any:
    """Import the Arrow functions at the first call, by name. A bookie imports this file and must not depend on
    pyarrow."""
    return import_module("bk_core.entries.arrow")


def gather_payload(batch: EntryBatch, at: npt.NDArray[np.int64]) -> memoryview:
    """Return the payloads at the positions ``at``, joined. Runs of neighbours are copied as one piece."""
    low, high = int(batch.lengths.min()), int(batch.lengths.max())
    if high == 0:
        return memoryview(b"")
    if low == high:
        rows = np.frombuffer(batch.payload, dtype=np.uint8).reshape(batch.count, high)
        return array_view(rows[at])
    breaks = np.flatnonzero(np.diff(at) != 1) + 1
    begins = batch.offsets()[at[np.concatenate(([0], breaks))]].tolist()
    ends = batch.offsets()[at[np.concatenate((breaks - 1, [at.size - 1]))] + 1].tolist()
    return memoryview(b"".join(map(batch.payload.__getitem__, map(slice, begins, ends))))
