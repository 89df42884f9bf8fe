# SPDX-License-Identifier: Apache-2.0
"""Known defects of the client's lane over Apache's wire, put back for schedules with bookies that answer as Apache's
do. Of the wire's other defects ``tests/mutants/apache_client.py`` has those that single tests find."""

from __future__ import annotations

from typing import Any

from bk_core.protocol.delivery import Delivery, Lane, LaneState
from bk_core.transport.bookie_rpc import reads
from bk_core.transport.bookie_rpc.adds import WireAdds
from bk_core.transport.bookie_rpc.exchange import Exchange
from bk_core.transport.bookie_rpc.reads import WireRangeRead, WireReads
from bk_core.wire.bookie_rpc.status import Status
from tests.sim.mutants.mutant import Mutants

MUTANTS = Mutants()


@MUTANTS.instead(WireAdds, "_taken", "A-prefix", "each entry needs an answer of its own")
def a_later_ack_counts_for_all_before(taken: Any, self: WireAdds, sent: Any, count: int) -> None:
    """P1: the answer to one entry is taken for the answers to all that were sent before it."""
    session = sent.session
    if session is not None and sent.frame < session.acked:
        self._forget(sent, count)
        return
    taken(self, sent, count)
    if count and session is not None:
        for frame in range(sent.frame - session.acked + 1):
            session.frames[frame] = 0


def _fence_nothing(self: WireReads, asked: WireRangeRead, force: Any) -> None:
    asked.fencing = False


@MUTANTS.instead(
    WireReads, "one", "A-fence", "denials count behind a fence", (WireReads, "_fence_first", _fence_nothing)
)
def nothing_fences(one: Any, self: WireReads, *args: Any, fence_key: bytes | None = None, **more: Any) -> Any:
    """D1: what a bookie denies that was not fenced is believed in recovery."""
    return one(self, *args, **more)


@MUTANTS.instead(WireAdds, "_refused", "A-refused", "a refused entry ends its session")
def refused_adds_are_skipped(_: Any, self: WireAdds, sent: Any, places: Any, statuses: Any) -> None:
    """P1: a frame of which a bookie refused an entry counts once its other entries are answered."""
    self._taken(sent, int(places.size))


_EVERY_TROUBLE = (*(int(status) for status in Status if status is not Status.EOK), reads._NONSENSE)

# MUST4: a status of trouble, or an answer that is no such entry, counts as denied.
MUTANTS.add("A-absence", "only ENOENTRY and ENOLEDGER are absence", (reads, "_ABSENT", _EVERY_TROUBLE))
# D6, MUST3: the answer that there is no such entry is taken for a durable fence.
MUTANTS.add(
    "A-force", "Apache's fence counts when FORCE was answered",
    (Exchange, "force", lambda self, ledger_id, told: told(Status.EOK)), shown_by="Apache's fences are lost",
)  # fmt: skip


# --- deferred syncs (P12) ---


@MUTANTS.instead(Delivery, "forced", "P12-later", "a force covers what was acked when it was sent")
def a_force_covers_later_acks(forced: Any, self: Delivery, event: Any) -> None:
    """The answer to a force covers what was acked after it was sent."""
    lane = self.lanes[event.index]
    lane.forcing = lane.watermark if lane.forcing is not None else None
    forced(self, event)


@MUTANTS.instead(Delivery, "_rewind", "P12-again", "what was not forced is sent again")
def acks_outlive_their_session(rewind: Any, self: Delivery, lane: Lane, state: LaneState) -> None:
    """What a bookie acked and has not on disk is not sent again over the next session."""
    watermark = lane.watermark
    rewind(self, lane, state)
    lane.watermark, lane.next_number = watermark, self._first_above(watermark)


@MUTANTS.instead(Delivery, "_release", "P12-kept", "what was not forced is kept")
def what_is_acked_is_not_kept(release: Any, self: Delivery) -> None:
    """Packets are let go when all bookies have acked them."""
    durable = [lane.durable for lane in self.lanes]
    for lane in self.lanes:
        lane.durable = lane.watermark
    release(self)
    for lane, mark in zip(self.lanes, durable, strict=True):
        lane.durable = mark


# What is acked before it is on disk counts for the LAC.
MUTANTS.add(
    "P12-acks", "an ack before the sync does not confirm",
    (Delivery, "_marks", lambda self: [lane.watermark for lane in self.lanes]),
)  # fmt: skip
