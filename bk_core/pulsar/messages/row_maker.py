# SPDX-License-Identifier: Apache-2.0
"""Makes rows from the entries of one topic or partition. It does no I/O.

Rows of several groups of entries may be made on several threads at the same time, unless the entries have chunks.

A chunked message has the id of its last chunk, and belongs to the range with that chunk. A reader whose range does not
begin at the first entry of the topic may lack earlier chunks. So before it makes rows from some entries, it calls
:meth:`RowMaker.missing`, and reads backwards from the beginning of its range until :class:`LookBack` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import EntryBatch
from bk_core.errors import CorruptMessageError, MessageSchemaError, TopicError, UnsupportedTopicError
from bk_core.pulsar.messages.decoder import DecodeOptions, MessageDecoder, Messages
from bk_core.pulsar.messages.heads import PUBLISH_TIME, Heads, read_heads
from bk_core.pulsar.messages.rows import KEY, TooManyValuesError, Values, keys_of, record_batch
from bk_core.pulsar.messages.scan import Mask
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import LOOK_BACK_BYTES, Bounds
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.model.transactions import TxnId

VALUES_AT_ONCE = 1 << 22
"""The maximum number of values that are decoded into columns together, which take some tens of megabytes. A message
counts as many values as its columns have types. A schema may have thousands of columns, most of which a short message
leaves unset."""


class RowMaker:
    """Makes the rows of one topic or partition, with the columns of ``schema`` (:func:`rows.schema_of`). ``values``
    decodes values into columns; with None, values are bytes."""

    def __init__(
        self,
        topic: TopicName,
        schema: pa.Schema,
        options: DecodeOptions | None = None,
        values: Values | None = None,
    ) -> None:
        self.topic, self._schema, self.values = topic, schema, values
        self._options = options or DecodeOptions()
        self._decoder = MessageDecoder(str(topic), self._options)
        self._together_max = max(1, VALUES_AT_ONCE // (1 if values is None else types_in(values.columns.values())))

    def heads(self, batch: EntryBatch, *, compacted: bool = False) -> Heads:
        """Return the heads of the next entries. ``compacted`` says that they are from the ledger of a compacted
        topic."""
        return read_heads(batch, compacted=compacted, check=self._options.check_checksums)

    def rows(self, found: Heads, bounds: Bounds, keep: Mask | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these entries that are within the bounds. A batch is made when the caller asks for it.
        ``keep`` marks the entries to use (:func:`committed`), and None means all of them. Raises the errors of
        :meth:`MessageDecoder.messages`. Raises MessageSchemaError for a value that cannot be decoded, and
        CorruptMessageError for such a key, unless corrupt entries are skipped."""
        return self._made(self._decoder.messages(found, keep), bounds)

    def missing(self, found: Heads) -> LookBack | None:
        """Return the chunks to look for before rows are made of these entries, or None if no chunk is missing."""
        missing = self._decoder.missing(found)
        return LookBack(self._decoder, missing) if missing else None

    def take_reports(self) -> list[TopicError]:
        """Return the errors of the entries that were left out since the last call."""
        reports = list(self._decoder.reports)
        self._decoder.reports.clear()
        return reports

    def _made(self, messages: Iterator[Messages], bounds: Bounds) -> Iterator[pa.RecordBatch]:
        for part in messages:
            chosen = within(part, bounds)
            if not len(chosen):
                continue
            reported = set[EntryPosition]()
            for some, columns in self._decoded(chosen, reported):
                left, made = some, columns
                if KEY in self._schema.names:
                    left, made = self._with_keys(some, columns, reported)
                if len(left):
                    yield record_batch(left, self._schema, str(self.topic), self.topic.partition, made)

    def _decoded(
        self, found: Messages, reported: set[EntryPosition]
    ) -> Iterator[tuple[Messages, Mapping[str, pa.Array]]]:
        """Yield the messages whose values can be decoded, with the columns of these values. If the messages have too
        many values together, they are decoded in halves."""
        if self.values is None:
            yield found, {}
            return
        wanted = frozenset(self._schema.names) & self.values.columns.keys()
        try:
            if len(found) > self._together_max:
                raise TooManyValuesError
            columns, problems = self.values.decode(found, wanted)
        except TooManyValuesError:
            is_first = np.arange(len(found)) < len(found) // 2
            yield from self._decoded(taken(found, is_first), reported)
            yield from self._decoded(taken(found, ~is_first), reported)
            return
        yield self._without(problems, found, columns, self._undecodable, reported)

    def _with_keys(
        self, found: Messages, columns: Mapping[str, pa.Array], reported: set[EntryPosition]
    ) -> tuple[Messages, dict[str, pa.Array]]:
        """Return the messages whose keys can be decoded, and their columns including the column of keys."""
        keys, problems = keys_of(found)
        return self._without(problems, found, {**columns, KEY: keys}, self._bad_key, reported)

    def _without(
        self,
        problems: Mapping[int, str],
        found: Messages,
        columns: Mapping[str, pa.Array],
        error: Callable[[EntryPosition, str], TopicError],
        reported: set[EntryPosition],
    ) -> tuple[Messages, dict[str, pa.Array]]:
        """Return the messages without problems, and their part of the columns. Report one error for each entry that is
        not in ``reported`` yet."""
        if not problems:
            return found, dict(columns)
        entries = dict[int, list[str]]()
        for at in sorted(problems):
            entries.setdefault(int(found.columns.entry[at]), []).append(problems[at])
        for row, reasons in entries.items():
            if (where := found.heads.position(row)) in reported:
                continue
            reported.add(where)
            more = f" (the first of {len(reasons)} messages)" if len(reasons) > 1 else ""
            self._decoder.report(error(where, f"{reasons[0]}{more}"))
        keep = np.ones(len(found), dtype=np.bool_)
        keep[list(problems)] = False
        mask = pa.array(keep)
        return taken(found, keep), {name: column.filter(mask) for name, column in columns.items()}

    def _undecodable(self, where: EntryPosition, why: str) -> MessageSchemaError:
        return MessageSchemaError(
            f"the value of a message in entry {where} of {self.topic} cannot be decoded",
            value=why,
            remedy="read values as bytes, or let corrupt entries be skipped",
        )

    def _bad_key(self, where: EntryPosition, why: str) -> CorruptMessageError:
        return CorruptMessageError(
            f"the key of a message in entry {where} of {self.topic} is not valid base64",
            value=why,
            remedy=f"leave the column {KEY} out, or let corrupt entries be skipped",
        )


