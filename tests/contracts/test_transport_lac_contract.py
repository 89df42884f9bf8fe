# SPDX-License-Identifier: Apache-2.0
"""What every transport promises of LACs and watches, with a real machine behind it (RULES L6, P5, P9, P10)."""

from __future__ import annotations

import asyncio

import pytest

from bk_core.entries.digest import ledger_key
from bk_core.entries.frame import decode_frame
from bk_core.transport.port import RefusedError
from bk_core.wire.lane.reasons import Reason
from tests.kit.bookie_requests import lac_body
from tests.kit.lanes import DEADLINE_S, KEY, Lane, digester, on_each_lane

OTHER_KEY = ledger_key(b"other")


@pytest.mark.rule("P5")
@on_each_lane
async def test_evidence_names_the_entry_with_the_greatest_lac(lane: Lane) -> None:
    await lane.write(7, 0, [b"a", b"b", b"c"], lac=-1)
    await lane.write(7, 3, [b"d"], lac=2)
    await lane.write(7, 10, [b"old words"], lac=1)
    said = await lane.link.read_lac(7, deadline_s=DEADLINE_S)
    assert said.last_entry_id == 10
    if lane.apaches:
        last = decode_frame(said.last_entry_frame, digester=digester(7), verify_digests=True)
        assert (last.entry_ids().tolist(), last.lac, said.lac_frame) == ([10], 1, b"")
        return
    carrier = decode_frame(said.lac_frame, digester=digester(7), verify_digests=True)
    assert (carrier.entry_ids().tolist(), carrier.lac) == ([3], 2)


@on_each_lane
async def test_lac_of_a_ledger_never_heard_of_is_not_known(lane: Lane) -> None:
    said = await lane.link.read_lac(404, deadline_s=DEADLINE_S)
    assert (said.last_entry_id, said.known, said.fenced, said.lac_body) == (-1, False, False, b"")


@pytest.mark.rule("P9")
@on_each_lane
async def test_explicit_lac_wakes_a_watch_and_is_returned_verbatim(lane: Lane) -> None:
    await lane.write(7, 0, [b"a"], lac=-1)
    watch = asyncio.ensure_future(lane.link.watch_lac(7, -1, timeout_s=DEADLINE_S))
    await asyncio.sleep(0.05)
    assert not watch.done()
    await lane.link.write_lac(7, KEY, lac_body(7, 0), deadline_s=DEADLINE_S)
    assert (await watch).lac_body == lac_body(7, 0)
    await lane.link.write_lac(7, KEY, lac_body(7, -1), deadline_s=DEADLINE_S)
    said = await lane.link.read_lac(7, deadline_s=DEADLINE_S)
    assert said.lac_body == lac_body(7, 0), "a LAC never goes back"


@pytest.mark.rule("P9")
@on_each_lane
async def test_a_hint_of_the_lac_is_taken_and_a_wrong_one_harms_nothing(lane: Lane) -> None:
    await lane.write(7, 0, [b"a"], lac=-1)
    watch = asyncio.ensure_future(lane.link.watch_lac(7, -1, timeout_s=DEADLINE_S))
    lane.link.hint_lac(7, OTHER_KEY, lac_body(7, 0))
    lane.link.hint_lac(7, KEY, b"short")
    lane.link.hint_lac(7, KEY, lac_body(7, 0))
    assert (await watch).lac_body == lac_body(7, 0)
    await lane.write(7, 1, [b"b"], lac=0)


@pytest.mark.rule("P5")
@on_each_lane
async def test_lac_body_that_is_wrong_is_refused(lane: Lane) -> None:
    await lane.write(7, 0, [b"a"])
    flipped = bytearray(lac_body(7, 0))
    flipped[10] ^= 1
    for body, key, reason in (
        (bytes(flipped), KEY, Reason.INTEGRITY),
        (lac_body(8, 0), KEY, Reason.BAD_REQUEST),
        (b"short", KEY, Reason.BAD_REQUEST),
        (lac_body(7, 0), OTHER_KEY, Reason.UNAUTHORIZED),
    ):
        with pytest.raises(RefusedError) as refused:
            await lane.link.write_lac(7, key, body, deadline_s=DEADLINE_S)
        assert refused.value.reason is lane.said(reason)
    said = await lane.link.read_lac(7, deadline_s=DEADLINE_S)
    assert said.lac_body == b""


@pytest.mark.rule("P10")
@on_each_lane
async def test_durable_entry_with_a_greater_lac_wakes_a_watch(lane: Lane) -> None:
    await lane.write(7, 0, [b"a"])
    watch = asyncio.ensure_future(lane.link.watch_lac(7, -1, timeout_s=DEADLINE_S))
    await asyncio.sleep(0.05)
    await lane.write(7, 1, [b"b", b"c"], lac=0)
    said = await watch
    last = decode_frame(said.last_entry_frame, digester=digester(7), verify_digests=True)
    assert (last.entry_ids().tolist(), last.lac) == ([2], 0)


@pytest.mark.rule("P10")
@on_each_lane
async def test_watch_answers_at_its_timeout_with_what_is_known(lane: Lane) -> None:
    await lane.write(7, 0, [b"a"])
    said = await lane.link.watch_lac(7, 5, timeout_s=0.05)
    assert said.last_entry_id == 0


@pytest.mark.rule("P10")
@on_each_lane
async def test_watch_answers_at_once_when_there_is_news(lane: Lane) -> None:
    await lane.write(7, 0, [b"a", b"b"], lac=0)
    async with asyncio.timeout(1):
        said = await lane.link.watch_lac(7, -1, timeout_s=60)
    assert said.last_entry_id == 1


@pytest.mark.rule("L3")
@on_each_lane
async def test_cancelled_watch_is_forgotten(lane: Lane) -> None:
    await lane.write(7, 0, [b"a"])
    for _ in range(50):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lane.link.watch_lac(7, 5, timeout_s=60), 0.001)
    await lane.write(7, 1, [b"b"], lac=0)
    assert (await lane.fence(7)).last_entry_id == 1


@pytest.mark.rule("P9")
@on_each_lane
async def test_a_bookie_that_was_told_a_lac_and_has_no_entry_says_both(lane: Lane) -> None:
    await lane.link.write_lac(7, KEY, lac_body(7, 3), deadline_s=DEADLINE_S)
    said = await lane.link.read_lac(7, deadline_s=DEADLINE_S)
    assert (said.last_entry_id, said.last_entry_frame, said.lac_body, said.known) == (-1, b"", lac_body(7, 3), True)
