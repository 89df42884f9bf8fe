# SPDX-License-Identifier: Apache-2.0
"""The parts of a store share one object, so no two may give a name to different things."""

from __future__ import annotations

from itertools import combinations

from bk_core.metadata.tree.store import TreeStore


def test_no_part_of_a_store_overrides_a_method_of_another() -> None:
    parts = TreeStore.__bases__
    assert len(parts) == 9
    for one, other in combinations(parts, 2):
        both = {name for name in vars(one) if name in vars(other) and not name.startswith("__")}
        assert not both, (one, other)
