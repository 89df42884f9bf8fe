# SPDX-License-Identifier: Apache-2.0
"""Reads the rows of a log as record batches, for programs that have Arrow and no Spark. It decides which columns a read
has, and turns the entries of each codec into these columns.

A read can also have the columns of :mod:`~bk_core.columns.row_origins`. If the caller chooses no columns, a read has
those of the codec. For codecs with one row in each entry, the column ``offset`` then comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bk_core.columns import arrow_rows, arrow_schema, envelope_bytes, texts
from bk_core.columns import row_origins as places
from bk_core.columns.json import rows as json_rows
from bk_core.columns.json import text as json_text
from bk_core.columns.row_origins import LedgerAt, Origins, Rows, corrupt
from bk_core.columns.where import Condition, Where
from bk_core.entries.batch import EntryBatch
from bk_core.entries.parts import ColumnBatch, ColumnsWanted
from bk_core.errors import InvalidArgumentError
from bk_core.logs.model.head import ARROW, CODECS, ENVELOPE, JSON, RAW

TEXT = "text"
VALUE = "value"
_AS_BYTES = 'codec="raw" reads their bytes'

Part = tuple[pa.RecordBatch, Origins]
"""Some rows of a read. They are columns of the codec, and the origin of each row."""


@dataclass(frozen=True, slots=True)
class LogRows:
    """Makes the rows of a read. ``reads_as`` is the codec, or TEXT for JSON entries that are read as text. ``schema``
    has the wanted columns, in that order. ``known`` has all columns of the codec, and ``data`` has the columns of the
    codec that ``schema`` or ``where`` needs."""

    reads_as: str
    schema: pa.Schema
    data: pa.Schema
    known: pa.Schema
    where: Where

    @classmethod
    def of(
        cls,
        codec: str,
        columns: Sequence[str] | None,
        *,
        newest: bytes | None = None,
        members: pa.Schema | None = None,
        where: Sequence[Condition] | None = None,
    ) -> LogRows:
        """Return the LogRows of a read. If ``columns`` is None, the read has all columns of the codec. ``newest`` is
        the log's newest schema, for codec ``arrow``. ``members`` are the columns as which entries of codec ``json`` are
        read. Raises InvalidArgumentError for columns that do not exist or are named twice."""
        known = _data_of(codec, newest, members)
        names = list(known.names) if codec == ARROW else ["offset", *known.names]
        if columns is not None:
            names = _checked(columns, known)
        kinds = {**places.TYPES, **{field.name: field.type for field in known}}
        condition = Where.of(where, kinds)
        needed = dict.fromkeys([*names, *condition.columns])
        return cls(
            TEXT if codec == JSON and members is None else codec,
            pa.schema([pa.field(name, kinds[name]) for name in names]),
            pa.schema([known.field(name) for name in needed if name in known.names]),
            known,
            condition,
        )

    def rows(
        self, batch: EntryBatch | ColumnBatch, at: LedgerAt, *, use_threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of some entries of one ledger, in order. For ``use_threads`` see
        :func:`arrow_rows.decoded`. Raises CorruptEntryError for an entry that the codec cannot decode."""
        if isinstance(batch, ColumnBatch):
            read = _columns(batch, at, self.data, use_threads)
        elif self.reads_as == ARROW:
            read = _arrow(batch, at, self.data, use_threads)
        else:
            each_alone = Rows(batch.entry_ids(), batch.lengths, np.zeros(batch.count, dtype=np.int32))
            read = iter([(_batch(_READERS[self.reads_as](batch, at, self.data), self.data, batch), each_alone)])
        for data, rows in read:
            found = self.where.filtered(self._with_places(data, rows, at))
            if found.num_rows or not self.where.conditions:
                yield found.select(self.schema.names)

    def wanted(self, schema: bytes) -> ColumnsWanted | None:
        """Return the parts to read of entries of codec ``arrow`` with this schema, or None to read whole entries."""
        stored = arrow_schema.from_bytes(schema)
        wanted = arrow_rows.stored_columns(schema, tuple(self.data.names)).places
        if len(wanted) == len(stored) and not self.where.conditions:
            return None
        may_have = partial(self.where.may_have, stored=stored, data=self.known.names)
        return ColumnsWanted(len(stored), tuple(wanted), may_have)

    def reader(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
        """Return batches of this read as a stream of Arrow, which has the PyCapsule interface. An importer closes such
        a stream, but would not close an iterator. Closing the stream drops ``batches``."""
        return pa.RecordBatchReader.from_stream(pa.RecordBatchReader.from_batches(self.schema, batches))

    def table(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """Return batches of this read as one table, without copying."""
        return pa.Table.from_batches(batches, schema=self.schema)

    def _with_places(self, data: pa.RecordBatch, rows: Origins, at: LedgerAt) -> pa.RecordBatch:
        found: dict[str, pa.Array] = {}
        for name in dict.fromkeys([*self.schema.names, *self.where.columns]):
            if name in data.schema.names:
                found[name] = data.column(name)
            elif name in self.data.names:  # an older schema of the log lacks it
                found[name] = pa.nulls(data.num_rows, self.data.field(name).type)
            else:
                found[name] = places.column(name, rows, at)
        return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))


