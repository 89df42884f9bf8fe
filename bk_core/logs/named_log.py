# SPDX-License-Identifier: Apache-2.0
"""A named log: many ledgers read as one, with positions that never change (N1 to N8).

There are two ways to write a log. *Publish*, for batch jobs, lists closed ledgers, all of them or none. *Lead*, for
services, makes this process the only writer of the log; each append then returns the offset of its entry. A log has one
digest type and one password.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from bk_core.client.bookkeeper import BookKeeper, check_digest_type
from bk_core.client.reading.batch_iterator import BatchIterator
from bk_core.client.repairing.repair import ByteRate
from bk_core.entries.digest import ledger_key
from bk_core.errors import BookKeeperError, InvalidArgumentError, LogExistsError, NoSuchLogError, Outcome
from bk_core.logs.compactor import Compactor
from bk_core.logs.leading.leader import LogLeader
from bk_core.logs.leading.requests import LeadOptions
from bk_core.logs.machines.change import HeadChange, Intent, change_head
from bk_core.logs.machines.compaction import Compacted
from bk_core.logs.machines.deletion import DeleteLog, VacuumDeleted, VacuumedDeleted, finish
from bk_core.logs.machines.publication import APPEND, Publish, PublishOptions, publish_among
from bk_core.logs.machines.upkeep import Compact, SetRetention, Trim, Vacuum, Vacuumed
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.compaction import CompactionLimits, Run
from bk_core.logs.model.deleted import DeletedLog
from bk_core.logs.model.head import ARROW, Extent, LogHead, LogTransactions, NewExtent, Published, PublishId
from bk_core.logs.reading import LogReading, OffsetBatch, check_not_trimmed
from bk_core.logs.sequences import Answers
from bk_core.logs.store import LogStore, nonce
from bk_core.metadata.layout import check_log_name
from bk_core.model import DigestType, LedgerId, Versioned
from bk_core.observe.audit import audited
from bk_core.observe.traces import traced

if TYPE_CHECKING:
    from pyarrow import RecordBatchReader, Schema, Table

    from bk_core.columns.where import Condition
    from bk_core.logs.arrow.reading import LogScan

__all__ = ["LeadOptions", "LogLeader", "NamedLog", "publish_to_logs"]

logger = logging.getLogger("bk_core.logs")

DELETE_DELAY_MS = 7 * 24 * 3600 * 1000
"""The default time, in milliseconds, after which vacuum deletes a ledger. It counts from the change that unlinked the
ledger, or from the creation of a ledger that was never listed (N6). Every job must publish its ledgers within it."""
TXN_RETENTION_MS = 30 * 24 * 3600 * 1000
"""The default time, in milliseconds, for which a transaction record is kept after its last use (N5)."""

R = TypeVar("R")


class NamedLog:
    """A handle of one log. Making a handle reads and writes nothing. Raises InvalidArgumentError for an impossible
    name."""

    name: str

    def __init__(self, bookkeeper: BookKeeper, name: str, *, password: bytes = b"") -> None:
        self.name = check_log_name(name)
        self._bookkeeper, self._password = bookkeeper, bytes(password)
        self._store = LogStore(bookkeeper.store, name, bookkeeper.tell_deleted)
        self._reading = LogReading(bookkeeper, self._store, self._password)

    # --- the list ----------------------------------------------------------------------------------------------------

    async def head(self, *, check_password: bool = True, sync: bool = True) -> Versioned[LogHead]:
        """Return the log's head. Without ``sync`` it may be older than the newest head (M5). Raises NoSuchLogError,
        which lists logs with similar names, and, with ``check_password``, WrongPasswordError."""
        found = await asyncio.to_thread(self._store.read, sync=sync)
        if check_password:
            self._store.check_password(found.value, self._password)
        return found

    async def create(self, *, digest_type: DigestType = DigestType.CRC32C, exist_ok: bool = True) -> LogHead:
        """Create the log and return its head. With ``exist_ok`` return the head of an existing log if it has this
        digest type and password.

        Raises LogExistsError, WrongDigestTypeError, WrongPasswordError. Then nothing was created.
        """
        head, created = await self.open_or_create(digest_type=digest_type)
        if not created and not exist_ok:
            raise LogExistsError(f"log {self.name} exists", remedy="choose another name, or append to it")
        return head.value

    @traced("log.open", log="name")
    async def open_or_create(self, *, digest_type: DigestType | None = None) -> tuple[Versioned[LogHead], bool]:
        """Return the log's head, and whether this call created the log (N8: append creates a missing log and says so).

        If ``digest_type`` is None, an existing log may have any type, and a new log gets CRC32C.
        """
        try:
            found = await self.head()
        except NoSuchLogError:
            new = LogHead(
                uuid=str(uuid4()),
                created_ms=_now_ms(),
                digest_type=DigestType.CRC32C if digest_type is None else digest_type,
                ledger_key=ledger_key(self._password),
            )
            try:
                return await asyncio.to_thread(self._store.create, new), True
            except LogExistsError:
                found = await self.head()  # another client created it meanwhile
        check_digest_type(f"log {self.name}", found.value.digest_type, digest_type)
        return found, False

    async def extents(self, start_offset: int | None = None, end_offset: int | None = None) -> list[Extent]:
        """Return the extents that hold the offsets ``start_offset`` to ``end_offset`` − 1, in order. None means the
        log's start or end. If the range goes beyond the sealed extents, the open extents (``is_open``) come last."""

        def read() -> list[Extent]:
            head = self._store.read(sync=True).value
            start = head.start_offset if start_offset is None else start_offset
            end = head.next_offset + 1 if end_offset is None else end_offset
            return self._store.extents(head, start, end)

        return await asyncio.to_thread(read)

    async def schemas(self) -> dict[int, bytes]:
        """Return the log's schemas by number, the newest last. A log whose codecs need no schema has none (K8)."""

        def read() -> dict[int, bytes]:
            return self._store.schemas(self._store.read(sync=True).value)

        return await asyncio.to_thread(read)

    # --- publishing --------------------------------------------------------------------------------------------------

    @traced("log.publish", log="name")
    async def publish(
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
        await self.head()  # checks the password
        change = HeadChange({self.name: Publish(tuple(ledgers), publish_id, _now_ms(), nonce, options)})
        with audited("overwrite-log", log=self.name, publish=publish_id.text) if options.overwrite else nullcontext():
            found = (await self._answers().carry_out(change.run()))[self.name]
        if not change.was_attempted:
            logger.warning("log %s already has %s: %d rows are skipped", self.name, publish_id.text, found.rows)
        return found

    async def overwrite(
        self, ledgers: Sequence[NewExtent], publish_id: PublishId, options: PublishOptions = APPEND
    ) -> Published:
        """Do the same as :meth:`publish`, and unlink all older extents of the log, in one compare-and-set. The log's
        epoch rises and its offsets continue (N7). Readers of the old epoch get LogOverwrittenError. Vacuum deletes the
        unlinked ledgers.
        """
        return await self.publish(ledgers, publish_id, replace(options, overwrite=True))

    async def _change(self, intent: Intent[R]) -> R:
        """Carry out a change of the head, and return its result. Raises the error that refuses the change."""
        await self.head()  # checks the password
        return await self._answers().carry_out(change_head(self.name, intent))

    def _answers(self) -> Answers:
        return Answers.of(self._bookkeeper, [self._store], self._password)

    # --- upkeep ------------------------------------------------------------------------------------------------------

    @traced("log.delete", log="name")
    async def delete(self, *, takeover: bool = False, now: bool = False) -> DeletedLog:
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
        if takeover and now:
            raise InvalidArgumentError(
                "the ledgers of a log with a leader are not deleted now",
                value="takeover, now",
                remedy="leave now out, or stop the leader",
            )
        log_uuid = await self._uuid_to_delete()
        if now:
            await asyncio.to_thread(self._store.check_unused, log_uuid)
        with audited("delete-log", log=self.name, uuid=log_uuid, now=now):
            deleted = await self._answers().carry_out(DeleteLog(self.name, log_uuid, takeover=takeover).run())
            if now:
                deleted = replace(deleted, ledgers=await self._delete_ledgers(log_uuid))
        return deleted

    async def _delete_ledgers(self, log_uuid: str) -> tuple[LedgerId, ...]:
        """Delete the ledgers of a log that was deleted just before, and keep the record of its deletion."""
        try:
            return (await self._answers().carry_out(VacuumDeleted(log_uuid, forget=False).run())).ledgers
        except BookKeeperError as error:
            error.outcome = Outcome.UNKNOWN  # the log itself is deleted
            raise

    async def _uuid_to_delete(self) -> str:
        """Check the password, and return the uuid of the log, or of a log of this name whose deletion is not
        finished."""
        try:
            return (await self.head()).value.uuid
        except NoSuchLogError:
            mark = await asyncio.to_thread(self._store.mark)
            if mark is None:
                raise
            self._store.check_password(mark, self._password)
            return mark.uuid

    async def deleted(self) -> list[DeletedLog]:
        """Return the deleted logs of this name whose ledgers are not deleted yet, in the order of their deletions."""
        return await asyncio.to_thread(self._store.deleted)

    async def set_retention(self, *, retention_ms: int | None = None, retention_bytes: int | None = None) -> LogHead:
        """Set the retention and return the head. This call unlinks nothing; :meth:`trim_expired` applies the retention.

        The retention keeps entries that are not older than ``retention_ms``, and the newest ``retention_bytes``. 0
        keeps everything, and None leaves the value as it is. Raises InvalidArgumentError for a negative number,
        PublishConflictError, MetadataUnavailableError.
        """
        with audited("set-retention", log=self.name, retention_ms=retention_ms, retention_bytes=retention_bytes):
            return await self._change(SetRetention(retention_ms, retention_bytes, nonce))

    @traced("log.trim", log="name")
    async def trim(self, before_offset: int) -> int:
        """Let the log start at ``before_offset``, and return its start offset. Open extents are never trimmed. Ledgers
        that lie wholly below the start are unlinked, and vacuum deletes them later."""
        with audited("trim-log", log=self.name, before_offset=before_offset):
            return await self._change(Trim(before_offset, nonce))

    async def trim_expired(self) -> int:
        """Trim the entries that the log's retention does not keep, and return the start offset. An entry that has
        expired by one head has expired by every later head, so the trim needs no second check."""
        return await self.trim(await self.expired_offset())

    async def expired_offset(self, *, now_ms: int | None = None) -> int:
        """Return the offset below which the log's retention keeps nothing now, or at ``now_ms``."""
        expired = partial(commit.expired_below, (await self.head()).value, _now_ms() if now_ms is None else now_ms)
        return await asyncio.to_thread(self._store.with_pages, expired)

    async def compact(self, run: Sequence[Extent], ledger: NewExtent) -> Extent:
        """List one closed ledger, which has copies of the same entries, in place of a run of sealed extents.

        Offsets do not change. Running readers continue with the old ledgers, which vacuum deletes later. Raises
        PublishConflictError if some extents of ``run`` were unlinked or replaced meanwhile. Then the log is unchanged.
        """
        if not run:
            raise InvalidArgumentError("there is nothing to compact", value="an empty run")
        return await self._change(Compact(tuple(run), ledger, nonce))

    def compactor(
        self,
        limits: CompactionLimits | None = None,
        progress: Callable[[int], None] = lambda entries: None,
        rate: ByteRate | None = None,
    ) -> Compactor:
        """Return a :class:`Compactor`, which merges small sealed extents into fewer ledgers, for example by
        ``await log.compactor().run()``. ``progress`` is called after each piece is copied, with its number of entries.
        ``rate`` limits the bytes copied per second.
        """
        limits = CompactionLimits() if limits is None else limits
        return Compactor(self._bookkeeper, self._store, self._answers(), self._password, limits, progress, rate)

    async def plan_compaction(self, limits: CompactionLimits | None = None) -> list[Run]:
        """Return the runs that :meth:`compact_small` would merge now."""
        return await self.compactor(limits).plan()

    @traced("log.compact", log="name")
    async def compact_small(
        self, limits: CompactionLimits | None = None, progress: Callable[[int], None] = lambda entries: None
    ) -> Compacted:
        """Compact the log as :meth:`bk_core.logs.compactor.Compactor.run` does. ``progress`` is called after each piece
        is copied, with its number of entries, on the thread of the client's loop."""
        return await self.compactor(limits, progress).run()

    @traced("log.vacuum", log="name")
    async def vacuum(
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
        check_delays(delete_delay_ms, txn_retention_ms, force)
        of_deleted = await self._vacuum_deleted(delete_delay_ms)
        try:
            head = (await self.head()).value
        except NoSuchLogError:
            if of_deleted is None:
                raise
            return of_deleted
        now_ms = await asyncio.to_thread(self._store.clock_ms)
        before_ms, txns_before_ms = now_ms - delete_delay_ms, now_ms - txn_retention_ms
        vacuum = Vacuum(
            self.name,
            head.uuid,
            before_ms,
            nonce,
            txns_before_ms=txns_before_ms,
            among=None if among is None else tuple(among),
        )
        with audited("vacuum-log", log=self.name):
            done = await self._answers().carry_out(vacuum.run())
        return done if of_deleted is None else done.and_of_deleted(of_deleted)

    async def _vacuum_deleted(self, delete_delay_ms: int) -> Vacuumed | None:
        """Delete the ledgers of the deleted logs that had this name, ``delete_delay_ms`` after each log was deleted.
        Return None if there is no deleted log with this name and password."""
        if (mark := await asyncio.to_thread(self._store.mark)) is not None:
            self._store.check_password(mark, self._password)
            await self._answers().carry_out(finish(mark.uuid))
        deleted = await asyncio.to_thread(self._store.deleted, self._password)
        if not deleted:
            return None
        now_ms, done = await asyncio.to_thread(self._bookkeeper.store.deleted_logs_clock_ms), Vacuumed()
        for each in deleted:
            if each.deleted_ms <= now_ms - delete_delay_ms:
                found = await self.vacuum_deleted(each.uuid)
                done = done.and_of_deleted(Vacuumed(found.ledgers, found.remaining))
        return done

    async def vacuum_deleted(self, log_uuid: str, among: Sequence[LedgerId] | None = None) -> VacuumedDeleted:
        """Delete the ledgers of a deleted log, whatever its age is, and the record of its deletion. With ``among``
        delete only these ledgers, and delete the record only if ``among`` is empty."""
        ledgers = None if among is None else tuple(among)
        steps = VacuumDeleted(log_uuid, forget=not ledgers, among=ledgers).run()
        with audited("vacuum-deleted-log", log=self.name, uuid=log_uuid):
            return await self._answers().carry_out(steps)

    async def finish_deletion(self, log_uuid: str) -> DeletedLog:
        """Finish a deletion that has only written the mark. Raises NoSuchLogError if there is neither a mark nor a
        record of the deletion."""
        return await self._answers().carry_out(finish(log_uuid))

    async def vacuum_candidates(self, delete_delay_ms: int, txn_retention_ms: int) -> Vacuumed:
        """Return what :meth:`vacuum` would delete now with these delays, without deleting it."""
        of_deleted = await asyncio.to_thread(self._store.deleted_candidates, delete_delay_ms, self._password)
        try:
            await self.head()  # checks the password
            found = await asyncio.to_thread(self._store.vacuum_candidates, delete_delay_ms, txn_retention_ms)
        except NoSuchLogError:
            if of_deleted is None:
                raise
            return of_deleted
        return found if of_deleted is None else found.and_of_deleted(of_deleted)

    async def transactions(self) -> list[LogTransactions]:
        """Return the transaction records of all applications and streaming queries, in no order (N5)."""
        return await asyncio.to_thread(lambda: list(self._store.all_transactions()))

    async def transactions_of(self, app_id: str) -> LogTransactions | None:
        """Return the transaction record of an application or query, or None if there is none."""
        found = await asyncio.to_thread(self._store.transactions, app_id)
        return None if found is None else found.value

    async def forget_transactions(self, app_id: str) -> LogTransactions | None:
        """Delete the transaction record of an application or query. Return the record, or None if there was none.

        A version that is published again afterwards may be in the log twice, because only the log's last 128 publishes
        are then remembered. Raises MetadataUnavailableError, and MetadataConflictError if the log changes too fast.
        """
        await self.head()  # checks the password
        with audited("forget-transactions", log=self.name, application=app_id):
            return await asyncio.to_thread(self._store.forget_transactions, app_id)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def end_offset(self) -> int:
        """Return the offset after the last readable entry. The sealed extents are readable, and so is the first open
        extent up to its LAC."""
        return await self._reading.readable_end((await self.head()).value)

    def read(self, start_offset: int, end_offset: int) -> BatchIterator[OffsetBatch]:
        """Read the entries ``start_offset`` to ``end_offset`` − 1, in order. Each item is a pair of the offset of a
        batch's first entry and the batch.

        Raises InvalidArgumentError for offsets beyond :meth:`end_offset`, NoSuchEntryError for entries that were
        trimmed or lost, and EntryUnreadableError.
        """
        return BatchIterator(self._read(start_offset, end_offset))

    async def _read(self, start_offset: int, end_offset: int) -> AsyncGenerator[OffsetBatch, None]:
        head = (await self.head()).value
        end_offset = await self._checked_end(head, start_offset, end_offset)
        extents = await asyncio.to_thread(self._store.extents, head, start_offset, end_offset)
        async with aclosing(self._reading.read(extents, start_offset, end_offset)) as batches:
            async for found in batches:
                yield found

    async def _checked_end(self, head: LogHead, start: int, end: int | None) -> int:
        """Check the range of a read, and return its end. If ``end`` is None, this is the end of the readable entries.
        Raises InvalidArgumentError for offsets that cannot be read, and NoSuchEntryError for offsets that were
        trimmed."""
        is_known = end is not None and end <= head.next_offset
        readable = head.next_offset if is_known else await self._reading.readable_end(head)
        stop = readable if end is None else end
        if not 0 <= start <= stop <= readable:
            raise InvalidArgumentError(
                f"offsets {start} to {stop} of log {self.name} cannot be read",
                value=f"readable: {head.start_offset} to {readable}",
                remedy="end_offset() says what is readable now",
            )
        check_not_trimmed(start, head, self.name)
        return stop

    def tail(self, from_offset: int) -> BatchIterator[OffsetBatch]:
        """Read every entry from ``from_offset`` on, as soon as it is readable, across rolls and takeovers, without end.
        A tail never fences. Raises NoSuchLogError, NoSuchEntryError, LogRecreatedError, LogOverwrittenError."""
        return BatchIterator(self._tail(from_offset))

    async def _tail(self, from_offset: int) -> AsyncGenerator[OffsetBatch, None]:
        head = (await self.head()).value
        async with aclosing(self._reading.tail(from_offset, head)) as batches:
            async for found in batches:
                yield found

    # --- columns -----------------------------------------------------------------------------------------------------

    async def to_arrow(
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
        return await (await self._scan(start, end, columns, where, codec, schema)).table()

    async def record_batch_reader(
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
        return (await self._scan(start, end, columns, where, codec, schema)).reader(self._bookkeeper)

    async def _scan(
        self,
        start: int | None,
        end: int | None,
        columns: Sequence[str] | None,
        where: Sequence[Condition] | None,
        codec: str | None,
        schema: Schema | None,
    ) -> LogScan:
        from bk_core.logs.arrow.reading import LogScan, WantedColumns  # needs pyarrow

        head = (await self.head()).value
        first = head.start_offset if start is None else start
        stop = await self._checked_end(head, first, end)
        wanted = WantedColumns(columns=columns, where=where, codec=codec, schema=schema)
        return await LogScan.plan(self._store, self._reading, head, first, stop, wanted)

    async def append_arrow(
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
        from bk_core.logs.arrow.writing import RowsToWrite, write_ledger  # needs pyarrow

        head = await self._head_to_append(digest_type)
        known = {} if head is None else await asyncio.to_thread(self._store.schemas, head)
        newest = known[max(known)] if known else None
        rows = RowsToWrite(
            table, self.name, newest, merge_schema=merge_schema, compression=compression, entry_bytes=max_entry_bytes
        )
        if head is None:  # only now, so that refused rows create no log
            found, created = await self.open_or_create(digest_type=digest_type)
            head = found.value
            if created:
                logger.warning("created log %s", self.name)
        publish_id = PublishId.job(str(uuid4()))
        sizes = ensemble_size, write_quorum_size, ack_quorum_size
        extent = await write_ledger(self._bookkeeper, self.name, head, rows, publish_id, sizes, self._password)
        options = PublishOptions(schema=rows.schema, merge_schema=merge_schema)
        published = await self.publish([] if extent is None else [extent], publish_id, options)
        return range(published.base_offset, published.base_offset + (0 if extent is None else extent.entry_count))

    async def _head_to_append(self, digest_type: DigestType | None) -> LogHead | None:
        """Check that rows of codec ``arrow`` can be published to the log, and return its head. Return None if there is
        no log of this name yet."""
        try:
            head = (await self.head()).value
        except NoSuchLogError:
            return None
        check_digest_type(f"log {self.name}", head.digest_type, digest_type)
        commit.check_unpublished(head, ())
        written = await self.newest_codec(head)
        if written not in (None, ARROW):
            raise InvalidArgumentError(
                f"log {self.name} is written with another codec: only raw, as bytes, would read all of it",
                value=f"codec={ARROW}, the log's is {written}",
                remedy="append to another log",
            )
        return head

    async def newest_codec(self, head: LogHead) -> str | None:
        """Return the codec of the newest rows that ``head`` lists. If there are no rows, return ``arrow`` for a log
        with a schema, else None."""
        newest = []
        if head.next_offset > head.start_offset:
            newest = await asyncio.to_thread(self._store.extents, head, head.next_offset - 1, head.next_offset)
        if newest:
            return newest[-1].codec
        return ARROW if head.schemas else None

    # --- leading -----------------------------------------------------------------------------------------------------

    async def lead(
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
        options = LeadOptions(
            roll_bytes=roll_bytes,
            roll_age_s=roll_age_s,
            still_leader=still_leader,
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum_size,
            ack_quorum_size=ack_quorum_size,
            codec=codec,
        )
        await options.check_bookies(self._bookkeeper)
        head, created = await self.open_or_create(digest_type=digest_type)
        leader = LogLeader(self._bookkeeper, self._store, head.value, self._password, options)
        leader.created = created
        await leader.take_over()
        return leader


async def publish_to_logs(
    bookkeeper: BookKeeper,
    ledgers: Mapping[str, Sequence[NewExtent]],
    publish_id: PublishId,
    *,
    password: bytes = b"",
    options: PublishOptions = APPEND,
) -> dict[str, Published]:
    """List closed ledgers, given by the name of their log, at the end of each log, all or none, once for each
    ``publish_id``. ``options`` are those of :meth:`NamedLog.publish`, and hold for all logs.

    A publish that happened before is not repeated, and the call returns it (N4). Its base offset is −1 in a log that
    does not remember it. Raises NoSuchLogError, WrongPasswordError, the errors of :meth:`NamedLog.publish`, with the
    log's name, and InvalidArgumentError for ``takeover``, for more than 100 logs, or for records that do not fit into
    one step. TransactionReplayDiffersError is raised also if the version was published to other logs. After an error
    nothing was published, unless the outcome is UNKNOWN: then publish the same again, and delete nothing.
    """
    if options.takeover:
        raise InvalidArgumentError(
            "a publish into several logs fences none of their leaders",
            value="takeover=True",
            remedy="stop the leaders, or publish with takeover into each log first, without ledgers",
        )
    change = HeadChange(publish_among(ledgers, publish_id, now_ms=_now_ms(), nonce=nonce, options=options))
    for number, name in enumerate(ledgers):  # checks that it exists, and the password; one sync is enough
        await NamedLog(bookkeeper, name, password=password).head(sync=not number)
    logs = [LogStore(bookkeeper.store, name, bookkeeper.tell_deleted) for name in ledgers]
    with ExitStack() as audit:
        for name in ledgers if options.overwrite else ():
            audit.enter_context(audited("overwrite-log", log=name, publish=publish_id.text))
        found = await Answers.of(bookkeeper, logs, password).carry_out(change.run())
    if not change.was_attempted:
        rows = sum(each.rows for extents in ledgers.values() for each in extents)
        logger.warning("%d logs already have %s: %d rows are skipped", len(ledgers), publish_id.text, rows)
    return found


def check_delays(delete_delay_ms: int, txn_retention_ms: int, force: bool) -> None:
    """Raise InvalidArgumentError for delays that :meth:`NamedLog.vacuum` refuses."""
    if delete_delay_ms < 0 or (delete_delay_ms < DELETE_DELAY_MS and not force):
        raise InvalidArgumentError(
            "ledgers of running jobs might be deleted",
            value=f"delete_delay_ms={delete_delay_ms}",
            remedy="take 7 days or more, or force it if no job is running",
        )
    if txn_retention_ms < 0 or (txn_retention_ms < TXN_RETENTION_MS and not force):
        raise InvalidArgumentError(
            "a transaction might be forgotten and published again",
            value=f"txn_retention_ms={txn_retention_ms}",
            remedy="take 30 days or more, or force it if no query or job will publish an old version again",
        )


def _now_ms() -> int:
    return int(time.time() * 1000)
