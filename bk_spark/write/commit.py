# SPDX-License-Identifier: Apache-2.0
"""The end of a write: publish every task's ledgers in one step, or clean up (RULES N4 to N6, K10).

This runs on the driver, in another process than the tasks. Messages arrive in partition order, exactly one per
partition; a missing one is None. Spark calls ``abort`` with all messages after a failed ``commit`` too. By then the
publish may have been applied, so nothing may be deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    Outcome,
    PublishConflictError,
)
from bk_spark.workers import clients
from bk_spark.write import fan_out, gathered
from bk_spark.write.written_ledgers import WrittenLedgers

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper
    from bk_core.logs.machines.publication import PublishOptions
    from bk_core.logs.model.head import NewExtent, PublishId
    from bk_spark.options.options import BkOptions

logger = logging.getLogger("bk_spark.write.commit")

Messages = Sequence[WriterCommitMessage | None]


def publish(options: BkOptions, publish_id: PublishId, wanted: PublishOptions, messages: Messages) -> int:
    """Add the tasks' ledgers, all or none and in partition order, to the log of ``options`` or, if it names none, to
    the logs that the tasks name. Entries that small tasks sent are written to ledgers first. Return the number of rows
    published. ``wanted`` has no schema; the tasks report it.

    Without rows nothing changes, except that an overwrite removes old rows, a transaction is recorded, and a log gets
    its schema (codec ``arrow``). Raises PublishConflictError if a message is missing (a continuous trigger, which would
    lose rows), InvalidArgumentError for too many logs, and what :meth:`NamedLog.publish` and
    :func:`~bk_core.logs.named_log.publish_to_logs` raise. If the outcome is unknown, a retry settles it by the publish
    id.
    """
    written = check_complete(messages)
    logs = {log for message in written for log in message.logs}
    if options.log is None:
        try:
            fan_out.check_count(len(logs))
        except InvalidArgumentError:
            clients.patiently(options, partial(delete, extents=tasks_extents(written)))  # no log names them
            raise
    ledgers = gathered.extents_by_log(options, publish_id, written)
    how = replace(wanted, schema=schema_of(messages))
    clients.patiently(options, partial(_publish, options=options, publish_id=publish_id, how=how, ledgers=ledgers))
    return sum(extent.rows for extents in ledgers.values() for extent in extents)


def _publish(
    bookkeeper: BookKeeper, options: BkOptions, publish_id: PublishId, how: PublishOptions, ledgers: gathered.Extents
) -> None:
    """Make the rows visible in one step. It may be repeated, because the publish id settles it (RULES N4)."""
    if options.log is None:
        if ledgers:
            bookkeeper.publish_to_logs(ledgers, publish_id, password=options.ledger_password, options=how)
    elif ledgers or how.schema is not None or how.overwrite or how.transaction is not None:
        log = bookkeeper.log(options.log, password=options.ledger_password)
        log.publish(ledgers.get(options.log, []), publish_id, how)


def check_complete(messages: Messages) -> list[WrittenLedgers]:
    """Return the reports of all tasks. Raises PublishConflictError if one is missing, because its rows would be
    lost."""
    missing = sum(1 for message in messages if message is None)
    if missing:
        raise PublishConflictError(
            "tasks have reported nothing, so the write is incomplete",
            value=f"{missing} of {len(messages)} partitions",
            remedy="write with a micro-batch trigger, not a continuous one, or as a batch",
            outcome=Outcome.NOT_APPLIED,
        )
    return [message for message in messages if isinstance(message, WrittenLedgers)]


def abandon(bookkeeper: BookKeeper, messages: Messages) -> int:
    """Delete the ledgers of a write that can never be published. Return how many. It deletes only if some message is
    None, because ``commit`` never ran then. Best effort: ledgers that stay are orphans, which vacuum deletes."""
    if not any(message is None for message in messages):
        return 0
    return delete(bookkeeper, tasks_extents(each for each in messages if isinstance(each, WrittenLedgers)))


def delete(bookkeeper: BookKeeper, extents: Iterable[NewExtent]) -> int:
    """Delete ledgers that certainly no publish has named, best effort. Return how many were deleted."""
    deleted = 0
    for extent in extents:
        try:
            bookkeeper.delete_ledger(extent.ledger_id)
            deleted += 1
        except NoSuchLedgerError:
            continue
        except MetadataUnavailableError as error:
            logger.warning("ledger %d of an aborted write and those after it stay: %s", extent.ledger_id, error)
            break  # every further one would wait as long, and the write has failed already
        except BookKeeperError as error:
            logger.warning("ledger %d of an aborted write stays until vacuum: %s", extent.ledger_id, error)
    return deleted


def tasks_extents(messages: Iterable[WrittenLedgers]) -> list[NewExtent]:
    """Return the ledgers that the tasks made, in partition order."""
    return [extent for message in messages for _, extent in message.extents]


def schema_of(messages: Messages) -> bytes | None:
    """Return the schema that the entries were written with. All tasks use the same schema, because the driver chose
    it."""
    found = {m.schema for m in messages if isinstance(m, WrittenLedgers)}
    assert len(found) <= 1, "the tasks of a write have one codec"
    return next(iter(found), None)


def query_of(messages: Messages) -> str | None:
    """Return the id of the streaming query that the tasks worked for, or None."""
    return next((m.query_id for m in messages if isinstance(m, WrittenLedgers) and m.query_id), None)