def types_in(kinds: Iterable[pa.DataType]) -> int:
    """Return the number of types, including the types inside each of them."""
    return sum(1 + types_in(each.field(place).type for place in range(each.num_fields)) for each in kinds)


class LookBack:
    """Collects the chunks of messages that began before a range. Call :meth:`add` with the entries before the range,
    the last ones first, until it returns False. Then call :meth:`finish`."""

    def __init__(self, decoder: MessageDecoder, missing: AbstractSet[bytes]) -> None:
        self._decoder, self._missing = decoder, missing
        self._open = set(missing)
        self._found: list[tuple[Heads, Mask]] = []
        self._bytes = 0

    def add(self, found: Heads) -> bool:
        """Take the entries before those of the last call, and return whether more entries are needed. Entries further
        back than LOOK_BACK_BYTES are not needed. A message that begins there is left out, like a message whose first
        chunk was trimmed."""
        wanted, first = self._decoder.chunks_of(found, self._missing)
        if wanted.any():
            self._found.append((found, wanted))
        self._open -= first
        self._bytes += found.data.size
        return bool(self._open) and self._bytes < LOOK_BACK_BYTES

    def finish(self) -> None:
        """Pass the found chunks to the decoder, in the order of the topic."""
        for found, wanted in reversed(self._found):
            for _ in self._decoder.messages(found, wanted):
                pass


def committed(found: Heads, aborted: Iterable[TxnId], *, decided: bool) -> Mask | None:
    """Return a mask of the entries that do not belong to an aborted transaction, or None if no entry belongs to a
    transaction. ``decided`` says that every transaction that is not in ``aborted`` is committed. Raises
    UnsupportedTopicError if this is unknown and an entry belongs to a transaction."""
    in_transaction = found.in_transaction & ~found.is_marker
    if not in_transaction.any():
        return None
    if not decided:
        first = found.position(int(np.flatnonzero(in_transaction)[0]))
        raise UnsupportedTopicError(
            f"the read was planned without the outcomes of transactions, and entry {first} belongs to one",
            value=str(found.txn(int(np.flatnonzero(in_transaction)[0]))),
            remedy="plan it with isolation=read_committed, or read uncommitted messages too",
        )
    return without(found, aborted)


def without(heads: Heads, aborted: Iterable[TxnId]) -> Mask:
    """Return a mask of the entries that do not belong to one of these transactions."""
    keep = np.ones(len(heads), dtype=np.bool_)
    left_out = frozenset(aborted)
    for row in np.flatnonzero(heads.in_transaction).tolist():
        keep[row] = heads.txn(row) not in left_out
    return keep


def within(found: Messages, bounds: Bounds) -> Messages:
    """Return the messages within the bounds."""
    columns, heads = found.columns, found.heads
    keep = np.ones(len(columns), dtype=np.bool_)
    ledger, entry, index = heads.ledger_ids[columns.entry], heads.entry_ids[columns.entry], columns.batch_index

    def place(at: MessageId) -> tuple[Mask, Mask]:
        """Return two masks: one of the messages before a message id, and one of the messages that the id names."""
        before = (ledger < at.ledger_id) | ((ledger == at.ledger_id) & (entry < at.entry_id))
        same = (ledger == at.ledger_id) & (entry == at.entry_id)
        if at.batch_index >= 0:
            before, same = (
                before | (same & (index >= 0) & (index < at.batch_index)),
                same & ((index < 0) | (index == at.batch_index)),
            )
        return before, same

    if bounds.start is not None:
        before, same = place(bounds.start)
        keep &= ~before & ~(same if bounds.is_after else np.zeros_like(same))
    if bounds.end is not None:
        keep &= place(bounds.end)[0]
    if bounds.published_from_ms is not None:
        keep &= heads.metadata.number(PUBLISH_TIME)[columns.entry] >= bounds.published_from_ms
    if bounds.published_before_ms is not None:
        keep &= heads.metadata.number(PUBLISH_TIME)[columns.entry] < bounds.published_before_ms
    return found if keep.all() else taken(found, keep)


def taken(found: Messages, keep: Mask) -> Messages:
    """Return the messages that ``keep`` marks."""
    return Messages(found.heads, found.data, found.columns.take(np.flatnonzero(keep)), found.first_chunks)
