# SPDX-License-Identifier: Apache-2.0
"""Follows ledgers and logs on the client's loop for :mod:`bk_spark.stream.watch`. It never fences, and wakes as soon as
an entry is confirmed. Each source has a task of its own, so trouble with one source does not delay another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bk_core.errors import EntryUnreadableError, NoSuchLedgerError, NoSuchLogError
from bk_core.logs.model.head import Extent, LogHead
from bk_spark.options.options import BkOptions
from bk_spark.options.selection import LedgerSource, LogSource, PatternSelection, Source
from bk_spark.plan.ledgers import OpenLedger, check_digest, digest_type_of
from bk_spark.plan.packing import Span
from bk_spark.stream.log_spans import LogSpans
from bk_spark.stream.positions import Reading, SourceSeen
from bk_spark.stream.watch import TRANSIENT, Begin, Board, Run, WatchTimes
from bk_spark.workers import clients

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.metadata.port import CancelWatch

HEAD_READS_PER_S = 20
"""The number of heads that are read again per second, over all logs. With many logs each head is read less often."""
REFINE_S = 0.2
"""The seconds until a follower looks again at a log with pages that the stream may reach soon. Before the stream gets
there, the follower reads from them the sizes of the next entries."""


def begin_following(options: BkOptions, reading: Reading) -> Begin:
    """Return the function with which a :class:`~bk_spark.stream.watch.Watch` begins to follow the stream's sources.
    ``reading`` has the stream's positions."""

    def begin(times: WatchTimes) -> tuple[Board, Run]:
        bookkeeper = clients.client(options)
        board = Board(bookkeeper.instance_id, times)
        return board, bookkeeper.begin(lambda inner: Followers(inner, options, board, times, reading).run())

    return begin


class Followers:
    """Follows all sources of one stream."""

    def __init__(
        self, bookkeeper: BookKeeper, options: BkOptions, board: Board, times: WatchTimes, reading: Reading
    ) -> None:
        self._bookkeeper, self._options, self._board = bookkeeper, options, board
        self._times, self._reading = times, reading
        self._tasks: dict[Source, asyncio.Task[None]] = {}
        self._settled: set[Source] = set()  # closed ledgers: nothing new will come

    async def run(self) -> None:
        """Follow until the board has had no caller for a while, or until an error that will not pass."""
        try:
            while self._board.goes_on():
                await self._look_for_sources()
                await asyncio.sleep(min(self._times.list_s, self._times.idle_s))
        except Exception as error:
            self._board.fail(error)
        finally:
            self._board.end()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _look_for_sources(self) -> None:
        try:
            wanted = await self._sources()
        except TRANSIENT as error:
            self._board.trouble(None, error)
            return
        self._board.expect(wanted)
        for source in wanted:
            task = self._tasks.get(source)
            if source not in self._settled and (task is None or task.done()):
                self._tasks[source] = asyncio.create_task(self._follow(source))

    async def _sources(self) -> tuple[Source, ...]:
        selection = self._options.selection
        if not isinstance(selection, PatternSelection):
            sources: tuple[Source, ...] = selection.sources  # type: ignore[union-attr]  # a column is for writes only
            return sources
        names = await asyncio.to_thread(self._bookkeeper.store.list_logs)
        listed = {LogSource(name) for name in names if selection.matches(name)}
        return tuple(sorted(listed | self._reading.positions.keys()))

    async def _follow(self, source: Source) -> None:
        """Follow one source until it is settled or gone."""
        confirmed = False
        while True:
            try:
                await self._follower(source)
                self._settled.add(source)
                return
            except (NoSuchLogError, NoSuchLedgerError) as error:
                if confirmed or source not in self._reading.positions:
                    self._board.gone(source, error)
                    return
                confirmed = await self._is_synced(source)  # a metadata server that is behind may not have it yet
                continue
            except TRANSIENT as error:
                self._board.trouble(source, error)
            except Exception as error:
                self._board.fail(error)
                return
            await asyncio.sleep(self._times.retry_s)

    async def _is_synced(self, source: Source) -> bool:
        """Bring the metadata server that answers up to date. Return whether that succeeded."""
        try:
            await asyncio.to_thread(self._bookkeeper.store.sync)
        except TRANSIENT as error:
            self._board.trouble(source, error)
            await asyncio.sleep(self._times.retry_s)
            return False
        return True

    def _follower(self, source: Source) -> Coroutine[Any, Any, None]:
        if isinstance(source, LedgerSource):
            return FollowedLedger(self._bookkeeper, self._options, source, self._board).run()
        age_s = max(self._times.head_age_s, len(self._tasks) / HEAD_READS_PER_S)
        return FollowedLog(self._bookkeeper, self._options, source, self._board, self._reading, age_s).run()


