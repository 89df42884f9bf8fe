# SPDX-License-Identifier: Apache-2.0
"""Known defects of the client's lane over Apache's wire, put back for schedules with bookies that answer as Apache's
do. Of the wire's other defects ``tests/mutants/apache_client.py`` has those that single tests find."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from bk_core.protocol.delivery import Delivery, Lane, LaneState
from bk_core.transport.bookie_rpc import reads
from bk_core.transport.bookie_rpc.adds import WireAdds
from bk_core.transport.bookie_rpc.exchange import Exchange
from bk_core.transport.bookie_rpc.reads import WireRangeRead, WireReads
from bk_core.wire.bookie_rpc.status import Status
from tests.sim.mutants.exhaustive import patched
from tests.sim.mutants.protocol import Mutant


def fences_count_without_force() -> AbstractContextManager[None]:
    """D6, MUST3: the answer that there is no such entry is taken for a durable fence."""
    return patched((Exchange, "force", lambda self, ledger_id, told: told(Status.EOK)))


def a_later_ack_counts_for_all_before() -> AbstractContextManager[None]:
    """P1: the answer to one entry is taken for the answers to all that were sent before it."""
    taken = WireAdds._taken

    def mutant(self: WireAdds, sent: Any, count: int) -> None:
        session = sent.session
        if session is not None and sent.frame < session.acked:
            self._forget(sent, count)
            return
        taken(self, sent, count)
        if count and session is not None:
            for frame in range(sent.frame - session.acked + 1):
                session.frames[frame] = 0

    return patched((WireAdds, "_taken", mutant))


def nothing_fences() -> AbstractContextManager[None]:
    """D1: what a bookie denies that was not fenced is believed in recovery."""
    one = WireReads.one

    def range_read(self: WireReads, asked: WireRangeRead, force: Any) -> None:
        asked.fencing = False

    def single(self: WireReads, *args: Any, fence_key: bytes | None = None, **more: Any) -> Any:
        return one(self, *args, **more)

    return patched((WireReads, "_fence_first", range_read), (WireReads, "one", single))


def trouble_is_absence() -> AbstractContextManager[None]:
    """MUST4: a status of trouble, or an answer that is no such entry, counts as denied."""
    every = tuple(int(status) for status in Status if status is not Status.EOK)
    return patched((reads, "_ABSENT", (*every, reads._NONSENSE)))


def refused_adds_are_skipped() -> AbstractContextManager[None]:
    """P1: a frame of which a bookie refused an entry counts once its other entries are answered."""

    def mutant(self: WireAdds, sent: Any, places: Any, statuses: Any) -> None:
        self._taken(sent, int(places.size))

    return patched((WireAdds, "_refused", mutant))


# --- deferred syncs (P12) ---


def acks_confirm() -> AbstractContextManager[None]:
    """What is acked before it is on disk counts for the LAC."""
    return patched((Delivery, "_marks", lambda self: [lane.watermark for lane in self.lanes]))


def a_force_covers_later_acks() -> AbstractContextManager[None]:
    """The answer to a force covers what was acked after it was sent."""
    forced = Delivery.forced

    def mutant(self: Delivery, event: Any) -> None:
        lane = self.lanes[event.index]
        lane.forcing = lane.watermark if lane.forcing is not None else None
        forced(self, event)

    return patched((Delivery, "forced", mutant))


def acks_outlive_their_session() -> AbstractContextManager[None]:
    """What a bookie acked and has not on disk is not sent again over the next session."""
    rewind = Delivery._rewind

    def mutant(self: Delivery, lane: Lane, state: LaneState) -> None:
        watermark = lane.watermark
        rewind(self, lane, state)
        lane.watermark, lane.next_number = watermark, self._first_above(watermark)

    return patched((Delivery, "_rewind", mutant))


def what_is_acked_is_not_kept() -> AbstractContextManager[None]:
    """Packets are let go when all bookies have acked them."""
    release = Delivery._release

    def mutant(self: Delivery) -> None:
        durable = [lane.durable for lane in self.lanes]
        for lane in self.lanes:
            lane.durable = lane.watermark
        release(self)
        for lane, mark in zip(self.lanes, durable, strict=True):
            lane.durable = mark

    return patched((Delivery, "_release", mutant))


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "A-force",
        "Apache's fence counts when FORCE was answered",
        fences_count_without_force,
        "Apache's fences are lost",
    ),
    Mutant("A-prefix", "each entry needs an answer of its own", a_later_ack_counts_for_all_before),
    Mutant("A-fence", "denials count behind a fence", nothing_fences),
    Mutant("A-absence", "only ENOENTRY and ENOLEDGER are absence", trouble_is_absence),
    Mutant("A-refused", "a refused entry ends its session", refused_adds_are_skipped),
    Mutant("P12-acks", "an ack before the sync does not confirm", acks_confirm),
    Mutant("P12-later", "a force covers what was acked when it was sent", a_force_covers_later_acks),
    Mutant("P12-again", "what was not forced is sent again", acks_outlive_their_session),
    Mutant("P12-kept", "what was not forced is kept", what_is_acked_is_not_kept),
)
