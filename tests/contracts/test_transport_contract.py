# SPDX-License-Identifier: Apache-2.0
"""What every transport promises, with a real machine behind it: over memory, over gRPC and over Apache's wire on
loopback (RULES L6)."""

from __future__ import annotations

import asyncio
import os
from random import Random

import pytest

from bk_core.entries.digest import ledger_key
from bk_core.entries.frame import decode_frame
from bk_core.entries.parts import Heads, Regions
from bk_core.errors import BookieUnreachableError, TransportError
from bk_core.transport.port import BookieInfo, ReadPart, RefusedError
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import AttachMode, Cut, EntryRange, Reason
from tests.kit.column_entries import column_entry, directory_of, regions_of
from tests.kit.lanes import DEADLINE_S, KEY, Lane, Listener, digester, frame, on_each_lane

OTHER_KEY = ledger_key(b"other")


# --- adds ---


@pytest.mark.rule("P1", "L2")
@on_each_lane
async def test_acks_count_the_frames_of_a_session(lane: Lane) -> None:
    listener = Listener()
    session = lane.attach(7, listener)
    for first in range(5):
        lane.send(session, 7, first, [b"entry %d" % first])
    await listener.acked(session, 5)
    counts = [words[2] for words in listener.said]
    assert counts == sorted(counts), "an ack never goes back"
    assert (await lane.read(7, 0, 4))[0] == {first: b"entry %d" % first for first in range(5)}


@pytest.mark.rule("P12")
@on_each_lane
async def test_a_force_answers_behind_what_its_session_had_acked(lane: Lane) -> None:
    listener = Listener()
    session = lane.attach(7, listener, deferred=True)
    for first in range(5):
        lane.send(session, 7, first, [b"entry %d" % first])
    await listener.acked(session, 5)
    await lane.link.force(7, session, deadline_s=DEADLINE_S)
    assert (await lane.read(7, 0, 4))[0] == {first: b"entry %d" % first for first in range(5)}


@pytest.mark.rule("L4")
@on_each_lane
async def test_many_ledgers_share_one_stream(lane: Lane) -> None:
    listener = Listener()
    sessions = {lane.attach(ledger, listener): ledger for ledger in range(300)}
    for session, ledger in sessions.items():
        lane.send(session, ledger, 0, [b"of %d" % ledger])
    await listener.until(lambda said: {words[1] for words in said} == set(sessions))
    assert {words[0] for words in listener.said} == {"acked"}
    assert (await lane.read(123, 0, 0))[0] == {0: b"of 123"}


@pytest.mark.rule("P1")
@on_each_lane
async def test_first_refused_frame_ends_the_session_and_drops_the_rest(lane: Lane) -> None:
    listener = Listener()
    session = lane.attach(7, listener)
    lane.send(session, 7, 0, [b"good"])
    damaged = bytearray(frame(7, 1, [b"flipped"], session=session))
    damaged[-1] ^= 1
    lane.link.send(session, bytes(damaged))
    lane.send(session, 7, 1, [b"never taken"])
    assert await listener.ended(session) == (1, Reason.INTEGRITY)
    entries, trailer = await lane.read(7, 0, 2)
    assert entries == {0: b"good"}
    assert trailer.absent == (EntryRange(1, 2),)


@pytest.mark.rule("L2")
@on_each_lane
async def test_another_key_is_refused(lane: Lane) -> None:
    await lane.write(7, 0, [b"mine"])
    listener = Listener()
    session = lane.attach(7, listener, key=OTHER_KEY)
    lane.send(session, 7, 1, [b"theirs"])
    assert await listener.ended(session) == (0, Reason.UNAUTHORIZED)
    with pytest.raises(RefusedError) as refused:
        await lane.fence(7, OTHER_KEY)
    assert refused.value.reason is Reason.UNAUTHORIZED
    await lane.write(7, 1, [b"not fenced by the refused"])


@pytest.mark.rule("P1")
@on_each_lane
async def test_frame_of_another_ledger_ends_the_session(lane: Lane) -> None:
    listener = Listener()
    session = lane.attach(7, listener)
    lane.link.send(session, frame(8, 0, [b"stray"], session=session))
    assert await listener.ended(session) == (0, Reason.BAD_REQUEST)


