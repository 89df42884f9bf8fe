# SPDX-License-Identifier: Apache-2.0
"""Group commits and single adds beside the bare disk, and the bytes that reach the disk for a byte of payload.

Ours and the bare disk write the same bytes in turns, group by group, with O_DIRECT and one sync each: ours into
recycled segments, the bare disk over a file that was written before. Ours adds the copy into the arena, headers,
stamps, index rows, the index in memory, and rolling, sealing and recycling of segments, for which a bookie has a second
thread.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import cycle
from pathlib import Path

from benchmarks.report.figures import elapsed, percentile
from benchmarks.storage.figures import StorageFigure
from benchmarks.storage.machine import DiskCounters
from benchmarks.storage.world import ENTRY_BYTES, Bare, Store, block_buffer, ledgers_of, scaled_segment
from bk_core.errors import IntegrityError, InvalidArgumentError

SEGMENT_BYTES = 256 << 20
SMALL_SEGMENT_BYTES = 64 << 20
COMMIT_SHARE, ADD_SHARE = 0.7, 1.5
GROUP_AMPLIFICATION, ADD_AMPLIFICATION = 1.10, 4.2
ADDS = 1000
SINGLE_LEDGERS = 100
COUNTS_DIFFER = 0.02
"""How far the kernel's count of written bytes may be from ours. The kernel counts metadata and whole pages."""
RAW_GROUP = "pwritev + fdatasync of the same bytes over blocks written before, O_DIRECT, in turns with ours"


def commit_figures(folder: Path, runs: int, scale: float) -> list[StorageFigure]:
    """Measure group commits of one frame of 1 MiB."""
    segment_bytes = scaled_segment(SEGMENT_BYTES, scale)
    store, bare = Store(folder, segment_bytes), Bare(folder, segment_bytes)
    ledgers = cycle(ledgers_of(16, 1 << 20))
    first = next(ledgers)
    buffer = block_buffer(len(first.frame()) + 64)
    rounds = max(16, int(SEGMENT_BYTES * 2 * scale) >> 20)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(runs + 1):
        mine = raw = 0.0
        for _ in range(rounds):
            frame = next(ledgers).frame()
            raw += bare.write(buffer)
            began = time.perf_counter()
            store.append([frame])
            store.look_after()
            mine += time.perf_counter() - began
        ours.append(rounds * first.payload_bytes / mine / 1e6)
        theirs.append(rounds * first.payload_bytes / raw / 1e6)
    store.close()
    bare.close()
    note = "one frame of 1 MiB a group, 1,000 B an entry, index and upkeep (rolling, sealing, recycling) included"
    return [
        StorageFigure(
            "commit_1mb", "MB/s", ours[1:], wanted=COMMIT_SHARE, of_raw=True, peer=RAW_GROUP, peer_values=theirs[1:],
            note=note,
        )
    ]  # fmt: skip


def single_add_figures(folder: Path, runs: int, scale: float) -> list[StorageFigure]:
    """Measure frames of one 1 KB entry, each committed and indexed before the next."""
    segment_bytes = scaled_segment(SMALL_SEGMENT_BYTES, scale)
    store, bare = Store(folder, segment_bytes), Bare(folder, segment_bytes)
    ledgers = cycle(ledgers_of(SINGLE_LEDGERS, ENTRY_BYTES))
    buffer = block_buffer(4096)
    ours: list[float] = []
    theirs: list[float] = []
    tails: list[float] = []
    for _ in range(runs + 1):
        mine: list[float] = []
        raw: list[float] = []
        for _ in range(max(100, int(ADDS * scale))):
            frame = next(ledgers).frame()
            raw.append(bare.write(buffer) * 1e3)
            mine.append(elapsed(partial(store.append, [frame])) * 1e3)
            store.look_after()
        ours.append(percentile(mine, 0.5))
        theirs.append(percentile(raw, 0.5))
        tails.append(percentile(mine, 0.99))
    store.close()
    bare.close()
    return [
        StorageFigure(
            "single_add", "ms", ours[1:], wanted=ADD_SHARE, of_raw=True, less_is_better=True,
            peer="pwritev + fdatasync of 4 KiB, O_DIRECT, in turns with ours", peer_values=theirs[1:],
            note="append_group of one entry of 1,000 B and its index, inline, median of a run",
            extra={"99 % of the last run in ms": tails[-1]},
        )
    ]  # fmt: skip


