# SPDX-License-Identifier: Apache-2.0
"""Opens one ledger for plans and streams: finds its end and its size, and checks its digest type and password. Only
``open_ledger`` with ``recover`` fences."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from bk_core.errors import BookKeeperError, WrongDigestTypeError
from bk_core.model import DigestType
from bk_spark.options.options import BkOptions
from bk_spark.options.selection import Source

if TYPE_CHECKING:
    from bk_core import blocking
    from bk_core.client import BookKeeper, LedgerReader

TAIL_WAIT_S = 30.0
"""The longest time, in seconds, of one wait for the LAC of a ledger. The wait is repeated."""
REESTIMATE_GROWTH = 2
"""The growth factor of an open ledger after which its average entry size is measured again."""


def open_ledger(
    bookkeeper: blocking.BookKeeper, options: BkOptions, ledger_id: int, *, recover: bool = False
) -> blocking.LedgerReader:
    """Open a ledger as it is now, closed or not. ``recover`` fences and closes it first."""
    return bookkeeper.open_ledger(
        ledger_id, recover=recover, password=options.ledger_password, digest_type=digest_type_of(options)
    )


def last_readable(reader: blocking.LedgerReader, options: BkOptions) -> int:
    """Return the last entry of an open or closed ledger that ``readMode`` shows. ``readMode=quorum`` waits for the
    settle time if the ledger has entries above its LAC."""
    if options.read_mode == "quorum":
        return reader.wait_quorum_end(options.quorum_settle_ms)
    return reader.last_add_confirmed


class OpenLedger:
    """A follower of one ledger that may still grow. It tracks the LAC and the average entry size, and sets ``changed``
    when the LAC may have moved and when it stops following."""

    def __init__(self, bookkeeper: BookKeeper, options: BkOptions, ledger_id: int, changed: asyncio.Event) -> None:
        self._bookkeeper, self._options, self._changed = bookkeeper, options, changed
        self.ledger_id = ledger_id
        self._reader: LedgerReader | None = None
        self._task: asyncio.Task[None] | None = None
        self._entries = self._bytes = 0

    async def open(self) -> None:
        """Begin to follow. Raises what opening the ledger raises."""
        options = self._options
        self._reader = await self._bookkeeper.open_ledger(
            self.ledger_id, recover=False, password=options.ledger_password, digest_type=digest_type_of(options)
        )
        await self.estimate()
        self._task = asyncio.create_task(self._wait())

    @property
    def reader(self) -> LedgerReader:
        assert self._reader is not None
        return self._reader

    @property
    def next_entry(self) -> int:
        return self.reader.last_add_confirmed + 1

    def check(self) -> None:
        """Raise the error that ended the waiting, if there is one."""
        if self._task is not None and self._task.done():
            self._task.result()

    def bytes_of(self, entries: int) -> int:
        """Estimate the payload bytes of the first ``entries`` entries."""
        return self._bytes * entries // self._entries if self._entries else 0

    @property
    def needs_estimate(self) -> bool:
        """Whether the ledger has grown much since :meth:`estimate`."""
        return self.next_entry >= max(1, self._entries * REESTIMATE_GROWTH)

    async def estimate(self) -> None:
        entries = self.next_entry  # read first, because the ledger may grow meanwhile
        self._bytes, self._entries = await self.reader.length_to(entries - 1), entries

    async def close(self) -> None:
        """End the watches. Never raises."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._reader is not None:
            with suppress(BookKeeperError):
                await self._reader.close()

    async def _wait(self) -> None:
        try:
            last = self.reader.last_add_confirmed
            while not self.reader.is_closed:
                last = await self.reader.wait_lac(last, TAIL_WAIT_S)
                self._changed.set()
        finally:
            self._changed.set()


def digest_type_of(options: BkOptions) -> DigestType | None:
    """Return option digestType, or None to use the recorded digest type."""
    return None if options.digest_type is None else DigestType[options.digest_type]


def check_digest(options: BkOptions, source: Source, found: DigestType | None) -> None:
    """Check that option digestType does not contradict the source's digest type. Raises WrongDigestTypeError."""
    wanted = digest_type_of(options)
    if wanted is not None and found is not None and wanted is not found:
        raise WrongDigestTypeError(
            f"{source} has another digest type",
            value=f"digestType={wanted.name}, it has {found.name}",
            remedy="leave digestType out",
        )
