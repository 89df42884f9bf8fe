# SPDX-License-Identifier: Apache-2.0
"""Recovery's writing: verified entries back to their write sets, unchanged, through fences. Pure.

Source: TLA actions ClientWritesBackEntry, RecoveryClientChangesEnsemble; RULES P6, P7. A bookie that fails is replaced
in this recovery's own copy of the metadata, which the store sees only with the close (MUST 9, D3). Without a spare the
recovery goes on while an ack quorum of every write set is left; what then misses entries is marked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from bk_core import quorum
from bk_core.entries.batch import EntryBatch
from bk_core.errors import NotEnoughBookiesError
from bk_core.model import BookieId, EntryId, LedgerMetadata
from bk_core.placement import RandomSource
from bk_core.protocol.delivery import Delivery, LaneState
from bk_core.protocol.ensemble_change import replacement
from bk_core.protocol.events import (
    BookiesRead,
    CancelTimer,
    FramesAcked,
    ReadBookies,
    SessionBroken,
    SessionEffect,
    SessionEnded,
    SetTimer,
    TimerFired,
)
from bk_core.protocol.keeper import KeeperConfig, SessionKeeper
from bk_core.protocol.packets import verbatim_packet
from bk_core.wire.lane import FRAME_BYTES_MAX, AttachMode

WriteBackEvent: TypeAlias = FramesAcked | SessionEnded | SessionBroken | BookiesRead | TimerFired
WriteBackEffect: TypeAlias = SessionEffect | ReadBookies | SetTimer | CancelTimer

SLICE_BYTES = FRAME_BYTES_MAX // 4


class WriteBackConfig(KeeperConfig, Protocol):
    """The bounds it needs of the recovery's."""

    @property
    def close_linger_ms(self) -> float: ...


class WriteBack:
    """Entries above ``confirmed`` on their way to all Qw copies; ``problem`` says why it cannot go on."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        confirmed: EntryId,
        config: WriteBackConfig,
        new_session: Callable[[], int],
        random: RandomSource,
    ) -> None:
        self.metadata, self.config, self.random = metadata, config, random
        self.problem: str | None = None
        self.delivery = Delivery(
            metadata.last_fragment.ensemble,
            metadata.write_quorum_size,
            metadata.ack_quorum_size,
            confirmed=confirmed,
            mode=AttachMode.RECOVER,
            new_session=new_session,
        )
        self._keeper = SessionKeeper(self.delivery, config)
        self._complete = False  # no more entries follow
        self._lingered = False
        self._replacing: tuple[int, ...] = ()
        self._failed: list[int] = []

    @property
    def retained_bytes(self) -> int:
        return self.delivery.retained_bytes

    @property
    def replaced_bookies(self) -> tuple[BookieId, ...]:
        """Those whose replacement is being looked for."""
        return tuple(self.delivery.lanes[index].bookie for index in self._replacing)

    @property
    def finished(self) -> bool:
        """Everything is on an ack quorum, and on every copy that can be had in time."""
        return (
            self._complete
            and not self._replacing
            and self.delivery.confirmed() == self.delivery.last_sent
            and (self._lingered or not self._waiting())
        )

    def _waiting(self) -> bool:
        lanes = self.delivery.lanes
        return any(lane.watermark < self.delivery.last_sent and lane.state is not LaneState.FAILED for lane in lanes)

    def push(self, batch: EntryBatch) -> list[WriteBackEffect]:
        """Write these entries back; they follow the last ones."""
        effects: list[WriteBackEffect] = []
        value = self.metadata
        for part in _pieces(batch):
            packet = verbatim_packet(
                part,
                ensemble_size=value.ensemble_size,
                write_quorum=value.write_quorum_size,
                session=self.delivery.common_session,
            )
            effects += self.delivery.push(packet)
        return [*effects, *self._keeper.pushed()]

    def finish(self) -> list[WriteBackEffect]:
        """No more entries follow."""
        self._complete = True
        return [] if self.finished else [SetTimer("linger", self.config.close_linger_ms)]

    def stop(self) -> list[WriteBackEffect]:
        return [*self._keeper.stop(), CancelTimer("linger")]

    def step(self, event: WriteBackEvent) -> list[WriteBackEffect]:
        match event:
            case FramesAcked():
                return [*(self._keeper.acked(event) or [])]
            case SessionEnded() | SessionBroken():
                return self._session_over(event)
            case BookiesRead(writable):
                return self._bookies_read(writable)
            case TimerFired(name):
                return self._timer(name)

    def _session_over(self, event: SessionEnded | SessionBroken) -> list[WriteBackEffect]:
        if not self.delivery.is_current(event.index, event.session):
            return []
        effects: list[WriteBackEffect] = []
        if isinstance(event, SessionEnded):
            effects += self.step(FramesAcked(event.index, event.session, event.frames))
        kept, failed = self._keeper.session_over(event)
        effects += kept
        return effects + self._bookie_failed(event.index) if failed else effects

    def _timer(self, name: str) -> list[WriteBackEffect]:
        if name == "linger":
            self._lingered = True
            return []
        kept, failed = self._keeper.timer(name)
        effects: list[WriteBackEffect] = [*kept]
        for index in failed:
            effects += self._bookie_failed(index)
        return effects

    def _bookie_failed(self, index: int) -> list[WriteBackEffect]:
        effects: list[WriteBackEffect] = [*self._keeper.give_up(index)]
        self._failed.append(index)
        if self._replacing:
            return effects
        self._replacing = tuple(self._failed)
        return [*effects, ReadBookies()]

    def _bookies_read(self, writable: tuple[str, ...]) -> list[WriteBackEffect]:
        indices, self._replacing = self._replacing, ()
        if not indices:
            return []
        self._failed = [index for index in self._failed if index not in indices]
        chosen = replacement(self.metadata, indices, writable, self.random)
        effects: list[WriteBackEffect] = []
        if isinstance(chosen, NotEnoughBookiesError):
            for index in indices:
                self.delivery.abandon(index)
            self._check_quorums(chosen)
        else:
            first = self.delivery.confirmed() + 1
            self.metadata = self.metadata.with_ensemble(first, chosen)
            for index in indices:
                self.delivery.replace(index, chosen[index], first - 1)
            for index in indices:
                effects += self._keeper.replaced(index)
        if self._failed:
            self._replacing = tuple(self._failed)
            effects.append(ReadBookies())
        return effects

    def look_again(self) -> list[WriteBackEffect]:
        """The last look at the bookies failed: repeat it."""
        return [ReadBookies()] if self._replacing else []

    def _check_quorums(self, error: NotEnoughBookiesError) -> None:
        """Going on without a replacement needs an ack quorum in every write set."""
        alive = [lane.state is not LaneState.FAILED for lane in self.delivery.lanes]
        for residue in range(len(alive)):
            members = quorum.write_set(residue, len(alive), self.delivery.write_quorum)
            if sum(alive[index] for index in members) < self.delivery.ack_quorum:
                self.problem = error.what
                return


def _pieces(batch: EntryBatch) -> list[EntryBatch]:
    """The batch in parts that fit a frame with room to spare; one entry at least in each."""
    if batch.payload_bytes <= SLICE_BYTES:
        return [batch]
    offsets = batch.offsets()
    parts, start = [], 0
    while start < len(batch):
        stop = int(offsets.searchsorted(offsets[start] + SLICE_BYTES, side="right")) - 1
        stop = min(max(stop, start + 1), len(batch))
        parts.append(batch.slice(start, stop))
        start = stop
    return parts