def amplification_figures(folder: Path, runs: int, scale: float) -> list[StorageFigure]:
    """Measure the bytes that reach the disk for each byte of payload. Each case fills whole segments and seals them, so
    that the bytes of their indexes count, too."""
    note = "bytes that the kernel wrote for this process / bytes of payload; 1,000 B an entry"
    cases = [
        ("write_amplification_1mb", 1, 1 << 20, 4, GROUP_AMPLIFICATION, "groups of one frame of 1 MiB"),
        ("write_amplification_single", 1, ENTRY_BYTES, 1, ADD_AMPLIFICATION, "one entry a group: a block of 4 KiB"),
    ]  # fmt: skip
    figures, segment_bytes = [], scaled_segment(SMALL_SEGMENT_BYTES, scale)
    for name, frames, frame_bytes, segments, wanted, told in cases:
        part = folder / name
        part.mkdir()
        store = Store(part, segment_bytes)
        measured = [written_for_payload(store, folder, frames, frame_bytes, segments) for _ in range(runs)]
        store.close()
        figures.append(
            StorageFigure(
                name, "x", [m[0] for m in measured], wanted=wanted, less_is_better=True,
                note=f"{note}; {told}; over {segments} segments of {segment_bytes >> 20} MiB",
                extra={"by our own count": measured[-1][1], "of the whole device, others included": measured[-1][2]},
            )
        )  # fmt: skip
    return figures


def written_for_payload(
    store: Store, folder: Path, frames: int, frame_bytes: int, segments: int
) -> tuple[float, float, float]:
    """Return the bytes written over the bytes of payload while ``segments`` are filled and sealed: as the kernel counts
    them for this process, as passed through ``Files``, and as the device counts them for all processes (−1 if it does
    not).

    Raises IntegrityError if the first two do not agree, because one of them must be wrong then.
    """
    ledgers = ledgers_of(max(SINGLE_LEDGERS, frames), frame_bytes, first_id=len(store.sealed) << 20)
    take = cycle(ledgers)
    payload = 0
    through = store.files.written_bytes
    before, wanted = DiskCounters.now(folder), len(store.sealed) + segments
    while len(store.sealed) < wanted:
        group = [next(take) for _ in range(frames)]
        store.append([ledger.frame() for ledger in group])
        store.look_after()
        payload += sum(ledger.payload_bytes for ledger in group)
    after = DiskCounters.now(folder)
    counted = store.files.written_bytes - through
    device = after.device_written_bytes - before.device_written_bytes
    by_kernel = after.written_bytes - before.written_bytes if before.written_bytes >= 0 else counted
    check_counts(by_kernel, counted)
    return by_kernel / payload, counted / payload, device / payload if before.device_written_bytes >= 0 else -1.0


def check_counts(by_kernel: int, counted: int) -> None:
    """Check that the kernel counted about as many bytes as we wrote. Raises IntegrityError if not, and
    InvalidArgumentError if it counted none, because the directory is not on a disk then."""
    if not by_kernel:
        raise InvalidArgumentError(
            "nothing was written to a disk", value="write_bytes of /proc/self/io did not grow",
            remedy="name a directory on a disk with --data",
        )  # fmt: skip
    if abs(by_kernel - counted) > COUNTS_DIFFER * counted:
        raise IntegrityError(
            "the kernel counted other bytes than were written", value=f"{by_kernel:,} and {counted:,} bytes"
        )
