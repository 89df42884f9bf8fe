# SPDX-License-Identifier: Apache-2.0
"""Writable or read-only: looks at the disk now and then, tells the machine, and moves the registration to match.

Each look also notes in the store how far the log goes (RULES S8). And it is where a bookie notices that another data
directory has been registered under its id (a copy of its own that was started while its session was lost): two that
answer for one id may lie for each other, so it ends.

The registration follows the verdict and never leads it: a client that still finds this bookie among the writable ones
is refused with READ_ONLY. What the metadata store refuses is tried again at the next look, and so is a registration
that is not there, whoever took it away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from bk_core.errors import BookieIdentityError, BookKeeperError, LocalProtocolError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieServiceInfo
from bookie_server.identity.known_state import Position, record_positions
from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.disk.space import SpaceWatches, Usage
from bookie_server.storage.log.segment_log import SegmentLog

logger = logging.getLogger(__name__)


def usage_of(directory: DataDirectory, segment_log: SegmentLog) -> Usage:
    """The file system of a data directory as it is now. Blocks; raises OSError."""
    return Usage(directory.total_bytes(), directory.free_bytes(), segment_log.pool.kept_bytes)


class Availability:
    """Of one bookie; used on its loop. ``look`` and the store's calls block and run on other threads.

    Each data directory is judged alone: ``set_read_only`` tells the machine of its log, and the bookie is registered as
    read-only when all are. ``paths`` and the usages that ``look`` gives have the order of the logs. ``positions`` are
    the ends of what is durable in them, by their directories' incarnations. ``on_failed`` hears once of what ends this
    bookie: BookieIdentityError when the id was taken over, LocalProtocolError when looking failed in a way that nobody
    foresaw, because a bookie that nobody looks after fills its disk.
    """

    def __init__(
        self,
        look: Callable[[], Sequence[Usage]],
        watches: SpaceWatches,
        store: MetadataStore,
        info: BookieServiceInfo,
        *,
        paths: Sequence[str],
        interval_s: float,
        positions: Callable[[], Mapping[str, Position]],
        set_read_only: Callable[[int, bool], None],
        on_failed: Callable[[BookKeeperError], None],
    ) -> None:
        self._look, self._watches, self._store, self._info = look, watches, store, info
        self._interval_s, self._set_read_only, self._on_failed = interval_s, set_read_only, on_failed
        self._paths, self._told = tuple(paths), (False,) * len(paths)
        self._positions, self._noted = positions, dict[str, Position]()
        self._registered: bool | None = None  # as read-only; None: not at all
        self._ending = False
        self._soon = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def read_only(self) -> bool:
        """Whether new entries are refused now."""
        return self._watches.read_only

    async def begin(self) -> None:
        """Tell the machine, register, then look at every interval. Raises what ``register_bookie`` raises; then
        nothing goes on."""
        self._apply()
        await self._register()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def no_space(self, log_number: int) -> None:
        """A commit found no space: this directory is read-only from this moment on."""
        if self._watches.no_space(log_number):
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
            logger.warning("could not unregister: %s", error)

    async def _run(self) -> None:
        while not self._ending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._soon.wait()
            self._soon.clear()
            if self._ending:
                return
            try:
                if self._watches.look(await asyncio.to_thread(self._look)):
                    self._apply()
                if not await self._is_registered() or self._registered is not self.read_only:
                    await self._register()
                await self._note_position()
            except BookieIdentityError as error:
                self._on_failed(error)
                return
            except (BookKeeperError, OSError) as error:
                logger.error("the bookie's space or registration could not be looked at, trying again: %s", error)
            except Exception as error:
                logger.exception("looking after the bookie's space and registration failed")
                self._on_failed(LocalProtocolError("looking after space and registration failed", value=repr(error)))
                return

    def _apply(self) -> None:
        before, self._told = self._told, self._watches.each_read_only
        for number, (path, why) in enumerate(zip(self._paths, self._watches.reasons, strict=True)):
            if why and not before[number] and not self.read_only:
                logger.warning(
                    "%s takes no new entries: %s; those of its own ledgers are refused, new ledgers go to the other "
                    "data directories",
                    path, why,
                )  # fmt: skip
            elif before[number] and not why:
                logger.info("%s takes new entries", path)
            self._set_read_only(number, bool(why))
        if self.read_only and not all(before):
            logger.warning(
                "bookie %s is read-only: %s; it serves reads, fences and recovery, and takes new entries again when "
                "space came back (delete ledgers, or make the disk larger)",
                self._info.bookie_id, "; ".join(self._watches.reasons),
            )  # fmt: skip
        elif not self.read_only and (self._registered is None or all(before)):
            logger.info("bookie %s takes new entries", self._info.bookie_id)

    async def _register(self) -> None:
        read_only = self.read_only
        await asyncio.to_thread(self._store.register_bookie, self._info, read_only=read_only)
        self._registered = read_only

    async def _note_position(self) -> None:
        """Have the store know how far the logs go, so that a snapshot from before is not taken for one (RULES S8)."""
        positions = dict(self._positions())
        if any(position > self._noted.get(name, (0, 0)) for name, position in positions.items()):
            await asyncio.to_thread(record_positions, self._store, self._info.bookie_id, positions)
            self._noted = positions

    async def _is_registered(self) -> bool:
        """Raises BookieIdentityError if another directory is registered under this id."""
        found = await asyncio.to_thread(self._store.bookie_info, self._info.bookie_id)
        if found is None:
            logger.error("bookie %s is not registered any more, it registers again", self._info.bookie_id)
            return False
        if not found.is_of_directory_of(self._info):
            raise BookieIdentityError(
                "another data directory has been registered under this bookie's id: this one answers nothing more",
                value=f"bookie {self._info.bookie_id}",
                remedy="find out which directory was used last; only that one may be started under this id",
            )
        return True
