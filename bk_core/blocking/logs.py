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

    ``NamedLog.lead`` makes it; as a context manager it gives leadership up at the end. Appends return log
    offsets. Once leadership is lost, every call raises LeadershipLostError; unconfirmed entries may be part of the log
    or not.
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
        """Whether this process leads. False once leadership was given up or is known to be lost."""
        return self._inner.is_leader

    def append(self, payload: Bytes) -> int:
        """Append one entry; return its log offset once an ack quorum has the entry and all before it on disk.

        Raises EntryTooLargeError, LedgerClosedError after close, and LeadershipLostError (outcome unknown).
        """
        return self._thread.call(self._inner.append(payload))

    def append_nowait(self, payload: Bytes) -> int:
        """Queue one entry; return its log offset. Thread-safe. The payload must not be changed afterwards.

        Raises like ``append``, and WindowFullError when there is no room; in all cases the entry was not queued.
        """
        return self._inner.append_nowait(payload)

    def append_batch(self, batch: EntryBatch) -> int:
        """Queue a batch, in parts if it must wait for room; return the log offset of its last entry. All parts go into
        one ledger. Raises like ``append``."""
        return self._thread.call(self._inner.append_batch(batch))

    def wait_confirmed(self, offset: int) -> None:
        """Wait until the entry at this log offset and all before it are confirmed."""
        self._thread.call(self._inner.wait_confirmed(offset))

    def roll(self) -> None:
        """Go on in a new ledger, so that the previous one can be trimmed; wait until the previous one is closed and
        sealed.

        Raises NotEnoughBookiesError if no ledger can be made (appends go on to the current one), LeadershipLostError.
        """
        self._thread.call(self._inner.roll())

    def close(self) -> None:
        """Wait for the appended entries, close the ledger, and seal it in the log. May be called again.

        Raises LeadershipLostError if another client took the log over before that; confirmed entries are in the log all
        the same.
        """
        self._thread.call(self._inner.close())


