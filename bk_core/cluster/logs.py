# SPDX-License-Identifier: Apache-2.0
"""Returns the records of named logs as JSON, and the chain of a log's ledgers in parts."""

from __future__ import annotations

from collections.abc import Sequence

from bk_core.errors import BookKeeperError, NoSuchLogError
from bk_core.logs.model.head import Extent, LogHead
from bk_core.logs.store import LogStore
from bk_core.metadata.port import MetadataStore


def as_object(name: str, head: LogHead) -> dict[str, object]:
    """Return the object that ``bk log list --json`` prints for a log."""
    return {
        "log": name,
        "uuid": head.uuid,
        "epoch": head.epoch,
        "startOffset": head.start_offset,
        "nextOffset": head.next_offset,
        "digestType": head.digest_type.name,
        "createdMs": head.created_ms,
        "openExtents": len(head.open_extents),
        "retentionMs": head.retention_ms,
        "retentionBytes": head.retention_bytes,
    }


def extent_object(extent: Extent) -> dict[str, object]:
    """Return the object that ``bk log show --json`` prints for an extent."""
    return {
        "ledgerId": extent.ledger_id,
        "baseOffset": extent.base_offset,
        "firstEntryId": extent.first_entry_id,
        "entries": None if extent.is_open else extent.entry_count,
        "bytes": None if extent.is_open else extent.size_bytes,
        "codec": extent.codec,
        "schema": extent.schema_number or None,
        "state": "open" if extent.is_open else "sealed",
    }


def objects(store: MetadataStore, names: Sequence[str]) -> list[dict[str, object]]:
    """Return the objects of the named logs. A log whose record cannot be read has ``error``."""
    found = list[dict[str, object]]()
    for name in names:
        try:
            found.append(as_object(name, LogStore(store, name).read().value))
        except NoSuchLogError:  # deleted since it was listed
            continue
        except BookKeeperError as error:
            found.append({"log": name, "error": str(error)})
    return found


def chain(store: MetadataStore, name: str, before: int | None, limit: int) -> tuple[LogHead, list[Extent], int | None]:
    """Return the head of a log, some of its extents, and the offset with which to call this again for the extents
    before them, or None at the log's start. The extents are the last ``limit`` sealed extents below the offset
    ``before``, in order. Without ``before`` they are the last sealed extents of the log, followed by its open extents.
    This reads only the pages it needs. Raises NoSuchLogError, and InvalidArgumentError for an invalid name."""
    records = LogStore(store, name)
    head = records.read().value
    at = head.next_offset if before is None else min(before, head.next_offset)
    found = list[Extent]()
    while at > head.start_offset and len(found) < limit:
        (extent,) = records.extents(head, at - 1, at)
        found.append(extent)
        at = extent.base_offset
    opened = list(head.open_extents) if before is None else []
    return head, [*reversed(found), *opened], at if at > head.start_offset else None