@pytest.mark.rule("P6")
@on_each_lane
async def test_resent_entries_are_taken_and_changed_ones_refused(lane: Lane) -> None:
    await lane.write(7, 0, [b"a", b"bb", b"ccc"])
    await lane.write(7, 1, [b"bb", b"ccc", b"dddd"], before=1)
    listener = Listener()
    session = lane.attach(7, listener)
    lane.send(session, 7, 3, [b"DDDD"], before=6)
    lane.send(session, 7, 4, [b"behind it"])
    assert await listener.ended(session) == (0, lane.said(Reason.INTEGRITY))
    entries, trailer = await lane.read(7, 0, 9)
    if lane.apaches:  # each add is independent there: later adds are taken, but their frames are not acknowledged
        assert entries.pop(4) == b"behind it"
    assert entries == {0: b"a", 1: b"bb", 2: b"ccc", 3: b"dddd"}
    assert trailer.absent == (EntryRange(5 if lane.apaches else 4, 9),)


@pytest.mark.rule("P6")
@on_each_lane
async def test_frames_behind_a_resent_one_keep_their_order(lane: Lane) -> None:
    await lane.write(7, 0, [b"a"])
    listener = Listener()
    session = lane.attach(7, listener)
    for first, payload in enumerate([b"a", b"b", b"c"]):
        lane.send(session, 7, first, [payload])
    await listener.acked(session, 3)
    assert (await lane.read(7, 0, 2))[0] == {0: b"a", 1: b"b", 2: b"c"}


@pytest.mark.rule("L5")
@on_each_lane
async def test_largest_frames_travel_and_come_back(lane: Lane) -> None:
    entries = [os.urandom(4 << 20), os.urandom((4 << 20) - 4096)]
    await lane.write(7, 0, entries)
    assert (await lane.read(7, 0, 1, bytes_max=16 << 20))[0] == dict(enumerate(entries))


# --- fences ---


@pytest.mark.rule("MUST3", "P5")
@on_each_lane
async def test_fence_stops_the_writer_and_answers_with_evidence(lane: Lane) -> None:
    listener = Listener()
    session = lane.attach(7, listener)
    lane.send(session, 7, 0, [b"a", b"b"])
    lane.send(session, 7, 2, [b"c"], lac=1)
    await listener.acked(session, 2)
    said = await lane.fence(7)
    assert (said.last_entry_id, said.fenced, said.known) == (2, True, True)
    last = decode_frame(said.last_entry_frame, digester=digester(7), verify_digests=True)
    assert (last.entry_ids().tolist(), last.to_list(), last.lac) == ([2], [b"c"], 1)
    lane.send(session, 7, 3, [b"too late"])
    assert await listener.ended(session) == (2, Reason.FENCED)
    late = lane.attach(7, listener)
    lane.send(late, 7, 3, [b"too late again"])
    assert await listener.ended(late) == (0, Reason.FENCED)


@pytest.mark.rule("MUST2")
@on_each_lane
async def test_fence_of_a_ledger_never_heard_of_holds(lane: Lane) -> None:
    said = await lane.fence(99)
    assert (said.last_entry_id, said.fenced) == (-1, True)
    listener = Listener()
    session = lane.attach(99, listener)
    lane.send(session, 99, 0, [b"late writer"])
    assert await listener.ended(session) == (0, Reason.FENCED)


@pytest.mark.rule("P6")
@on_each_lane
async def test_recovery_session_passes_the_fence(lane: Lane) -> None:
    await lane.fence(7)
    await lane.write(7, 0, [b"recovered"], mode=AttachMode.RECOVER)
    assert (await lane.read(7, 0, 0))[0] == {0: b"recovered"}


@pytest.mark.rule("S1")
@on_each_lane
async def test_fencing_read_sees_what_was_sent_before_it_or_nothing_follows(lane: Lane) -> None:
    listener = Listener()
    session = lane.attach(7, listener)
    for first in range(200):
        lane.send(session, 7, first, [b"e%d" % first])
    await asyncio.sleep(0)
    entries, trailer = await lane.read(7, 0, 199, fence_key=KEY)
    assert trailer.fenced
    assert trailer.answered_through == 199
    durable, reason = await listener.ended(session) if len(entries) < 200 else (200, Reason.FENCED)
    assert durable == len(entries)
    assert reason is Reason.FENCED
    assert (await lane.read(7, 0, 199))[0] == entries, "nothing came after the fencing read"


# --- reads ---


