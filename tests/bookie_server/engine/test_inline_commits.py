# SPDX-License-Identifier: Apache-2.0
"""Small groups stay on the loop however many there were before: what was written counts as queued for nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bk_core.errors import BookKeeperError
from bookie_server.engine.committer import INLINE_BYTES
from tests.bookie_server.engine.test_committer import PART_S, Rig, told, warmed
from tests.kit.segment_world import entries


@pytest.mark.parametrize("frames", [1, 2], ids=["one frame a group", "two frames a group"])
def test_groups_that_were_written_leave_room_for_the_next_on_the_loop(tmp_path: Path, frames: int) -> None:
    async def story(rig: Rig) -> None:
        await warmed(rig)
        size = 8_000
        for number in range(100, 100 + 3 * (INLINE_BYTES // (frames * size))):
            await rig.commit(*[entries(1, [frames * number + each], size=size) for each in range(frames)])
        rig.committer.put([entries(1, [9_000])])
        await asyncio.sleep(0)
        places = rig.answers.get_nowait()
        assert not isinstance(places, BookKeeperError)

    told(tmp_path, story, inline_s=PART_S)
