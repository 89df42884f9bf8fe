# SPDX-License-Identifier: Apache-2.0
"""Writes verified entries of a recovery back to their write sets, unchanged, with adds that pass fences. Pure.

Source: TLA actions ClientWritesBackEntry, RecoveryClientChangesEnsemble; P6, P7. The machine replaces a bookie that
fails in its copy of the metadata; the change reaches the metadata store only with the close (MUST 9, D3). Without a
spare bookie the recovery continues while every write set has an ack quorum. Bookies that then lack entries are marked
as underreplicated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from bk_core.entries.batch import EntryBatch
from bk_core.entries.packets import pieces, verbatim_packet
from bk_core.errors import NotEnoughBookiesError
from bk_core.model import BookieId, EntryId, LedgerMetadata
from bk_core.placement import RandomSource, replacement
from bk_core.protocol import events as ev
from bk_core.protocol.config import DeliveryConfig
from bk_core.protocol.delivery import Delivery
from bk_core.protocol.keeper import SessionKeeper
from bk_core.wire.lane.reasons import AttachMode

WriteBackEvent: TypeAlias = ev.SessionEvent | ev.BookiesRead | ev.TimerFired
WriteBackEffect: TypeAlias = ev.SessionEffect | ev.ReadBookies | ev.SetTimer | ev.CancelTimer


class WriteBack:
    """Writes the entries above ``confirmed`` to their write sets. If this becomes impossible, ``problem`` says why."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        confirmed: EntryId,
        config: DeliveryConfig,
        new_session: Callable[[], int],
        random: RandomSource,
    ) -> None:
        self.metadata, self.config, self.random = metadata, config, random
        self.problem: str | None = None
        self.delivery = Delivery(metadata, confirmed=confirmed, mode=AttachMode.RECOVER, new_session=new_session)
        self._keeper = SessionKeeper(self.delivery, config)
        self._complete = False  # whether all entries were pushed
        self._lingered = False
        self._replacing: tuple[int, ...] = ()
        self._failed: list[int] = []
        self._changes = 0
        self._gone: list[BookieId] = []  # replaced bookies, not chosen again

    @property
    def replaced_bookies(self) -> tuple[BookieId, ...]:
        """The failed bookies for which the machine is looking for spares."""
        return tuple(self.delivery.lanes[index].bookie for index in self._replacing)

    @property
    def finished(self) -> bool:
        """Whether every entry has an ack quorum, and either every entry has all its copies or the linger time is
        over."""
        return (
            self._complete
            and not self._replacing
            and self.delivery.confirmed() == self.delivery.last_sent
            and (self._lingered or not self.delivery.owing)
        )

    def push(self, batch: EntryBatch) -> list[WriteBackEffect]:
        """Write these entries back. They must follow the entries of the last push."""
        effects: list[WriteBackEffect] = []
        sizes = self.metadata.ensemble_size, self.metadata.write_quorum_size
        for part in pieces(batch):
            session = self.delivery.common_session
            packet = verbatim_packet(part, ensemble_size=sizes[0], write_quorum=sizes[1], session=session)
            effects += self.delivery.push(packet)
        return [*effects, *self._keeper.pushed()]

    def finish(self) -> list[WriteBackEffect]:
        """Note that no more entries follow."""
        self._complete = True
        return [] if self.finished else [ev.SetTimer("linger", self.config.close_linger_ms)]

    def stop(self) -> list[WriteBackEffect]:
        return [*self._keeper.stop(), ev.CancelTimer("linger")]

    def step(self, event: WriteBackEvent) -> list[WriteBackEffect]:
        if isinstance(event, ev.BookiesRead):
            return self._bookies_read(event)
        if event == ev.TimerFired("linger"):
            self._lingered = True
            return []
        effects, failed = self._keeper.step(event)
        self._failed += failed
        return [*effects, *self._look_for_spares()]

    def _look_for_spares(self) -> list[WriteBackEffect]:
        """Start one ensemble change unless one is under way."""
        if self._replacing or not self._failed:
            return []
        self._replacing, self._failed, self._changes = tuple(self._failed), [], self._changes + 1
        if self._changes > self.config.ensemble_changes_max:
            self.problem = f"after {self._changes - 1} ensemble changes another bookie failed"
        return [ev.ReadBookies()]

    def _bookies_read(self, event: ev.BookiesRead) -> list[WriteBackEffect]:
        indices, self._replacing = self._replacing, ()
        assert indices, f"write-back {event}"
        old, first = self.metadata.last_fragment.ensemble, self.delivery.confirmed() + 1
        bookies = event.writable, event.quarantined
        chosen = replacement(
            self.metadata, indices, *bookies, self.random, gone=self._gone, partly=True, landscape=event.landscape
        )
        if isinstance(chosen, NotEnoughBookiesError):
            self.delivery.abandon(indices)
            self.problem = self.problem if self.delivery.quorums_left else chosen.what
            return self._look_for_spares()
        self.metadata = self.metadata.with_ensemble(first, chosen)
        effects: list[WriteBackEffect] = []
        for index in indices:
            if chosen[index] != old[index]:
                self._gone.append(old[index])
                self.delivery.replace(index, chosen[index], first - 1)
                effects += self._keeper.replaced(index)
            else:
                self._failed.append(index)  # there was no spare for it; the next search abandons its lane
        return effects + self._look_for_spares()

    def look_again(self) -> list[WriteBackEffect]:
        """Read the bookies again after the last attempt to read them failed."""
        return [ev.ReadBookies()] if self._replacing else []