@pytest.mark.rule("P4")
@on_each_lane
async def test_answer_ends_at_the_limit_and_says_how_far_it_went(lane: Lane) -> None:
    listener = Listener()
    session = lane.attach(7, listener)
    for first in range(0, 40, 4):
        lane.send(session, 7, first, [os.urandom(300_000)] * 4)
    await listener.acked(session, 10)
    entries, trailer = await lane.read(7, 0, 39, bytes_max=3_000_000)
    assert 0 < len(entries) < 40
    assert trailer.answered_through == max(entries)
    assert not trailer.absent
    rest, end = await lane.read(7, trailer.answered_through + 1, 39, bytes_max=1 << 30)
    assert sorted([*entries, *rest]) == list(range(40))
    assert end.answered_through == 39


@pytest.mark.rule("P4")
@on_each_lane
async def test_at_least_one_entry_is_answered_however_small_the_limit(lane: Lane) -> None:
    await lane.write(7, 0, [b"x" * 1000])
    assert (await lane.read(7, 0, 0, bytes_max=1))[0] == {0: b"x" * 1000}


@pytest.mark.rule("MUST4")
@on_each_lane
async def test_holes_are_absent_and_found_entries_are_not(lane: Lane) -> None:
    await lane.write(7, 2, [b"two", b"three"])
    await lane.write(7, 6, [b"six"])
    entries, trailer = await lane.read(7, 0, 8)
    assert entries == {2: b"two", 3: b"three", 6: b"six"}
    assert trailer.absent == (EntryRange(0, 1), EntryRange(4, 5), EntryRange(7, 8))
    assert (trailer.answered_through, trailer.unknown, trailer.fenced) == (8, (), False)


@on_each_lane
async def test_part_of_a_frame_can_be_read(lane: Lane) -> None:
    await lane.write(7, 0, [b"%d" % k for k in range(100)])
    entries, _ = await lane.read(7, 40, 42)
    assert entries == {40: b"40", 41: b"41", 42: b"42"}


@pytest.mark.rule("P4")
@on_each_lane
async def test_parts_of_entries_come_from_bookies_that_can_cut(lane: Lane) -> None:
    """Apache's wire cannot ask for parts, so its entries come whole. The reader gets the same bytes from both wires."""
    entries = [column_entry(Random(n), (80_000, 8, 4_000)) for n in range(4)]
    await lane.write(7, 0, entries, before=0)
    heads = Heads(512)
    looks = [(heads, [entry[:512] for entry in entries])]
    looks += [
        (Regions(0, [directory_of(entry) for entry in entries], wanted), [regions_of(e, wanted) for e in entries])
        for wanted in ((2,), (1, 2))
    ]
    for parts, expected in looks:
        for first, last in ((0, 3), (1, 2)):
            found, size = list[bytes](), 0
            asked = {"bytes_max": 1 << 20, "cut": parts.cut(first, last), "deadline_s": DEADLINE_S}
            async for part in lane.link.read(7, first, last, **asked):
                if isinstance(part, ReadPart):
                    size += len(part.frames)
                    found += [each for batch in parts.verified(part.frames, digester(7)) for each in batch.to_list()]
            assert found == expected[first : last + 1]
            assert lane.apaches or size < 30_000


@pytest.mark.rule("P4")
@on_each_lane
async def test_what_is_read_and_not_sent_counts_towards_the_limit_too(lane: Lane) -> None:
    await lane.write(7, 0, [os.urandom(60_000)] * 10)
    await lane.write(7, 10, [os.urandom(60_000)] * 10)
    asked = {"bytes_max": 2_000, "cut": Cut(head=8), "deadline_s": DEADLINE_S}
    answers = [answer async for answer in lane.link.read(7, 0, 19, **asked)]
    assert isinstance(answers[-1], ReadTrailer)
    assert answers[-1].answered_through < 19


@on_each_lane
async def test_parts_that_cannot_be_are_refused(lane: Lane) -> None:
    await lane.write(7, 0, [b"x" * 1000])
    cuts = [Cut(0, 0, (((0, 9), (8, 8)),)), Cut(0, 0, (((0, 1),), ((0, 1),))), Cut(8, 0, (((0, 1),),))]
    for cut, key in [*((cut, None) for cut in cuts), (Cut(head=8), KEY)]:
        answers = lane.link.read(7, 0, 0, bytes_max=1 << 20, cut=cut, fence_key=key, deadline_s=DEADLINE_S)
        if lane.apaches:
            assert [type(answer) async for answer in answers] == [ReadPart, ReadTrailer]
            continue
        with pytest.raises(RefusedError) as refused:
            [answer async for answer in answers]
        assert refused.value.reason is Reason.BAD_REQUEST


