# SPDX-License-Identifier: Apache-2.0
"""Sealing a full segment: its ``.idx`` from what the commit side collected (RULES S7). Any thread; numpy only.

The log goes on in the next segment meanwhile. Until the ``.idx`` is there a start scans the segment, with the same
outcome, so that nothing is lost if sealing never comes to its end.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from bookie_server.storage.bytes.index_file import IndexHeader, Rows, StateCollector, build_index
from bookie_server.storage.bytes.segment import index_name, unsealed_name
from bookie_server.storage.disk.files import Files


@dataclass(frozen=True, slots=True, eq=False)
class SealJob:
    """A full segment that waits for its ``.idx``. Nobody else changes ``rows`` and ``states`` any more."""

    generation: int
    rows: bytearray
    """Index records as :func:`pack_row` made them, in the order of the log."""
    states: StateCollector
    data_end: int
    group_count: int

    @property
    def memory_bytes(self) -> int:
        """Roughly what it takes."""
        return len(self.rows) + self.states.memory_bytes


@dataclass(frozen=True, slots=True, eq=False)
class SealedSegment:
    """A segment with its ``.idx``, durable. ``summary`` is for ``LedgerIndex.seal``."""

    generation: int
    summary: Rows
    index_bytes: int


def seal(job: SealJob, files: Files, path: str, incarnation: bytes) -> SealedSegment:
    """Write the ``.idx`` of a segment of the directory ``path``; durable when this returns.

    Raises OSError: of a full disk (then it may be tried again), or of a write or sync that failed for good (S6).
    """
    header = IndexHeader(job.generation, incarnation, job.data_end, job.group_count)
    built = build_index(header, job.rows, job.states.rows())
    write_index(files, path, job.generation, built.data)
    return SealedSegment(job.generation, built.summary, len(built.data))


def write_index(files: Files, path: str, generation: int, data: bytes) -> None:
    """Make the ``.idx`` of a segment durable; from then on that tells of the segment, and ``.unsealed`` goes. Raises
    OSError."""
    files.write_atomically(os.path.join(path, index_name(generation)), data)
    unmark(files, path, generation)


def unmark(files: Files, path: str, generation: int) -> None:
    """Take the ``.unsealed`` of a segment away, if it has one: something durable tells of the segment. Raises
    OSError."""
    unsealed = os.path.join(path, unsealed_name(generation))
    if files.exists(unsealed):
        files.remove(unsealed)
