# SPDX-License-Identifier: Apache-2.0
"""A snapshot of the numbers of one data directory, for an operator."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStats:
    """Counters since the start, and current states. Apache's name is given where it has the same number; Apache's entry
    log is our segment."""

    segments_sealed: int
    """With an ``.idx`` and live frames (ACTIVE_ENTRY_LOG_TOTAL)."""
    segments_unsealed: int
    """Being written, full, or not sealed because the disk is full."""
    segments_drained: int
    """Without live frames; they wait for a checkpoint."""
    segments_kept_free: int
    """Drained, kept to be used again."""
    segments_spare: int
    """Made ahead."""
    live_bytes: int
    """Frames in sealed segments that may still be served."""
    dead_bytes: int
    """All other bytes of the sealed and the drained segments, unused room included."""
    checkpoint_number: int
    checkpoint_bytes: int
    checkpoint_age_s: float | None
    """Since it was begun; None if this process has made none."""
    checkpoints: int
    seals: int
    """Segments sealed."""
    segments_recycled: int
    """Drained segments given back to the pool."""
    indexes_rebuilt: int
    segments_compacted: int
    compaction_read_bytes: int
    compaction_written_bytes: int
    scrubbed_bytes: int
    detected_scrub_errors: int
    """Frames and index blocks that the scrubber found damaged (DETECTED_SCRUB_ERRORS)."""
    frames_damaged: int
    """Reads of clients whose bytes failed their check on the disk."""
    read_io_errors: int
    """Reads that the system refused."""
    index_memory_bytes: int
    index_cache_hits: int
    index_cache_misses: int
    maintenance_errors: int
    """Steps that failed and are tried again."""

    def as_line(self) -> str:
        """A line for a log: ``name=value``, in the order above."""
        shown = {name: "-" if value is None else value for name, value in asdict(self).items()}
        return " ".join(
            f"{name}={value:.0f}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items()
        )