def check_written(log: str, codec: str | None, written: Sequence[str]) -> str:
    """Return the codec for reading entries that the codecs ``written`` wrote. If ``codec`` is None, it is the codec
    that wrote all of them.

    ``raw`` reads any entry. ``envelope`` and ``json`` also read raw entries, because another program may have written
    an envelope or JSON as a raw entry. Raises InvalidArgumentError for a codec that cannot read all entries.
    """
    if codec is not None and codec not in CODECS:
        raise InvalidArgumentError("no such codec", value=codec, remedy=f"choose from {', '.join(CODECS)}")
    wrote = sorted(set(written)) or [codec or RAW]
    wanted = codec or wrote[0]
    accepted = {wanted, RAW} if wanted in (ENVELOPE, JSON) else {wanted}
    is_one = codec is not None or len(wrote) == 1
    if wanted != RAW and not (is_one and wanted in CODECS and accepted.issuperset(wrote)):
        raise InvalidArgumentError(
            f"entries of log {log} cannot be read together",
            value=f"codec={codec}, written with {', '.join(wrote)}",
            remedy=f"{_AS_BYTES}; start and end choose a part",
        )
    return wanted


def _data_of(codec: str, newest: bytes | None, members: pa.Schema | None) -> pa.Schema:
    """Return the columns of a codec. For ``newest`` and ``members`` see :meth:`LogRows.of`."""
    if members is not None and codec != JSON:
        raise InvalidArgumentError(
            "a schema is for entries of codec json", value=f"codec {codec}", remedy="columns=[…] chooses columns"
        )
    match codec:
        case "arrow":
            return pa.schema([]) if newest is None else arrow_schema.from_bytes(newest)
        case "envelope":
            kinds = {"key": pa.binary(), "value": pa.binary(), "timestamp": envelope_bytes.TIMESTAMP}
            return pa.schema([*kinds.items(), ("headers", envelope_bytes.HEADERS_TYPE)])
        case "json":
            return pa.schema([(VALUE, pa.string())]) if members is None else _members(members)
    return pa.schema([(VALUE, pa.binary())])


def _members(wanted: pa.Schema) -> pa.Schema:
    """Return the columns as which JSON objects are read. Raises InvalidArgumentError for types that have no JSON form,
    and for names that a read adds or that occur twice."""
    if wrong := [f"{field.name} {field.type}" for field in wanted if json_text.unwritable(field.type)]:
        raise InvalidArgumentError(
            "columns have types that codec json cannot read", value=", ".join(wrong), remedy="read them as string"
        )
    if taken := [name for name in wanted.names if name in places.TYPES]:
        raise InvalidArgumentError("columns have names of columns that a read adds", value=", ".join(taken))
    if not wanted.names or len(set(wanted.names)) != len(wanted.names):
        raise InvalidArgumentError("a schema needs columns, each once", value=", ".join(wanted.names))
    return pa.schema([pa.field(field.name, field.type) for field in wanted])


def _checked(columns: Sequence[str], known: pa.Schema) -> list[str]:
    choices = [*known.names, *(name for name in places.TYPES if name not in known.names)]
    names = [columns] if isinstance(columns, str) else list(columns)
    if isinstance(columns, str) or not names or len(set(names)) != len(names):
        raise InvalidArgumentError(
            "columns are a list of names, each once", value=repr(columns), remedy=f"choose from {', '.join(choices)}"
        )
    if unknown := [name for name in names if name not in choices]:
        near = [match for name in unknown for match in get_close_matches(str(name), choices, n=1)]
        remedy = f"did you mean {', '.join(near)}?" if near else f"choose from {', '.join(choices)}"
        raise InvalidArgumentError("no such columns", value=", ".join(map(str, unknown)), remedy=remedy)
    return names


