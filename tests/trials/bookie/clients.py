# SPDX-License-Identifier: Apache-2.0
"""The client processes of a trial: writers, tails, recoverers. Each writes a journal of its calls and their results.

Every call has a limit. A task counts the limit in ticks, because a process that was stopped for a while must not be
blamed for that time. A call that does not end within its limit is a hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from bk_core.access.roles import OPEN, SECURE
from bk_core.client import BookKeeper, ClientConfig, LedgerReader, LedgerWriter, connect
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError, NoSuchEntryError, Outcome, WindowFullError
from bk_core.model import BOOKIE_RPC
from tests.kit.lane_table import OURS
from tests.trials.bookie.journal import Journal, digest, payload

T = TypeVar("T")

SETTINGS_VARIABLE = "BK_TRIAL_CLIENT"
"""The environment variable that holds the security settings of a trial's clients, as JSON."""
TICK_S = 0.05
CALL_LIMIT_S = 20.0
PATIENCE_S = 60.0
"""For how many seconds a recoverer tries. This is longer than any fault and the return of the bookies together."""
PAUSE_S = 0.1
ENTRIES_MAX = 4_000
SMALL = ClientConfig(
    add_timeout_ms=1_500,
    reconnect_budget_ms=200,
    close_linger_ms=200,
    close_timeout_ms=6_000,
    read_timeout_ms=1_500,
    lac_timeout_ms=1_000,
    lac_stall_ms=200,
    watch_timeout_ms=1_000,
    quarantine_ms=1_500,
    metadata_timeout_s=3,
    session_timeout_s=4,
)
TINY = replace(
    SMALL,
    frame_bytes=8 << 10,
    window_bytes_max=64 << 10,
    slow_bookie_bytes_max=256 << 10,
    read_bytes_max=64 << 10,
    explicit_lac_delay_ms=190,  # bookies learn the LAC late, so recovery has to find the end
)


class Client:
    """A client process: its journal, its limits and its connection."""

    def __init__(self, journal: str, uri: str, seed: str) -> None:
        self.journal = Journal(journal)
        self.uri, self.rng = uri, random.Random(seed)
        self.configure(self.rng.choice([SMALL, TINY]), self.rng.choice(OURS))
        self.stop = asyncio.Event()
        self._ticks = 0

    def configure(self, config: ClientConfig, lanes: str) -> None:
        """Set the configuration of the connection, and add the security settings of the trial's clients. Apache's wire
        carries no grants, so a client of this wire alone cannot use ``secure``; bookies check its role all the same."""
        told = json.loads(os.environ.get(SETTINGS_VARIABLE, "{}"))
        if lanes == BOOKIE_RPC and told.get("security") == SECURE:
            told["security"] = OPEN
        self.config = replace(config, lanes=lanes, **told)

    @property
    def own_s(self) -> float:
        """The seconds that this process has run. The time during which it was stopped does not count."""
        return self._ticks * TICK_S

    async def within(self, name: str, work: Awaitable[T], limit_s: float = CALL_LIMIT_S) -> T:
        """Return the result of ``work``. If it takes more than ``limit_s`` of this process's own time, note a hang and
        end the process."""
        task = asyncio.ensure_future(work)
        began = self.own_s
        while not task.done():
            await asyncio.wait({task}, timeout=5 * TICK_S)
            if not task.done() and self.own_s - began > limit_s:
                stack = [f"{frame.f_code.co_qualname}:{frame.f_lineno}" for frame in task.get_stack()]
                self.journal.say("hang", name=name, seconds=limit_s, stack=" < ".join(stack))
                raise SystemExit(3)
        return task.result()

    def failed(self, name: str, error: BookKeeperError) -> None:
        self.journal.say("error", name=name, code=error.code, outcome=error.outcome.value, text=str(error)[:300])

    async def connected(self) -> BookKeeper | None:
        """Return a connection, or None if the process was asked to stop first."""
        while not self.stop.is_set():
            try:
                return await self.within("connect", connect(self.uri, config=self.config))
            except BookKeeperError as error:
                self.failed("connect", error)
                await asyncio.sleep(PAUSE_S)
        return None

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._ticks += 1


