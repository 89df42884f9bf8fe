# SPDX-License-Identifier: Apache-2.0
"""Publishes closed ledgers, all or none, once for each publish id. A publish appends to a log or overwrites it, and may
go into several logs in one step. Pure (N2 to N7, K10).

A job owns its ledgers until a compare-and-set names them. From then on the log may own them, whatever the answer was,
and only vacuum may delete them. Even a retry that finds them already published must not delete them.

A transaction publishes each version of an application or streaming query once (N5). Its record changes in the same
multi as the head, so a version is in both or in neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bk_core.errors import (
    InvalidArgumentError,
    NoSuchLedgerError,
    TransactionReplayDiffersError,
    TransactionVersionRegressedError,
)
from bk_core.logs.machines import ask
from bk_core.logs.machines.change import Ask, Facts, Intent
from bk_core.logs.model import next_head as commit
from bk_core.logs.model import schemas
from bk_core.logs.model.head import (
    PUBLISHED_MAX,
    LogHead,
    LogTransactions,
    NewExtent,
    Published,
    PublishId,
    TransactionVersion,
)
from bk_core.logs.model.paging import Change, Nonce, last_ledgers, tightened
from bk_core.model import LedgerId

LOGS_MAX = 100
"""The maximum number of logs in one publish (K10). Their heads fit into one multi."""
FORGOTTEN_OFFSET = -1
"""The base offset that is returned for a publish that the log's head has forgotten. Only its transaction record, or
another log of the same publish, remembers it."""


VERSIONS_MAX = 128
"""The maximum number of versions in a transaction record; older versions are forgotten."""
VERSION_MAX = 2**63 - 1
PLAN_BYTES = 8
APP_ID_BYTES_MAX = 1024
"""The maximum length of the name of an application, in UTF-8 bytes. Any usual name fits, and a record still fits into
one multi with 100 heads."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The name of a publish that happens once. It is a ``txnAppId`` with a ``txnVersion``, or a query id with a batch
    id.

    ``plan`` is PLAN_BYTES of a digest of the publish's input, or empty if the input is unknown. The number of rows is
    not enough to distinguish inputs: a batch that is planned again from an older checkpoint, over several logs and with
    a limit, may have as many rows, but different ones.
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
    """Unlink all extents that the log has, in the same step (N7)."""
    transaction: Transaction | None = None
    """Publish this version once, and remember it (N5)."""
    schema: bytes | None = None
    """The schema of the entries, in canonical bytes. It is added to the log unless the log has an equal schema (K8)."""
    merge_schema: bool = False
    """Allow the schema to have columns that the log's newest schema lacks."""
    type_name: schemas.TypeName | None = None
    """The function that names a column's type in errors. None gives Arrow's names."""


APPEND = PublishOptions()
"""Publish at the end of the log, without further options."""


