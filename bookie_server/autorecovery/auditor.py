# SPDX-License-Identifier: Apache-2.0
"""The auditor: one of the cluster, elected; marks the ledgers of bookies that are lost, and of those that are drained,
so that a drain goes on without the command that began it.

It looks at all ledgers when it is elected, which tells whom they name: a bookie whose cookie is gone is known by
nothing else. It looks again when a bookie is lost or drained, one that came back and is lost again too, a minute later,
and every ``rescan_s``: a writer may have chosen a bookie that was lost or drained already. It marks only what is not
marked yet, so that a worker can remove a mark.
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
"""Ledgers between two looks at the election, while all are audited."""

AGAIN_S = 60.0
"""The time between an audit for a new reason and a second one. Meanwhile a bookie may get new ledgers: until it has
read that it is drained, and from writers with an older list of bookies."""


_Reason: TypeAlias = tuple[BookieId, bool]  # it is lost, or else it is drained


class Auditor:
    """:meth:`look` does what is due now; its calls block."""

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
        self._scanned: tuple[tuple[_Reason, ...], float] | None = None  # for which all is marked, since when
        self._again_at: float | None = None
        self.elected = False
        self.marked = 0

    def look(self) -> None:
        """Takes part in the election; the auditor then marks what is lost. Raises what the store raises."""
        present = self._presence.look()
        wanted = (*((name, True) for name in present.lost), *((name, False) for name in present.leaving))
        if self._scanned is not None:  # for what is over and begins again all is marked anew: marks may be gone
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
        """Marks every ledger that names one of these bookies; whether all could be looked at."""
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
                continue  # what cannot be read is named where it was read (M6); the next audit looks again
            except BookKeeperError as error:  # one record that cannot be had now hides no other
                logger.error("ledger %d cannot be audited: %s", ledger_id, error)
                is_whole = False
        return is_whole

    def _look_at(self, ledger_id: LedgerId, record: LedgerMetadata, wanted: Collection[BookieId]) -> None:
        self._presence.know(_named(record))
        if not _missing(record, wanted):
            return
        # it was read long before its turn: what was repaired since then is not marked
        missing = _missing(self._store.read_ledger(ledger_id).value, wanted)
        mark = self._store.read_underreplicated(ledger_id) if missing else None
        if not missing or (mark is not None and set(missing) <= set(mark.value.missing)):
            return
        self._store.mark_underreplicated(ledger_id, missing)
        self.marked += 1

    def withdraw(self) -> None:
        """Lets another be elected."""
        self._store.withdraw_vote()
        self.elected = False


def _named(record: LedgerMetadata) -> dict[BookieId, None]:
    return dict.fromkeys(bookie for fragment in record.fragments for bookie in fragment.ensemble)


def _missing(record: LedgerMetadata, wanted: Collection[BookieId]) -> tuple[BookieId, ...]:
    return tuple(bookie for bookie in _named(record) if bookie in wanted)
