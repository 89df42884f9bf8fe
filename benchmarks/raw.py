# SPDX-License-Identifier: Apache-2.0
"""The machine's own limits, measured in the same run: what a bare disk does with the same bytes."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

SEGMENT_BYTES = 256 << 20
DIRECT = getattr(os, "O_DIRECT", 0)


def disk_rate(folder: Path, total: int, group: int = 1 << 20) -> float:
    """MB/s of ``pwrite`` + ``fdatasync`` of groups into a preallocated file, O_DIRECT where it is allowed."""
    path = folder / "raw-disk"
    buffer = mmap.mmap(-1, group)
    buffer.write(os.urandom(group))
    fd = open_direct(path)
    try:
        os.posix_fallocate(fd, 0, SEGMENT_BYTES)
        began, at = time.perf_counter(), 0
        for _ in range(total // group):
            os.pwrite(fd, buffer, at)
            os.fdatasync(fd)
            at = (at + group) % SEGMENT_BYTES
        return total / (time.perf_counter() - began) / 1e6
    finally:
        os.close(fd)
        path.unlink()


def sync_latencies(folder: Path, count: int = 300) -> list[float]:
    """Milliseconds of one 4 KiB write with fdatasync, each."""
    path = folder / "raw-sync"
    buffer = mmap.mmap(-1, 4096)
    fd = open_direct(path)
    try:
        os.posix_fallocate(fd, 0, 4096 * count)
        samples = []
        for k in range(count):
            began = time.perf_counter()
            os.pwrite(fd, buffer, k * 4096)
            os.fdatasync(fd)
            samples.append((time.perf_counter() - began) * 1e3)
        return samples
    finally:
        os.close(fd)
        path.unlink()


def open_direct(path: Path) -> int:
    """A file for direct writes, or through the page cache where they are refused."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | DIRECT)
    except OSError:
        return os.open(path, os.O_RDWR | os.O_CREAT)