def replayed(record: LogTransactions | None, wanted: Transaction, rows: int) -> TransactionVersion | None:
    """Return the recorded version if it was published before, or None if it is new.

    Raises TransactionReplayDiffersError if it was published with another number of rows or from other input. Raises
    TransactionVersionRegressedError if it is not recorded and is lower than the last version published. After each of
    these errors nothing may be published.
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
    """Raise TransactionReplayDiffersError if this version was published from other input, and both inputs are known."""
    found = _find(record, wanted)
    if found is not None and found.plan and wanted.plan and found.plan != wanted.plan:
        raise TransactionReplayDiffersError(
            f"version {wanted.version} was published before, from other input",
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
    """Return the record with this version added. Only the last 128 versions are kept."""
    added = TransactionVersion(
        version=wanted.version, publish_id=publish_id.digest, rows=rows, time_ms=now_ms, plan=wanted.plan
    )
    versions = (*(record.versions if record else ()), added)[-VERSIONS_MAX:]
    unknown = record.unknown_fields if record else b""
    return LogTransactions(app_id=wanted.app_id, versions=versions, last_used_ms=now_ms, unknown_fields=unknown)


@dataclass(frozen=True)
class Publish(Intent[Published]):
    """Lists ``extents`` in order, by the rules of ``options``. ``now_ms`` is the time of the publish. The result
    describes the publish."""

    extents: tuple[NewExtent, ...]
    publish_id: PublishId
    now_ms: int
    nonce: Nonce
    options: PublishOptions = APPEND
    is_repeatable = False  # a publish must happen only once

    @property
    def transaction(self) -> Transaction | None:
        return self.options.transaction

    @property
    def rows(self) -> int:
        """The number of rows. It is the same whenever the same input is written. The number of entries may differ,
        because a codec may put a varying number of rows into an entry."""
        return sum(extent.rows for extent in self.extents)

    @property
    def app_id(self) -> str | None:  # type: ignore[override]  # an attribute of Intent, derived here
        return self.transaction.app_id if self.transaction else None

    def settled(self, head: LogHead, facts: Facts) -> Published | None:
        """Return the publish with this id, if the log or the transaction record remembers it."""
        found = commit.already_published(head, self.publish_id, self.rows)
        if self.transaction is None:
            return found
        record = facts.transactions.value if facts.transactions else None
        if found is not None:
            check_input(record, self.transaction)
        elif (version := replayed(record, self.transaction, self.rows)) is not None:
            found = _forgotten(version.publish_id, version.rows, version.time_ms)
        return found

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """Return the change that publishes the extents. With ``takeover`` first have the leader's ledgers recovered,
        and seal the open extents. Have every ledger checked."""
        if head.open_extents and self.options.takeover:
            ledgers = to_fence(head, facts)
            if not facts.missing.union(facts.ends) >= set(ledgers):
                return ask.RecoverLedgers(ledgers)
            head = commit.sealed(head, facts.ends)
        commit.check_unpublished(head, self.extents)
        if not facts.is_checked:
            return ask.CheckLedgers(head, self.extents)
        change = self._put(head, facts)
        if self.transaction is None:
            return change
        record = facts.transactions.value if facts.transactions else None
        transactions = recorded(record, self.transaction, self.publish_id, self.rows, self.now_ms)
        return replace(change, transactions=transactions)

    def _put(self, head: LogHead, facts: Facts) -> Change:
        """Return the change to the head with the extents and their schema. A job without rows registers its schema,
        too."""
        extents, page = self.extents, None
        wanted = self.options
        if wanted.schema is not None:
            nonce, pages, named = self.nonce, facts.pages, wanted.type_name
            found = schemas.registered(head, wanted.schema, wanted.merge_schema, nonce=nonce, pages=pages, named=named)
            head, page = found.head, found.page
            extents = tuple(replace(extent, schema_number=found.number) for extent in extents)
        put = commit.overwrite if wanted.overwrite else commit.publish
        change = put(head, extents, self.publish_id, now_ms=self.now_ms, nonce=self.nonce, pages=facts.pages)
        return change if page is None else replace(change, new_pages=(page, *change.new_pages))

    def rules_out(self, made: LogHead, moved: int, head: LogHead, facts: Facts) -> bool:
        """Return whether the head or the transaction record would still remember this publish if it had been applied.
        The head keeps the last PUBLISHED_MAX publishes, and the transaction record the last 128 versions."""
        if self.transaction is not None and facts.transactions is not None:
            versions = facts.transactions.value.versions
            if all(each.version < self.transaction.version for each in versions):
                return True
        return moved < PUBLISHED_MAX

    def forgotten(self) -> Published:
        """Return the publish without its base offset, which this log has forgotten."""
        return _forgotten(self.publish_id.digest, self.rows, self.now_ms)

    def tightened(self, change: Change, facts: Facts) -> Change:
        return tightened(change, self.nonce, facts.pages)


@dataclass(frozen=True)
class PublishAmong(Publish):
    """One log's part of a publish into several logs (:func:`publish_among`).

    Its ``publish_id`` names all logs and their numbers of rows. So if one head remembers the publish, all logs got it,
    even those that have forgotten it. If one head has changed without it, no log will ever get it.
    """

    def settled(self, head: LogHead, facts: Facts) -> Published | None:
        """Do the same as :meth:`Publish.settled`, but raise TransactionReplayDiffersError if the version was published
        to other logs."""
        found = super().settled(head, facts)
        if found is not None and found.publish_id != self.publish_id.digest:
            assert self.transaction is not None
            raise TransactionReplayDiffersError(
                f"version {self.transaction.version} was published before to other logs or with other rows there",
                value=f"transaction {self.transaction.app_id}",
                remedy="an older checkpoint was restored or the input was cut differently: use a new query or version",
            )
        return found


def publish_among(
    ledgers: Mapping[str, Sequence[NewExtent]],
    publish_id: PublishId,
    *,
    now_ms: int,
    nonce: Nonce,
    options: PublishOptions = APPEND,
) -> dict[str, PublishAmong]:
    """Return the intents, by log, that publish these ledgers in one step. Raises InvalidArgumentError for no log, or
    for more than 100 logs."""
    if not 1 <= len(ledgers) <= LOGS_MAX:
        raise InvalidArgumentError(
            f"a write goes to at most {LOGS_MAX} logs, because they are published in one step",
            value=f"{len(ledgers)} logs",
            remedy="write fewer logs at a time",
        )
    among = fan_out_id(publish_id, {log: sum(each.rows for each in extents) for log, extents in ledgers.items()})
    return {log: PublishAmong(tuple(extents), among, now_ms, nonce, options) for log, extents in ledgers.items()}


def fan_out_id(publish_id: PublishId, rows: Mapping[str, int]) -> PublishId:
    """Return the id of a publish of these numbers of rows to these logs. Other logs or numbers give another id."""
    parts = "".join(f"{log}\n{count}\n" for log, count in sorted(rows.items()))
    return PublishId(f"{publish_id.text}/logs/{hashlib.sha256(parts.encode()).hexdigest()}")


def to_fence(head: LogHead, facts: Facts) -> tuple[LedgerId, ...]:
    """Return the ledgers to fence, which are those of the open extents and at least the last two ledgers (N2, MUST 15).
    Raises PagesNeeded, and NoSuchLedgerError for an open ledger that does not exist, because its end is lost."""
    opened = [extent.ledger_id for extent in head.open_extents]
    if lost := facts.missing.intersection(opened):
        raise NoSuchLedgerError(
            "a ledger that the log's last leader wrote does not exist",
            value=f"ledger {min(lost)}",
            remedy="it was deleted outside the log: restore its metadata",
        )
    return tuple(dict.fromkeys((*opened, *last_ledgers(head, facts.pages))))


def _forgotten(publish_id: bytes, rows: int, time_ms: int) -> Published:
    return Published(publish_id=publish_id, base_offset=FORGOTTEN_OFFSET, rows=rows, time_ms=time_ms)
