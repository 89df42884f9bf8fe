# SPDX-License-Identifier: Apache-2.0
"""The product's limits of a log, cut so that a few ledgers reach them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bk_core.logs.machines import publication, upkeep
from bk_core.logs.model import next_head as commit
from bk_core.logs.model import paging, schemas, unlinking

SMALL = {
    (paging, "TAIL_EXTENTS_MAX"): 3,
    (paging, "TAIL_EXTENTS_KEPT"): 1,
    (paging, "MERGE_PARTS_MAX"): 2,
    (paging, "PAGE_PARTS_MAX"): 3,
    (paging, "REFS_MAX"): 2,
    (upkeep, "CONDEMNED_MAX"): 3,
    (publication, "VERSIONS_MAX"): 5,
    (schemas, "SCHEMAS_MAX"): 3,
    (unlinking, "UNLINKED_BYTES_MAX"): 80,
}
"""Limits so small that pages, their pages, and rounds of condemning come up all the time."""
WINDOWS = (2, 4, commit.PUBLISHED_MAX)
"""Publish ids that the head remembers, a schedule; each transaction remembers 5 versions."""


@contextmanager
def small_limits(window: int) -> Iterator[None]:
    """The product's limits, cut so that a few ledgers reach them; a head remembers ``window`` publish ids."""
    limits = {**SMALL, (commit, "PUBLISHED_MAX"): window, (publication, "PUBLISHED_MAX"): window}
    with ExitStack() as restore:
        for (module, name), value in limits.items():
            restore.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        yield
