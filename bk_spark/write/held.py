# SPDX-License-Identifier: Apache-2.0
"""Entries that a small task sends to the driver in its message, instead of writing a ledger of its own. Pure.

A ledger costs the metadata service and its bookies the same for three rows as for a million. So a task keeps its
entries in memory at first, and makes ledgers only once they are more than :func:`bytes_max`. The driver writes what
all small tasks sent into one ledger before it publishes (decision 0073).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bk_core.entries.batch import EntryBatch

if TYPE_CHECKING:
    from bk_core.logs.model.head import LogHead
    from bk_core.model import DigestType

FULL_TASKS = 1024
"""The number of partitions, counted from the first, whose tasks may each hold the whole limit. Tasks of later
partitions hold less."""
ENTRY_BYTES = 8
"""The bytes that an entry counts in addition to its payload, for its length and for the cost of handling it."""


@dataclass(frozen=True, slots=True)
class LogAt:
    """The facts about a log that its ledgers need: they carry the log's uuid and have its digest type."""

    name: str
    uuid: str
    digest_type: DigestType

    @classmethod
    def of(cls, name: str, head: LogHead) -> LogAt:
        return cls(name, head.uuid, head.digest_type)


@dataclass(frozen=True, slots=True)
class HeldEntries:
    """Entries of one task for one log, in the form in which they travel. ``lengths`` are 32-bit numbers. ``rows`` is
    the number of DataFrame rows in the entries."""

    log: LogAt
    lengths: bytes
    payload: bytes
    rows: int

    @classmethod
    def of(cls, log: LogAt, batches: Iterable[EntryBatch], rows: int) -> HeldEntries:
        lengths, payloads = zip(*((batch.lengths.tobytes(), batch.payload) for batch in batches), strict=True)
        return cls(log, b"".join(lengths), b"".join(payloads), rows)

    def entries(self) -> EntryBatch:
        return EntryBatch(lengths=np.frombuffer(self.lengths, dtype=np.uint32), payload=memoryview(self.payload))


def bytes_max(partition: int, limit: int) -> int:
    """Return how many bytes the task of ``partition`` may hold. ``limit`` is the most for any task.

    A task knows only its own partition's number, not how many tasks there are. From partition FULL_TASKS on, the share
    falls with the square of that number. So all tasks of a write together hold less than 2 × FULL_TASKS × ``limit``,
    however many they are: 64 MiB by default.
    """
    return limit if partition < FULL_TASKS else limit * FULL_TASKS**2 // (partition + 1) ** 2


def size_of(batch: EntryBatch) -> int:
    """Return how many bytes a batch counts against :func:`bytes_max`."""
    return batch.payload_bytes + ENTRY_BYTES * len(batch)
