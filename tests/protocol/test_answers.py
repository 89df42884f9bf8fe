# SPDX-License-Identifier: Apache-2.0
"""Answers of several bookies about one window: what is taken of them is a run, whoever gave which entry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.batch import EntryBatch
from bk_core.protocol.answers import Window


def payload_of(entry: int) -> bytes:
    return b"%d" % entry * (entry % 5)


def stripe(first: int, last: int, index: int, ensemble_size: int, write_quorum: int) -> EntryBatch:
    """What the bookie at ``index`` has of entries first to last."""
    run = EntryBatch.from_list([payload_of(entry) for entry in range(first, last + 1)], first_entry_id=first)
    mine = np.flatnonzero((index - run.entry_ids()) % ensemble_size < write_quorum)
    return replace(run, ledger_id=7).select(mine)


@given(
    first=st.integers(0, 20),
    size=st.integers(1, 40),
    shape=st.sampled_from([(4, 2), (5, 3), (3, 2), (3, 1), (7, 4)]),
    data=st.data(),
)
@pytest.mark.rule("P4")
def test_what_is_taken_is_a_run_of_ids_that_needs_no_list(
    first: int, size: int, shape: tuple[int, int], data: st.DataObject
) -> None:
    ensemble_size, write_quorum = shape
    heard = data.draw(st.lists(st.sampled_from(range(ensemble_size)), unique=True))
    last = first + size - 1
    window = Window(first, last)
    for index in heard:
        part = stripe(first, last, index, ensemble_size, write_quorum)
        if len(part):
            window.add(part)
    given_ids = {e for e in range(first, last + 1) if any((i - e) % ensemble_size < write_quorum for i in heard)}
    run = 0
    while first + run in given_ids:
        run += 1
    taken = window.take()
    if not run:
        assert taken is None
        return
    assert taken is not None
    assert (taken.ids, taken.first_entry_id, len(taken)) == (None, first, run)
    assert taken.to_list() == [payload_of(entry) for entry in range(first, first + run)]
