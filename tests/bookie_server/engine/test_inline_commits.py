# SPDX-License-Identifier: Apache-2.0
"""Small groups stay on the loop however many there were before: what was written counts as queued for nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bk_core.errors import BookKeeperError
from bookie_server.engine.commits.queue import INLINE_BYTES
from tests.bookie_server.engine.test_committer import PART_S, a_rig, warmed
from tests.kit.segment_world import entries
from tests.kit.waiting import eventually


@pytest.mark.parametrize("frames", [1, 2], ids=["one frame a group", "two frames a group"])
async def test_groups_that_were_written_leave_room_for_the_next_on_the_loop(tmp_path: Path, frames: int) -> None:
    async with a_rig(tmp_path, inline_s=PART_S) as rig:
        await warmed(rig)
        size = 8_000
        for number in range(100, 100 + 3 * (INLINE_BYTES // (frames * size))):
            await rig.commit(*[entries(1, [frames * number + each], size=size) for each in range(frames)])
        rig.committer.put([entries(1, [9_000])])
        await asyncio.sleep(0)
        places = rig.answers.get_nowait()
        assert not isinstance(places, BookKeeperError)


@pytest.mark.rule("S10")
async def test_the_loop_writes_nothing_while_the_thread_writes(tmp_path: Path) -> None:
    """Two groups at once would take the same place in the log."""

    async with a_rig(tmp_path, inline_s=PART_S) as rig:
        await warmed(rig)
        rig.files.syncing.clear()
        rig.files.sync.clear()
        rig.committer.put([entries(1, range(300, 340), size=1700)])
        await eventually(rig.files.syncing.is_set)
        end = rig.storage.log.position
        rig.committer.put([entries(1, [9_000])])
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert rig.answers.empty()
        assert rig.storage.log.position == end
        rig.files.sync.set()
        large, small = [await asyncio.wait_for(rig.answers.get(), PART_S) for _ in range(2)]
        assert (large[0].generation, large[0].offset) < (small[0].generation, small[0].offset)
