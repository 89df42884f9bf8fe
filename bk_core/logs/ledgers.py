# SPDX-License-Identifier: Apache-2.0
"""Creates, checks and deletes the ledgers of a log. A ledger's own record decides whether it is closed, and where it
ends (N1)."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from bk_core.client.bookkeeper import BookKeeper
from bk_core.client.writing.writer import LedgerWriter
from bk_core.entries.digest import ledger_key
from bk_core.errors import (
    BookKeeperError,
    MetadataCorruptError,
    MetadataError,
    NoSuchLedgerError,
    PublishConflictError,
)
from bk_core.logs.model.head import APPLICATION, LogHead, NewExtent, PublishId, custom_metadata_for
from bk_core.logs.model.next_head import LedgerEnd
from bk_core.metadata.port import MetadataStore
from bk_core.model import LedgerId, LedgerMetadata

logger = logging.getLogger("bk_core.logs")

TellDeleted = Callable[[Mapping[LedgerId, LedgerMetadata | None]], None]
"""A function that is called with the ledgers whose records were deleted, each with its record."""

CHECK_THREADS = 16
"""The number of threads that read records of ledgers, so that a publish of 100,000 ledgers does not wait for each
record in turn."""


def end_of(metadata: LedgerMetadata) -> LedgerEnd:
    assert metadata.is_closed, metadata
    return LedgerEnd(entry_count=metadata.last_entry_id + 1, size_bytes=metadata.length, fragments=metadata.fragments)


Sizes = tuple[int, int, int]
"""The ensemble size, write quorum and ack quorum of a ledger."""


async def create_for_log(
    bookkeeper: BookKeeper,
    log: LogHead,
    sizes: Sizes,
    publish_id: PublishId,
    password: bytes,
    *,
    codec: str,
    log_name: str,
    partition: int = 0,
    attempt: int = 0,
) -> LedgerWriter:
    """Create a ledger whose custom metadata names the log and the publish. Raises the errors of ``create_ledger``."""
    ensemble_size, write_quorum_size, ack_quorum_size = sizes
    return await bookkeeper.create_ledger(
        ensemble_size=ensemble_size,
        write_quorum_size=write_quorum_size,
        ack_quorum_size=ack_quorum_size,
        digest_type=log.digest_type,
        password=password,
        custom_metadata=custom_metadata_for(
            log.uuid, publish_id, partition=partition, attempt=attempt, codec=codec, log_name=log_name
        ),
    )


def written_extent(
    writer: LedgerWriter, *, codec: str, created_ms: int, schema_number: int = 0, row_count: int | None = None
) -> NewExtent:
    """Return the extent that lists all entries of a ledger that was written and closed."""
    metadata = writer.metadata
    return NewExtent(
        ledger_id=writer.ledger_id,
        entry_count=writer.last_add_confirmed + 1,
        size_bytes=writer.length,
        created_ms=created_ms,
        codec=codec,
        schema_number=schema_number,
        ensemble_size=metadata.ensemble_size,
        write_quorum_size=metadata.write_quorum_size,
        ack_quorum_size=metadata.ack_quorum_size,
        fragments=metadata.fragments,
        row_count=row_count,
    )


async def drop_ledger(bookkeeper: BookKeeper, ledger_id: LedgerId, writer: LedgerWriter | None = None) -> None:
    """Abandon and delete a ledger that no log lists. A failure is only logged, because vacuum deletes such a ledger
    later."""
    try:
        if writer is not None:
            await writer.abandon()
        await bookkeeper.delete_ledger(ledger_id)
    except BookKeeperError as error:
        logger.info("ledger %d, which no log lists, stays until the next vacuum: %s", ledger_id, error)


async def recovered_end(bookkeeper: BookKeeper, ledger_id: LedgerId, password: bytes) -> LedgerEnd:
    """Fence, recover and close a ledger, unless it is closed already. Return its end. Raises the errors of
    ``open_ledger``."""
    async with await bookkeeper.open_ledger(ledger_id, recover=True, password=password) as reader:
        return end_of(reader.metadata)


def check_publishable(store: MetadataStore, head: LogHead, extents: Sequence[NewExtent]) -> None:
    """Raise PublishConflictError unless every ledger may be listed in this log. This blocks.

    A ledger must exist, be closed, end where its writer says, have this log's digest type and password, and not be made
    for another log (N6).
    """
    reported: dict[LedgerId, list[NewExtent]] = {}
    for extent in extents:
        if extent.entry_count:
            reported.setdefault(extent.ledger_id, []).append(extent)
    if not reported:
        return
    with ThreadPoolExecutor(min(CHECK_THREADS, len(reported)), "bk-publish-check") as pool:
        for why in pool.map(lambda item: _problem(store, head, *item), reported.items()):
            if why is not None:
                raise PublishConflictError(why, remedy="another client changed it meanwhile: run the job again")


def of_log(
    store: MetadataStore, log_uuid: str, before_ms: int, among: Iterable[LedgerId] | None = None
) -> Iterator[LedgerId]:
    """Yield the ledgers that were made for this log, by their custom metadata, before ``before_ms`` by the store's
    clock (N6). This blocks. It reads the record of every ledger in the cluster, or only of the ledgers in ``among``."""
    for _, ledger_id in of_logs(store, {log_uuid: before_ms}, among):
        yield ledger_id


def of_logs(
    store: MetadataStore, before_ms: Mapping[str, int], among: Iterable[LedgerId] | None = None
) -> Iterator[tuple[str, LedgerId]]:
    """Do the same as :func:`of_log` for several logs. ``before_ms`` maps the uuid of each log to its time. Yield each
    ledger with the uuid of its log."""
    if not before_ms:
        return
    for ledger_id in store.list_ledgers() if among is None else among:
        try:
            log_uuid = _log_of(store.read_ledger(ledger_id).value)
            if log_uuid in before_ms and store.ledger_ctime_ms(ledger_id) < before_ms[log_uuid]:
                yield log_uuid, ledger_id
        except (NoSuchLedgerError, MetadataCorruptError):
            continue  # deleted a moment ago, or unreadable; a ledger with an unreadable record is kept


def delete_of_log(
    store: MetadataStore, log_uuid: str, ledgers: Sequence[LedgerId], deleted: TellDeleted
) -> tuple[LedgerId, ...]:
    """Delete those of ``ledgers`` that were made for this log, and call ``deleted`` with their records. Return the
    ledgers that certainly do not exist now. This blocks."""
    gone: list[LedgerId] = []
    told: dict[LedgerId, LedgerMetadata | None] = {}
    for ledger_id in ledgers:
        try:
            found = store.read_ledger(ledger_id)
            if _is_of_log(found.value, log_uuid):
                store.delete_ledger(ledger_id)
                told[ledger_id] = found.value
                gone.append(ledger_id)
        except NoSuchLedgerError:
            gone.append(ledger_id)
        except MetadataError as error:
            logger.warning("ledger %d stays condemned until the next vacuum, its deletion failed: %s", ledger_id, error)
    deleted(told)
    return tuple(gone)


def _is_of_log(metadata: LedgerMetadata, log_uuid: str) -> bool:
    return _log_of(metadata) == log_uuid != ""


def _log_of(metadata: LedgerMetadata) -> str:
    """Return the uuid of the log for which the ledger was made, or an empty text if it was made for none."""
    keys = metadata.custom_metadata
    if keys.get("application") != APPLICATION.encode():
        return ""
    return keys.get("bk.log.uuid", b"").decode("utf-8", "replace")


def _problem(store: MetadataStore, head: LogHead, ledger_id: LedgerId, extents: Sequence[NewExtent]) -> str | None:
    try:
        metadata = store.read_ledger(ledger_id, fresh=True).value
    except NoSuchLedgerError:
        return f"ledger {ledger_id} does not exist"
    if not metadata.is_closed:
        return f"ledger {ledger_id} is not closed"
    last = max(extent.end_entry_id for extent in extents) - 1
    if last != metadata.last_entry_id:
        return f"ledger {ledger_id} ends at entry {metadata.last_entry_id}, its writer says {last}"
    if len(extents) == 1 and extents[0].first_entry_id == 0 and extents[0].size_bytes != metadata.length:
        return f"ledger {ledger_id} has {metadata.length} payload bytes, its writer says {extents[0].size_bytes}"
    if metadata.digest_type is not None and metadata.digest_type is not head.digest_type:
        return f"ledger {ledger_id} has digest type {metadata.digest_type.name}, the log {head.digest_type.name}"
    if metadata.password is not None and not hmac.compare_digest(ledger_key(metadata.password), head.ledger_key):
        return f"ledger {ledger_id} has another password than the log"
    owner = metadata.custom_metadata.get("bk.log.uuid")
    if owner is not None and owner != head.uuid.encode():
        # The vacuum of the other log, which does not list this ledger, would delete it.
        return f"ledger {ledger_id} was made for another log ({owner.decode(errors='replace')})"
    return None
