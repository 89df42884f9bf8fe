# SPDX-License-Identifier: Apache-2.0
"""Ids at the edges of 31, 32 and 63 bits (D29): arithmetic, frames, Apache's bytes, metadata, storage, whole ledgers.

The greatest ledger id and entry id that a bookie takes is 2**63 − 2.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core import quorum
from bk_core.client import BookKeeper, LedgerWriter
from bk_core.entries.apache import lac_body, parse_lac_body
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import decode_frame, encode_frame, frame_extent, slice_frame, with_session
from bk_core.entries.packets import encode_packet
from bk_core.metadata.codec import decode_ledger, encode_ledger
from bk_core.metadata.layout import Layout, ledger_id_of, ledger_path
from bk_core.model import ENTRY_ID_MAX, DigestType, Fragment, LedgerMetadata
from bk_core.wire.lane.reasons import Reason
from tests.bookie_server.machine.machine_bench import Bench, acks, ended, trailers
from tests.kit.apache_frames import entry_bytes, parse_entries
from tests.kit.memory_cluster import memory_cluster
from tests.kit.segment_world import Storage, entries, ids_in, payload_of, striped
from tests.kit.waiting import eventually

EDGES = (2**31, 2**32, 2**53, ENTRY_ID_MAX)
ROWS = 9
edges = pytest.mark.parametrize("edge", EDGES)
ids = st.sampled_from(EDGES).flatmap(lambda edge: st.integers(edge - 20, min(edge + 20, ENTRY_ID_MAX)))


def first_below(edge: int) -> int:
    """Where a run of ROWS ids begins that reaches over the edge, or to the greatest id."""
    return min(edge - ROWS // 2, ENTRY_ID_MAX - ROWS + 1)


@pytest.mark.rule("P2")
@given(base=ids, data=st.data())
def test_the_confirmed_id_counts_from_any_id_as_it_does_from_none(base: int, data: st.DataObject) -> None:
    e, qw, qa = data.draw(st.sampled_from([(3, 3, 2), (5, 3, 2), (4, 2, 2), (7, 4, 3)]))
    last = base + data.draw(st.integers(-1, 30))
    watermarks = [data.draw(st.integers(base - 1, last)) for _ in range(e)]
    wanted = base
    while wanted <= last and sum(watermarks[i] >= wanted for i in quorum.write_set(wanted, e, qw)) >= qa:
        wanted += 1
    assert quorum.confirmed_id(watermarks, qw, qa, last) == wanted - 1


@edges
@pytest.mark.parametrize("digest_type", list(DigestType))
def test_a_frame_keeps_the_greatest_ids_lacs_and_lengths(edge: int, digest_type: DigestType) -> None:
    first, rows = first_below(edge), [b"%d" % k for k in range(ROWS)]
    digester = Digester(digest_type, b"pw", edge)
    batch = EntryBatch.from_list(rows)
    frame = encode_frame(
        batch,
        digester=digester,
        ledger_id=edge,
        first_entry_id=first,
        lac=first - 1,
        length_before=edge - batch.payload_bytes,
    )
    found = decode_frame(frame, digester=digester, verify_digests=True)
    assert (found.ledger_id, found.first_entry_id, found.last_entry_id) == (edge, first, first + ROWS - 1)
    assert (found.lac, int(found.cumulative_lengths()[-1]), found.to_list()) == (first - 1, edge, rows)
    again = parse_entries(entry_bytes(found, digester), digester)
    assert again.entry_ids().tolist() == list(range(first, first + ROWS))
    assert (again.entry_lacs().tolist(), again.to_list()) == ([first - 1] * ROWS, rows)
    assert parse_lac_body(lac_body(edge, digester), digester) == edge


@edges
@pytest.mark.parametrize(("e", "qw"), [(3, 3), (5, 3), (4, 2)])
def test_stripes_at_the_edge_hold_each_entry_on_its_write_set(edge: int, e: int, qw: int) -> None:
    first = first_below(edge)
    packet = encode_packet(
        EntryBatch.from_list([b"%d" % k for k in range(ROWS)]),
        first=first,
        lac=first - 1,
        length_before=0,
        digester=Digester(DigestType.CRC32C, b"", 7),
        ensemble_size=e,
        write_quorum=qw,
        session=1,
    )
    for index in range(e):
        frame = packet.frame_for(index)
        held = [entry for entry in range(first, first + ROWS) if index in quorum.write_set(entry, e, qw)]
        assert frame is not None
        assert ids_in(bytes(frame)) == held
        extent = frame_extent(frame)
        assert (extent.first, extent.last) == (held[0], held[-1])
        cut = slice_frame(frame, held[1], held[-1])
        assert cut is not None
        assert ids_in(bytes(cut)) == held[1:]


@edges
def test_metadata_and_paths_keep_the_greatest_ids(edge: int) -> None:
    fragments = (Fragment(0, ("a:1", "b:1")), Fragment(edge - 1, ("a:1", "c:1")), Fragment(edge, ("d:1", "c:1")))
    metadata = LedgerMetadata(ensemble_size=2, write_quorum_size=2, ack_quorum_size=1, fragments=fragments)
    closed = replace(metadata.closed_at(edge, edge), c_token=edge)
    assert decode_ledger(encode_ledger(closed)) == closed
    assert [closed.fragment_index_of(entry) for entry in (edge - 2, edge - 1, edge, edge + 1)] == [0, 1, 2, 2]
    for layout in (Layout.HIERARCHICAL, Layout.LONG_HIERARCHICAL):
        assert ledger_id_of(layout, ledger_path(layout, edge)) == edge


@edges
def test_a_bookie_takes_and_gives_entries_at_the_edge(edge: int) -> None:
    bench, first = Bench(), first_below(edge)
    bench.attach(1, ledger=edge)
    frames = [entries(edge, range(first, first + 2), lac=first - 1), entries(edge, range(first + 2, first + ROWS))]
    bench.send(*(bytes(with_session(memoryview(frame), 1)) for frame in frames))
    assert bench.commit() == acks(1, 2)
    (trailer,) = trailers([*bench.read(first - 1, 2**63 - 1, ledger=edge), *bench.disk()])
    above = [(first + ROWS, ENTRY_ID_MAX)] if edge < ENTRY_ID_MAX else []
    behind = (ENTRY_ID_MAX + 1, ENTRY_ID_MAX + 1)  # an id that no entry can have
    assert [(r.first, r.last) for r in trailer.absent] == [(first - 1, first - 1), *above, behind]
    assert (trailer.answered_through, list(trailer.unknown)) == (ENTRY_ID_MAX + 1, [])


@pytest.mark.parametrize("ledger", [-1, 2**63 - 1])
def test_a_bookie_refuses_the_ledger_ids_that_are_no_ledgers(ledger: int) -> None:
    effects = Bench().attach(1, ledger=ledger)
    assert ended(effects) == [(1, 0, Reason.BAD_REQUEST)]


@edges
def test_storage_finds_the_greatest_ids_again_after_a_restart(tmp_path: Path, edge: int) -> None:
    first = first_below(edge)
    frames = [entries(edge, range(first, first + 4)), striped(edge, first + 4, 5), entries(edge, [3, 1, 7])]
    storage = Storage(tmp_path / "d")
    storage.append(*frames)
    for _ in range(2):
        answer = storage.read(edge, first - 1, first + ROWS - 1)
        held = {*range(first, first + 4), *ids_in(frames[1])}
        assert answer.found == {entry: payload_of(edge, entry) for entry in held}
        assert answer.absent == set(range(first - 1, first + ROWS)) - held
        storage.close()
        storage = Storage(tmp_path / "d")
    storage.close()


async def a_ledger_at(client: BookKeeper, ledger_id: int, base: int, **sizes: int) -> LedgerWriter:
    """A writer as it would be after ``base`` entries: nothing of them is there."""
    create: Any = client.store.create_ledger
    client.store.create_ledger = lambda metadata, _: create(metadata, ledger_id)
    writer = await client.create_ledger(**sizes)
    protocol = writer._machine
    protocol.lac = protocol.acked = protocol.delivery.last_sent = base - 1
    for lane in protocol.delivery.lanes:
        lane.watermark = base - 1
    writer._queue.tail_first = base
    return writer


@pytest.mark.long
@pytest.mark.parametrize("recover", [False, True], ids=["closed", "recovered"])
@pytest.mark.parametrize(("e", "qw", "qa"), [(3, 3, 2), (5, 3, 2), (4, 2, 2)])
@pytest.mark.parametrize("edge", EDGES)
async def test_a_ledger_is_written_changed_ended_and_read_across_the_edge(
    edge: int, e: int, qw: int, qa: int, recover: bool
) -> None:
    rows = [b"row %d" % k for k in range(60)]
    base = min(edge - 30, ENTRY_ID_MAX - len(rows) + 1)

    async with memory_cluster(6) as cluster:
        client, other = cluster.client(), cluster.client()
        sizes = {"ensemble_size": e, "write_quorum_size": qw, "ack_quorum_size": qa}
        ledger = await a_ledger_at(client, edge, base, **sizes)
        assert await ledger.append_batch(EntryBatch.from_list(rows[:25])) == base + 24
        await ledger.flush()
        cluster.kill(ledger.metadata.last_fragment.ensemble[0])
        for row in rows[25:45]:
            await ledger.append(row)
        await eventually(lambda: len(ledger.metadata.fragments) == 2)
        assert base + 24 < ledger.metadata.last_fragment.first_entry_id <= base + 45
        for row in rows[45:]:
            await ledger.append(row)
        assert ledger.last_add_confirmed == base + 59
        follower = await other.open_ledger(edge, recover=False)
        await eventually(lambda: follower.last_add_confirmed >= base + 58)
        await (ledger.abandon() if recover else ledger.close())
        reader = await other.open_ledger(edge, recover=recover)
        assert (reader.is_closed, reader.last_add_confirmed) == (True, base + 59)
        found = [value async for batch in reader.read(base, base + 59) for value in batch.to_list()]
        assert found == rows
        assert reader.length == sum(map(len, rows))
