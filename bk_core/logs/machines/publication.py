# SPDX-License-Identifier: Apache-2.0
"""Publishing closed ledgers: all or none, once for each publish id; appending or overwriting. Pure (RULES N2 to N7).

The ledgers of a job are its own until a compare-and-set names them. From then on they may be the log's, whatever the
answer was, and nobody but vacuum deletes them: neither an abort, nor a retry that finds them published already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bk_core.errors import NoSuchLedgerError, PublishConflictError
from bk_core.logs import commit, schemas
from bk_core.logs.head import PUBLISHED_MAX, LogHead, NewExtent, Published, PublishId
from bk_core.logs.machines import change_events as ev
from bk_core.logs.machines.change import Ask, Effects, Facts, HeadChange, Intent, State
from bk_core.logs.machines.transactions import APPEND, PublishOptions, Transaction, check_input, recorded, replayed
from bk_core.logs.paging import Change, Nonce, last_ledgers
from bk_core.model import LedgerId

FORGOTTEN_OFFSET = -1
"""Base offset of a replayed publish that only its transaction remembers."""


@dataclass(frozen=True)
class Publish(Intent[Published]):
    """List ``extents`` in order, as ``options`` say. ``now_ms`` is the time of the publish."""

    extents: tuple[NewExtent, ...]
    publish_id: PublishId
    now_ms: int
    nonce: Nonce
    options: PublishOptions = APPEND
    is_repeatable = False  # once

    @property
    def transaction(self) -> Transaction | None:
        """The version that is published, if it is one."""
        return self.options.transaction

    @property
    def rows(self) -> int:
        """Rows to publish. The same input has as many of them each time, whereas a codec that puts several into an
        entry may make another count of entries."""
        return sum(extent.rows for extent in self.extents)

    @property
    def app_id(self) -> str | None:  # type: ignore[override]  # an attribute there, derived here
        return self.transaction.app_id if self.transaction else None

    def settled(self, head: LogHead, facts: Facts) -> Published | None:
        """The publish of this id, if the log remembers one."""
        found = commit.already_published(head, self.publish_id, self.rows)
        if self.transaction is None:
            return found
        record = facts.transactions.value if facts.transactions else None
        if found is not None:
            check_input(record, self.transaction)
        elif (version := replayed(record, self.transaction, self.rows)) is not None:
            found = Published(
                publish_id=version.publish_id,
                base_offset=FORGOTTEN_OFFSET,
                rows=version.rows,
                time_ms=version.time_ms,
            )
        return found

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """Fence whoever leads if that is wanted, see that every ledger is still there, publish."""
        if head.open_extents and self.options.takeover:
            ledgers = to_fence(head, facts)
            if not facts.missing.union(facts.ends) >= set(ledgers):
                return ev.RecoverLedgers(ledgers)
            head = commit.sealed(head, facts.ends)
        commit.check_unpublished(head, self.extents)
        if not facts.is_checked:
            return ev.CheckLedgers(head, self.extents)
        change = self._put(head, facts)
        if self.transaction is None:
            return change
        record = facts.transactions.value if facts.transactions else None
        transactions = recorded(record, self.transaction, self.publish_id, self.rows, self.now_ms)
        return replace(change, transactions=transactions)

    def _put(self, head: LogHead, facts: Facts) -> Change:
        """The head with the extents in it, and with their schema, also of a job that had no rows."""
        extents, page = self.extents, None
        wanted = self.options
        if wanted.schema is not None:
            found = schemas.registered(head, wanted.schema, wanted.merge_schema, nonce=self.nonce, pages=facts.pages)
            head, page = found.head, found.page
            extents = tuple(replace(extent, schema_number=found.number) for extent in extents)
        put = commit.overwrite if wanted.overwrite else commit.publish
        change = put(head, extents, self.publish_id, now_ms=self.now_ms, nonce=self.nonce, pages=facts.pages)
        return change if page is None else replace(change, new_pages=(page, *change.new_pages))

    def rules_out(self, made: LogHead, moved: int, head: LogHead, facts: Facts) -> bool:
        """The head remembers the last publishes, the transaction's record every version until 128 higher ones came."""
        if self.transaction is not None and facts.transactions is not None:
            versions = facts.transactions.value.versions
            if all(each.version < self.transaction.version for each in versions):
                return True
        return moved < PUBLISHED_MAX


def to_fence(head: LogHead, facts: Facts) -> tuple[LedgerId, ...]:
    """Every open extent, and at least the last two ledgers (RULES N2, MUST 15). Raises PagesNeeded, and
    NoSuchLedgerError for an open one that does not exist: where it ends is lost with it."""
    opened = [extent.ledger_id for extent in head.open_extents]
    if lost := facts.missing.intersection(opened):
        raise NoSuchLedgerError(
            "a ledger that the log's last leader wrote does not exist",
            value=f"ledger {min(lost)}",
            remedy="it was deleted outside the log: restore its metadata",
        )
    return tuple(dict.fromkeys((*opened, *last_ledgers(head, facts.pages))))


class Publication(HeadChange[Published]):
    """A job's publish, from its ledgers being written to its end. Abort instead of Start, or at any time after."""

    intent: Publish

    def __init__(self, intent: Publish, *, attempts_max: int = 30, failures_max: int = 5) -> None:
        super().__init__(intent, attempts_max=attempts_max, failures_max=failures_max)

    def _step(self, event: ev.Event) -> Effects:
        if isinstance(event, ev.Abort):
            return self._abort() if self.state not in (State.DONE, State.FAILED) else []
        return super()._step(event)

    def _abort(self) -> Effects:
        """Delete the ledgers only if no compare-and-set was ever sent: one without an answer may come late."""
        error = PublishConflictError("the publish was aborted")
        if self.state is State.WRITING:
            self._doubted(error)
        effects = self._fail(error)
        ledgers = ledgers_of(self.intent.extents)
        return effects if self.was_attempted or not ledgers else [ev.DropLedgers(ledgers), *effects]


def ledgers_of(extents: Sequence[NewExtent]) -> tuple[LedgerId, ...]:
    """The ledgers, each once, in order."""
    return tuple(dict.fromkeys(extent.ledger_id for extent in extents))
