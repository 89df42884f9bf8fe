# SPDX-License-Identifier: Apache-2.0
"""The end of a write: publish every task's ledger with one compare-and-set, or clean up (RULES N4, N6).

Runs on the driver in another process than the tasks. Messages arrive in partition order, exactly one per partition;
a missing one is None. Spark calls ``abort`` after a failed ``commit`` too, with all messages: by then the publish may
have been applied, so nothing may be deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from bk_core.errors import BookKeeperError, NoSuchLedgerError, Outcome, PublishConflictError

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper
    from bk_core.logs.head import NewExtent, PublishId

logger = logging.getLogger("bk_spark.commit")


@dataclass(frozen=True)
class WrittenLedger(WriterCommitMessage):
    """What a task reports: its closed ledger, or None for a partition without rows."""

    partition: int
    attempt: int
    extent: NewExtent | None


def publish(
    bookkeeper: BookKeeper,
    log: str,
    password: bytes,
    publish_id: PublishId,
    messages: Sequence[WriterCommitMessage | None],
) -> int:
    """List the tasks' ledgers in the log, in partition order, all or none. Returns the entries published.

    Raises PublishConflictError if a message is missing (a continuous trigger, which would lose rows), and what
    :meth:`NamedLog.publish` raises; an outcome that is unknown is settled by the publish id when it is tried again.
    """
    missing = sum(1 for message in messages if message is None)
    if missing:
        raise PublishConflictError(
            "tasks have reported nothing, so the write is incomplete",
            value=f"{missing} of {len(messages)} partitions",
            remedy="write with a micro-batch trigger or as a batch",
            outcome=Outcome.NOT_APPLIED,
        )
    extents = extents_of(messages)
    if extents:
        bookkeeper.log(log, password=password).publish(extents, publish_id)
    return sum(extent.entry_count for extent in extents)


def abandon(bookkeeper: BookKeeper, messages: Sequence[WriterCommitMessage | None]) -> int:
    """Delete the ledgers of a write that can never be published; returns how many.

    Only where some message is None: then ``commit`` never ran. Best effort, what stays is an orphan that vacuum finds.
    """
    if not any(message is None for message in messages):
        return 0
    deleted = 0
    for extent in extents_of(messages):
        try:
            bookkeeper.delete_ledger(extent.ledger_id)
            deleted += 1
        except NoSuchLedgerError:
            continue
        except BookKeeperError as error:
            logger.warning("ledger %d of an aborted write stays until vacuum: %s", extent.ledger_id, error)
    return deleted


def extents_of(messages: Sequence[WriterCommitMessage | None]) -> list[NewExtent]:
    """The ledgers with entries, in partition order."""
    written = [message for message in messages if isinstance(message, WrittenLedger)]
    return [message.extent for message in written if message.extent is not None and message.extent.entry_count]
