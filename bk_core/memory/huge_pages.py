# SPDX-License-Identifier: Apache-2.0
"""Memory for what is received, written and read again and again."""

from __future__ import annotations

import contextlib
import mmap

HUGE_BYTES = 2 << 20
"""The usual size of a huge page."""
HAS_HUGE_PAGES = hasattr(mmap, "MADV_HUGEPAGE")


def private_memory(size: int) -> mmap.mmap:
    """Zeroed memory of this process, of which a forked child has its own copy; it begins at a page. It is in huge pages
    where the system gives them on request: then a write past the cache need not look up each 4096 bytes of it, which
    takes as long as copying them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if HAS_HUGE_PAGES and size >= HUGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
