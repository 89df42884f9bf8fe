# SPDX-License-Identifier: Apache-2.0
"""Measures the memory of the index while frames of one entry arrive for hours. It must not grow with the frames, only
with unsealed segments.

``python -m benchmarks.storage.memory DIR SEGMENTS SEGMENT_BYTES`` writes them, and after each segment prints what it
took. It runs in a process of its own, so that all of the memory is its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.storage.child import told_by
from benchmarks.storage.figures import StorageFigure
from benchmarks.storage.machine import peak_bytes, resident_bytes
from benchmarks.storage.world import Store, ledgers_of, scaled_segment
from bk_cli.local.lifeline import end_with

SEGMENT_BYTES = 256 << 20
SEGMENTS = 4
LEDGERS, ENTRY_BYTES, GROUP_FRAMES = 1000, 100, 1000
MEMORY_WANTED_MB, GROWTH_WANTED, LEFT_WANTED = 1200, 1.1, 0.1


def write_frames(folder: Path, segments: int, segment_bytes: int) -> None:
    """Write the frames. Print a line of JSON for each segment that was filled and sealed."""
    store = Store(folder, segment_bytes, recycling=False)
    ledgers = ledgers_of(LEDGERS, ENTRY_BYTES, ENTRY_BYTES)
    for _ in range(segments):
        frames, full = 0, len(store.sealed) + 1
        index = resident = 0
        while not store.log.seal_jobs:
            for start in range(0, LEDGERS, GROUP_FRAMES):
                store.append([ledger.frame() for ledger in ledgers[start : start + GROUP_FRAMES]])
            frames += LEDGERS
            store.log.release_full()
            index, resident = max(index, store.index.memory_bytes()), max(resident, resident_bytes())
        store.look_after()
        assert len(store.sealed) == full
        line = {
            "frames": frames,
            "index": index,
            "resident": max(resident, resident_bytes()),
            "left": store.index.memory_bytes(),
            "peak": peak_bytes(),
        }
        print(json.dumps(line), flush=True)
    store.close()


def memory_figures(folder: Path, runs: int, scale: float) -> list[StorageFigure]:
    """Measure one run, whatever ``runs`` says. Growth shows within a run."""
    segment_bytes = scaled_segment(SEGMENT_BYTES, scale)
    command = ["benchmarks.storage.memory", str(folder), str(SEGMENTS), str(segment_bytes)]
    return figures_of([line for line, _ in told_by(command)], segment_bytes)


def figures_of(lines: list[dict[str, float]], segment_bytes: int) -> list[StorageFigure]:
    """Return the figures. Growth is measured from the second segment to the last, because the first one also includes
    what the process needs anyway."""
    frames = sum(line["frames"] for line in lines)
    note = (
        f"{frames:,.0f} frames of one entry of {ENTRY_BYTES} B from {LEDGERS:,} ledgers fill {len(lines)} segments of "
        f"{segment_bytes >> 20} MiB, one run"
    )
    last, second = lines[-1], lines[1]
    hours = frames / 3600 / LEDGERS
    return [
        StorageFigure(
            "one_entry_frames_memory", "MB", [last["peak"] / 1e6], wanted=MEMORY_WANTED_MB, less_is_better=True,
            note=f"most memory of the process, sealing included; {note}",
            extra={"bytes of index a frame while unsealed": second["index"] / second["frames"],
                   "hours at an entry a second of each ledger": hours},
        ),
        StorageFigure(
            "one_entry_frames_index_growth", "x", [last["index"] / second["index"]], wanted=GROWTH_WANTED,
            less_is_better=True, note=f"index memory at its most in the last segment / in the second; {note}",
            extra={f"MB in segment {k}": line["index"] / 1e6 for k, line in enumerate(lines, 1)},
        ),
        StorageFigure(
            "one_entry_frames_resident_growth", "x", [last["resident"] / second["resident"]], wanted=GROWTH_WANTED,
            less_is_better=True, note=f"resident memory at its most in the last segment / in the second; {note}",
            extra={f"MB in segment {k}": line["resident"] / 1e6 for k, line in enumerate(lines, 1)},
        ),
        StorageFigure(
            "one_entry_frames_left_by_sealing", "x", [line["left"] / line["index"] for line in lines],
            wanted=LEFT_WANTED, less_is_better=True, note=f"index memory after / before the segment is sealed; {note}",
            extra={"MB after the last": last["left"] / 1e6},
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    end_with(0)
    write_frames(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
