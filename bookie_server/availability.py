# SPDX-License-Identifier: Apache-2.0
"""Writable or read-only: looks at the disk now and then, tells the machine, and moves the registration to match.

Each look also notes in the store how far the log goes (RULES S8). And it is where a bookie notices that another data
directory has been registered under its id (a copy of its own that was started while its session was lost): two that
answer for one id may lie for each other, so it ends.

The registration follows the verdict and never leads it: a client that still finds this bookie among the writable ones
is refused with READ_ONLY. What the metadata store refuses is tried again at the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from bk_core.errors import BookieIdentityError, BookKeeperError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieServiceInfo
from bookie_server.registration import Position, record_position
from bookie_server.storage.commit import SegmentLog
from bookie_server.storage.cookie import DataDirectory
from bookie_server.storage.space import SpaceWatch, Usage

log = logging.getLogger(__name__)


def usage_of(directory: DataDirectory, segment_log: SegmentLog) -> Usage:
    """The file system of a data directory as it is now. Blocks; raises OSError."""
    return Usage(directory.total_bytes(), directory.free_bytes(), segment_log.pool.kept_bytes)


class Availability:
    """Of one bookie; used on its loop. ``look`` and the store's calls block and run on other threads.

    ``position`` is the end of what is durable in the log. ``set_read_only`` tells the machine; ``on_failed`` hears a
    BookieIdentityError once, when the id was taken over.
    """

    def __init__(
        self,
        look: Callable[[], Usage],
        watch: SpaceWatch,
        store: MetadataStore,
        info: BookieServiceInfo,
        *,
        interval_s: float,
        position: Callable[[], Position],
        set_read_only: Callable[[bool], None],
        on_failed: Callable[[BookKeeperError], None],
    ) -> None:
        self._look, self._watch, self._store, self._info = look, watch, store, info
        self._interval_s, self._set_read_only, self._on_failed = interval_s, set_read_only, on_failed
        self._position, self._noted = position, (0, 0)
        self._registered: bool | None = None  # as read-only; None: not at all
        self._ending = False
        self._soon = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def read_only(self) -> bool:
        """Whether new entries are refused now."""
        return self._watch.read_only

    async def begin(self) -> None:
        """Tell the machine, register, then look at every interval. Raises what ``register_bookie`` raises; then
        nothing goes on."""
        self._announce()
        self._set_read_only(self.read_only)
        await self._register()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def no_space(self) -> None:
        """A commit found no space: read-only from this moment on."""
        if self._watch.no_space():
            self._apply()
        self.look_soon()

    def look_soon(self) -> None:
        """Much space may have gone: look now, not only at the next interval."""
        self._soon.set()

    async def end(self) -> None:
        """Look no more and take the registration back. What the store refuses then ends with the session."""
        if self._task is None:
            return
        self._ending = True
        self._soon.set()
        await self._task  # not cancelled: a registration under way would be made after it was taken back
        self._task = None
        try:
            await self._note_position()
            await asyncio.to_thread(self._store.unregister_bookie, self._info.bookie_id)
        except BookKeeperError as error:
            log.warning("could not unregister: %s", error)

    async def _run(self) -> None:
        while not self._ending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._soon.wait()
            self._soon.clear()
            if self._ending:
                return
            try:
                if self._watch.look(await asyncio.to_thread(self._look)):
                    self._apply()
                await self._check_registration()
                if self._registered is not self.read_only:
                    await self._register()
                await self._note_position()
            except BookieIdentityError as error:
                self._on_failed(error)
                return
            except (BookKeeperError, OSError) as error:
                log.error("the bookie's space or registration could not be looked at, trying again: %s", error)

    def _apply(self) -> None:
        self._announce()
        self._set_read_only(self.read_only)

    def _announce(self) -> None:
        if self.read_only:
            log.warning(
                "bookie %s is read-only: %s; it serves reads, fences and recovery, and takes new entries again when "
                "space came back (delete ledgers, or make the disk larger)",
                self._info.bookie_id, self._watch.why,
            )  # fmt: skip
        else:
            log.info("bookie %s takes new entries", self._info.bookie_id)

    async def _register(self) -> None:
        read_only = self.read_only
        await asyncio.to_thread(self._store.register_bookie, self._info, read_only=read_only)
        self._registered = read_only

    async def _note_position(self) -> None:
        """Have the store know how far the log goes, so that a snapshot from before is not taken for it (RULES S8)."""
        position = self._position()
        if position > self._noted:
            await asyncio.to_thread(record_position, self._store, self._info.bookie_id, position)
            self._noted = position

    async def _check_registration(self) -> None:
        """Raises BookieIdentityError if another directory is registered under this id."""
        found = await asyncio.to_thread(self._store.bookie_info, self._info.bookie_id)
        if found is not None and not found.is_of_directory_of(self._info):
            raise BookieIdentityError(
                "another data directory has been registered under this bookie's id: this one answers nothing more",
                value=f"bookie {self._info.bookie_id}",
                remedy="find out which directory was used last; only that one may be started under this id",
            )
