# SPDX-License-Identifier: Apache-2.0
"""Seals a full segment: makes its ``.idx`` from the rows that were collected at its commits (RULES S7). Any thread may
do it; it is numpy only.

The log continues in the next segment meanwhile. A start scans a segment without an ``.idx``, with the same outcome, so
nothing is lost if sealing is interrupted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from bookie_server.storage.bytes.index_file import IndexHeader, StateCollector, build_index
from bookie_server.storage.bytes.index_rows import Rows
from bookie_server.storage.bytes.segment import index_name, unsealed_name
from bookie_server.storage.disk.files import Files


@dataclass(frozen=True, slots=True, eq=False)
class SealJob:
    """A full segment that waits for its ``.idx``. Its ``rows`` and ``states`` do not change."""

    generation: int
    rows: bytearray
    """Index records from :func:`index_row`, in the order of the log."""
    states: StateCollector
    data_end: int
    group_count: int

    @property
    def memory_bytes(self) -> int:
        """The approximate memory of the job."""
        return len(self.rows) + self.states.memory_bytes


@dataclass(frozen=True, slots=True, eq=False)
class SealedSegment:
    """A segment whose ``.idx`` is durable. ``summary`` is for ``LedgerIndex.seal``."""

    generation: int
    summary: Rows
    index_bytes: int


def seal(job: SealJob, files: Files, path: str, incarnation: bytes) -> SealedSegment:
    """Write the ``.idx`` of a segment of the directory ``path``, durably. Raises OSError: for a full disk, and then it
    may be tried again, or for a write or sync that failed for good (S6)."""
    header = IndexHeader(job.generation, incarnation, job.data_end, job.group_count)
    built = build_index(header, job.rows, job.states.rows())
    write_index(files, path, job.generation, built.data)
    return SealedSegment(job.generation, built.summary, len(built.data))


def write_index(files: Files, path: str, generation: int, data: bytes) -> None:
    """Make the ``.idx`` of a segment durable. From then on the ``.idx`` shows that the segment exists, so ``.unsealed``
    is removed. Raises OSError."""
    files.write_atomically(os.path.join(path, index_name(generation)), data)
    unmark(files, path, generation)


def unmark(files: Files, path: str, generation: int) -> None:
    """Remove the ``.unsealed`` of a segment, if it has one, because something durable shows that the segment exists.
    Raises OSError."""
    unsealed = os.path.join(path, unsealed_name(generation))
    if files.exists(unsealed):
        files.remove(unsealed)
