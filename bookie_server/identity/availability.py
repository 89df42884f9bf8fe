# SPDX-License-Identifier: Apache-2.0
"""Decides when the bookie is writable: checks the disk at intervals, passes the result to the machine and updates the
registration.

Each check also notes in the store how far the log is durable (RULES S8). And it checks whether another data directory
was registered under this bookie's id, such as a copy that was started while the session was lost. Two directories under
one id could answer wrongly for each other, so then the bookie ends.

An operator may have ordered the bookie to be read-only, or to drain (decision 0051). The order is in the store, so that
a restart honours it. It is read before the first registration and at least every ``ORDER_LOOK_S``.

The machine always gets a change before the registration: a client that still finds this bookie among the writable ones
is refused with READ_ONLY. If the metadata store refuses a call, the next check repeats it. The next check also restores
a missing registration, even if another process removed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from bk_core.errors import BookieIdentityError, BookKeeperError, LocalProtocolError, MetadataCorruptError
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import Order
from bk_core.model import BookieServiceInfo
from bookie_server.identity.known_state import Position, record_positions
from bookie_server.storage.disk.space import SpaceWatch, Usage

logger = logging.getLogger(__name__)

ORDER_LOOK_S = 2.0
"""The maximum time between two reads of the order, in seconds. It is short because an operator waits for the effect."""

BY_ORDER = {Order.READ_ONLY: "set by hand", Order.DRAIN: "it is being drained"}


class Availability:
    """The availability of one bookie; used on its loop. ``look`` and the calls to the store block, so they run on other
    threads.

    Each data directory is judged alone; ``set_read_only`` passes the result for its log to the machine. The bookie is
    registered as read-only when all directories are. ``watches``, ``paths`` and the result of ``look`` have the order
    of the logs. ``positions`` returns the end of the durable data of each directory, by the directory's incarnation.

    ``on_failed`` is called once, with the error that ends this bookie: BookieIdentityError when its id was taken over,
    or LocalProtocolError when a check failed unexpectedly, because a bookie whose space is not watched fills its disk.
    """

    def __init__(
        self,
        look: Callable[[], Sequence[Usage]],
        watches: Sequence[SpaceWatch],
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
        self._ordered = ""  # why the bookie is read-only by order, empty if it is not
        self._registered: bool | None = None  # whether it is registered as read-only; None: not registered
        self._ending = False
        self._soon = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def read_only(self) -> bool:
        return bool(self._ordered) or self._is_full

    @property
    def registered(self) -> bool:
        """Whether a registration was made. It may have been lost since the last check."""
        return self._registered is not None and not self._ending

    @property
    def why_read_only(self) -> str:
        """The reason why the bookie takes no new entries, or empty if it takes them."""
        return "; ".join(filter(None, (self._ordered, self.why_full)))

    @property
    def _is_full(self) -> bool:
        return all(watch.read_only for watch in self._watches)

    @property
    def why_full(self) -> str:
        """The reason why there is no room for new entries, regardless of orders, or empty if there is room."""
        return "; ".join(watch.why for watch in self._watches) if self._is_full else ""

    @property
    def usages(self) -> Sequence[tuple[str, Usage, bool]]:
        """The path of each data directory, its usage at the last check, and whether the directory is read-only."""
        watched = zip(self._paths, self._watches, strict=True)
        return [(path, watch.usage, watch.read_only) for path, watch in watched]

    async def begin(self) -> None:
        """Pass the state to the machine, register, and then check at every interval. Raises the errors of
        ``register_bookie``; then no check follows."""
        await self._read_order()
        self._apply()
        await self._register()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def no_space(self, log_number: int) -> None:
        """Make a directory read-only, because a commit in it found no space."""
        if self._watches[log_number].no_space():
            self._apply()
        self.look_soon()

    def look_soon(self) -> None:
        """Check now instead of at the next interval, because much space may be used up."""
        self._soon.set()

    async def end(self) -> None:
        """Stop checking and remove the registration. If the store refuses, the registration ends with the session."""
        if self._task is None:
            return
        self._ending = True
        self._soon.set()
        await self._task  # not cancelled: a registration under way could be made after this one is removed
        self._task = None
        try:
            await self._note_position()
            await asyncio.to_thread(self._store.unregister_bookie, self._info.bookie_id)
        except BookKeeperError as error:
            logger.warning("could not unregister: %s", error)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        looked_at = loop.time()
        while not self._ending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._interval_s, ORDER_LOOK_S)):
                    await self._soon.wait()
            is_due = self._soon.is_set() or loop.time() - looked_at >= self._interval_s
            self._soon.clear()
            if self._ending:
                return
            looked_at = loop.time() if is_due else looked_at
            try:
                await (self._look_around() if is_due else self._obey())
            except BookieIdentityError as error:
                self._on_failed(error)
                return
            except (BookKeeperError, OSError) as error:
                logger.error("the bookie's space or registration could not be checked, trying again: %s", error)
            except Exception as error:
                logger.exception("checking the bookie's space and registration failed")
                self._on_failed(LocalProtocolError("checking space and registration failed", value=repr(error)))
                return

    async def _look_around(self) -> None:
        usages = await asyncio.to_thread(self._look)
        changed = [watch.look(usage) for watch, usage in zip(self._watches, usages, strict=True)]
        if any(changed):
            self._apply()
        await self._obey()
        if not await self._is_registered():
            await self._register()
        await self._note_position()

    async def _obey(self) -> None:
        if await self._read_order():
            self._apply()
        if self._registered is not self.read_only:
            await self._register()

    def _apply(self) -> None:
        reasons = [self._ordered or watch.why for watch in self._watches]
        before, self._told = self._told, tuple(map(bool, reasons))
        for number, (path, why) in enumerate(zip(self._paths, reasons, strict=True)):
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
                "bookie %s is read-only: %s; it serves reads, fences and recovery, and takes new entries again when %s",
                self._info.bookie_id,
                self.why_read_only,
                f"ordered to (bk bookie read-only {self._info.bookie_id} off)"
                if self._ordered
                else "there is space again (delete ledgers, or make the disk larger)",
            )
        elif not self.read_only and (self._registered is None or all(before)):
            logger.info("bookie %s takes new entries", self._info.bookie_id)

    async def _read_order(self) -> bool:
        """Read the operator's order, and return whether it changed. An order that cannot be decoded counts as
        read-only, which harms nothing and is visible."""
        try:
            found = await asyncio.to_thread(self._store.read_bookie_order, self._info.bookie_id)
        except MetadataCorruptError as error:
            ordered = f"an order that cannot be read ({error.value})"
        else:
            if found is not None and found.order is Order.REMOVED:  # a removed bookie starts again only on purpose
                await asyncio.to_thread(self._store.write_bookie_order, self._info.bookie_id, None)
            ordered = BY_ORDER.get(found.order, "") if found is not None else ""
        before, self._ordered = self._ordered, ordered
        return before != ordered

    async def _register(self) -> None:
        read_only = self.read_only
        await asyncio.to_thread(self._store.register_bookie, self._info, read_only=read_only)
        self._registered = read_only

    async def _note_position(self) -> None:
        """Note in the store how far the logs are durable, so that an older snapshot of a directory is recognised (RULES
        S8)."""
        positions = dict(self._positions())
        if any(position > self._noted.get(name, (0, 0)) for name, position in positions.items()):
            await asyncio.to_thread(record_positions, self._store, self._info.bookie_id, positions)
            self._noted = positions

    async def _is_registered(self) -> bool:
        """Return whether this bookie is registered. Raises BookieIdentityError if another directory is registered under
        its id."""
        found = await asyncio.to_thread(self._store.bookie_info, self._info.bookie_id)
        if found is None:
            logger.error("bookie %s has lost its registration and registers again", self._info.bookie_id)
            return False
        if not found.is_of_directory_of(self._info):
            raise BookieIdentityError(
                "another data directory has been registered under this bookie's id: this one answers nothing more",
                value=f"bookie {self._info.bookie_id}",
                remedy="find out which directory was used last; only that one may be started under this id",
            )
        return True
