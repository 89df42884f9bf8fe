# SPDX-License-Identifier: Apache-2.0
"""Allocates memory for buffers that are reused many times."""

from __future__ import annotations

import contextlib
import mmap

HUGE_BYTES = 2 << 20
"""The usual size of a huge page, in bytes."""
HAS_HUGE_PAGES = hasattr(mmap, "MADV_HUGEPAGE")


def private_memory(size: int) -> mmap.mmap:
    """Return zeroed, page-aligned memory of this process. A forked child has a separate copy of it. The memory is in
    huge pages if the system gives them on request. Without huge pages, writing more than the cache holds needs an
    address look-up for every 4096 bytes, which takes as long as the copying itself."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if HAS_HUGE_PAGES and size >= HUGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
