# SPDX-License-Identifier: Apache-2.0
"""Has the mark that replaces a deleted log's head, and the record of a deleted log. Pure (decision 0072; N6).

The record permits the deletion of the log's ledgers. It has the log's name, uuid and ledger key. The ledger key is used
to check the password of a client that deletes the ledgers. The record's creation time in the metadata store is the time
of the deletion. docs/formats.md §4 defines its bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from bk_core.errors import MetadataCorruptError
from bk_core.logs.model.head import LogHead
from bk_core.model import LedgerId

DELETED_VERSION = 1
"""The version of the record's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedLog:
    """A deleted log whose ledgers are still to be deleted. ``deleted_ms`` is the time of the deletion by the store's
    clock, or 0 if mark and record are gone already, so that nothing is left to delete. ``ledgers`` are the ledgers that
    the call of ``delete`` itself deleted."""

    name: str
    uuid: str
    deleted_ms: int = 0
    ledger_key: bytes = field(default=b"", repr=False)
    ledgers: tuple[LedgerId, ...] = ()


def mark_of(head: LogHead) -> LogHead:
    """Return the mark of a deleted log, which replaces its head. The mark keeps the log's uuid and ledger key, but
    lists no extents, pages, publishes, condemned ledgers or schemas."""
    return replace(head, is_deleted=True, pages=(), tail=(), published=(), condemned=(), schemas=(), unknown_fields=b"")


def encode_deleted_log(name: str, mark: LogHead) -> bytes:
    """Encode the record of the deleted log ``name``."""
    values = {"ledgerKey": mark.ledger_key.hex(), "name": name, "uuid": mark.uuid, "v": DELETED_VERSION}
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def decode_deleted_log(data: bytes, log_uuid: str, deleted_ms: int) -> DeletedLog:
    """Decode the record of the deleted log ``log_uuid``. Fields of a later version are ignored. Raises
    MetadataCorruptError."""
    try:
        found = json.loads(data)
        if found["uuid"] != log_uuid:
            raise ValueError(f"it names the log {found['uuid']}")
        key = bytes.fromhex(found["ledgerKey"])
        return DeletedLog(name=str(found["name"]), uuid=log_uuid, deleted_ms=deleted_ms, ledger_key=key)
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataCorruptError(
            f"The record of the deleted log {log_uuid} cannot be read",
            value=f"{type(error).__name__}: {error}",
            remedy="upgrade, if a newer version wrote it; else delete it, and the log's ledgers by hand",
        ) from error