def run(
    work: Callable[[Client, BookKeeper], Coroutine[Any, Any, None]],
    journal: str,
    uri: str,
    seed: str,
    *,
    of: tuple[ClientConfig, str] | None = None,
    limit_s: float = CALL_LIMIT_S,
) -> int:
    """Connect one client, run it to its end, and return the exit code. ``of`` is the configuration and the lanes, which
    are random by default. An error that is not one of ours is noted as a bug. BK_TRIAL_DEBUG=1 logs each step."""
    level = logging.DEBUG if os.environ.get("BK_TRIAL_DEBUG") else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s.%(msecs)03d %(name)s %(message)s", datefmt="%H:%M:%S")

    async def main() -> None:
        client = Client(journal, uri, seed)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, client.stop.set)
        ticking = asyncio.create_task(client._tick())
        try:
            if of is not None:
                client.configure(*of)
            bookkeeper = await client.connected()
            if bookkeeper is not None:
                await work(client, bookkeeper)
                await client.within("disconnect", bookkeeper.close(), limit_s)
        except (BookKeeperError, Exception) as error:
            client.journal.say("bug", error="".join(traceback.format_exception(error))[-2_000:])
        finally:
            ticking.cancel()

    asyncio.run(main())
    return 0


# --- writers ----------------------------------------------------------------------------------------------------------


def write(journal: str, uri: str, seed: str, name: str, shape: tuple[int, int, int], seconds: float) -> int:
    """Create a ledger and append in every way for ``seconds``, or until the ledger fails. Then close the ledger or
    leave it."""

    async def work(client: Client, bookkeeper: BookKeeper) -> None:
        e, qw, qa = shape
        creating = bookkeeper.create_ledger(ensemble_size=e, write_quorum_size=qw, ack_quorum_size=qa)
        try:
            ledger = await client.within("create", creating)
        except BookKeeperError as error:
            client.failed("create", error)
        else:
            client.journal.say("ledger", name=name, ledger=ledger.ledger_id, shape=shape)
            await Writing(client, ledger, name).go(seconds)

    return run(work, journal, uri, seed)


class Writing:
    """Writes one ledger."""

    def __init__(self, client: Client, ledger: LedgerWriter, name: str) -> None:
        self._client, self._ledger, self._name = client, ledger, name
        self._say = client.journal.say
        self._next = 0
        self._told = -1
        self._rng = client.rng

    async def go(self, seconds: float) -> None:
        end = self._client.own_s + seconds
        ways = [self._one, self._several, self._batch, self._impatient]
        while not self._client.stop.is_set() and self._client.own_s < end and self._next < ENTRIES_MAX:
            try:
                await self._rng.choice(ways)()
            except BookKeeperError as error:
                self._client.failed("append", error)
                if self._ledger.is_failed:
                    break
            self._note_confirmed()
            await asyncio.sleep(self._rng.choice([0, 0, 0.001, 0.01]))
        await self._finish()

    async def _finish(self) -> None:
        if self._ledger.is_failed:  # a failed ledger must accept nothing more
            await asyncio.sleep(self._rng.choice([0, 0.2]))
            for _ in range(3):
                with contextlib.suppress(BookKeeperError):
                    await self._one()
            self._note_confirmed()
        began = time.monotonic_ns()
        try:
            await self._client.within("close", self._ledger.close())
        except BookKeeperError as error:
            self._client.failed("close", error)
        else:
            self._say("end", ledger=self._ledger.ledger_id, end=self._ledger.metadata.last_entry_id, began=began)
        self._note_confirmed()
        with contextlib.suppress(BookKeeperError):
            await self._one()  # an append after the close must be refused
        self._note_confirmed()
        await self._client.within("abandon", self._ledger.abandon())

    def _note_confirmed(self) -> None:
        if self._ledger.last_add_confirmed > self._told:
            self._told = self._ledger.last_add_confirmed
            self._say("confirmed", confirmed=self._told)

    def _begin(self, count: int) -> tuple[int, list[bytes]]:
        number, self._next = self._next, self._next + count
        self._say("append", number=number, count=count)
        return number, [payload(self._name, each) for each in range(number, number + count)]

    async def _one(self) -> None:
        """Append one entry, and wait for it."""
        number, (data,) = self._begin(1)
        try:
            entry = await self._client.within("append", self._ledger.append(data))
        except BookKeeperError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                self._say("refused", number=number, code=error.code)
            raise
        self._say("given", number=number, entry=entry)
        self._note_confirmed()

    async def _several(self) -> None:
        """Append many entries, and wait for all of them or for none."""
        for _ in range(self._rng.randint(1, 60)):
            number, (data,) = self._begin(1)
            try:
                entry = self._ledger.append_nowait(data)
            except BookKeeperError as error:  # this entry was never queued, whatever the error says of earlier ones
                self._say("refused", number=number, code=error.code)
                if isinstance(error, WindowFullError):
                    break
                raise
            self._say("given", number=number, entry=entry)
        await self._settle()

    async def _batch(self) -> None:
        count = self._rng.choice([1, 10, 100, 400])
        number, data = self._begin(count)
        before = self._ledger.last_add_pushed
        adding = self._ledger.append_batch(EntryBatch.from_list(data))
        try:
            last = await self._client.within("append_batch", adding)
        except BookKeeperError as error:
            if error.outcome is Outcome.NOT_APPLIED and self._ledger.last_add_pushed == before:
                self._say("refused", number=number, code=error.code)
            raise
        self._say("given", number=number, entry=last - count + 1)
        await self._settle()

    async def _impatient(self) -> None:
        """Append, and stop waiting. The entry is sent all the same."""
        _, (data,) = self._begin(1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rng.uniform(0, 0.004)):
                await self._ledger.append(data)

    async def _settle(self) -> None:
        if self._rng.random() < 0.5:
            await self._client.within("flush", self._ledger.flush())


