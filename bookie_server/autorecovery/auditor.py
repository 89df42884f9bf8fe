# SPDX-License-Identifier: Apache-2.0
"""The auditor marks the ledgers of bookies that are lost or drained. A cluster elects one process as its auditor.
Because it marks for drains, too, a drain continues without the command that began it.

The auditor reads the records of all ledgers when it is elected. It also learns from them which bookies they name,
because nothing else names a bookie whose cookie is gone. It repeats this audit when a bookie is lost or drained (also
when one that came back is lost again), a minute after that, and every ``rescan_s``, because a writer may have chosen a
bookie that was lost or drained already. It does not repeat a mark that is there, because a changed mark could not be
removed by the worker that has read it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import TypeAlias

from bk_core.errors import BookKeeperError, MetadataCorruptError, NoSuchLedgerError
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.scan import READERS, scan_all_there_is
from bk_core.model import BookieId, LedgerId, LedgerMetadata
from bookie_server.autorecovery.presence import Presence
from bookie_server.autorecovery.settings import AutoRecoveryConfig

logger = logging.getLogger(__name__)

VOTE_EVERY = 100
"""The number of ledgers in an audit after which the auditor confirms its election again."""

AGAIN_S = 60.0
"""The seconds from an audit for a newly lost or drained bookie to a second audit. Within them, writers with an older
list of bookies may still choose the bookie for new ledgers."""


_Reason: TypeAlias = tuple[BookieId, bool]  # True: the bookie is lost; False: it is drained


class Auditor:
    """The auditor's part of one process. :meth:`look` does the work that is due; its calls block."""

    def __init__(
        self,
        store: MetadataStore,
        owner: str,
        presence: Presence,
        config: AutoRecoveryConfig,
        is_stopped: Callable[[], bool] = lambda: False,
        *,
        clock: Callable[[], float] = time.monotonic,
        readers: int = READERS,
    ) -> None:
        self._store, self._owner, self._presence, self._config = store, owner, presence, config
        self._is_stopped, self._clock, self._readers = is_stopped, clock, readers
        self._scanned: tuple[tuple[_Reason, ...], float] | None = None  # the reasons of the last audit, and its time
        self._again_at: float | None = None
        self.elected = False
        self.marked = 0

    def look(self) -> None:
        """Take part in the election and, if elected, do the audit that is due. Raises the errors of the store."""
        present = self._presence.look()
        wanted = (*((name, True) for name in present.lost), *((name, False) for name in present.leaving))
        if self._scanned is not None:  # a reason that ends and begins again needs a new audit: marks may be gone
            self._scanned = tuple(each for each in self._scanned[0] if each in wanted), self._scanned[1]
        elected = self._store.vote_for_auditor(self._owner)
        if elected != self.elected:
            self.elected, self._scanned = elected, None
            logger.info("%s %s the auditor of this cluster", self._owner, "is" if elected else "is no longer")
        if not elected or not self._store.replication_enabled() or not self._is_due(wanted):
            return
        if present.lost:
            logger.warning("bookies are lost: %s", ", ".join(present.lost))
        if self._scan(dict.fromkeys(name for name, _ in wanted)):
            self._audited(wanted)

    def _audited(self, wanted: tuple[_Reason, ...]) -> None:
        now, before = self._clock(), () if self._scanned is None else self._scanned[0]
        self._again_at = None if set(wanted) <= set(before) else now + AGAIN_S
        self._scanned = wanted, now

    def _is_due(self, wanted: Collection[_Reason]) -> bool:
        if self._scanned is None or not set(wanted) <= set(self._scanned[0]):
            return True
        now = self._clock()
        if wanted and self._again_at is not None and now >= self._again_at:
            return True
        return now - self._scanned[1] >= self._config.rescan_s

    def _scan(self, wanted: Collection[BookieId]) -> bool:
        """Mark every ledger that names one of these bookies; return whether all ledgers could be read."""
        is_whole = True
        for number, (ledger_id, found) in enumerate(scan_all_there_is(self._store, readers=self._readers)):
            if number % VOTE_EVERY == 0 and not self._store.vote_for_auditor(self._owner):
                return False
            if self._is_stopped():
                return False
            try:
                if isinstance(found, BookKeeperError):
                    raise found
                self._look_at(ledger_id, found.value, wanted)
            except (NoSuchLedgerError, MetadataCorruptError):
                continue  # an unreadable record was logged where it was read (M6); the next audit tries again
            except BookKeeperError as error:  # a record that cannot be read now must not stop the audit
                logger.error("ledger %d cannot be audited: %s", ledger_id, error)
                is_whole = False
        return is_whole

    def _look_at(self, ledger_id: LedgerId, record: LedgerMetadata, wanted: Collection[BookieId]) -> None:
        self._presence.know(_named(record))
        if not _missing(record, wanted):
            return
        # the record may be old by now: read it again, so that a ledger repaired since then is not marked
        missing = _missing(self._store.read_ledger(ledger_id).value, wanted)
        mark = self._store.read_underreplicated(ledger_id) if missing else None
        if not missing or (mark is not None and set(missing) <= set(mark.value.missing)):
            return
        self._store.mark_underreplicated(ledger_id, missing)
        self.marked += 1

    def withdraw(self) -> None:
        """Withdraw from the election, so that another process can be elected."""
        self._store.withdraw_vote()
        self.elected = False


def _named(record: LedgerMetadata) -> dict[BookieId, None]:
    return dict.fromkeys(bookie for fragment in record.fragments for bookie in fragment.ensemble)


def _missing(record: LedgerMetadata, wanted: Collection[BookieId]) -> tuple[BookieId, ...]:
    return tuple(bookie for bookie in _named(record) if bookie in wanted)
