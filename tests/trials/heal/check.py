# SPDX-License-Identifier: Apache-2.0
"""Reads every copy of every ledger from each bookie by itself, and compares every byte. It does not use the product's
own check of copies. It also finds what is not healed yet, from records and from what bookies report."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

from bk_core.client import BookKeeper
from bk_core.entries.digest import Digester
from bk_core.entries.verified import verified_batches
from bk_core.errors import BookKeeperError, IntegrityError, NoSuchLedgerError
from bk_core.logs.named_log import NamedLog
from bk_core.metadata.port import MetadataStore
from bk_core.model import DigestType, LedgerMetadata
from bk_core.wire.lane.evidence import ReadTrailer
from tests.trials.heal.clients import LOG, log_payload
from tests.trials.heal.nodes import HealCluster
from tests.trials.heal.oracle import Journals, holds, wrong_entries

READ_S, TRIES_S = 10.0, 30.0
AT_ONCE = 4
NAMED = 5


@dataclass(slots=True)
class Checked:
    """The result of a check. ``holes`` has the copies that lack entries, by ledger and bookie. ``verified`` has the
    ledgers of which every copy is correct."""

    problems: list[str] = field(default_factory=list)
    holes: dict[tuple[int, str], str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    verified: list[int] = field(default_factory=list)


# --- is all healed? ---


def unhealed(cluster: HealCluster, journals: Journals) -> list[str]:
    """Return descriptions of what is not healed yet."""
    store = cluster.store
    store.sync()
    found = []
    registered = {*store.writable_bookies(), *store.read_only_bookies()}
    found += [f"{node.bookie_id} is not writable" for node in cluster.nodes if node.bookie_id not in registered]
    marks = [ledger_id for ledger_id, _ in store.list_underreplicated() if not _is_orphan(store, ledger_id)]
    if marks:
        found.append(f"{len(marks)} ledgers are under-replicated: {_few(marks)}")
    strangers: Counter[str] = Counter()
    for record in _records(store):
        strangers.update({name for part in record.fragments for name in part.ensemble if name not in registered})
    found += [f"{count} ledgers name {name}, which is not registered" for name, count in sorted(strangers.items())]
    for node in cluster.nodes:
        found += _own_lack(node)
    journals.read()
    if unsettled := journals.unsettled():
        found.append(f"{len(unsettled)} ledgers are not recovered: {_few(unsettled)}")
    return found


def _is_orphan(store: MetadataStore, ledger_id: int) -> bool:
    """Return whether a compaction that died left the ledger open.

    No log lists such a ledger, and no client closes it. A vacuum deletes it once it is old. Until then a copy in limbo
    stays marked.
    """
    try:
        record = store.read_ledger(ledger_id).value
    except NoSuchLedgerError:
        return False
    return not record.is_closed and "bk.publish.id" in record.custom_metadata


def _own_lack(node: Any) -> list[str]:
    if not node.ours:
        return []
    try:
        lacking = node.lacking()
    except OSError as error:
        return [f"{node.bookie_id} does not say what it lacks: {error}"]
    return [f"{node.bookie_id} lacks entries of {lacking} ledgers"] if lacking else []


def _records(store: MetadataStore) -> Iterable[LedgerMetadata]:
    for ledger_id in list(store.list_ledgers()):
        try:
            yield store.read_ledger(ledger_id).value
        except NoSuchLedgerError:
            continue


def naming(store: MetadataStore, bookie_id: str) -> list[int]:
    """Return the ledgers that name a bookie, according to their records."""
    store.sync()
    found = []
    for ledger_id in list(store.list_ledgers()):
        try:
            record = store.read_ledger(ledger_id).value
        except NoSuchLedgerError:
            continue
        if any(bookie_id in part.ensemble for part in record.fragments):
            found.append(ledger_id)
    return found


def _few(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:NAMED])) + (" …" if len(ids) > NAMED else "")


# --- is every copy there? ---


def check_copies(cluster: HealCluster, journals: Journals, ledgers: Sequence[int]) -> Checked:
    """Check every copy of these ledgers. Open ledgers are left out."""
    return asyncio.run(_check(cluster, journals, ledgers))


def read_copy(cluster: HealCluster, ledger_id: int, bookie: str, entry_id: int) -> bytes | None:
    """Return one entry as one bookie has it, or None if the bookie gives another answer."""

    async def read() -> bytes | None:
        client = await cluster.connect(metadata_timeout_s=5, session_timeout_s=5)
        try:
            record = (await asyncio.to_thread(client.store.read_ledger, ledger_id)).value
            await client.refresh_bookies()
            found = await _entries(client, ledger_id, record, bookie, entry_id, entry_id)
            return found.get(entry_id)
        except BookKeeperError:
            return None
        finally:
            await client.close()

    return asyncio.run(read())


async def _check(cluster: HealCluster, journals: Journals, ledgers: Sequence[int]) -> Checked:
    checked, turns = Checked(), asyncio.Semaphore(AT_ONCE)
    client = await cluster.connect()
    try:
        await client.refresh_bookies()

        async def check(ledger_id: int) -> None:
            async with turns:
                await _check_ledger(client, journals, ledger_id, checked)

        await asyncio.gather(*map(check, ledgers))
    finally:
        await client.close()
    return checked


async def _check_ledger(client: BookKeeper, journals: Journals, ledger_id: int, checked: Checked) -> None:
    try:
        record = (await asyncio.to_thread(client.store.read_ledger, ledger_id)).value
    except NoSuchLedgerError:
        checked.problems.append(f"LOST: ledger {ledger_id} has no record, and nobody deleted it")
        return
    if not record.is_closed:
        return
    end = record.last_entry_id
    assert end is not None
    problems, holes = journals.judge(journals.ledgers[ledger_id], end), dict[tuple[int, str], str]()
    copies: Counter[int] = Counter()
    for at, fragment in enumerate(record.fragments):
        last = record.last_entry_of(at)
        assert last is not None
        for index, bookie in enumerate(fragment.ensemble):
            sizes = record.ensemble_size, record.write_quorum_size
            wanted = [i for i in range(fragment.first_entry_id, last + 1) if holds(index, i, *sizes)]
            if wanted:
                said, missing = await _check_copy(client, ledger_id, record, bookie, wanted, copies)
                problems += said
                if missing:
                    what = f"{len(missing)} of {len(wanted)} entries: {_few(missing)}"
                    holes[ledger_id, bookie] = f"COPY MISSING: ledger {ledger_id} at {bookie}: {what}"
    nowhere = [entry_id for entry_id in range(end + 1) if not copies[entry_id]]
    if nowhere:
        problems.append(f"LOST: ledger {ledger_id}: no bookie has {len(nowhere)} entries: {_few(nowhere)}")
    checked.counts.update(ledgers=1, entries=end + 1, copies=copies.total())
    checked.problems += problems
    checked.holes.update(holes)
    if not problems and not holes:
        checked.verified.append(ledger_id)


async def _check_copy(
    client: BookKeeper, ledger_id: int, record: LedgerMetadata, bookie: str, wanted: list[int], copies: Counter[int]
) -> tuple[list[str], list[int]]:
    """Return the problems of a copy, and its missing entries. While the bookie cannot be asked, try again for a
    while."""
    about = f"ledger {ledger_id} at {bookie}"
    until = asyncio.get_running_loop().time() + TRIES_S
    while True:
        try:
            found = await _entries(client, ledger_id, record, bookie, wanted[0], wanted[-1])
            break
        except IntegrityError as error:
            return [f"COPY CHANGED: {about}: {error}"], []
        except BookKeeperError as error:
            if asyncio.get_running_loop().time() > until:
                return [f"COPY UNREADABLE: {about}: {error}"], []
            await asyncio.sleep(1.0)
            await client.refresh_bookies()
    missing, changed = wrong_entries(ledger_id, found, wanted)
    copies.update(set(wanted) - {*missing, *changed})
    return ([f"COPY CHANGED: {about}: entries {_few(changed)}"] if changed else []), missing


async def _entries(
    client: BookKeeper, ledger_id: int, record: LedgerMetadata, bookie: str, first: int, last: int
) -> dict[int, bytes]:
    """Return the entries of a range that one bookie has, without those that it calls absent or unknown."""
    digester = Digester(record.digest_type or DigestType.CRC32C, record.password or b"", ledger_id)
    found: dict[int, bytes] = {}
    while first <= last:
        reading = client.transport.link(bookie).read(ledger_id, first, last, bytes_max=8 << 20, deadline_s=READ_S)
        async with aclosing(cast(Any, reading)) as parts:
            async for part in parts:
                if isinstance(part, ReadTrailer):
                    first = part.answered_through + 1
                    break
                for batch in verified_batches(part.frames, digester, always=True):
                    found.update(zip(batch.entry_ids().tolist(), batch.to_list(), strict=True))
    return found


# --- the log ---


def check_log(cluster: HealCluster, journals: Journals) -> Checked:
    """Check every acknowledged entry of the log that retention has not trimmed."""
    return asyncio.run(_check_log(cluster, journals))


async def _check_log(cluster: HealCluster, journals: Journals) -> Checked:
    checked = Checked()
    client = await cluster.connect()
    try:
        log = NamedLog(client, LOG)
        async with await log.lead():  # this seals what the last leader left open
            head = (await log.head()).value
            end = await log.end_offset()
            payloads: dict[int, bytes] = {}
            async for offset, batch in log.read(head.start_offset, end):
                payloads.update(enumerate(batch.to_list(), offset))
    finally:
        await client.close()
    for offset, key in journals.log_acked.items():
        if offset < head.start_offset:
            checked.counts["log entries trimmed"] += 1
        elif payloads.get(offset) != log_payload(key):
            checked.problems.append(f"LOST: log entry {offset} is not what was acknowledged as {key!r}")
    checked.counts["log entries read"] = len(payloads)
    return checked
