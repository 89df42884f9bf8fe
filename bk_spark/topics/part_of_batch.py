# SPDX-License-Identifier: Apache-2.0
"""Finds the ranges of one topic or partition in a micro-batch. All entries of a micro-batch were confirmed when it was
made. If the metadata store or the bookies show fewer entries now, that is an error and never leads to fewer rows."""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.client import BookKeeper
from bk_core.errors import MetadataUnavailableError, NoSuchEntryError, Outcome
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import Bounds, TopicRange
from bk_core.pulsar.planning import GUESSED_ENTRY_BYTES, PartitionPlanner
from bk_spark.topics.offsets import end_of, entry_before

ANY_ENTRY = 1 << 62
"""An entry id above the id of any entry."""


@dataclass(slots=True)
class PartOfBatch:
    """The entries of a topic or partition from position ``begin`` on and before position ``stop``."""

    bookkeeper: BookKeeper
    planner: PartitionPlanner
    begin: MessageId
    stop: MessageId

    async def ranges(self, *, lossless: bool) -> list[TopicRange]:
        """Return the ranges of these entries. With ``lossless``, missing entries are an error. Raises NoSuchEntryError
        and MetadataUnavailableError."""
        ranges = await self.planner.ranges(Bounds(start=self.begin, end=MessageId(*self.stop.entry)))
        self._check_closed()
        wanted = entry_before(self.stop)
        if wanted is not None and end_of(ranges, self.begin).entry != self.stop.entry:
            last = await self._last(wanted, ranges, lossless=lossless)
            kept = [each for each in ranges if each.ledger_id != wanted.ledger_id]
            ranges = kept if last is None else [*kept, last]
        return ranges

    def _check_closed(self) -> None:
        """Check that every ledger before the last one is closed. Otherwise its end is unknown. Raises
        MetadataUnavailableError."""
        at = self.planner.following(self.begin.entry).ledger_id
        while at < self.stop.ledger_id:
            following = self.planner.following(EntryPosition(at, ANY_ENTRY))
            if following.ledger_id == at:
                raise self._too_little(f"ledger {at} is open or not there")
            at = following.ledger_id

    async def _last(self, wanted: EntryPosition, ranges: list[TopicRange], *, lossless: bool) -> TopicRange | None:
        """Return the range of the last ledger up to entry ``wanted``, which the bookies do not confirm yet, or None if
        the range is empty. Raises NoSuchEntryError if the ledger was closed before that entry, and ``lossless`` is
        set."""
        metadata = self.planner.closed(wanted.ledger_id)
        if metadata is None:
            metadata = (await self.bookkeeper.read_metadata(wanted.ledger_id)).value
        last = wanted.entry_id
        if metadata.is_closed and metadata.last_entry_id < last:
            if lossless:
                raise NoSuchEntryError(
                    f"{self.planner.topic} does not hold the messages of a micro-batch any more",
                    value=f"ledger {wanted.ledger_id} ends at entry {metadata.last_entry_id}, the batch at {last}",
                    remedy="use another checkpointLocation to go on with what is left",
                )
            last = metadata.last_entry_id
        known = [each for each in ranges if each.ledger_id == wanted.ledger_id]
        same = self.begin.ledger_id == wanted.ledger_id
        first = known[0].first if known else self.begin.entry_id if same else 0
        mean = known[0].bytes // len(known[0]) if known else GUESSED_ENTRY_BYTES
        if first > last:
            return None
        size = mean * (last + 1 - first)
        copy = known[0].copy if known else None
        return TopicRange(self.planner.topic, wanted.ledger_id, metadata, first, last, size, copy=copy)

    def check_decided(self, decided: list[TopicRange]) -> None:
        """Check that all transactions of these entries have ended. ``decided`` has the ranges in which they have.
        Raises MetadataUnavailableError."""
        end = end_of(decided, self.begin).entry
        at = self.planner.following(end)
        if max(end, at) < self.stop.entry:
            raise self._too_little(f"transactions are decided to {end} only")

    def _too_little(self, why: str) -> MetadataUnavailableError:
        return MetadataUnavailableError(
            f"less of {self.planner.topic} is there than when the micro-batch was made",
            value=f"{why}; the batch is {self.begin.entry} to {self.stop.entry}",
            remedy="a metadata server may be behind: start the query again; if the store was restored from a backup, "
            "use another checkpointLocation",
            outcome=Outcome.NOT_APPLIED,
        )
