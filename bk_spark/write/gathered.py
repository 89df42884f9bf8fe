# SPDX-License-Identifier: Apache-2.0
"""Gathers what all tasks of a write made, as ledgers in the order of their rows. The driver writes the entries that
small tasks sent in their messages into ledgers of its own (decision 0073).

Small tasks in a row share a ledger, so a write whose tasks are all small makes one ledger for each log. Like a task's
ledger, it is closed before it is published, with each entry on an ack quorum. No reader sees it before that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bk_core.errors import BookKeeperError, ClientClosedError, InvalidArgumentError, MetadataUnavailableError
from bk_core.observe import traces
from bk_spark.workers import clients
from bk_spark.write.new_ledger import Attempt, NewLedger

if TYPE_CHECKING:
    from bk_core.logs.model.head import NewExtent, PublishId
    from bk_spark.options.options import BkOptions
    from bk_spark.write.held import HeldEntries
    from bk_spark.write.written_ledgers import WrittenLedgers

logger = logging.getLogger("bk_spark.write.log_writer")

TRIES = 4
"""The number of times that the driver tries to write the entries of small tasks. Spark runs a failed task up to four
times by default, and does not run a commit again."""

Extents = dict[str, list["NewExtent"]]


def extents_by_log(options: BkOptions, publish_id: PublishId, messages: Sequence[WrittenLedgers]) -> Extents:
    """Return the ledgers of each log, in partition order. If this raises, the ledgers that it made are deleted, best
    effort. Raises what creating, writing and closing a ledger raises."""
    counts_rows = any(message.schema is not None for message in messages)
    for left in reversed(range(TRIES)):
        gathering = Gathering(options, publish_id, counts_rows=counts_rows)
        try:
            if not any(message.held for message in messages):
                return gathering.extents(messages)
            with traces.operation("spark.write", publish_id=publish_id.text):
                return gathering.extents(messages)
        except BookKeeperError as error:
            gathering.give_up()
            if not left or isinstance(error, InvalidArgumentError | MetadataUnavailableError | ClientClosedError):
                raise
            logger.warning("the entries of small tasks are written again: %s", error)
        except BaseException:
            gathering.give_up()
            raise
    raise AssertionError("the last try returns or raises")


class Gathering:
    """One attempt to write the entries that small tasks sent. ``counts_rows`` means that an entry may hold several
    rows."""

    def __init__(self, options: BkOptions, publish_id: PublishId, *, counts_rows: bool) -> None:
        self._options, self._publish_id, self._counts_rows = options, publish_id, counts_rows
        self._frame_bytes = clients.client_config(options).frame_bytes
        self._made = list[NewLedger]()
        self._open: dict[str, tuple[NewLedger, int]] = {}
        self._found: Extents = {}

    def extents(self, messages: Sequence[WrittenLedgers]) -> Extents:
        for message in messages:
            for log, extent in message.extents:
                self._end(log)
                if extent.entry_count:
                    self._found.setdefault(log, []).append(extent)
            for held in message.held:
                self._take(held, message)
        for log in list(self._open):
            self._end(log)
        return self._found

    def _take(self, held: HeldEntries, message: WrittenLedgers) -> None:
        ledger, rows = self._open.get(held.log.name, (None, 0))
        if ledger is None:
            attempt = Attempt(message.partition, message.attempt, self._publish_id, message.query_id)
            ledger = NewLedger(self._options, held.log, attempt)
            self._made.append(ledger)
        self._open[held.log.name] = ledger, rows + held.rows
        ledger.append(held.entries(), self._frame_bytes // max(1, len(self._open)))

    def _end(self, log: str) -> None:
        ledger, rows = self._open.pop(log, (None, 0))
        if ledger is not None and (extent := ledger.finish(rows if self._counts_rows else None)) is not None:
            logger.info("wrote %d entries of small tasks into ledger %d", extent.entry_count, extent.ledger_id)
            self._found.setdefault(log, []).append(extent)

    def give_up(self) -> None:
        for ledger in self._made:
            ledger.give_up()
