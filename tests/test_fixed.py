# SPDX-License-Identifier: Apache-2.0
"""Objects of fixed dataclasses compare and hash as those of frozen ones do."""

from __future__ import annotations

from bk_core.entries.batch import EntryBatch
from bk_core.protocol.events import Confirm, SendFrame


def test_objects_with_the_same_fields_are_equal_and_have_one_hash() -> None:
    assert len({Confirm(3), Confirm(3), Confirm(4)}) == 2
    assert SendFrame(0, "b", 1, b"x") == SendFrame(0, "b", 1, b"x") != SendFrame(0, "b", 2, b"x")


def test_batches_are_compared_by_identity() -> None:
    one, other = EntryBatch.from_list([b"x"]), EntryBatch.from_list([b"x"])
    assert one != other
    assert len({one, other}) == 2
