# SPDX-License-Identifier: Apache-2.0
"""Named logs without ``await``: what ``BookKeeper.log`` of :mod:`bk_core.blocking` returns.

Written by scripts/blocking.py from :mod:`bk_core.logs.named_log`; do not edit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bk_core.blocking.loop_thread import BlockHandle, BlockingIterator, Handle
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.logs import named_log
from bk_core.logs.machines.compaction import Compacted
from bk_core.logs.machines.deletion import VacuumedDeleted
from bk_core.logs.machines.publication import APPEND, PublishOptions
from bk_core.logs.machines.upkeep import Vacuumed
from bk_core.logs.model.compaction import CompactionLimits, Run
from bk_core.logs.model.deleted import DeletedLog
from bk_core.logs.model.head import Extent, LogHead, LogTransactions, NewExtent, Published, PublishId
from bk_core.logs.named_log import DELETE_DELAY_MS, TXN_RETENTION_MS
from bk_core.logs.reading import OffsetBatch
from bk_core.model import DigestType, LedgerId, Versioned

if TYPE_CHECKING:
    from pyarrow import RecordBatchReader, Schema, Table

    from bk_core.columns.where import Condition


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

    def append(self, payload: Bytes) -> int:
        """Append one entry. Return its log offset once an ack quorum has it, and all entries before it, on disk.

        Raises EntryTooLargeError, LedgerClosedError after close, and LeadershipLostError (outcome unknown).
        """
        return self._thread.call(self._inner.append(payload))

    def append_nowait(self, payload: Bytes) -> int:
        """Queue one entry and return its log offset. Any thread may call this. The payload must not be changed
        afterwards.

        Raises the errors of ``append``, and WindowFullError if the window is full. After each of these errors the
        entry is not queued.
        """
        return self._inner.append_nowait(payload)

    def append_batch(self, batch: EntryBatch) -> int:
        """Queue a batch, in parts if the window is full. Return the log offset of its last entry. All parts go into
        one ledger. Raises the errors of ``append``."""
        return self._thread.call(self._inner.append_batch(batch))

    def wait_confirmed(self, offset: int) -> None:
        """Wait until the entry at this log offset and all entries before it are confirmed."""
        self._thread.call(self._inner.wait_confirmed(offset))

    def roll(self) -> None:
        """Switch to a new ledger, so that the previous ledger can be trimmed. Wait until the previous ledger is closed
        and sealed.

        Raises LeadershipLostError, and NotEnoughBookiesError if no ledger can be made. In the latter case appends
        continue to go to the current ledger.
        """
        self._thread.call(self._inner.roll())

    def close(self) -> None:
        """Wait for the appended entries, close the ledger, and seal it in the log. A second call is allowed.

        Raises LeadershipLostError if another client took the log over before that. Confirmed entries are in the log
        even then.
        """
        self._thread.call(self._inner.close())


class NamedLog(Handle[named_log.NamedLog]):
    """A handle of one log. Making a handle reads and writes nothing. Raises InvalidArgumentError for an impossible
    name."""

    @property
    def name(self) -> str:
        return self._inner.name

    def head(self, *, check_password: bool = True, sync: bool = True) -> Versioned[LogHead]:
        """Return the log's head. Without ``sync`` it may be older than the newest head (M5). Raises NoSuchLogError,
        which lists logs with similar names, and, with ``check_password``, WrongPasswordError."""
        return self._thread.call(self._inner.head(check_password=check_password, sync=sync))

    def create(self, *, digest_type: DigestType = DigestType.CRC32C, exist_ok: bool = True) -> LogHead:
        """Create the log and return its head. With ``exist_ok`` return the head of an existing log if it has this
        digest type and password.

        Raises LogExistsError, WrongDigestTypeError, WrongPasswordError. Then nothing was created.
        """
        return self._thread.call(self._inner.create(digest_type=digest_type, exist_ok=exist_ok))

    def open_or_create(self, *, digest_type: DigestType | None = None) -> tuple[Versioned[LogHead], bool]:
        """Return the log's head, and whether this call created the log (N8: append creates a missing log and says so).

        If ``digest_type`` is None, an existing log may have any type, and a new log gets CRC32C.
        """
        return self._thread.call(self._inner.open_or_create(digest_type=digest_type))

    def extents(self, start_offset: int | None = None, end_offset: int | None = None) -> list[Extent]:
        """Return the extents that hold the offsets ``start_offset`` to ``end_offset`` − 1, in order. None means the
        log's start or end. If the range goes beyond the sealed extents, the open extents (``is_open``) come last."""
        return self._thread.call(self._inner.extents(start_offset, end_offset))

    def schemas(self) -> dict[int, bytes]:
        """Return the log's schemas by number, the newest last. A log whose codecs need no schema has none (K8)."""
        return self._thread.call(self._inner.schemas())

    def publish(
        self, ledgers: Sequence[NewExtent], publish_id: PublishId, options: PublishOptions = APPEND
    ) -> Published:
        """List closed ledgers at the end of the log, in this order, all or none, once for each ``publish_id``.

        A publish that happened before is not repeated, and the call returns it (N4). Its base offset is −1 if only the
        ``transaction`` record remembers it (N5). A new ``schema`` is registered in the same step; with ``merge_schema``
        it may add columns (K8).

        Raises LogHasLeaderError while a leader writes the log, unless ``takeover`` fences it; PublishConflictError for
        ledgers that are condemned, missing, open or do not end as reported; SchemaMismatchError for a schema that does
        not fit; TransactionReplayDiffersError for the same id or version with other rows;
        TransactionVersionRegressedError. If the outcome of an error is UNKNOWN, the ledgers may have been published:
        publish again with the same id, and delete nothing. After any other error nothing was published.
        """
        return self._thread.call(self._inner.publish(ledgers, publish_id, options))

    def overwrite(
        self, ledgers: Sequence[NewExtent], publish_id: PublishId, options: PublishOptions = APPEND
    ) -> Published:
        """Do the same as :meth:`publish`, and unlink all older extents of the log, in one compare-and-set. The log's
        epoch rises and its offsets continue (N7). Readers of the old epoch get LogOverwrittenError. Vacuum deletes the
        unlinked ledgers.
        """
        return self._thread.call(self._inner.overwrite(ledgers, publish_id, options))

    def delete(self, *, takeover: bool = False, now: bool = False) -> DeletedLog:
        """Delete the log. After one compare-and-set there is no log of this name, and a new log with another uuid may
        be created.

        Readers can still read the ledgers that they have found. A vacuum of this name, or ``bk upkeep``, deletes the
        ledgers ``delete_delay_ms`` after the log was deleted. With ``takeover`` the log's leader is fenced; without it
        a leader causes LogHasLeaderError. With ``now`` this call also deletes the ledgers, unless a leader or a job
        uses the log (LogHasLeaderError, LogInUseError). It does not check for readers, whose reads then fail.

        Raises NoSuchLogError, WrongPasswordError, LogRecreatedError if the log was deleted and created again meanwhile,
        and, with ``takeover``, the errors of recovering a ledger. Then nothing was deleted, unless the outcome is
        UNKNOWN; in that case delete the log again. With ``now`` a vacuum deletes the ledgers that could not be deleted.
        """
        return self._thread.call(self._inner.delete(takeover=takeover, now=now))

    def deleted(self) -> list[DeletedLog]:
        """Return the deleted logs of this name whose ledgers are not deleted yet, in the order of their deletions."""
        return self._thread.call(self._inner.deleted())

    def set_retention(self, *, retention_ms: int | None = None, retention_bytes: int | None = None) -> LogHead:
        """Set the retention and return the head. This call unlinks nothing; :meth:`trim_expired` applies the retention.

        The retention keeps entries that are not older than ``retention_ms``, and the newest ``retention_bytes``. 0
        keeps everything, and None leaves the value as it is. Raises InvalidArgumentError for a negative number,
        PublishConflictError, MetadataUnavailableError.
        """
        return self._thread.call(self._inner.set_retention(retention_ms=retention_ms, retention_bytes=retention_bytes))

    def trim(self, before_offset: int) -> int:
        """Let the log start at ``before_offset``, and return its start offset. Open extents are never trimmed. Ledgers
        that lie wholly below the start are unlinked, and vacuum deletes them later."""
        return self._thread.call(self._inner.trim(before_offset))

    def trim_expired(self) -> int:
        """Trim the entries that the log's retention does not keep, and return the start offset. An entry that has
        expired by one head has expired by every later head, so the trim needs no second check."""
        return self._thread.call(self._inner.trim_expired())

    def expired_offset(self, *, now_ms: int | None = None) -> int:
        """Return the offset below which the log's retention keeps nothing now, or at ``now_ms``."""
        return self._thread.call(self._inner.expired_offset(now_ms=now_ms))

    def compact(self, run: Sequence[Extent], ledger: NewExtent) -> Extent:
        """List one closed ledger, which has copies of the same entries, in place of a run of sealed extents.

        Offsets do not change. Running readers continue with the old ledgers, which vacuum deletes later. Raises
        PublishConflictError if some extents of ``run`` were unlinked or replaced meanwhile. Then the log is unchanged.
        """
        return self._thread.call(self._inner.compact(run, ledger))

    def plan_compaction(self, limits: CompactionLimits | None = None) -> list[Run]:
        """Return the runs that :meth:`compact_small` would merge now."""
        return self._thread.call(self._inner.plan_compaction(limits))

    def compact_small(
        self, limits: CompactionLimits | None = None, progress: Callable[[int], None] = lambda entries: None
    ) -> Compacted:
        """Compact the log as :meth:`bk_core.logs.compactor.Compactor.run` does. ``progress`` is called after each piece
        is copied, with its number of entries, on the thread of the client's loop."""
        return self._thread.call(self._inner.compact_small(limits, progress))

    def vacuum(
        self,
        *,
        delete_delay_ms: int = DELETE_DELAY_MS,
        txn_retention_ms: int = TXN_RETENTION_MS,
        force: bool = False,
        among: Sequence[LedgerId] | None = None,
    ) -> Vacuumed:
        """Delete the ledgers and pages of this log that it does not list, and transaction records that were not used
        for ``txn_retention_ms``.

        Ledgers and pages are deleted ``delete_delay_ms`` after they were unlinked, or after they were made if they were
        never listed. Ages are by the metadata store's clock. With ``among`` only these ledgers are checked, otherwise
        all ledgers of the cluster.

        A job loses its ledgers if it publishes them later than this delay after it made them, so a delay of less than 7
        days needs ``force``. A transaction retention of less than 30 days needs ``force``, too, because a version that
        is published again after its record was deleted may be in the log twice. Raises InvalidArgumentError,
        MetadataUnavailableError, MetadataCorruptError. Deletions before the error stay, and the next vacuum continues.
        """
        return self._thread.call(
            self._inner.vacuum(
                delete_delay_ms=delete_delay_ms, txn_retention_ms=txn_retention_ms, force=force, among=among
            )
        )

    def vacuum_deleted(self, log_uuid: str, among: Sequence[LedgerId] | None = None) -> VacuumedDeleted:
        """Delete the ledgers of a deleted log, whatever its age is, and the record of its deletion. With ``among``
        delete only these ledgers, and delete the record only if ``among`` is empty."""
        return self._thread.call(self._inner.vacuum_deleted(log_uuid, among))

    def finish_deletion(self, log_uuid: str) -> DeletedLog:
        """Finish a deletion that has only written the mark. Raises NoSuchLogError if there is neither a mark nor a
        record of the deletion."""
        return self._thread.call(self._inner.finish_deletion(log_uuid))

    def vacuum_candidates(self, delete_delay_ms: int, txn_retention_ms: int) -> Vacuumed:
        """Return what :meth:`vacuum` would delete now with these delays, without deleting it."""
        return self._thread.call(self._inner.vacuum_candidates(delete_delay_ms, txn_retention_ms))

    def transactions(self) -> list[LogTransactions]:
        """Return the transaction records of all applications and streaming queries, in no order (N5)."""
        return self._thread.call(self._inner.transactions())

    def transactions_of(self, app_id: str) -> LogTransactions | None:
        """Return the transaction record of an application or query, or None if there is none."""
        return self._thread.call(self._inner.transactions_of(app_id))

    def forget_transactions(self, app_id: str) -> LogTransactions | None:
        """Delete the transaction record of an application or query. Return the record, or None if there was none.

        A version that is published again afterwards may be in the log twice, because only the log's last 128 publishes
        are then remembered. Raises MetadataUnavailableError, and MetadataConflictError if the log changes too fast.
        """
        return self._thread.call(self._inner.forget_transactions(app_id))

    def end_offset(self) -> int:
        """Return the offset after the last readable entry. The sealed extents are readable, and so is the first open
        extent up to its LAC."""
        return self._thread.call(self._inner.end_offset())

    def read(self, start_offset: int, end_offset: int) -> BlockingIterator[OffsetBatch]:
        """Read the entries ``start_offset`` to ``end_offset`` − 1, in order. Each item is a pair of the offset of a
        batch's first entry and the batch.

        Raises InvalidArgumentError for offsets beyond :meth:`end_offset`, NoSuchEntryError for entries that were
        trimmed or lost, and EntryUnreadableError.
        """
        return BlockingIterator(self._thread, self._inner.read(start_offset, end_offset))

    def tail(self, from_offset: int) -> BlockingIterator[OffsetBatch]:
        """Read every entry from ``from_offset`` on, as soon as it is readable, across rolls and takeovers, without end.
        A tail never fences. Raises NoSuchLogError, NoSuchEntryError, LogRecreatedError, LogOverwrittenError."""
        return BlockingIterator(self._thread, self._inner.tail(from_offset))

    def to_arrow(
        self,
        start: int | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        where: Sequence[Condition] | None = None,
        codec: str | None = None,
        schema: Schema | None = None,
    ) -> Table:
        """Return the rows of the entries at the log offsets ``start`` to ``end`` − 1 as a ``pyarrow.Table``. By default
        ``start`` is the log's start and ``end`` the end of the readable entries.

        ``columns`` chooses columns by name, in this order. None chooses all columns that the codec has. Rows can also
        have ``offset``, ``row_index`` (the number of the row in its entry), ``ledger_id``, ``entry_id``,
        ``entry_length``, ``log``, ``ledger_ctime`` and ``ledger_closed``. ``where`` is a list of conditions that must
        all hold, such as ``("delay", ">", 15)``. The operators are ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=`` and
        ``in``. In a log of codec ``arrow`` only the bytes of these columns are read, and entries that cannot have a
        wanted row are skipped.

        ``codec`` is the codec with which entries are read: ``raw``, ``envelope``, ``json`` or ``arrow``. The default is
        the codec that wrote them. Rows of codec ``arrow`` have the columns of the log's newest schema; older rows have
        null in columns that they lack (K8). ``schema`` has the columns of JSON objects; without it the rows have their
        text.

        Raises InvalidArgumentError for offsets that cannot be read, columns that do not exist and codecs that do not
        fit; CorruptEntryError for an entry that cannot be decoded; NoSuchEntryError for entries that were trimmed or
        lost; and EntryUnreadableError.
        """
        return self._thread.call(self._inner.to_arrow(start, end, columns, where=where, codec=codec, schema=schema))

    def record_batch_reader(
        self,
        start: int | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        where: Sequence[Condition] | None = None,
        codec: str | None = None,
        schema: Schema | None = None,
    ) -> RecordBatchReader:
        """Return the rows of :meth:`to_arrow` as a ``pyarrow.RecordBatchReader``. It holds a few megabytes at a time,
        however large the log is, and has Arrow's PyCapsule interface, which pandas, polars and duckdb accept.

        Each read of a batch blocks its thread, so an asyncio program reads on another thread (``asyncio.to_thread``).
        The reads of bookies end when the reader is closed or dropped, or its ``with`` block ends. An error of
        :meth:`to_arrow` that comes while rows are read is raised as ``pyarrow.ArrowInvalid``, whose text contains the
        text of the error and its code.
        """
        return self._thread.call(
            self._inner.record_batch_reader(start, end, columns, where=where, codec=codec, schema=schema)
        )

    def append_arrow(
        self,
        table: object,
        *,
        merge_schema: bool = False,
        compression: str = "zstd",
        max_entry_bytes: int | None = None,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        digest_type: DigestType | None = None,
    ) -> range:
        """Append the rows of a ``pyarrow.Table``, or of another object with Arrow's stream interface (frames of pandas
        and polars, a RecordBatchReader), with codec ``arrow``. Return the log offsets of their entries, each of which
        holds many rows. A missing log is created.

        The rows go into a new ledger, which one compare-and-set lists, so that all rows become readable or none. The
        rows must have exactly the columns of the log, in any order. With ``merge_schema`` they may have more columns;
        these are null in older rows (K8). ``compression`` is ``zstd``, ``lz4`` or ``none``. Entries are filled up to
        ``max_entry_bytes``, by default 2 MiB and at most 5 MiB − 1 KiB. Fewer, larger entries are read faster; with
        more, smaller ones ``where`` skips more rows.

        Raises InvalidArgumentError for data, columns or values that cannot be written, and for a log that was written
        with another codec; SchemaMismatchError for columns that do not fit the log; EntryTooLargeError;
        LogHasLeaderError while a leader writes the log; NotEnoughBookiesError, and the other errors of creating,
        writing and publishing a ledger. Then nothing was appended, unless the error's outcome is UNKNOWN.
        """
        return self._thread.call(
            self._inner.append_arrow(
                table,
                merge_schema=merge_schema,
                compression=compression,
                max_entry_bytes=max_entry_bytes,
                ensemble_size=ensemble_size,
                write_quorum_size=write_quorum_size,
                ack_quorum_size=ack_quorum_size,
                digest_type=digest_type,
            )
        )

    def newest_codec(self, head: LogHead) -> str | None:
        """Return the codec of the newest rows that ``head`` lists. If there are no rows, return ``arrow`` for a log
        with a schema, else None."""
        return self._thread.call(self._inner.newest_codec(head))

    def lead(
        self,
        *,
        roll_bytes: int = 1 << 30,
        roll_age_s: float = 3600.0,
        still_leader: Callable[[], bool] | None = None,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        digest_type: DigestType | None = None,
        codec: str = "raw",
    ) -> LogLeader:
        """Fence the present leader of the log and become its only writer. Create the log if it does not exist
        (``LogLeader.created``).

        There is no election: every caller takes over. The leader rolls to a new ledger after ``roll_bytes`` payload
        bytes, or after ``roll_age_s`` seconds if anything was appended. ``still_leader`` is called before each roll and
        after each failed compare-and-set. If it returns False, leadership is lost. Raises InvalidArgumentError,
        NotEnoughBookiesError and WrongPasswordError before any ledger is fenced, RecoveryInconclusiveError if the
        previous leader's last entries can now be neither found nor ruled out, and LeadershipLostError if other clients
        were faster.
        """
        return LogLeader(
            self._thread.call(
                self._inner.lead(
                    roll_bytes=roll_bytes,
                    roll_age_s=roll_age_s,
                    still_leader=still_leader,
                    ensemble_size=ensemble_size,
                    write_quorum_size=write_quorum_size,
                    ack_quorum_size=ack_quorum_size,
                    digest_type=digest_type,
                    codec=codec,
                )
            ),
            self._thread,
        )
