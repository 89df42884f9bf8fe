# SPDX-License-Identifier: Apache-2.0
"""Copies entries of one fragment to bookies that lack them. Pure.

The machine reads the entries from the bookies that the fragment names, verifies them, and writes them unchanged, with
adds that pass fences (P6). A target acks entries when they are durable. The copy is ``done`` once every target has
acked every entry. The machine holds the reader's effects back while more than ``copy_bytes_max`` bytes wait for acks,
or while the budget has not granted more. To the reader this looks like a slow driver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.packets import pieces, verbatim_packet
from bk_core.errors import BookKeeperError
from bk_core.model import BookieId, EntryId, Fragment, LedgerMetadata
from bk_core.protocol import events as ev
from bk_core.protocol.delivery import Delivery, LaneState
from bk_core.protocol.keeper import KeeperEffect, SessionKeeper
from bk_core.protocol.reader import RangeRead, ReadEffect
from bk_core.protocol.replication.events import BudgetGranted, SpendBudget
from bk_core.protocol.replication.requests import REQUESTS_MAX, Purse, ReplicationConfig
from bk_core.wire.lane.reasons import AttachMode

CopyEvent: TypeAlias = ev.SessionEvent | ev.ReadEvent | ev.TimerFired | BudgetGranted
CopyEffect: TypeAlias = KeeperEffect | ev.SendRead | ev.CancelRead | SpendBudget

READ_TIMERS = ("late", "again")


class FragmentCopy:
    """Copies the entries ``first`` to ``last`` of a fragment to ``targets``, which maps ensemble indices to bookies.
    ``error`` is set if the entries cannot be read. ``failed`` lists the targets that do not take the entries."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        targets: Mapping[int, BookieId],
        first: EntryId,
        last: EntryId,
        *,
        digester: Digester,
        avoid: Collection[BookieId],
        config: ReplicationConfig,
        new_session: Callable[[], int],
        base: int,
        prefer: int = 0,
    ) -> None:
        ensemble = tuple(targets.get(index, bookie) for index, bookie in enumerate(fragment.ensemble))
        self.targets = dict(targets)
        self.failed: list[BookieId] = []
        self.error: BookKeeperError | None = None
        self.entries = self.size = 0
        self._config, self._base, self._last = config, base, last
        shape = replace(metadata, fragments=(Fragment(0, ensemble),))
        self._sizes = metadata.ensemble_size, metadata.write_quorum_size
        self._delivery = Delivery(shape, confirmed=first - 1, mode=AttachMode.RECOVER, new_session=new_session)
        self._keeper = SessionKeeper(self._delivery, config)
        others = [index for index in range(metadata.ensemble_size) if index not in targets]
        for index in others:
            self._delivery.fail(index)
        self._delivery.abandon(others)
        self._reader: RangeRead | None = RangeRead(
            metadata,
            digester,
            first,
            last,
            bytes_max=config.read_bytes_max,
            prefer=prefer,
            retry_delay_ms=config.retry_delay_ms,
            speculative_ms=config.speculative_ms,
            avoid=avoid,
            verify_each=True,
        )
        self._requests: dict[int, None] = {}  # the reader's requests that were sent and have not ended
        self._held: list[ReadEffect] = []
        self._purse = Purse()

    @property
    def done(self) -> bool:
        """Whether every target has every entry on disk."""
        lanes = [self._delivery.lanes[index] for index in self.targets]
        return self._reader is None and all(
            lane.state is not LaneState.FAILED and lane.watermark >= self._last for lane in lanes
        )

    @property
    def over(self) -> bool:
        return self.error is not None or bool(self.failed) or self.done

    def start(self) -> list[CopyEffect]:
        assert self._reader is not None
        return self._read_on(self._reader.start())

    def step(self, event: CopyEvent) -> list[CopyEffect]:
        match event:
            case BudgetGranted():
                self._purse.granted()
                return self._release()
            case ev.FramesRead() | ev.ReadAnswered() | ev.ReadFailed():
                return self._answer(event)
            case ev.TimerFired("late" | "again"):
                return [] if self._reader is None else self._read_on(self._reader.step(event))
        effects, failed = self._keeper.step(event)
        self.failed += [self._delivery.lanes[index].bookie for index in failed]
        return [*effects, *self._release()]

    def stop(self) -> list[CopyEffect]:
        """End sessions, requests and timers."""
        reads = [ev.CancelRead(request) for request in self._requests]
        self._requests.clear()
        self._held, self._reader = [], None
        return [*reads, *map(ev.CancelTimer, READ_TIMERS), *self._keeper.stop(), *self._purse.settle()]

    def _answer(self, event: ev.ReadEvent) -> list[CopyEffect]:
        if event.request not in self._requests or self._reader is None:
            return []
        if not isinstance(event, ev.FramesRead):
            del self._requests[event.request]
        own = replace(event, request=event.request - self._base)
        return self._read_on(self._reader.step(own))

    def _read_on(self, effects: Iterable[ReadEffect]) -> list[CopyEffect]:
        done: list[CopyEffect] = []
        for effect in effects:
            match effect:
                case ev.DeliverBatch(batch):
                    done += self._push(batch)
                case ev.FinishRead():
                    self._reader = None
                    done += map(ev.CancelTimer, READ_TIMERS)
                case ev.Fail(error):
                    self._reader, self.error = None, error
                case _:
                    self._held.append(effect)
        return [*done, *self._release()]

    def _push(self, batch: EntryBatch) -> list[CopyEffect]:
        self.entries += len(batch)
        self.size += batch.payload_bytes
        self._purse.owe(batch.payload_bytes)
        effects: list[CopyEffect] = []
        size, write_quorum = self._sizes
        for part in pieces(batch):
            session = self._delivery.common_session
            effects += self._delivery.push(
                verbatim_packet(part, ensemble_size=size, write_quorum=write_quorum, session=session, only=self.targets)
            )
        return [*effects, *self._keeper.pushed()]

    def _release(self) -> list[CopyEffect]:
        """Pass on the reader's effects if few enough bytes wait for acks and the budget has granted more."""
        if not self._held or self._delivery.retained_bytes > self._config.copy_bytes_max:
            return []
        if not self._purse.may_read:
            return [*self._purse.pay()]
        held, self._held = self._held, []
        return [self._sent(effect) for effect in held]

    def _sent(self, effect: ReadEffect) -> CopyEffect:
        if isinstance(effect, ev.SendRead):
            request = self._base + effect.request
            assert effect.request < REQUESTS_MAX
            self._requests[request] = None
            return replace(effect, request=request)
        if isinstance(effect, ev.CancelRead):
            self._requests.pop(self._base + effect.request, None)
            return ev.CancelRead(self._base + effect.request)
        assert isinstance(effect, ev.SetTimer), effect
        return effect
