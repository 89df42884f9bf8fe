# SPDX-License-Identifier: Apache-2.0
"""The bookie's machine, stepped by hand: how much it reads at once for a read of parts of entries."""

from __future__ import annotations

import pytest

from bk_core.wire.lane.reasons import Cut
from bookie_server.machine import events as ev
from tests.bookie_server.machine.machine_bench import Bench, entries


@pytest.mark.parametrize(("entries_each", "cut", "parts"), [(1, Cut(head=8), 4), (1, None, 1), (600, Cut(head=8), 1)])
def test_a_read_with_a_cut_reads_more_at_once_unless_it_would_cut_many_entries(
    entries_each: int, cut: Cut | None, parts: int
) -> None:
    bench = Bench(read_part_bytes=64 << 10)
    bench.attach(1)
    frames = [entries(k * entries_each, *[bytes((64 << 10) // entries_each)] * entries_each) for k in range(8)]
    bench.send(*frames)
    bench.commit()
    bench.ask(ev.ReadRequested, 7, 0, 8 * entries_each - 1, 1 << 20, None, False, cut)
    assert [len(read.pieces) for read in bench.to_read] == [parts]
