# SPDX-License-Identifier: Apache-2.0
"""Lowers the product's limits of a log, so that a few ledgers reach them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

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
"""Limits so small that pages, pages of pages, and rounds of condemning occur all the time."""
WINDOWS = (2, 4, commit.PUBLISHED_MAX)
"""The numbers of publish ids that a head remembers, one for each schedule. Each transaction remembers 5 versions."""


@contextmanager
def small_limits(window: int, more: Mapping[tuple[Any, str], int] | None = None) -> Iterator[None]:
    """Lower the product's limits, and ``more`` of them, within this block, so that a few ledgers reach them. A head
    remembers ``window`` publish ids."""
    limits = {**SMALL, (commit, "PUBLISHED_MAX"): window, (publication, "PUBLISHED_MAX"): window, **(more or {})}
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in limits.items():
            patch.setattr(module, name, value)
        yield
