# SPDX-License-Identifier: Apache-2.0
"""The message in which a task reports to the driver what it has written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

if TYPE_CHECKING:
    from bk_core.logs.model.head import NewExtent
    from bk_spark.write.held import HeldEntries


@dataclass(frozen=True)
class WrittenLedgers(WriterCommitMessage):
    """The report of a task: its closed ledgers, each with its log (none for a partition without rows), the schema that
    it wrote them with (codec ``arrow``), the streaming query that it worked for, and the entries of logs for which it
    made no ledger."""

    partition: int
    attempt: int
    extents: tuple[tuple[str, NewExtent], ...] = ()
    schema: bytes | None = None
    query_id: str | None = None
    held: tuple[HeldEntries, ...] = ()

    @property
    def logs(self) -> list[str]:
        """The logs that the task has entries for."""
        return [*(log for log, extent in self.extents if extent.entry_count), *(each.log.name for each in self.held)]
