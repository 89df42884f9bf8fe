# SPDX-License-Identifier: Apache-2.0
"""Carries out planned moves of copies (decision 0051) with the machine of repairs. The machine gets the source as a
bookie that is leaving, and the target as the only bookie that can replace it.

So a move is a repair: the entries are read and verified, the target has them on disk before the record names it, and
the record is changed by compare-and-set. A move that ends early leaves copies that no record names; the target deletes
these later.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass

from bk_core.client.bookkeeper import BookKeeper
from bk_core.client.repairing.repair import ByteRate, RepairDriver, locked_ledgers, under_lock
from bk_core.errors import BookKeeperError, NoSuchLedgerError
from bk_core.model import INCARNATION_PROPERTY, BookieId, LedgerId
from bk_core.protocol.replication.balance import Move
from bk_core.protocol.replication.copies import fragments_of
from bk_core.protocol.replication.events import ClusterRead, PostponeReplication
from bk_core.protocol.replication.machine import LedgerReplication
from bk_core.protocol.replication.requests import ReplicationConfig

HINT_TIMEOUT_S = 2.0
"""The seconds for which a move waits for the answer to its hint. Without the hint, the source checks later."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a move. ``why`` is empty if the move was made, and otherwise says why not. ``size`` is the number
    of bytes that were copied."""

    move: Move
    why: str = ""
    size: int = 0


class Mover:
    """Carries out the moves of one process, all charged to one budget. It belongs to the client's loop."""

    def __init__(self, client: BookKeeper, owner: str, budget: ByteRate) -> None:
        self._client, self._owner, self._budget = client, owner, budget
        self._random = random.Random()
        self._in_hand: dict[LedgerId, None] = {}
        self._may_keep = False  # whether this process may still hold a lock that it could not release

    async def carry_out(self, move: Move) -> Moved:
        """Carry out one move. A plan must have at most one move of each ledger. Raises only CancelledError; then the
        record is unchanged, or the move was made."""
        self._in_hand[move.ledger_id] = None
        try:
            await self._give_back_kept()
            return await self._carry_out(move)
        finally:
            self._in_hand.pop(move.ledger_id, None)

    async def _give_back_kept(self) -> None:
        if self._may_keep:
            with contextlib.suppress(BookKeeperError):
                await asyncio.to_thread(locked_ledgers, self._client.store, self._owner, tuple(self._in_hand))
                self._may_keep = False

    async def _carry_out(self, move: Move) -> Moved:
        try:
            moved = await under_lock(self._client.store, move.ledger_id, self._owner, lambda: self._move(move))
        except NoSuchLedgerError:
            return Moved(move, "it was deleted")
        except BookKeeperError as error:
            self._may_keep = True
            return Moved(move, str(error))
        if moved is None:
            return Moved(move, "it is under repair")
        if not moved.why:
            await self._tell(move)
        return moved

    async def _move(self, move: Move) -> Moved:
        store = self._client.store
        if await asyncio.to_thread(store.read_underreplicated, move.ledger_id) is not None:
            return Moved(move, "it lacks copies, which are restored first")
        record = (await asyncio.to_thread(store.read_ledger, move.ledger_id)).value
        if not record.is_closed:
            return Moved(move, "it is not closed")
        machine = LedgerReplication(
            move.ledger_id,
            (move.source,),
            config=ReplicationConfig(),
            new_session=self._client.new_session,
            random=self._random,
        )

        async def cluster(_: tuple[BookieId, ...]) -> ClusterRead:
            return await self._cluster(move)

        driver = RepairDriver(self._client, machine, record, budget=self._budget, cluster=cluster)
        ended = await driver.run()
        if isinstance(ended, PostponeReplication):
            return Moved(move, ended.why, machine.size)
        there = any(fragments_of(machine.metadata.value, move.target)) if machine.metadata else False
        return Moved(move, "" if there else "another client changed its record", machine.size)

    async def _cluster(self, move: Move) -> ClusterRead:
        """Describe the cluster to the machine so that only the target can replace the source."""
        store = self._client.store
        chosen = await self._client.bookies_for_repair()
        writable = await asyncio.to_thread(store.writable_bookies)
        read_only = await asyncio.to_thread(store.read_only_bookies)
        others = {**read_only, **writable}
        ordered = await asyncio.to_thread(store.bookie_orders)
        takes = (move.target,) if move.target in writable and move.target not in ordered else ()
        lives = {name: info.properties.get(INCARNATION_PROPERTY, "") for name, info in others.items()}
        seen = tuple(name for name in others if name not in takes)
        return ClusterRead(takes, seen, incarnations=lives, leaving=(move.source,), landscape=chosen.landscape)

    async def _tell(self, move: Move) -> None:
        """Send a hint to the source, so that it checks soon whether it still needs its copy. Without the hint its
        garbage collection checks later."""
        with contextlib.suppress(BookKeeperError):
            await self._client.transport.link(move.source).delete_hint([move.ledger_id], deadline_s=HINT_TIMEOUT_S)
