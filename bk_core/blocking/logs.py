# SPDX-License-Identifier: Apache-2.0
"""Named logs without ``await``: what ``BookKeeper.log`` of :mod:`bk_core.blocking` returns."""

from __future__ import annotations

from bk_core.blocking.loop_thread import BlockHandle, Handle
from bk_core.blocking.wrapping import iterates_over, opens, waits_for
from bk_core.entries.batch import Bytes
from bk_core.logs import named_log
from bk_core.model import LedgerId


class LogLeader(BlockHandle[named_log.LogLeader]):
    """The only writer of a log, until another client takes the log over.

    ``NamedLog.lead`` makes it. As a context manager it gives leadership up at the end. Appends return log
    offsets. Once leadership is lost, every call raises LeadershipLostError, and it is unknown whether unconfirmed
    entries are part of the log.
    """

    @property
    def created(self) -> bool:
        """Whether the call of ``lead`` created the log."""
        return self._inner.created

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger that takes entries now."""
        return self._inner.ledger_id

    @property
    def next_offset(self) -> int:
        """The log offset of the next entry."""
        return self._inner.next_offset

    @property
    def is_leader(self) -> bool:
        """Whether this process leads the log. False once it gave leadership up or has noticed that leadership is
        lost."""
        return self._inner.is_leader

    def append_nowait(self, payload: Bytes) -> int:
        """Queue one entry and return its log offset. Any thread may call this. The payload must not be changed
        afterwards.

        Raises the errors of ``append``, and WindowFullError if the window is full. After each of these errors the
        entry is not queued.
        """
        return self._inner.append_nowait(payload)

    append = waits_for(named_log.LogLeader.append)
    append_batch = waits_for(named_log.LogLeader.append_batch)
    wait_confirmed = waits_for(named_log.LogLeader.wait_confirmed)
    roll = waits_for(named_log.LogLeader.roll)
    close = waits_for(named_log.LogLeader.close)


class NamedLog(Handle[named_log.NamedLog]):
    """A handle of one log. Making a handle reads and writes nothing. Raises InvalidArgumentError for an impossible
    name."""

    @property
    def name(self) -> str:
        return self._inner.name

    head = waits_for(named_log.NamedLog.head)
    create = waits_for(named_log.NamedLog.create)
    open_or_create = waits_for(named_log.NamedLog.open_or_create)
    extents = waits_for(named_log.NamedLog.extents)
    schemas = waits_for(named_log.NamedLog.schemas)
    publish = waits_for(named_log.NamedLog.publish)
    overwrite = waits_for(named_log.NamedLog.overwrite)
    delete = waits_for(named_log.NamedLog.delete)
    deleted = waits_for(named_log.NamedLog.deleted)
    set_retention = waits_for(named_log.NamedLog.set_retention)
    trim = waits_for(named_log.NamedLog.trim)
    trim_expired = waits_for(named_log.NamedLog.trim_expired)
    expired_offset = waits_for(named_log.NamedLog.expired_offset)
    compact = waits_for(named_log.NamedLog.compact)
    plan_compaction = waits_for(named_log.NamedLog.plan_compaction)
    compact_small = waits_for(named_log.NamedLog.compact_small)
    vacuum = waits_for(named_log.NamedLog.vacuum)
    vacuum_deleted = waits_for(named_log.NamedLog.vacuum_deleted)
    finish_deletion = waits_for(named_log.NamedLog.finish_deletion)
    vacuum_candidates = waits_for(named_log.NamedLog.vacuum_candidates)
    transactions = waits_for(named_log.NamedLog.transactions)
    transactions_of = waits_for(named_log.NamedLog.transactions_of)
    forget_transactions = waits_for(named_log.NamedLog.forget_transactions)
    end_offset = waits_for(named_log.NamedLog.end_offset)
    read = iterates_over(named_log.NamedLog.read)
    tail = iterates_over(named_log.NamedLog.tail)
    to_arrow = waits_for(named_log.NamedLog.to_arrow)
    record_batch_reader = waits_for(named_log.NamedLog.record_batch_reader)
    append_arrow = waits_for(named_log.NamedLog.append_arrow)
    newest_codec = waits_for(named_log.NamedLog.newest_codec)
    lead = opens(LogLeader, named_log.NamedLog.lead)