@on_each_lane
async def test_ledger_never_heard_of_is_absent(lane: Lane) -> None:
    entries, trailer = await lane.read(12345, 0, 9)
    assert entries == {}
    assert trailer.absent == (EntryRange(0, 9),)


@on_each_lane
async def test_backward_range_is_refused(lane: Lane) -> None:
    with pytest.raises(RefusedError) as refused:
        await lane.read(7, 5, 3)
    assert refused.value.reason is Reason.BAD_REQUEST


@pytest.mark.long
@on_each_lane
async def test_abandoned_read_disturbs_nobody(lane: Lane) -> None:
    listener = Listener()
    session = lane.attach(7, listener)
    for first in range(20):
        lane.send(session, 7, first, [os.urandom(1 << 20)])
    await listener.acked(session, 20)
    for _ in range(30):
        parts = lane.link.read(7, 0, 19, bytes_max=1 << 30, deadline_s=DEADLINE_S)
        async for part in parts:
            assert isinstance(part, ReadPart)
            break
        await parts.aclose()
    assert len((await lane.read(7, 0, 19, bytes_max=1 << 30))[0]) == 20


# --- deletion ---


@pytest.mark.rule("S9")
@on_each_lane
async def test_a_hint_of_deletion_is_heard_and_nothing_is_lost_by_it(lane: Lane) -> None:
    await lane.write(7, 0, [b"a"])
    await lane.link.delete_hint([7, 404, 7], deadline_s=DEADLINE_S)
    await lane.link.delete_hint([], deadline_s=DEADLINE_S)
    with pytest.raises(RefusedError) as refused:
        await lane.link.delete_hint(range(10_001), deadline_s=DEADLINE_S)
    assert refused.value.reason is Reason.TOO_LARGE
    assert (await lane.read(7, 0, 0))[0] == {0: b"a"}


# --- what a bookie says about itself ---


@on_each_lane
async def test_a_bookie_tells_its_space_and_its_software(lane: Lane) -> None:
    said = await lane.link.bookie_info(deadline_s=DEADLINE_S)
    assert type(said) is BookieInfo, "a lane's own message would tie callers to that lane"
    assert 0 < said.free_bytes <= said.total_bytes
    assert not said.read_only
    assert bool(said.version) is not lane.apaches, "Apache's wire has no word for it"


@on_each_lane
async def test_a_closed_transport_gives_no_link(lane: Lane) -> None:
    await lane.transport.close()
    with pytest.raises(TransportError, match="closed"):
        await lane.link.bookie_info(deadline_s=DEADLINE_S)


# --- ends ---


@on_each_lane
async def test_unknown_bookie_is_unreachable(lane: Lane) -> None:
    with pytest.raises(BookieUnreachableError):
        lane.transport.link("nobody:1")


@on_each_lane
async def test_detached_session_is_silent(lane: Lane) -> None:
    listener, other = Listener(), Listener()
    session = lane.attach(7, listener)
    lane.send(session, 7, 0, [b"a"])
    lane.link.detach(session)
    again = lane.attach(8, other)
    lane.send(again, 8, 0, [b"b"])
    await other.acked(again, 1)
    assert listener.said == []


@on_each_lane
async def test_closed_transport_breaks_its_sessions(lane: Lane) -> None:
    listener = Listener()
    session = lane.attach(7, listener)
    lane.send(session, 7, 0, [b"a"])
    await listener.acked(session, 1)
    await lane.transport.close()
    await listener.broken(session)


@pytest.mark.rule("MUST4")
@on_each_lane
async def test_a_list_of_ids_says_what_is_absent_without_an_entry_or_the_lane_has_none(lane: Lane) -> None:
    await lane.write(7, 3, [b"d", b"e"])
    reads = lane.link.read(7, 0, 9, bytes_max=0, ids_only=True, deadline_s=DEADLINE_S)
    if lane.apaches:
        with pytest.raises(RefusedError) as refused:
            await anext(aiter(reads))
        assert refused.value.reason is Reason.UNIMPLEMENTED
        return
    [trailer] = [answer async for answer in reads]
    assert trailer == ReadTrailer(9, (EntryRange(0, 2), EntryRange(5, 9)))
