# SPDX-License-Identifier: Apache-2.0
"""What a task attempt writes: a ledger of its own for each log that it has rows for, made with the first row.

Several attempts of one partition may run, even at once, and a loser may end after ``commit``. So no two attempts share
a ledger, and a ledger counts only once a log's head names it (RULES N4, N6).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from bk_core import __version__, traces
from bk_core.errors import BookKeeperError, InvalidArgumentError, NoSuchLogError
from bk_core.logs.model.head import LogHead, NewExtent, PublishId, custom_metadata_for
from bk_core.model import DigestType
from bk_spark import codecs
from bk_spark.errors import package_mismatch, see
from bk_spark.options.options import BkOptions
from bk_spark.options.selection import LogSource
from bk_spark.plan import log_ranges
from bk_spark.plan.ledgers import check_digest, digest_type_of
from bk_spark.workers import clients, task_log, worker_reuse
from bk_spark.write import fan_out
from bk_spark.write.commit import WrittenLedgers
from bk_spark.write.joined import Joiner

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper, LedgerWriter
    from bk_core.blocking_logs import NamedLog
    from bk_core.entries.batch import EntryBatch

logger = logging.getLogger("bk_spark.write.log_writer")

JOINED_BYTES_MAX = 8 << 20
"""So many bytes of rows wait for more, in all ledgers of a task together."""


@dataclass(frozen=True, slots=True)
class LogAt:
    """What a task must know about a log to write for it: its ledgers carry the log's uuid and have its digest type."""

    name: str
    uuid: str
    digest_type: DigestType

    @classmethod
    def of(cls, name: str, head: LogHead) -> LogAt:
        return cls(name, head.uuid, head.digest_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget:
    """What every task of a write must know. ``log`` None: the rows name the log."""

    options: BkOptions
    log: LogAt | None
    columns: fan_out.Columns
    codec: codecs.EntryCodec
    version: str = __version__


@dataclass(frozen=True, slots=True)
class Attempt:
    """A task attempt, with what its ledgers' custom metadata says about their purpose."""

    partition: int
    number: int
    publish_id: PublishId
    query_id: str | None = None


def write_rows(target: WriteTarget, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> WrittenLedgers:
    """Write one partition. Its ledgers are closed when this returns; after an error they are deleted, best effort.
    Raises PackageMismatchError, InvalidArgumentError and EntryTooLargeError for rows that cannot be written, naming
    partition and row, and what creating, writing and closing a ledger raises."""
    if target.version != __version__:
        raise package_mismatch(target.version, __version__)
    worker_reuse.settle()
    ledgers = TaskLedgers(target, attempt)
    about = {"partition": attempt.partition, "attempt": attempt.number, "publish_id": attempt.publish_id.text}
    try:
        with (
            traces.operation("spark.write", **about),
            task_log.Writing(batches, attempt.partition, attempt.number) as logged,
        ):
            for batch in logged:
                ledgers.write(batch)
            extents = ledgers.finish()
            logged.ledgers = [extent.ledger_id for _, extent in extents]
        return WrittenLedgers(attempt.partition, attempt.number, extents, target.codec.schema, attempt.query_id)
    except BaseException:
        ledgers.give_up()
        raise


class TaskLedgers:
    def __init__(self, target: WriteTarget, attempt: Attempt) -> None:
        self._target, self._attempt = target, attempt
        self._ledgers: dict[str | None, TaskLedger] = {}
        self._row, self._frame_bytes = 0, clients.client_config(target.options).frame_bytes

    def write(self, rows: pa.RecordBatch) -> None:
        """Queue a batch; waits while the window is full."""
        for log, part in self._target.columns.routed(rows, self._attempt.partition, self._row):
            if part.num_rows:
                ledger = self._of(log)
                ledger.write(part, self._row, min(self._frame_bytes, JOINED_BYTES_MAX // len(self._ledgers)))
        self._row += rows.num_rows

    def _of(self, log: str | None) -> TaskLedger:
        found = self._ledgers.get(log)
        if found is None:
            fan_out.check_count(len(self._ledgers) + 1)
            for other in self._ledgers.values():
                other.send_rest()  # from now on each has a smaller share of what may wait
            found = self._ledgers[log] = TaskLedger(self._target, self._attempt, log)
        return found

    def finish(self) -> tuple[tuple[str, NewExtent], ...]:
        """Close the ledgers and report them, by the names of their logs."""
        found = [(ledger.log.name, ledger.finish()) for ledger in self._ledgers.values()]
        return tuple((log, extent) for log, extent in found if extent is not None)

    def give_up(self) -> None:
        """Stop and delete the ledgers, best effort. Nobody was told of them, so nobody can publish them."""
        for ledger in self._ledgers.values():
            ledger.give_up()


class TaskLedger:
    """One ledger of a task attempt; created with its first entry."""

    def __init__(self, target: WriteTarget, attempt: Attempt, log: str | None) -> None:
        self._target, self._attempt = target, attempt
        self._bookkeeper: BookKeeper | None = None  # set with the ledger
        self._ledger: LedgerWriter | None = None
        self._rows = 0
        self._joiner, self._by_column = Joiner(), log is not None
        if log is None:
            assert target.log is not None
            self.log = target.log
        else:
            options = target.options
            head = clients.patiently(
                options,
                lambda bookkeeper: open_or_create(bookkeeper.log(log, password=options.ledger_password), options),
            )
            self.log = LogAt.of(log, head)

    def write(self, rows: pa.RecordBatch, first_row: int, frame_bytes: int) -> None:
        """Queue rows, to be sent ``frame_bytes`` at a time. Errors count them from ``first_row``, or from the first row
        of this log if a column names it."""
        with self._named():
            for entries in self._target.codec.entries(rows, first_row=self._rows if self._by_column else first_row):
                self._append(entries, frame_bytes)
        self._rows += rows.num_rows

    def send_rest(self) -> None:
        """Send what waits for more."""
        with self._named():
            self._send(self._joiner.rest())

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors say which rows these are."""
        try:
            yield
        except BookKeeperError as error:
            of = f"partition {self._attempt.partition}" + (f", log {self.log.name}" if self._by_column else "")
            error.value = f"{of}, {error.value}" if error.value else of
            raise

    def _send(self, batches: Iterator[EntryBatch]) -> None:
        for batch in batches:
            assert self._ledger is not None
            self._ledger.append_batch(batch)

    def _append(self, entries: EntryBatch, frame_bytes: int) -> None:
        if entries.count:
            if self._ledger is None:
                self._ledger = clients.patiently(self._target.options, self._create)
            self._send(self._joiner.add(entries, frame_bytes))

    def finish(self) -> NewExtent | None:
        """Close the ledger and report it; None without entries."""
        ledger, options = self._ledger, self._target.options
        if ledger is None:
            return None
        self.send_rest()
        ledger.close()
        metadata = ledger.metadata
        return NewExtent(
            ledger_id=ledger.ledger_id,
            entry_count=ledger.last_add_confirmed + 1,
            size_bytes=ledger.length,
            created_ms=metadata.ctime_ms or int(time.time() * 1000),
            codec=options.codec,
            ensemble_size=options.ensemble_size,
            write_quorum_size=options.write_quorum_size,
            ack_quorum_size=options.ack_quorum_size,
            fragments=metadata.fragments,
            row_count=None if self._target.codec.schema is None else self._rows,
        )

    def give_up(self) -> None:
        """Stop and delete the ledger, best effort."""
        if self._ledger is None:
            return
        assert self._bookkeeper is not None
        try:
            self._ledger.abandon()
            self._bookkeeper.delete_ledger(self._ledger.ledger_id)
        except BookKeeperError as error:
            logger.warning("ledger %d of a failed task stays until vacuum: %s", self._ledger.ledger_id, error)

    def _create(self, bookkeeper: BookKeeper) -> LedgerWriter:
        options, attempt = self._target.options, self._attempt
        self._bookkeeper = bookkeeper
        return bookkeeper.create_ledger(
            ensemble_size=options.ensemble_size,
            write_quorum_size=options.write_quorum_size,
            ack_quorum_size=options.ack_quorum_size,
            digest_type=self.log.digest_type,
            password=options.ledger_password,
            custom_metadata=custom_metadata_for(
                self.log.uuid,
                attempt.publish_id,
                partition=attempt.partition,
                attempt=attempt.number,
                codec=options.codec,
                log_name=self.log.name,
            ),
        )


def open_or_create(log: NamedLog, options: BkOptions) -> LogHead:
    """The head of the log, checked as in :func:`found`; a missing log is made (RULES N8)."""
    at, created = log.open_or_create(digest_type=digest_type_of(options))
    if created:
        logger.warning("created log %s", log.name)
    return _checked(log, at.value, options, overwrite=False)


def found(log: NamedLog, options: BkOptions, *, overwrite: bool, is_missed: bool) -> LogHead | None:
    """The head of a log that can be written to, or None if there is no log yet. Raises LogHasLeaderError if a leader
    writes it, because a publish would put rows in the middle (RULES N2); WrongDigestTypeError; InvalidArgumentError if
    another codec wrote it; NoSuchLogError if it does not exist and ``is_missed``."""
    try:
        head: LogHead = log.head().value
    except NoSuchLogError:
        if is_missed:
            raise
        return None
    return _checked(log, head, options, overwrite=overwrite)


def _checked(log: NamedLog, head: LogHead, options: BkOptions, *, overwrite: bool) -> LogHead:
    check_digest(options, LogSource(log.name), head.digest_type)
    log_ranges.check_no_leader(head, options)
    if not overwrite and not options.mixed_codecs:
        check_same_codec(log.name, log.newest_codec(head), options.codec)
    return head


def check_same_codec(log: str, written: str | None, codec: str) -> None:
    """Raises InvalidArgumentError for a write with another codec than the log's, because afterwards only ``raw`` reads
    it all."""
    if written is not None and written != codec:
        raise InvalidArgumentError(
            f"log {log} is written with another codec; with two in it only raw, as bytes, would read all of it",
            value=f"codec={codec}, the log's is {written}",
            remedy=f'.option("codec", "{written}"), another log, or .option("mixedCodecs", "true") if that is meant; '
            + see("codecs"),
        )
