# SPDX-License-Identifier: Apache-2.0
"""Memory for buffers that are reused again and again."""

from __future__ import annotations

import contextlib
import mmap

HUGE_BYTES = 2 << 20
"""The usual size of a huge page, in bytes."""
HAS_HUGE_PAGES = hasattr(mmap, "MADV_HUGEPAGE")


def private_memory(size: int) -> mmap.mmap:
    """Return zeroed, page-aligned memory of this process; a forked child has its own copy of it. It lies in huge pages
    where the system gives them on request. Without them, writing more than the cache holds needs an address look-up for
    every 4096 bytes, which takes as long as the copying itself."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if HAS_HUGE_PAGES and size >= HUGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