class FollowedLedger:
    """Follows a bare ledger. A closed ledger does not grow, so no reader of it is kept open."""

    def __init__(self, bookkeeper: BookKeeper, options: BkOptions, source: LedgerSource, board: Board) -> None:
        self._bookkeeper, self._options, self._source, self._board = bookkeeper, options, source, board
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow until the ledger is closed. Raises NoSuchLedgerError, WrongPasswordError, WrongDigestTypeError, and
        errors that may pass."""
        options, ledger_id = self._options, self._source.ledger_id
        metadata = (await self._bookkeeper.read_metadata(ledger_id)).value
        if metadata.is_closed:
            self._bookkeeper.digester_of(ledger_id, metadata, options.ledger_password, digest_type_of(options))
            self._note(metadata.last_entry_id + 1, metadata.length, is_open=False)
            return
        tail = OpenLedger(self._bookkeeper, options, ledger_id, self._changed)
        try:
            await tail.open()
            while True:
                self._changed.clear()
                tail.check()
                end, is_open = tail.next_entry, not tail.reader.is_closed
                self._note(end, tail.bytes_of(end), is_open=is_open)
                if not is_open:
                    return
                if tail.needs_estimate:
                    await tail.estimate()
                    continue
                await self._changed.wait()
        finally:
            await tail.close()

    def _note(self, end: int, size: int, *, is_open: bool) -> None:
        spans = (Span(0, end, size),) if end else ()
        self._board.note(self._source, SourceSeen(0, end, spans, None, is_open))


class FollowedLog:
    """Follows a named log: its head by a watch, its open extent by the LAC. Readers never pass an unsealed extent
    (RULES N2), so at most one ledger is open here."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        options: BkOptions,
        source: LogSource,
        board: Board,
        reading: Reading,
        head_age_s: float,
    ) -> None:
        from bk_core.logs.named_log import NamedLog

        self._bookkeeper, self._options, self._source, self._board = bookkeeper, options, source, board
        self._reading, self._head_age_s = reading, head_age_s
        self._log = NamedLog(bookkeeper, source.name, password=options.ledger_password)
        self._spans = LogSpans(bookkeeper.store, source.name, 2 * options.max_bytes_per_trigger)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._head_changed = True
        self._head: LogHead | None = None
        self._read_at = 0.0
        self._open: tuple[Extent, OpenLedger] | None = None

    async def run(self) -> None:
        """Follow until the log is deleted. Raises NoSuchLogError then, and what opening and waiting raise."""
        cancel = None
        try:
            cancel = await self._set_watch()
            while True:
                await self._turn()
        except NoSuchLedgerError as error:  # the open extent's ledger: a new head will list what follows it
            raise EntryUnreadableError(
                f"the open ledger of {self._source} is gone", value=str(error.value), remedy="bk log show"
            ) from error
        finally:
            if cancel is not None:
                cancel()
            await self._close_open()

    async def _turn(self) -> None:
        self._changed.clear()
        await self._look()
        if self._open is not None and self._open[1].needs_estimate:
            await self._open[1].estimate()
            self._note()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s()):
                await self._changed.wait()

    async def _set_watch(self) -> CancelWatch:
        from bk_core.logs.store import LogStore

        store = LogStore(self._bookkeeper.store, self._source.name)
        try:
            return await asyncio.to_thread(store.store.watch_log, self._source.name, lambda _: self._on_head())
        except NoSuchLogError:
            await asyncio.to_thread(store.read)  # this error names the nearest logs
            raise

    def _on_head(self) -> None:
        """Wake the follower, because the head has changed. The store calls this on a thread of its own."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._head_changed = True
        self._changed.set()

    async def _look(self) -> None:
        if self._head_changed or self._loop.time() - self._read_at >= self._head_age_s:
            self._head_changed = False
            await self._read_head()
            self._read_at = self._loop.time()
        else:
            assert self._head is not None
            await self._spans.update(self._head, self._reading.positions.get(self._source))
        self._note()

    def _note(self) -> None:
        head = self._head
        assert head is not None
        end, spans = head.next_offset, self._spans.sealed
        is_open = False
        if self._open is not None:
            extent, tail = self._open
            tail.check()
            is_open = not tail.reader.is_closed
            readable = max(0, tail.next_entry - extent.first_entry_id)
            if readable:
                spans = (*spans, Span(end, end + readable, tail.bytes_of(tail.next_entry)))
                end += readable
        self._board.note(self._source, SourceSeen(head.start_offset, end, spans, head, is_open))

    def _pause_s(self) -> float:
        assert self._head is not None
        if self._spans.is_short(self._head, self._reading.positions.get(self._source)):
            return REFINE_S
        return self._head_age_s

    async def _read_head(self) -> None:
        head = (await self._log.head(sync=False)).value  # without sync: the watch reports each change
        check_digest(self._options, self._source, head.digest_type)
        await self._spans.update(head, self._reading.positions.get(self._source))
        first = head.open_extents[0] if head.open_extents else None
        if self._open is not None and (first is None or self._open[0].ledger_id != first.ledger_id):
            await self._close_open()
        if first is not None:
            tail = self._open[1] if self._open is not None else await self._open_tail(first)
            self._open = first, tail
        self._head = head

    async def _open_tail(self, extent: Extent) -> OpenLedger:
        tail = OpenLedger(self._bookkeeper, self._options, extent.ledger_id, self._changed)
        try:
            await tail.open()
        except BaseException:
            await tail.close()
            raise
        return tail

    async def _close_open(self) -> None:
        if self._open is not None:
            opened, self._open = self._open, None
            await opened[1].close()