class NamedLog(Handle[named_log.NamedLog]):
    """A handle of one log; creating the handle reads and writes nothing. Raises InvalidArgumentError for an impossible
    name."""

    @property
    def name(self) -> str:
        return self._inner.name

    def head(self, *, check_password: bool = True, sync: bool = True) -> Versioned[LogHead]:
        """Return the log's record. With ``sync`` False it may be older than the newest record (M5). Raises
        NoSuchLogError, which lists logs with similar names, and WrongPasswordError unless ``check_password`` is
        False."""
        return self._thread.call(self._inner.head(check_password=check_password, sync=sync))

    def create(self, *, digest_type: DigestType = DigestType.CRC32C, exist_ok: bool = True) -> LogHead:
        """Create the log. With ``exist_ok`` an existing log is returned if it has this digest type and password.

        Raises LogExistsError, WrongDigestTypeError, WrongPasswordError; then nothing was created.
        """
        return self._thread.call(self._inner.create(digest_type=digest_type, exist_ok=exist_ok))

    def open_or_create(self, *, digest_type: DigestType | None = None) -> tuple[Versioned[LogHead], bool]:
        """Return the head, and whether this call created the log (N8: append creates a missing log and says so).

        ``digest_type``: None accepts the log's own, and means CRC32C for a new log.
        """
        return self._thread.call(self._inner.open_or_create(digest_type=digest_type))

    def extents(self, start_offset: int | None = None, end_offset: int | None = None) -> list[Extent]:
        """Return the extents that hold the offsets ``start_offset`` to ``end_offset`` − 1, in order; None means the
        log's start or end. If the range goes beyond the sealed extents, the open ones (``is_open``) come last."""
        return self._thread.call(self._inner.extents(start_offset, end_offset))

    def schemas(self) -> dict[int, bytes]:
        """Return the log's schemas by number, the newest last; empty for a log whose codecs need none (K8)."""
        return self._thread.call(self._inner.schemas())

    def publish(
        self, ledgers: Sequence[NewExtent], publish_id: PublishId, options: PublishOptions = APPEND
    ) -> Published:
        """List closed ledgers at the end of the log, in this order, all or none, once for each ``publish_id``.

        A publish that happened before is not repeated but returned (N4); its base offset is −1 if only the
        ``transaction`` record remembers it (N5). Raises LogHasLeaderError while a leader writes the log, unless
        ``takeover`` fences it; PublishConflictError for ledgers that are condemned, missing, open or do not end as
        reported; TransactionReplayDiffersError for the same id or version with other rows;
        TransactionVersionRegressedError. Then nothing was published, except that it may have been after an error with
        outcome UNKNOWN: publish again with the same id, and delete nothing.

        A new ``schema`` gets a number in the log together with the ledgers; if it does not fit, SchemaMismatchError is
        raised. ``merge_schema`` lets it add columns (K8).
        """
        return self._thread.call(self._inner.publish(ledgers, publish_id, options))

    def overwrite(
        self, ledgers: Sequence[NewExtent], publish_id: PublishId, options: PublishOptions = APPEND
    ) -> Published:
        """Do the same as :meth:`publish`, and unlink everything that was listed before, in one compare-and-set. The
        log's epoch rises and its offsets continue (N7); readers of the old epoch get LogOverwrittenError. Vacuum
        deletes the unlinked ledgers.
        """
        return self._thread.call(self._inner.overwrite(ledgers, publish_id, options))

    def delete(self, *, takeover: bool = False, now: bool = False) -> DeletedLog:
        """Delete the log. One compare-and-set decides: from then on there is no log of this name, and a new one may be
        created, with another uuid. Readers can still read the ledgers that they know, because the ledgers stay: the
        vacuums of this name, and ``bk upkeep``, delete them ``delete_delay_ms`` after the log was deleted.

        ``takeover`` fences the log's leader instead of raising LogHasLeaderError. ``now`` deletes the ledgers at once,
        unless a leader or a job uses the log (LogHasLeaderError, LogInUseError). Readers are not noticed, and their
        reads fail.

        Raises NoSuchLogError, WrongPasswordError; LogRecreatedError if the log was deleted and created again meanwhile;
        with ``takeover`` the errors of recovering a ledger. Then nothing was deleted, unless the outcome is UNKNOWN:
        delete it again. With ``now`` the ledgers that could not be deleted wait for a vacuum.
        """
        return self._thread.call(self._inner.delete(takeover=takeover, now=now))

    def deleted(self) -> list[DeletedLog]:
        """Return the deleted logs of this name whose ledgers wait to be deleted, the oldest deletion first."""
        return self._thread.call(self._inner.deleted())

    def set_retention(self, *, retention_ms: int | None = None, retention_bytes: int | None = None) -> LogHead:
        """Set the retention, which :meth:`trim_expired` applies: it keeps entries that are not older than
        ``retention_ms``, and the newest ``retention_bytes``. 0 keeps everything; None leaves the value as it is.
        Returns the head; unlinks nothing itself.

        Raises InvalidArgumentError for a negative number, PublishConflictError, MetadataUnavailableError.
        """
        return self._thread.call(self._inner.set_retention(retention_ms=retention_ms, retention_bytes=retention_bytes))

    def trim(self, before_offset: int) -> int:
        """Let the log start at ``before_offset``; return its start offset. Open extents are never trimmed. Ledgers
        wholly below the start are unlinked; vacuum deletes them later."""
        return self._thread.call(self._inner.trim(before_offset))

    def trim_expired(self) -> int:
        """Trim the entries that the log's retention does not keep; return its start offset. Offsets never go back, so a
        decision on one head is right for every later head."""
        return self._thread.call(self._inner.trim_expired())

    def expired_offset(self, *, now_ms: int | None = None) -> int:
        """Return the offset below which the log's retention keeps nothing now, or at ``now_ms``."""
        return self._thread.call(self._inner.expired_offset(now_ms=now_ms))

    def compact(self, run: Sequence[Extent], ledger: NewExtent) -> Extent:
        """List one closed ledger, which has copies of the same entries, in place of a run of sealed extents.

        Offsets stay. Running readers continue with the old ledgers, which vacuum deletes later. Raises
        PublishConflictError if some of ``run`` were unlinked or replaced meanwhile; then the log is unchanged.
        """
        return self._thread.call(self._inner.compact(run, ledger))

    def plan_compaction(self, limits: CompactionLimits | None = None) -> list[Run]:
        """Return the runs that :meth:`compact_small` would merge now."""
        return self._thread.call(self._inner.plan_compaction(limits))

    def compact_small(
        self, limits: CompactionLimits | None = None, progress: Callable[[int], None] = lambda entries: None
    ) -> Compacted:
        """Compact the log as :meth:`bk_core.logs.compactor.Compactor.run` does. ``progress`` is called with the number
        of entries after each piece is copied, on the thread of the client's loop."""
        return self._thread.call(self._inner.compact_small(limits, progress))

    def vacuum(
        self,
        *,
        delete_delay_ms: int = DELETE_DELAY_MS,
        txn_retention_ms: int = TXN_RETENTION_MS,
        force: bool = False,
        among: Sequence[LedgerId] | None = None,
    ) -> Vacuumed:
        """Delete this log's ledgers and pages that are not listed, ``delete_delay_ms`` after they were unlinked or, if
        they were never listed, after they were made; and transaction records not used for ``txn_retention_ms``. Ages
        are by the metadata store's clock. ``among``: check only these ledgers, and not all ledgers of the cluster.

        A job loses its ledgers if it publishes them later than this delay after it made them, so a delay of less than 7
        days needs ``force``. So does a transaction retention of less than 30 days: a version that is published again
        after its record is gone may be in the log twice. Raises InvalidArgumentError, MetadataUnavailableError,
        MetadataCorruptError; deletions before the error stay, and the next vacuum continues.
        """
        return self._thread.call(
            self._inner.vacuum(
                delete_delay_ms=delete_delay_ms, txn_retention_ms=txn_retention_ms, force=force, among=among
            )
        )

    def vacuum_deleted(self, log_uuid: str, among: Sequence[LedgerId] | None = None) -> VacuumedDeleted:
        """Delete the ledgers of a deleted log, whatever its age, and the record of its deletion. ``among``: delete only
        these ledgers, and the record only if this is empty."""
        return self._thread.call(self._inner.vacuum_deleted(log_uuid, among))

    def finish_deletion(self, log_uuid: str) -> DeletedLog:
        """Finish a deletion of which only the mark was written. Raises NoSuchLogError if there is no such mark."""
        return self._thread.call(self._inner.finish_deletion(log_uuid))

    def vacuum_candidates(self, delete_delay_ms: int, txn_retention_ms: int) -> Vacuumed:
        """Return what :meth:`vacuum` would delete now with these delays. Deletes nothing."""
        return self._thread.call(self._inner.vacuum_candidates(delete_delay_ms, txn_retention_ms))

    def transactions(self) -> list[LogTransactions]:
        """Return the transaction records of all applications and streaming queries, in no order (N5)."""
        return self._thread.call(self._inner.transactions())

    def transactions_of(self, app_id: str) -> LogTransactions | None:
        """Return the transaction record of an application or query, or None."""
        return self._thread.call(self._inner.transactions_of(app_id))

    def forget_transactions(self, app_id: str) -> LogTransactions | None:
        """Delete the transaction record of an application or query; return it, or None if there is none.

        A version that is published again afterwards may be in the log twice: then only the log's last 128 publishes are
        remembered. Raises MetadataConflictError if the log changes too fast, MetadataUnavailableError.
        """
        return self._thread.call(self._inner.forget_transactions(app_id))

    def end_offset(self) -> int:
        """Return the offset after the last readable entry. The sealed extents, and the first open one up to its LAC,
        are readable."""
        return self._thread.call(self._inner.end_offset())

    def read(self, start_offset: int, end_offset: int) -> BlockingIterator[OffsetBatch]:
        """Read the entries ``start_offset`` to ``end_offset`` − 1, in order, as (offset of the batch's first entry,
        batch).

        Raises InvalidArgumentError beyond :meth:`end_offset`, NoSuchEntryError where entries were trimmed or lost, and
        EntryUnreadableError.
        """
        return BlockingIterator(self._thread, self._inner.read(start_offset, end_offset))

    def tail(self, from_offset: int) -> BlockingIterator[OffsetBatch]:
        """Read every entry from ``from_offset`` on, as soon as it is readable, across rolls and takeovers, without end.
        Never fences. Raises NoSuchLogError, NoSuchEntryError, LogRecreatedError, LogOverwrittenError."""
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
        """Return the rows of the entries at the log offsets ``start`` to ``end`` − 1 as a ``pyarrow.Table``; None means
        the log's start, and the end of the readable entries.

        ``columns`` chooses columns by name, in that order; None: all that the codec has. Rows can also have ``offset``,
        ``row_index`` (the number of the row in its entry), ``ledger_id``, ``entry_id``, ``entry_length``, ``log``,
        ``ledger_ctime`` and ``ledger_closed``. ``where`` is a list of conditions that must all hold, such as
        ``("delay", ">", 15)``; the operators are ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=`` and ``in``. In a log of
        codec ``arrow`` only the bytes of these columns are read, and entries that cannot have a wanted row are skipped.

        ``codec`` is the codec to read entries with: ``raw``, ``envelope``, ``json`` or ``arrow``; None: the one that
        wrote them. Rows of codec ``arrow`` have the columns of the log's newest schema; older rows have null in columns
        that they lack (K8). ``schema`` has the columns to read JSON objects as; None: their text.

        Raises InvalidArgumentError for offsets that cannot be read, columns that do not exist and codecs that do not
        fit; CorruptEntryError for an entry that cannot be decoded; NoSuchEntryError where entries were trimmed or lost,
        and EntryUnreadableError.
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
        """Return the rows of :meth:`to_arrow` as a ``pyarrow.RecordBatchReader``, a few megabytes at a time however
        large the log is. It has Arrow's PyCapsule interface, which pandas, polars and duckdb accept.

        Each pull blocks its thread, so in an asyncio program pull on another thread (``asyncio.to_thread``). Closing
        the reader ends its reads at once; so does leaving its ``with`` block, or dropping it. While rows are read, an
        error of :meth:`to_arrow` appears as Arrow's: as ``pyarrow.ArrowInvalid``, whose text contains the text of the
        error, with its code.
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
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        digest_type: DigestType | None = None,
    ) -> range:
        """Append the rows of a ``pyarrow.Table``, or of another object with Arrow's stream interface (frames of pandas
        and polars, a RecordBatchReader), with codec ``arrow``. Return the log offsets of their entries, each of which
        holds many rows. A missing log is created.

        The rows go into a ledger of their own, which one compare-and-set lists: all of them become readable or none. A
        log keeps its columns: rows must have exactly these, in any order; with ``merge_schema`` they may have more,
        which older rows then have as nulls (K8). ``compression`` is ``zstd``, ``lz4`` or ``none``.

        Raises InvalidArgumentError for data, columns or values that cannot be written, and for a log that was written
        with another codec; SchemaMismatchError for columns that do not fit the log's; EntryTooLargeError;
        LogHasLeaderError while a leader writes the log; NotEnoughBookiesError, and the other errors of creating,
        writing and publishing a ledger. Then nothing was appended, unless the error's outcome is UNKNOWN.
        """
        return self._thread.call(
            self._inner.append_arrow(
                table,
                merge_schema=merge_schema,
                compression=compression,
                ensemble_size=ensemble_size,
                write_quorum_size=write_quorum_size,
                ack_quorum_size=ack_quorum_size,
                digest_type=digest_type,
            )
        )

    def newest_codec(self, head: LogHead) -> str | None:
        """Return the codec of the newest rows that ``head`` lists. A log with a schema and without rows was made for
        ``arrow``. None: it has neither."""
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
        """Fence the present leader of the log and become its only writer; create the log if it does not exist
        (``LogLeader.created``).

        There is no election: every caller takes over. The leader rolls to a new ledger after ``roll_bytes`` payload
        bytes, or after ``roll_age_s`` seconds if something was appended. ``still_leader`` is called before each roll
        and after each failed compare-and-set; if it returns False, leadership is lost. Raises InvalidArgumentError,
        NotEnoughBookiesError, WrongPasswordError before anything is fenced; RecoveryInconclusiveError if the previous
        leader's last entries can now be neither found nor ruled out; and LeadershipLostError if other clients were
        faster.
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