# --- readers ----------------------------------------------------------------------------------------------------------


def tail(journal: str, uri: str, seed: str, ledgers: list[int]) -> int:
    """Follow ledgers until they are closed, without disturbing them."""

    async def work(client: Client, bookkeeper: BookKeeper) -> None:
        await asyncio.gather(*(_tail(client, bookkeeper, ledger) for ledger in ledgers))

    return run(work, journal, uri, seed)


async def _tail(client: Client, bookkeeper: BookKeeper, ledger: int) -> None:
    position = handle = 0
    while not client.stop.is_set():
        handle += 1
        try:
            opening = bookkeeper.open_ledger(ledger, recover=False)
            reader = await client.within("open", opening)
            try:
                position = await _follow(client, reader, position, handle)
            finally:
                await reader.close()
            if reader.is_closed and position > reader.last_add_confirmed:
                return
        except BookKeeperError as error:
            client.failed("tail", error)
            await asyncio.sleep(PAUSE_S)


async def _follow(client: Client, reader: LedgerReader, position: int, handle: int) -> int:
    """Repeatedly wait for the LAC and read up to it. Return the next entry to read. Errors are raised to the caller."""
    ledger = reader.ledger_id
    lac = -2
    while not client.stop.is_set():
        began = time.monotonic_ns()
        if client.rng.random() < 0.2:
            await client.within("refresh_lac", reader.refresh_lac())
        else:
            await client.within("wait_lac", reader.wait_lac(position - 1, 0.5))
        if reader.last_add_confirmed != lac:
            lac = reader.last_add_confirmed
            client.journal.say("lac", ledger=ledger, lac=lac, handle=handle, began=began)
        if reader.is_closed:
            client.journal.say("end", ledger=ledger, end=lac, began=began)
        if lac >= position:
            first = client.rng.choice([0, position])
            await read_all(client, reader, first, lac)
            position = lac + 1
        if reader.is_closed:
            return position
    return position


async def read_all(client: Client, reader: LedgerReader, first: int, last: int) -> list[bytes]:
    """Read a range and note it. Return the digests of its entries."""
    digests: list[bytes] = []

    async def reading() -> None:
        async for batch in reader.read(first, last):
            digests.extend(digest(entry) for entry in batch.to_list())

    said: dict[str, Any] = {"ledger": reader.ledger_id, "first": first, "last": last, "began": time.monotonic_ns()}
    try:
        await client.within("read", reading())
    except BookKeeperError as error:
        if isinstance(error, NoSuchEntryError):
            said["denied"] = first + len(digests)
        client.journal.say("read", ok=False, digests=b"".join(digests).hex(), **said)
        raise
    client.journal.say("read", ok=True, digests=b"".join(digests).hex(), **said)
    return digests


def recover(journal: str, uri: str, seed: str, ledgers: list[int], final: bool) -> int:
    """Take ledgers over, several at once, try again until it works, and read them. With ``final`` note their entries as
    the final ones."""

    async def work(client: Client, bookkeeper: BookKeeper) -> None:
        await asyncio.gather(*(_recover(client, bookkeeper, ledger, final) for ledger in ledgers))

    return run(work, journal, uri, seed)


async def _recover(client: Client, bookkeeper: BookKeeper, ledger: int, final: bool) -> None:
    start = time.monotonic()
    while not client.stop.is_set() and time.monotonic() < start + PATIENCE_S:
        began, at = time.monotonic_ns(), time.monotonic()
        try:
            opening = bookkeeper.open_ledger(ledger, recover=True)
            async with await client.within("recover", opening, PATIENCE_S) as reader:
                end = reader.last_add_confirmed
                client.journal.say("end", ledger=ledger, end=end, began=began)
                client.journal.say("took_over", ledger=ledger, seconds=time.monotonic() - at, final=final)
                digests = await read_all(client, reader, 0, end)
                if final:
                    client.journal.say("final", ledger=ledger, digests=b"".join(digests).hex())
            return
        except BookKeeperError as error:
            client.failed("recover", error)
            await asyncio.sleep(PAUSE_S)
    if not client.stop.is_set():
        client.journal.say("hang", name="recovery never succeeded", seconds=PATIENCE_S, stack=f"ledger {ledger}")