def _raw(batch: EntryBatch, at: LedgerAt, data: pa.Schema) -> list[pa.Array]:
    """Return the values of raw entries as a view of the receive buffer."""
    return [batch.to_arrow()] if data.names else []


def _envelope(batch: EntryBatch, at: LedgerAt, data: pa.Schema) -> list[pa.Array]:
    found = envelope_bytes.decode(batch)
    if found.bad.any():
        _refuse(ENVELOPE, found.bad, lambda place: "its bytes are not an envelope", batch, at)
    return [getattr(found, name) for name in data.names]


def _json(batch: EntryBatch, at: LedgerAt, data: pa.Schema) -> list[pa.Array]:
    found = json_rows.objects_of(batch, pa.struct(list(data)))
    if found.bad is not None and found.bad.any():
        _refuse(JSON, found.bad, found.why, batch, at)
    return [pc.struct_field(found.structs, [k]) for k in range(len(data))]


def _text(batch: EntryBatch, at: LedgerAt, data: pa.Schema) -> list[pa.Array]:
    try:
        return [batch.to_arrow().cast(pa.string())] if data.names else []
    except pa.ArrowInvalid:
        bad = texts.no_text(batch.entry_views())
        _refuse(JSON, bad, lambda place: "its bytes are not UTF-8", batch, at)
        raise


def _arrow(batch: EntryBatch, at: LedgerAt, data: pa.Schema, use_threads: bool) -> Iterator[Part]:
    stored = _stored(at, data)
    found = arrow_rows.decoded(batch, stored, use_threads=use_threads)
    yield from arrow_rows.joined(_intact(found, batch, at), stored.shown)


def _columns(batch: ColumnBatch, at: LedgerAt, data: pa.Schema, use_threads: bool) -> Iterator[Part]:
    stored, parts = _stored(at, data), batch.parts
    found = arrow_rows.decoded_parts(batch.directories, parts, stored, use_threads=use_threads)
    yield from arrow_rows.joined(_intact(found, parts, at, batch.entry_lengths()), stored.shown)


def _stored(at: LedgerAt, data: pa.Schema) -> arrow_rows.Stored:
    assert at.schema is not None, "an extent of codec arrow names its schema"
    return arrow_rows.stored_columns(at.schema, tuple(data.names))


def _intact(
    entries: Iterable[tuple[arrow_rows.Found, int]], batch: EntryBatch, at: LedgerAt, lengths: Any = None
) -> Iterator[arrow_rows.Decoded]:
    entry_ids = batch.entry_ids()
    lengths = batch.lengths if lengths is None else lengths
    for number, (found, size) in enumerate(entries):
        if isinstance(found, Exception):
            raise corrupt(ARROW, str(found), int(entry_ids[number]), at, _AS_BYTES) from found
        if isinstance(found, arrow_rows.BadText):
            raise corrupt(ARROW, found.why, int(entry_ids[number]), at, f"columns=[…] leaves it out; {_AS_BYTES}")
        yield arrow_rows.Decoded(found, size, int(entry_ids[number]), int(lengths[number]))


_READERS: Mapping[str, Callable[[EntryBatch, LedgerAt, pa.Schema], list[pa.Array]]] = {
    RAW: _raw,
    ENVELOPE: _envelope,
    JSON: _json,
    TEXT: _text,
}
"""The functions that decode entries of the codecs with one row in each entry. They return the columns of ``data``."""


def _batch(columns: list[pa.Array], data: pa.Schema, batch: EntryBatch) -> pa.RecordBatch:
    if not columns:
        return arrow_rows.without_columns(batch.count)
    cast = [c if c.type == field.type else c.cast(field.type) for c, field in zip(columns, data, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=data)


def _refuse(codec: str, bad: Any, why: Callable[[int], str], batch: EntryBatch, at: LedgerAt) -> None:
    """Raise CorruptEntryError for the first entry that is marked in ``bad``."""
    first = int(np.flatnonzero(bad)[0])
    raise corrupt(codec, why(first), int(batch.entry_ids()[first]), at, _AS_BYTES)
