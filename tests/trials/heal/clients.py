# SPDX-License-Identifier: Apache-2.0
"""The client processes: writers that end their ledgers in every way, a reader, recoverers, and a leader of a log. They
go on whatever happens to bookies, and write their results to journals (:mod:`tests.trials.bookie.journal`)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from bk_core.client import BookKeeper, LedgerReader, LedgerWriter
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError, NoSuchEntryError, NoSuchLedgerError
from bk_core.logs.named_log import NamedLog
from tests.interop.pattern import Pattern
from tests.trials.bookie.clients import SMALL, Client, run
from tests.trials.heal.oracle import Journals, pattern_of
from tests.trials.heal.schedule import SHAPES

CONFIG = replace(SMALL, add_quorum_timeout_ms=15_000, quarantine_ms=3_000, close_linger_ms=500)
LIMIT_S = 60.0
"""The limit of a call in seconds. A turn's faults take up to 20 s, and a recovery waits until bookies are back."""
LOG = "chaos"
LOG_PATTERN = Pattern(seed=4711, size_min=40, size_max=1_500)


# --- writers ---


def write(journal: str, uri: str, seed: str, lanes: str, pace_s: float) -> int:
    """Write one ledger after the other: append for some seconds, then close the ledger or leave it open."""

    async def work(client: Client, bookkeeper: BookKeeper) -> None:
        while not client.stop.is_set():
            e, qw, qa = client.rng.choice(SHAPES)
            making = bookkeeper.create_ledger(ensemble_size=e, write_quorum_size=qw, ack_quorum_size=qa)
            try:
                ledger = await client.within("create", making, LIMIT_S)
            except BookKeeperError as error:
                client.failed("create", error)
                await asyncio.sleep(0.5)
                continue
            client.journal.say("ledger", ledger=ledger.ledger_id)
            await _write(client, ledger, pace_s)

    return run(work, journal, uri, seed, of=(CONFIG, lanes), limit_s=LIMIT_S)


async def _write(client: Client, ledger: LedgerWriter, pace_s: float) -> None:
    say, ledger_id, pattern = client.journal.say, ledger.ledger_id, pattern_of(ledger.ledger_id)
    until = client.own_s + client.rng.uniform(0.5, 10.0)
    first = 0
    try:
        while not client.stop.is_set() and client.own_s < until:
            last = first + client.rng.choice([1, 2, 5, 20]) - 1
            batch = EntryBatch.from_list(list(pattern.payloads(first, last)))
            say("sent", ledger=ledger_id, last=last)
            await client.within("append", ledger.append_batch(batch), LIMIT_S)
            await client.within("flush", ledger.flush(), LIMIT_S)
            say("confirmed", ledger=ledger_id, last=ledger.last_add_confirmed)
            first = last + 1
            await asyncio.sleep(pace_s * client.rng.uniform(0.5, 1.5))
        if client.rng.random() < 0.7:
            await client.within("close", ledger.close(), LIMIT_S)
            say("end", ledger=ledger_id, end=ledger.metadata.last_entry_id, closed=True)
    except BookKeeperError as error:
        client.failed("write", error)
    say("confirmed", ledger=ledger_id, last=ledger.last_add_confirmed)
    say("left", ledger=ledger_id)
    await client.within("abandon", ledger.abandon(), LIMIT_S)


# --- readers and recoverers ---


def read(journal: str, uri: str, seed: str, lanes: str) -> int:
    """Read ledgers at random, open ones too, and compare every byte."""

    async def work(client: Client, bookkeeper: BookKeeper) -> None:
        journals = Journals(Path(journal).parent)
        while not client.stop.is_set():
            await asyncio.sleep(0.5)
            journals.read()
            among = [known.ledger_id for known in journals.alive()]
            if among:
                ledger_id = client.rng.choice(among[-20:] if client.rng.random() < 0.5 else among)
                await _look(client, bookkeeper, ledger_id, recover=False)

    return run(work, journal, uri, seed, of=(CONFIG, lanes), limit_s=LIMIT_S)


def recover(journal: str, uri: str, seed: str, lanes: str, ledgers: list[int]) -> int:
    """Take ledgers over, all at once, try again until it works, and read them."""

    async def work(client: Client, bookkeeper: BookKeeper) -> None:
        async def take_over(ledger_id: int) -> None:
            while not client.stop.is_set() and not await _look(client, bookkeeper, ledger_id, recover=True):
                await asyncio.sleep(client.rng.uniform(0.3, 1.0))

        await asyncio.gather(*map(take_over, ledgers))

    return run(work, journal, uri, seed, of=(CONFIG, lanes), limit_s=LIMIT_S)


async def _look(client: Client, bookkeeper: BookKeeper, ledger_id: int, *, recover: bool) -> bool:
    """Open and read a ledger. Return whether that worked, or the ledger was deleted."""
    name = "recover" if recover else "read"
    try:
        opening = bookkeeper.open_ledger(ledger_id, recover=recover)
        async with await client.within(name, opening, LIMIT_S) as reader:
            lac = reader.last_add_confirmed
            if reader.is_closed:
                client.journal.say("end", ledger=ledger_id, end=lac)
            else:
                client.journal.say("lac", ledger=ledger_id, lac=lac)
            with suppress(NoSuchLedgerError):  # deleted meanwhile
                await client.within(name, _compare(client, reader, lac), LIMIT_S)
    except NoSuchLedgerError as error:
        client.journal.say("error", name=name, code=error.code, text=str(error)[:300], ledger=ledger_id)
        return True
    except NoSuchEntryError as error:
        client.journal.say("wrong", ledger=ledger_id, text=f"an entry up to the LAC is denied: {error}"[:500])
    except BookKeeperError as error:
        client.failed(name, error)
        return False
    return True


async def _compare(client: Client, reader: LedgerReader, last: int) -> None:
    pattern, at = pattern_of(reader.ledger_id), 0
    if last < 0:
        return
    async for batch in reader.read(0, last):
        for payload in batch.to_list():
            if payload != pattern.payload(at):
                client.journal.say("wrong", ledger=reader.ledger_id, text=f"entry {at} has other bytes")
                return
            at += 1
    client.journal.say("count", of="read", count=at)


# --- a log ---


def lead(journal: str, uri: str, seed: str, lanes: str, epoch: int) -> int:
    """Lead the log, append, and roll often. Upkeep trims the log meanwhile."""

    async def work(client: Client, bookkeeper: BookKeeper) -> None:
        log, keys = NamedLog(bookkeeper, LOG), (f"{epoch}/{number} " for number in itertools.count())
        while not client.stop.is_set():
            try:
                await _lead(client, log, keys)
            except BookKeeperError as error:
                client.failed("log", error)
                await asyncio.sleep(0.5)

    return run(work, journal, uri, seed, of=(CONFIG, lanes), limit_s=LIMIT_S)


async def _lead(client: Client, log: NamedLog, keys: Iterator[str]) -> None:
    async with await client.within("lead", log.lead(roll_bytes=100_000, roll_age_s=5.0), LIMIT_S) as leader:
        await client.within("retention", log.set_retention(retention_bytes=400_000), LIMIT_S)
        while not client.stop.is_set():
            key = next(keys)
            appending = leader.append(log_payload(key))
            offset = await client.within("log append", appending, LIMIT_S)
            client.journal.say("log", offset=offset, key=key)
            await asyncio.sleep(0.1)


def log_payload(key: str) -> bytes:
    """Return an entry of the log: the key that its leader gave it, followed by bytes that the key determines."""
    return key.encode() + LOG_PATTERN.payload(int(key.split("/")[1]))
