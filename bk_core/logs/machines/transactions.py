# SPDX-License-Identifier: Apache-2.0
"""Transactions of a log: each version of an application or streaming query is published once (N5). Pure. Also the
options of a publish.

The transaction record changes in one multi with the head, so a version is in both or in neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.errors import InvalidArgumentError, TransactionReplayDiffersError, TransactionVersionRegressedError
from bk_core.logs.model.head import LogTransactions, PublishId, TransactionVersion

VERSIONS_MAX = 128
"""A record remembers this many versions."""
VERSION_MAX = 2**63 - 1
PLAN_BYTES = 8
APP_ID_BYTES_MAX = 1024
"""Enough for any name; a record still fits into one step with 100 heads."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """``version`` of ``app_id``: a ``txnVersion`` of a ``txnAppId``, or a batch id of a query id.

    ``plan`` is PLAN_BYTES of a digest of its input, or empty if that is not known. The number of rows is not enough: a
    batch that is planned again from an older checkpoint, over several logs and with a limit, may have the same number
    of other rows.
    """

    app_id: str
    version: int
    plan: bytes = b""

    def __post_init__(self) -> None:
        if len(self.plan) not in (0, PLAN_BYTES):
            raise InvalidArgumentError(f"the plan of a transaction has {PLAN_BYTES} bytes or none", value=str(self))
        if not self.app_id or not 0 <= self.version <= VERSION_MAX:
            raise InvalidArgumentError("a transaction has a name and a version from 0 to 2^63 - 1", value=str(self))
        is_text = not any("\ud800" <= each <= "\udfff" for each in self.app_id)  # a lone surrogate has no UTF-8 form
        if not is_text or len(self.app_id.encode()) > APP_ID_BYTES_MAX:
            raise InvalidArgumentError(
                f"the name of a transaction is UTF-8 text of at most {APP_ID_BYTES_MAX} bytes",
                value=f"{len(self.app_id)} characters",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """Options of :meth:`bk_core.logs.named_log.NamedLog.publish`."""

    takeover: bool = False
    """Fence the log's leader instead of raising LogHasLeaderError."""
    overwrite: bool = False
    """Unlink everything that was listed before, in the same step (N7)."""
    transaction: Transaction | None = None
    """Publish this version once, and remember it (N5)."""
    schema: bytes | None = None
    """The schema of the entries, in canonical bytes: added to the log unless the log has an equal one (K8)."""
    merge_schema: bool = False
    """Allow the schema to add columns to the log's."""


APPEND = PublishOptions()
"""Publish at the end of the log, without further options."""


def replayed(record: LogTransactions | None, wanted: Transaction, rows: int) -> TransactionVersion | None:
    """The version if it was published before, None if it is new.

    Raises TransactionReplayDiffersError if it was published with another number of rows or from other input, and
    TransactionVersionRegressedError if it is not remembered and lower than the last version published. In both cases
    nothing may be published.
    """
    found = _find(record, wanted)
    if found is not None and found.rows != rows:
        raise TransactionReplayDiffersError(
            f"version {wanted.version} was published before with {found.rows} rows, now it has {rows}",
            value=f"transaction {wanted.app_id}",
            remedy="an older checkpoint was restored or the input was cut differently: use a new query or version",
        )
    check_input(record, wanted)
    last = max((each.version for each in record.versions), default=-1) if record else -1
    if found is None and wanted.version < last:
        raise TransactionVersionRegressedError(
            f"version {wanted.version} comes after version {last}",
            value=f"transaction {wanted.app_id}",
            remedy="versions must rise; take a new txnAppId to begin anew",
        )
    return found


def check_input(record: LogTransactions | None, wanted: Transaction) -> None:
    """Raises TransactionReplayDiffersError if this version was published from other input, where both are known."""
    found = _find(record, wanted)
    if found is not None and found.plan and wanted.plan and found.plan != wanted.plan:
        raise TransactionReplayDiffersError(
            f"version {wanted.version} was published before, and of other input",
            value=f"transaction {wanted.app_id}",
            remedy="an older checkpoint was restored and its batches are cut differently: begin a new query",
        )


def _find(record: LogTransactions | None, wanted: Transaction) -> TransactionVersion | None:
    return (
        next((each for each in reversed(record.versions) if each.version == wanted.version), None) if record else None
    )


def recorded(
    record: LogTransactions | None, wanted: Transaction, publish_id: PublishId, rows: int, now_ms: int
) -> LogTransactions:
    """The record with this version added; only the last 128 are kept."""
    added = TransactionVersion(
        version=wanted.version, publish_id=publish_id.digest, rows=rows, time_ms=now_ms, plan=wanted.plan
    )
    versions = (*(record.versions if record else ()), added)[-VERSIONS_MAX:]
    unknown = record.unknown_fields if record else b""
    return LogTransactions(app_id=wanted.app_id, versions=versions, last_used_ms=now_ms, unknown_fields=unknown)
