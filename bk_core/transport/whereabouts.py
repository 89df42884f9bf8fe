# SPDX-License-Identifier: Apache-2.0
"""Remembers the addresses of bookies, and finds a bookie that has moved.

A bookie keeps its id and may return at another address. So a failed connection, or a refusal by the process at that
address, proves nothing about the bookie until its registration has been looked up again (P3, L1).

A search for a bookie begins with the first connection that fails, and ends when a connection succeeds. The longer a
search takes, the longer the pauses between its look-ups are, so that lost bookies do not load the metadata store.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import NamedTuple, TypeAlias, TypeVar

from bk_core.errors import BookKeeperError
from bk_core.model import BookieId, BookieServiceInfo, Endpoint

logger = logging.getLogger(__name__)

LookUp: TypeAlias = Callable[[BookieId], BookieServiceInfo | None]
"""A function that reads the current registration of a bookie, and returns None if there is none. It blocks, and raises
BookKeeperError."""

PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 10.0
"""The shortest and the longest pause between two look-ups of a bookie, in seconds. Between these limits a pause is a
tenth of the time for which the bookie has been searched. So a writer looks the bookie up a dozen times within the two
seconds of its reconnect budget."""

LOOK_UP_S_MAX = 1.0
"""The number of seconds that a connection waits for a look-up. A metadata store that takes longer is unavailable, and a
writer has only two seconds in all."""

SILENT_S = 0.25
"""The number of seconds without an answer to a new connection after which the bookie is looked up, repeatedly.
Packets to a lost host are dropped, so a connection to it would otherwise use up the whole connect timeout."""

T = TypeVar("T")


class At(NamedTuple):
    """The registration of a bookie, with the endpoint that a link uses."""

    info: BookieServiceInfo
    endpoint: Endpoint


class _Search:
    """The search for one bookie that cannot be reached. Times are by the loop's clock."""

    def __init__(self, now: float) -> None:
        self.began = self.next_at = now
        self.asked_at = 0.0
        self.asking: asyncio.Task[None] | None = None


class Whereabouts:
    """Holds the bookies' registrations for one client, and looks up those of bookies that cannot be reached. Without
    ``look_up`` it has only the registrations given to :meth:`update`."""

    def __init__(self, look_up: LookUp | None, endpoint_of: Callable[[BookieServiceInfo], Endpoint | None]) -> None:
        self._look_up, self._endpoint_of = look_up, endpoint_of
        self._infos: dict[BookieId, BookieServiceInfo] = {}
        self._searches: dict[BookieId, _Search] = {}
        self._doubted: set[BookieId] = set()
        self._asking: set[asyncio.Task[None]] = set()

    def update(self, infos: Iterable[BookieServiceInfo]) -> None:
        self._infos.update((info.bookie_id, info) for info in infos)

    def get(self, bookie_id: BookieId) -> BookieServiceInfo | None:
        return self._infos.get(bookie_id)

    def reached(self, bookie_id: BookieId) -> None:
        """End the search for the bookie. A connection to it has succeeded."""
        self._searches.pop(bookie_id, None)

    def broke(self, bookie_id: BookieId) -> None:
        """Note that a link to the bookie broke, because another bookie may answer at its address next."""
        self._doubted.add(bookie_id)

    async def checked(self, at: At) -> At:
        """Return the registration and endpoint to connect to, for a wire on which a bookie does not send its id. After
        a link broke, look up the registration before its address is used again (L1), even if it was looked up a moment
        ago."""
        bookie_id = at.info.bookie_id
        if bookie_id not in self._doubted:
            return at
        self._doubted.discard(bookie_id)
        search = self._searches.get(bookie_id)
        if search is not None and search.asking is None:
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(min(search.next_at - now, LOOK_UP_S_MAX))
            search.next_at = min(search.next_at, asyncio.get_running_loop().time())
        return await self.moved(at) or at

    async def moved(self, at: At) -> At | None:
        """Return the present registration and endpoint of a bookie that was not reached at ``at``. Return None if they
        are the same, if the bookie is not registered or now offers another lane, or if the look-up gave no answer."""
        bookie_id = at.info.bookie_id
        if self._infos.get(bookie_id) == at.info and self._look_up is not None:
            await self._looked_up(bookie_id, self._look_up)
        info = self._infos.get(bookie_id)
        if info is None or info == at.info:
            return None
        endpoint = self._endpoint_of(info)
        if endpoint is None or endpoint.protocol != at.endpoint.protocol:
            return None
        if (old := at.endpoint.where) != (new := endpoint.where):
            logger.info("bookie %s is registered at %s now, not at %s", bookie_id, new, old)
        return At(info, endpoint)

    async def _looked_up(self, bookie_id: BookieId, look_up: LookUp) -> None:
        """Return once the bookie was looked up. Do not wait if a look-up is not due, or has already taken too long."""
        now = asyncio.get_running_loop().time()
        search = self._searches.setdefault(bookie_id, _Search(now))
        if search.asking is None and now >= search.next_at:
            search.asked_at = now
            search.asking = asyncio.create_task(self._ask(bookie_id, look_up, search), context=contextvars.Context())
            self._asking.add(search.asking)
            search.asking.add_done_callback(self._asking.discard)
        if search.asking is not None:
            await asyncio.wait([search.asking], timeout=max(0.0, search.asked_at + LOOK_UP_S_MAX - now))

    async def _ask(self, bookie_id: BookieId, look_up: LookUp, search: _Search) -> None:
        try:
            info = await asyncio.to_thread(look_up, bookie_id)
        except BookKeeperError as error:
            logger.debug("bookie %s could not be looked up: %s", bookie_id, error)
        else:
            if info is not None:
                self._infos[bookie_id] = info
        finally:
            now = asyncio.get_running_loop().time()
            search.next_at = now + min(max((now - search.began) / 10, PAUSE_S_MIN), PAUSE_S_MAX)
            search.asking = None

    async def close(self) -> None:
        """End all look-ups."""
        for asking in self._asking:
            asking.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)


async def reach(
    at: At,
    attempt: Callable[[At], Coroutine[None, None, T]],
    *,
    reached: Callable[[], bool],
    moved: Callable[[At], Coroutine[None, None, At | None]],
) -> T:
    """Attempt to connect. If the bookie has moved, attempt again at its new address, until ``reached`` is true. Return
    the result of the last attempt or raise its error. ``moved`` finds the new address; it is called when an attempt
    fails, and while an attempt has no answer."""
    while True:
        trying = asyncio.ensure_future(attempt(at))
        try:
            found = None
            while found is None:
                await asyncio.wait([trying], timeout=SILENT_S)
                found = None if reached() else await moved(at)
                if reached() or (found is None and trying.done()):
                    return await trying
            at = found
        finally:
            trying.cancel()
            await asyncio.wait([trying])
            if not trying.cancelled():
                trying.exception()  # marks the error as retrieved; the next attempt counts
