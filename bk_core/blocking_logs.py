# SPDX-License-Identifier: Apache-2.0
"""Named logs without ``await``: what ``BookKeeper.log`` of :mod:`bk_core.blocking` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from bk_core.client.loop_thread import Handle
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.logs import named_log, upkeep
from bk_core.logs.compaction import CompactionLimits, Run
from bk_core.logs.head import Extent, LogHead, LogTransactions, NewExtent, Published, PublishId
from bk_core.logs.machines.compaction import Compacted
from bk_core.logs.machines.transactions import Transaction
from bk_core.logs.machines.vacuum import Vacuumed
from bk_core.model import DigestType, LedgerId, Versioned


class LogLeader(Handle[named_log.LogLeader]):
    """As :class:`bk_core.logs.named_log.LogLeader`; a context manager that gives leadership up."""

    @property
    def ledger_id(self) -> LedgerId:
        return self._inner.ledger_id

    @property
    def next_offset(self) -> int:
        return self._inner.next_offset

    @property
    def is_leader(self) -> bool:
        return self._inner.is_leader

    @property
    def created(self) -> bool:
        return self._inner.created

    def append(self, payload: Bytes) -> int:
        return self._thread.call(self._inner.append(payload))

    def append_nowait(self, payload: Bytes) -> int:
        return self._inner.append_nowait(payload)

    def append_batch(self, batch: EntryBatch) -> int:
        return self._thread.call(self._inner.append_batch(batch))

    def wait_confirmed(self, offset: int) -> None:
        self._thread.call(self._inner.wait_confirmed(offset))

    def roll(self) -> None:
        self._thread.call(self._inner.roll())

    def close(self) -> None:
        self._thread.call(self._inner.close())

    def __enter__(self) -> LogLeader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(self._inner.__aexit__(kind, error, trace), error)


class NamedLog(Handle[named_log.NamedLog]):
    """As :class:`bk_core.logs.named_log.NamedLog`."""

    @property
    def name(self) -> str:
        return self._inner.name

    def head(self, *, check_password: bool = True, sync: bool = True) -> Versioned[LogHead]:
        return self._thread.call(self._inner.head(check_password=check_password, sync=sync))

    def create(self, *, digest_type: DigestType = DigestType.CRC32C, exist_ok: bool = True) -> LogHead:
        return self._thread.call(self._inner.create(digest_type=digest_type, exist_ok=exist_ok))

    def open_or_create(self, *, digest_type: DigestType | None = None) -> tuple[Versioned[LogHead], bool]:
        return self._thread.call(self._inner.open_or_create(digest_type=digest_type))

    def extents(self, start_offset: int | None = None, end_offset: int | None = None) -> list[Extent]:
        return self._thread.call(self._inner.extents(start_offset, end_offset))

    def schemas(self) -> dict[int, bytes]:
        return self._thread.call(self._inner.schemas())

    def publish(
        self,
        ledgers: Sequence[NewExtent],
        publish_id: PublishId,
        *,
        takeover: bool = False,
        transaction: Transaction | None = None,
        schema: bytes | None = None,
        merge_schema: bool = False,
    ) -> Published:
        publishing = self._inner.publish(
            ledgers,
            publish_id,
            takeover=takeover,
            transaction=transaction,
            schema=schema,
            merge_schema=merge_schema,
        )
        return self._thread.call(publishing)

    def overwrite(
        self,
        ledgers: Sequence[NewExtent],
        publish_id: PublishId,
        *,
        takeover: bool = False,
        transaction: Transaction | None = None,
        schema: bytes | None = None,
        merge_schema: bool = False,
    ) -> Published:
        overwriting = self._inner.overwrite(
            ledgers,
            publish_id,
            takeover=takeover,
            transaction=transaction,
            schema=schema,
            merge_schema=merge_schema,
        )
        return self._thread.call(overwriting)

    def trim(self, before_offset: int) -> int:
        return self._thread.call(self._inner.trim(before_offset))

    def trim_expired(self) -> int:
        return self._thread.call(self._inner.trim_expired())

    def expired_offset(self) -> int:
        return self._thread.call(self._inner.expired_offset())

    def set_retention(self, *, retention_ms: int | None = None, retention_bytes: int | None = None) -> LogHead:
        """As :func:`bk_core.logs.upkeep.set_retention`."""
        self.head()  # the password is right
        return upkeep.set_retention(self._inner.records, retention_ms=retention_ms, retention_bytes=retention_bytes)

    def compact(self, run: Sequence[Extent], ledger: NewExtent) -> Extent:
        return self._thread.call(self._inner.compact(run, ledger))

    def plan_compaction(self, limits: CompactionLimits | None = None) -> list[Run]:
        """As :meth:`bk_core.logs.compactor.Compactor.plan`."""
        return self._thread.call(self._inner.compactor(limits).plan())

    def compact_small(
        self, limits: CompactionLimits | None = None, progress: Callable[[int], None] = lambda entries: None
    ) -> Compacted:
        """As :meth:`bk_core.logs.compactor.Compactor.run`. ``progress`` is called on the client's thread."""
        return self._thread.call(self._inner.compactor(limits, progress).run())

    def vacuum(
        self,
        *,
        delete_delay_ms: int = named_log.DELETE_DELAY_MS,
        txn_retention_ms: int = named_log.TXN_RETENTION_MS,
        force: bool = False,
    ) -> Vacuumed:
        vacuuming = self._inner.vacuum(delete_delay_ms=delete_delay_ms, txn_retention_ms=txn_retention_ms, force=force)
        return self._thread.call(vacuuming)

    def vacuum_candidates(self, delete_delay_ms: int, txn_retention_ms: int) -> Vacuumed:
        """As :func:`bk_core.logs.upkeep.vacuum_candidates`."""
        return upkeep.vacuum_candidates(self._inner.records, delete_delay_ms, txn_retention_ms)

    def transactions(self) -> Iterator[LogTransactions]:
        """As :func:`bk_core.logs.upkeep.transactions`."""
        return upkeep.transactions(self._inner.records)

    def transactions_of(self, app_id: str) -> LogTransactions | None:
        """What an application or query has published to this log, None: nothing is remembered."""
        found = self._inner.records.transactions(app_id)
        return None if found is None else found.value

    def forget_transactions(self, app_id: str) -> LogTransactions | None:
        """As :func:`bk_core.logs.upkeep.forget_transactions`."""
        self.head()  # the password is right
        return upkeep.forget_transactions(self._inner.records, app_id)

    def end_offset(self) -> int:
        return self._thread.call(self._inner.end_offset())

    def read(self, start_offset: int, end_offset: int) -> Iterator[tuple[int, EntryBatch]]:
        return self._thread.iterate(self._inner.read(start_offset, end_offset))

    def tail(self, from_offset: int) -> Iterator[tuple[int, EntryBatch]]:
        return self._thread.iterate(self._inner.tail(from_offset))

    def lead(
        self,
        *,
        roll_bytes: int = 1 << 30,
        roll_age_s: float = 3600.0,
        still_leader: Callable[[], bool] | None = None,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        digest_type: DigestType | None = None,
        codec: str = "raw",
    ) -> LogLeader:
        leading = self._inner.lead(
            roll_bytes=roll_bytes,
            roll_age_s=roll_age_s,
            still_leader=still_leader,
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum_size,
            ack_quorum_size=ack_quorum_size,
            digest_type=digest_type,
            codec=codec,
        )
        return LogLeader(self._thread.call(leading), self._thread)
