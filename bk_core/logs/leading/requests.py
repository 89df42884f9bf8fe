# SPDX-License-Identifier: Apache-2.0
"""Carries out the requests of a log's leadership. Each request ends in exactly one event."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from bk_core.client.bookkeeper import BookKeeper, check_sizes
from bk_core.client.writing.writer import LedgerWriter
from bk_core.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    Outcome,
)
from bk_core.logs.ledgers import create_for_log, drop_ledger, recovered_end
from bk_core.logs.machines import leadership_events as ev
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.head import Extent, LogHead, PublishId
from bk_core.logs.store import Apply, LogStore, nonce
from bk_core.model import LedgerId, Versioned

logger = logging.getLogger("bk_core.logs")

WAIT_MIN_S, WAIT_MAX_S = 0.01, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadOptions:
    """The options of a leader.

    The leader rolls to a new ledger after ``roll_bytes`` payload bytes, or after ``roll_age_s`` seconds if anything was
    appended. ``still_leader`` returns whether this process still leads. It is called on another thread, before each
    roll and after each failed compare-and-set. Without it this process counts as the leader.
    """

    roll_bytes: int = 1 << 30
    roll_age_s: float = 3600.0
    still_leader: Callable[[], bool] | None = None
    ensemble_size: int = 3
    write_quorum_size: int = 3
    ack_quorum_size: int = 2
    codec: str = "raw"

    def __post_init__(self) -> None:
        for name in ("roll_bytes", "roll_age_s"):
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(f"{name} must be positive", value=f"{name}={getattr(self, name)}")
        check_sizes(self.ensemble_size, self.write_quorum_size, self.ack_quorum_size)

    async def check_bookies(self, bookkeeper: BookKeeper) -> None:
        """Raise NotEnoughBookiesError if no ledger could be made now. The caller checks this before it fences the
        previous leader."""
        await bookkeeper.choose_bookies(self.ensemble_size, self.write_quorum_size)


class LeadershipRequests:
    """Carries out the requests of one leadership. ``writers`` holds the writers of its ledgers that are not closed."""

    def __init__(
        self, bookkeeper: BookKeeper, store: LogStore, head: LogHead, password: bytes, options: LeadOptions
    ) -> None:
        self._bookkeeper, self._store, self._password, self._options = bookkeeper, store, password, options
        self._head = head
        self._publish_id = PublishId.job(str(uuid4()))  # names this leadership in its ledgers' metadata
        self._ledgers_made = 0
        self.writers: dict[LedgerId, LedgerWriter] = {}

    async def read_head(self) -> ev.LeadershipEvent:
        def read() -> ev.LeadershipEvent:
            found = self._store.read(sync=True)  # the leader may have changed a moment ago
            return ev.HeadRead(found, self._store.last_ledgers(found.value))

        return await asyncio.to_thread(read)

    async def recover(self, ledger_id: LedgerId) -> ev.LeadershipEvent:
        try:
            return ev.LedgerRecovered(ledger_id, await recovered_end(self._bookkeeper, ledger_id, self._password))
        except NoSuchLedgerError:
            logger.warning("log %s lists ledger %d, which does not exist", self._store.name, ledger_id)
            return ev.LedgerMissing(ledger_id)

    async def seal(self, effect: ev.SealExtents) -> ev.LeadershipEvent:
        ends = dict(effect.ends)
        return await self._change(
            effect.expected, lambda head, pages: commit.seal(head, ends, nonce=nonce, pages=pages)
        )

    async def list_ledger(self, effect: ev.ListLedger) -> ev.LeadershipEvent:
        # The ledger must exist after the head was read (N6): after a pause of days, vacuum may have deleted it.
        await asyncio.to_thread(self._bookkeeper.store.read_ledger, effect.ledger.ledger_id)
        return await self._change(
            effect.expected, lambda head, pages: commit.add_open_extent(head, effect.ledger, nonce=nonce, pages=pages)
        )

    async def _change(self, expected: Versioned[LogHead], apply: Apply) -> ev.LeadershipEvent:
        try:
            return ev.HeadWritten(await asyncio.to_thread(self._store.write, expected, apply))
        except MetadataConflictError:
            return ev.HeadConflicted()
        except MetadataUnavailableError as error:
            return ev.HeadWriteUnknown() if error.outcome is Outcome.UNKNOWN else ev.HeadConflicted()

    async def create(self) -> ev.LeadershipEvent:
        options, ids = self._options, (self._publish_id, self._password)
        sizes = options.ensemble_size, options.write_quorum_size, options.ack_quorum_size
        writer = await create_for_log(
            self._bookkeeper,
            self._head,
            sizes,
            *ids,
            codec=options.codec,
            log_name=self._store.name,
            attempt=self._ledgers_made,
        )
        self._ledgers_made += 1
        self.writers[writer.ledger_id] = writer
        return ev.LedgerCreated(
            Extent(
                is_open=True,
                ledger_id=writer.ledger_id,
                created_ms=writer.metadata.ctime_ms or int(time.time() * 1000),
                codec=options.codec,
                ensemble_size=options.ensemble_size,
                write_quorum_size=options.write_quorum_size,
                ack_quorum_size=options.ack_quorum_size,
            )
        )

    async def ask(self) -> ev.LeadershipEvent:
        if self._options.still_leader is None:
            return ev.LeaderAnswered(True)
        try:
            return ev.LeaderAnswered(bool(await asyncio.to_thread(self._options.still_leader)))
        except Exception:  # an error of the application's code counts as False
            logger.exception("still_leader of log %s failed, which counts as False", self._store.name)
            return ev.LeaderAnswered(False)

    async def wait(self, attempt: int) -> ev.LeadershipEvent:
        await asyncio.sleep(random.uniform(WAIT_MIN_S, min(WAIT_MAX_S, WAIT_MIN_S * 2**attempt)))
        return ev.WaitEnded()

    async def delete(self, ledger_id: LedgerId) -> None:
        """Delete a ledger of this leadership that the log does not list."""
        await drop_ledger(self._bookkeeper, ledger_id, self.writers.pop(ledger_id, None))

    async def abandon_all(self) -> None:
        """Abandon all writers of this leadership. Another leader recovers their ledgers."""
        while self.writers:
            await self.writers.popitem()[1].abandon()
