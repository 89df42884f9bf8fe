# SPDX-License-Identifier: Apache-2.0
"""Writes the rows of a task attempt: for each log into a ledger of its own, or as a few entries in the task's message.

Several attempts of one partition may run, even at once, and a superseded attempt may end after ``commit``. So no two
attempts share a ledger, and a ledger counts only once a log's head names it (RULES N4, N6). Spark drops the messages of
superseded attempts, and with them the entries that they hold.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from bk_core import __version__
from bk_core.errors import BookKeeperError, InvalidArgumentError, NoSuchLogError
from bk_core.logs.model.head import LogHead, NewExtent
from bk_core.observe import traces
from bk_spark import codecs
from bk_spark.errors import package_mismatch, see
from bk_spark.options.options import BkOptions
from bk_spark.options.selection import LogSource
from bk_spark.plan import log_ranges
from bk_spark.plan.ledgers import check_digest, digest_type_of
from bk_spark.workers import clients, task_log, worker_reuse
from bk_spark.write import fan_out, held
from bk_spark.write.held import HeldEntries, LogAt
from bk_spark.write.new_ledger import Attempt, NewLedger
from bk_spark.write.written_ledgers import WrittenLedgers

if TYPE_CHECKING:
    from bk_core.blocking.logs import NamedLog
    from bk_core.entries.batch import EntryBatch

logger = logging.getLogger("bk_spark.write.log_writer")

JOINED_BYTES_MAX = 8 << 20
"""The maximum size, in bytes, of the rows that wait for more rows, in all ledgers of a task together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget:
    """The facts that every task of a write needs. ``log`` is None if the rows name the log."""

    options: BkOptions
    log: LogAt | None
    columns: fan_out.Columns
    codec: codecs.EntryCodec
    version: str = __version__


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
            extents, rest = ledgers.finish()
            logged.ledgers, logged.is_held = [extent.ledger_id for _, extent in extents], bool(rest)
        schema = target.codec.schema
        return WrittenLedgers(attempt.partition, attempt.number, extents, schema, attempt.query_id, rest)
    except BaseException:
        ledgers.give_up()
        raise


class RowRoom:
    """The number of bytes that a task may still hold, in all its logs together."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, size: int) -> bool:
        """Take ``size`` bytes if there is room. Return whether there was."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        self._left += size


class TaskLedgers:
    """The writes of a task attempt to all its logs."""

    def __init__(self, target: WriteTarget, attempt: Attempt) -> None:
        self._target, self._attempt = target, attempt
        self._ledgers: dict[str | None, TaskLedger] = {}
        self._row, self._frame_bytes = 0, clients.client_config(target.options).frame_bytes
        self._room = RowRoom(held.bytes_max(attempt.partition, target.options.small_task_bytes))

    def write(self, rows: pa.RecordBatch) -> None:
        """Queue a batch. Wait while the window is full."""
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
                other.send_rest()  # from now on each may keep a smaller share of waiting rows
            found = self._ledgers[log] = TaskLedger(self._target, self._attempt, log, self._room)
        return found

    def finish(self) -> tuple[tuple[tuple[str, NewExtent], ...], tuple[HeldEntries, ...]]:
        """Close the ledgers. Return them with the names of their logs, and the entries that are held instead."""
        found = [(ledger.log.name, ledger.finish()) for ledger in self._ledgers.values()]
        extents = tuple((log, each) for log, each in found if isinstance(each, NewExtent))
        return extents, tuple(each for _, each in found if isinstance(each, HeldEntries))

    def give_up(self) -> None:
        """Stop and delete the ledgers, best effort. The driver does not know them, so it cannot publish them."""
        for ledger in self._ledgers.values():
            ledger.give_up()


class TaskLedger:
    """The writes of a task attempt to one log: entries that it holds, or a ledger once they are too many."""

    def __init__(self, target: WriteTarget, attempt: Attempt, log: str | None, room: RowRoom) -> None:
        self._target, self._attempt, self._room = target, attempt, room
        self._held: list[EntryBatch] | None = []  # None: the ledger has the entries
        self._rows, self._by_column = 0, log is not None
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
        self._ledger = NewLedger(target.options, self.log, attempt)

    def write(self, rows: pa.RecordBatch, first_row: int, frame_bytes: int) -> None:
        """Queue rows, to be sent ``frame_bytes`` at a time. Errors count them from ``first_row``, or from the first row
        of this log if a column names it."""
        with self._named():
            for entries in self._target.codec.entries(rows, first_row=self._rows if self._by_column else first_row):
                if entries.count:
                    self._append(entries, frame_bytes)
        self._rows += rows.num_rows

    def _append(self, entries: EntryBatch, frame_bytes: int) -> None:
        if self._held is not None:
            if self._room.take(held.size_of(entries)):
                self._held.append(entries)
                return
            given, self._held = self._held, None
            self._room.give_back(sum(map(held.size_of, given)))
            for batch in given:
                self._ledger.append(batch, frame_bytes)
        self._ledger.append(entries, frame_bytes)

    def send_rest(self) -> None:
        """Send the entries that are held back until they fill a frame."""
        with self._named():
            self._ledger.send_rest()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the partition to errors, and the log if a column names it."""
        try:
            yield
        except BookKeeperError as error:
            of = f"partition {self._attempt.partition}" + (f", log {self.log.name}" if self._by_column else "")
            error.value = f"{of}, {error.value}" if error.value else of
            raise

    def finish(self) -> NewExtent | HeldEntries | None:
        """Return the closed ledger or the held entries, or None without entries."""
        if self._held:
            return HeldEntries.of(self.log, self._held, self._rows)
        with self._named():
            return self._ledger.finish(None if self._target.codec.schema is None else self._rows)

    def give_up(self) -> None:
        """Stop and delete the ledger, best effort."""
        self._ledger.give_up()


def open_or_create(log: NamedLog, options: BkOptions) -> LogHead:
    """Return the head of the log, checked as in :func:`found`. Create a missing log (RULES N8)."""
    at, created = log.open_or_create(digest_type=digest_type_of(options))
    if created:
        logger.warning("created log %s", log.name)
    return _checked(log, at.value, options, overwrite=False)


def found(log: NamedLog, options: BkOptions, *, overwrite: bool) -> LogHead | None:
    """Return the head of a log that can be written to, or None if there is no log yet. Raises LogHasLeaderError if a
    leader writes it, because a publish would put rows in the middle (RULES N2), WrongDigestTypeError, and
    InvalidArgumentError if another codec wrote it."""
    try:
        head: LogHead = log.head().value
    except NoSuchLogError:
        return None
    return _checked(log, head, options, overwrite=overwrite)


def _checked(log: NamedLog, head: LogHead, options: BkOptions, *, overwrite: bool) -> LogHead:
    check_digest(options, LogSource(log.name), head.digest_type)
    log_ranges.check_no_leader(head, options)
    if not overwrite and not options.mixed_codecs:
        check_same_codec(log.name, log.newest_codec(head), options.codec)
    return head


def check_same_codec(log: str, written: str | None, codec: str) -> None:
    """Check that a write has the log's codec, because after one with another codec only ``raw`` could read the whole
    log. Raises InvalidArgumentError."""
    if written is not None and written != codec:
        raise InvalidArgumentError(
            f"log {log} is written with another codec, and only codec raw, as bytes, can read a log with two codecs",
            value=f"codec={codec}, the log's is {written}",
            remedy=f'.option("codec", "{written}"), another log, or .option("mixedCodecs", "true") if that is meant; '
            + see("codecs"),
        )
