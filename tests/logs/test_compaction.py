# SPDX-License-Identifier: Apache-2.0
"""Compaction: which runs are chosen, what the machine answers to trouble, and copying over bookies in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from bk_core.client import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    BookKeeperError,
    IntegrityError,
    InvalidArgumentError,
    LogRecreatedError,
    MetadataCorruptError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    Outcome,
    PublishConflictError,
    WrongPasswordError,
)
from bk_core.logs import commit
from bk_core.logs.compaction import (
    ENTRY_COST_BYTES,
    CompactionLimits,
    Content,
    Run,
    content_problem,
    runs_to_compact,
    weight_of,
)
from bk_core.logs.compactor import Compactor
from bk_core.logs.head import Extent, NewExtent, PublishId, custom_metadata_for
from bk_core.logs.machines import compaction as machine
from bk_core.logs.named_log import NamedLog
from bk_core.model import DigestType
from bk_core.snapshot import fingerprint_of
from tests.kit.memory_cluster import memory_cluster
from tests.kit.transitions import members
from tests.logs.leader_kit import PASSWORD, log_of, run
from tests.logs.test_transitions import Search, table_of

MIB = 1 << 20
UUID = "12345678-9abc-def0-1234-56789abcdef0"


def extents_of(*sizes: int, first: int = 0, **more: object) -> list[Extent]:
    """Extents of one entry each with these payload bytes, from offset ``first`` on."""
    return [
        Extent(ledger_id=n, entry_count=1, size_bytes=size, base_offset=n, created_ms=n, **more)
        for n, size in enumerate(sizes, first)
    ]


def ids(runs: Sequence[Run]) -> list[list[int]]:
    return [[extent.ledger_id for extent in each] for each in runs]


# --- the choice -------------------------------------------------------------------------------------------------------


def test_small_neighbours_become_one_and_one_alone_stays() -> None:
    assert ids(runs_to_compact(extents_of(10, 20, 30), CompactionLimits())) == [[0, 1, 2]]
    assert runs_to_compact(extents_of(10), CompactionLimits()) == []
    assert runs_to_compact([], CompactionLimits()) == []


def test_a_merged_ledger_stays_within_its_bytes_and_large_extents_are_left_alone() -> None:
    limits = CompactionLimits(ledger_bytes_max=100 * MIB)
    sizes = [30 * MIB] * 5 + [60 * MIB] + [1, 2]
    runs = runs_to_compact(extents_of(*sizes), limits)
    assert ids(runs) == [[0, 1, 2], [3, 4], [6, 7]]
    assert all(sum(map(weight_of, each)) <= limits.ledger_bytes_max for each in runs)


@pytest.mark.rule("K8")
def test_codecs_and_schemas_are_never_mixed() -> None:
    codecs = [replace(each, codec=codec) for each, codec in zip(extents_of(*[1] * 6), "aabbba", strict=True)]
    assert ids(runs_to_compact(codecs, CompactionLimits())) == [[0, 1], [2, 3, 4]]
    numbers = [
        replace(each, schema_number=number) for each, number in zip(extents_of(*[1] * 4), (1, 1, 2, 2), strict=True)
    ]
    assert ids(runs_to_compact(numbers, CompactionLimits())) == [[0, 1], [2, 3]]


@pytest.mark.rule("N2")
def test_open_extents_are_never_touched() -> None:
    extents = [*extents_of(1, 1), *extents_of(0, 0, first=2, is_open=True)]
    assert ids(runs_to_compact(extents, CompactionLimits())) == [[0, 1]]


@pytest.mark.rule("M4")
def test_extents_that_a_newer_version_wrote_more_into_are_left_alone() -> None:
    extents = extents_of(1, 1, 1, 1, 1)
    extents[2] = replace(extents[2], unknown_fields=b"x")
    assert ids(runs_to_compact(extents, CompactionLimits())) == [[0, 1], [3, 4]]
    extents[4] = replace(extents[4], fragment_unknown_fields=(b"", b"x"))
    assert ids(runs_to_compact(extents, CompactionLimits())) == [[0, 1]]


def test_a_gap_in_the_offsets_ends_a_run() -> None:
    extents = [*extents_of(1, 1), *extents_of(1, 1, first=3)]
    assert ids(runs_to_compact(extents, CompactionLimits())) == [[0, 1], [3, 4]]


@pytest.mark.rule("N7")
def test_a_run_spans_a_tenth_of_the_retention_at_most() -> None:
    head = commit.create(uuid=UUID, created_ms=1, ledger_key=b"", retention_ms=10_000, retention_bytes=500 * MIB)
    limits = CompactionLimits().for_log(head)
    assert (limits.span_ms_max, limits.ledger_bytes_max) == (1000, 50 * MIB)
    created = (0, 900, 100, 1001, 2000, 2002)
    extents = [replace(each, created_ms=ms) for each, ms in zip(extents_of(*[1] * 6), created, strict=True)]
    assert ids(runs_to_compact(extents, limits)) == [[0, 1, 2], [3, 4]]
    backwards = [replace(each, created_ms=ms) for each, ms in zip(extents_of(*[1] * 3), (1500, 900, 400), strict=True)]
    assert ids(runs_to_compact(backwards, limits)) == [[0, 1]]
    assert CompactionLimits().for_log(replace(head, retention_ms=0, retention_bytes=0)) == CompactionLimits()


def test_whoever_compacts_after_every_publish_copies_each_byte_a_few_times_only() -> None:
    limits = CompactionLimits(ledger_bytes_max=1000 * ENTRY_COST_BYTES)
    extents: list[Extent] = []
    copied = 0
    for n in range(4000):
        extents.append(Extent(ledger_id=n, entry_count=1, base_offset=n))
        while runs := runs_to_compact(extents, limits):
            for each in runs:
                at = extents.index(each[0])
                copied += sum(extent.entry_count for extent in each)
                extents[at : at + len(each)] = [replace(each[0], entry_count=sum(e.entry_count for e in each))]
    assert sum(extent.entry_count for extent in extents) == 4000
    assert len(extents) < 30
    cheap = 1000 // 16  # below this a ledger is copied again each time
    assert copied / 4000 < cheap / 2 + 10


def test_limits_must_be_positive() -> None:
    with pytest.raises(InvalidArgumentError, match="ledger_bytes_max"):
        CompactionLimits(ledger_bytes_max=0)
    with pytest.raises(InvalidArgumentError, match="copy_bytes_max"):
        CompactionLimits(copy_bytes_max=-1)


def test_content_is_the_same_however_it_was_cut_and_differs_for_anything_else() -> None:
    entries = [random.Random(1).randbytes(n % 7) for n in range(50)]

    def content(values: list[bytes], *cuts: int) -> Content:
        found, bounds = Content(), (0, *cuts, len(values))
        for start, stop in pairwise(bounds):
            found = found.with_batch(EntryBatch.from_list(values[start:stop]))
        return found

    whole = content(entries)
    assert whole == content(entries, 1, 1, 20, 49)
    assert whole.entries == 50
    others = [
        entries[:-1],
        [*entries[1:], entries[0]],
        [entries[0] + entries[1], b"", *entries[2:]],
        [*entries[:5], b"changed"[: len(entries[5])], *entries[6:]],
    ]
    assert all(content(other) != whole for other in others)


# --- the machine ------------------------------------------------------------------------------------------------------

RUN = tuple(extents_of(3, 4))
NEW = NewExtent(
    ledger_id=9, entry_count=2, size_bytes=7, created_ms=1, ensemble_size=3, write_quorum_size=3, ack_quorum_size=2
)
GOOD = Content(2, 7, 1, 2)
LISTED = machine.ExtentsListed(UUID, RUN, CompactionLimits())


def failed(error: BookKeeperError) -> machine.RequestFailed:
    return machine.RequestFailed(error)


def steps(compaction: machine.Compaction, *events: machine.Event) -> machine.Effects:
    """The effects of the last event."""
    effects: machine.Effects = []
    for event in events:
        effects = compaction.step(event)
    return effects


def begun(*events: machine.Event) -> machine.Compaction:
    compaction = machine.Compaction(CompactionLimits())
    steps(compaction, machine.Start(), LISTED, *events)
    return compaction


def test_a_run_is_copied_verified_listed_and_the_log_is_looked_at_again() -> None:
    compaction = machine.Compaction(CompactionLimits())
    assert steps(compaction, machine.Start()) == [machine.ListExtents()]
    assert steps(compaction, LISTED) == [machine.CopyRun(RUN, 1)]
    assert steps(compaction, machine.RunCopied(NEW, GOOD)) == [machine.VerifyCopy(NEW)]
    assert steps(compaction, machine.CopyVerified(GOOD)) == [machine.ListCopy(RUN, NEW)]
    merged = replace(RUN[0], ledger_id=9, entry_count=2, size_bytes=7)
    assert steps(compaction, machine.CopyListed(merged)) == [machine.ListExtents()]
    done = machine.Compacted((9,), 2, 2, 7)
    assert steps(compaction, replace(LISTED, extents=[merged])) == [machine.Finish(done)]
    assert steps(compaction, LISTED) == []


@pytest.mark.rule("N7")
@pytest.mark.parametrize("content", [Content(1, 7, 1, 2), Content(2, 6, 1, 2)])
def test_a_copy_of_other_entries_than_the_log_lists_is_dropped(content: Content) -> None:
    drop, fail = steps(begun(), machine.RunCopied(NEW, content))
    assert drop == machine.DropCopy(9)
    assert isinstance(fail, machine.Fail)
    assert isinstance(fail.error, IntegrityError)


@pytest.mark.rule("N7")
@pytest.mark.parametrize("content", [Content(2, 7, 1, 3), Content(2, 7, 0, 2), Content(1, 7, 1, 2)])
def test_a_copy_that_reads_back_differently_is_dropped(content: Content) -> None:
    drop, fail = steps(begun(machine.RunCopied(NEW, GOOD)), machine.CopyVerified(content))
    assert drop == machine.DropCopy(9)
    assert isinstance(fail, machine.Fail)
    assert isinstance(fail.error, IntegrityError)


def test_the_bytes_of_a_part_of_a_ledger_are_not_compared() -> None:
    part = (replace(RUN[0], first_entry_id=5), RUN[1])
    assert content_problem(part, Content(2, 99)) is None
    assert content_problem(part, Content(3, 7)) is not None


@pytest.mark.rule("N4")
def test_a_copy_is_never_deleted_once_it_may_be_listed() -> None:
    for outcome in Outcome:
        conflict = PublishConflictError("others were faster", outcome=outcome)
        effects = steps(begun(machine.RunCopied(NEW, GOOD), machine.CopyVerified(GOOD)), failed(conflict))
        if outcome is Outcome.NOT_APPLIED:
            assert effects == [machine.ListExtents()]  # vacuum finds the copy
        else:
            assert effects == [machine.Fail(conflict)]


def test_ledgers_that_vanish_during_the_copy_are_looked_for_in_the_log_before_they_count_as_lost() -> None:
    gone = NoSuchLedgerError("gone")
    compaction = begun()
    assert steps(compaction, failed(gone)) == [machine.ListExtents()]
    assert steps(compaction.copy(), replace(LISTED, extents=[])) == [machine.Finish(machine.Compacted())]
    assert steps(compaction, LISTED, failed(gone)) == [machine.Fail(gone)]


def test_others_may_change_the_log_so_often_and_no_more() -> None:
    conflict = PublishConflictError("others were faster")
    compaction = begun()
    for _ in range(machine.DISTURBANCES_MAX):
        steps(compaction, machine.RunCopied(NEW, GOOD), machine.CopyVerified(GOOD))
        assert steps(compaction, failed(conflict)) == [machine.ListExtents()]
        steps(compaction, LISTED)
    steps(compaction, machine.RunCopied(NEW, GOOD), machine.CopyVerified(GOOD))
    assert steps(compaction, failed(conflict)) == [machine.Fail(conflict)]


def test_another_log_of_the_same_name_ends_it() -> None:
    compaction = begun(failed(NoSuchLedgerError("gone")))
    (fail,) = steps(compaction, replace(LISTED, log_uuid="another"))
    assert isinstance(fail, machine.Fail)
    assert isinstance(fail.error, LogRecreatedError)


def every_event(compaction: machine.Compaction) -> list[machine.Event]:
    """One of each kind and more where what it carries matters."""
    merged = replace(RUN[0], ledger_id=9, entry_count=2, size_bytes=7)
    others = extents_of(3, 4, 600, 3, 4, first=20)
    return [
        machine.Start(),
        LISTED,
        replace(LISTED, extents=()),
        replace(LISTED, extents=others, limits=CompactionLimits(ledger_bytes_max=1200)),  # two runs
        replace(LISTED, log_uuid="another"),
        machine.RunCopied(NEW, GOOD),
        machine.RunCopied(NEW, Content(1)),
        machine.CopyVerified(GOOD),
        machine.CopyVerified(Content(1)),
        machine.CopyListed(merged),
        *(
            machine.RequestFailed(kind("away", outcome=outcome))
            for kind in (NoSuchLedgerError, PublishConflictError, MetadataCorruptError, MetadataUnavailableError)
            for outcome in Outcome
        ),
    ]


@pytest.mark.rule("N4")
def test_every_event_in_every_state_leads_where_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DISTURBANCES_MAX", 1)
    firsts = [machine.Compaction(CompactionLimits()), machine.Compaction(CompactionLimits(copy_bytes_max=1))]

    def decides(compaction: machine.Compaction) -> object:
        """What the next step depends on; what was done and counted does not matter."""
        values = {**vars(compaction), "result": None, "_copies": 0, "_weight": compaction._weight > 0}
        return fingerprint_of(list(values.values()))

    found = Search(firsts, every_event, members(machine.Effect), ("DONE", "FAILED"), key=decides)
    kinds = {cls.__name__ for cls in members(machine.Event)}
    assert {(state, kind) for state, kind, _ in found.moves} == {
        (s.name, kind) for s in machine.MOVES for kind in kinds
    }
    assert found.pairs() == table_of(machine.MOVES)


def test_a_compaction_stops_after_the_bytes_it_may_copy() -> None:
    limits = CompactionLimits(ledger_bytes_max=200, copy_bytes_max=80)
    extents = extents_of(*[40] * 12)  # of 72: two runs of two fit
    compaction = machine.Compaction(limits)
    listed = replace(LISTED, extents=extents, limits=limits)
    (copying,) = steps(compaction, machine.Start(), listed)
    assert isinstance(copying, machine.CopyRun)
    content = Content(2, 80)
    steps(compaction, machine.RunCopied(NEW, content), machine.CopyVerified(content))
    (effect,) = steps(compaction, machine.CopyListed(replace(extents[0], entry_count=2)))
    assert isinstance(effect, machine.Finish)


# --- over bookies in memory -------------------------------------------------------------------------------------------


async def publish(
    bookkeeper: BookKeeper, log: NamedLog, entries: Sequence[bytes], *, first_entry_id: int = 0, **more: object
) -> NewExtent:
    """A ledger as a job writes it, from this entry on at the end of the log."""
    head, _ = await log.open_or_create()
    keys = custom_metadata_for(head.value.uuid, PublishId.job("x"), partition=0, attempt=0, codec="raw")
    sizes = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2} | more
    writer = await bookkeeper.create_ledger(
        password=PASSWORD,
        custom_metadata=keys,
        digest_type=head.value.digest_type,
        **sizes,
    )
    await writer.append_batch(EntryBatch.from_list(list(entries)))
    await writer.close()
    new = NewExtent(
        ledger_id=writer.ledger_id,
        first_entry_id=first_entry_id,
        entry_count=len(entries) - first_entry_id,
        size_bytes=sum(map(len, entries[first_entry_id:])),
        created_ms=writer.ledger_id + 1,
        fragments=writer.metadata.fragments,
        **sizes,
    )
    await log.publish([new], PublishId.job(str(new.ledger_id)))
    return new


async def content_of(log: NamedLog) -> list[bytes]:
    head = (await log.head()).value
    return [entry async for _, batch in log.read(head.start_offset, head.next_offset) for entry in batch.to_list()]


def values(first: int, count: int) -> list[bytes]:
    return [b"value %d" % n * (n % 4) for n in range(first, first + count)]


@pytest.mark.rule("N7")
@pytest.mark.parametrize("digest_type", list(DigestType))
def test_many_ledgers_become_one_with_the_same_entries_at_the_same_offsets(digest_type: DigestType) -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            await log.create(digest_type=digest_type)
            for n in range(40):
                await publish(bookkeeper, log, values(10 * n, 10))
            seen: list[int] = []
            done = await log.compactor(progress=seen.append).run()
            assert (done.extents, done.entries, len(done.ledgers)) == (40, 400, 1)
            assert sum(seen) == 400
            (extent,) = await log.extents()
            assert (extent.base_offset, extent.entry_count, extent.created_ms) == (0, 400, 40)
            assert extent.size_bytes == sum(map(len, values(0, 400)))
            assert await content_of(log) == values(0, 400)
            assert [batch.to_list() async for _, batch in log.read(123, 124)] == [values(123, 1)]
            metadata = (await bookkeeper.read_metadata(extent.ledger_id)).value
            assert extent.fragments == metadata.fragments
            assert metadata.digest_type is digest_type
            assert await log.compactor().run() == machine.Compacted()  # nothing is left to do

    run(work())


@pytest.mark.rule("N6")
def test_a_merged_ledger_can_be_vacuumed_like_any_other_and_the_replaced_are() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            old = {(await publish(bookkeeper, log, values(5 * n, 5))).ledger_id for n in range(4)}
            (merged,) = (await log.compactor().run()).ledgers
            await asyncio.sleep(0.005)
            assert set((await log.vacuum(delete_delay_ms=0, force=True)).ledgers) == old
            assert await content_of(log) == values(0, 20)
            await log.trim(20)
            assert (await log.vacuum(delete_delay_ms=0, force=True)).ledgers == (merged,)

    run(work())


def test_a_merged_ledger_is_as_safe_as_the_safest_that_it_replaces() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            await publish(bookkeeper, log, values(0, 5), ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
            await publish(bookkeeper, log, values(5, 5), ensemble_size=3, write_quorum_size=2, ack_quorum_size=2)
            await log.compactor().run()
            (extent,) = await log.extents()
            assert (extent.ensemble_size, extent.write_quorum_size, extent.ack_quorum_size) == (3, 2, 2)
            assert await content_of(log) == values(0, 10)

    run(work())


def test_large_ledgers_between_small_ones_and_parts_of_ledgers_are_copied_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bk_core.logs import compactor

    monkeypatch.setattr(compactor, "AHEAD_BYTES", 20_000)
    monkeypatch.setattr(compactor, "JOIN_BYTES", 3_000)

    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            entries: list[bytes] = []
            for n in range(12):
                part = [random.Random(n).randbytes(900)] * (30 if n % 5 == 2 else 3)
                await publish(bookkeeper, log, part)
                entries += part
            await log.trim(4)  # cuts the second extent, which stays whole
            await log.compactor().run()
            extents = await log.extents()
            assert [extent.base_offset for extent in extents] == [3]
            assert await content_of(log) == entries[4:]

    run(work())


@pytest.mark.rule("N1")
def test_extents_that_are_parts_of_ledgers_are_copied_without_the_rest() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            for n in range(3):
                await publish(bookkeeper, log, values(10 * n, 10), first_entry_id=6)
            assert await content_of(log) == [*values(6, 4), *values(16, 4), *values(26, 4)]
            before = await content_of(log)
            assert (await log.compactor().run()).entries == 12
            (extent,) = await log.extents()
            assert (extent.first_entry_id, extent.entry_count) == (0, 12)
            assert await content_of(log) == before

    run(work())


@pytest.mark.rule("N2")
def test_a_leader_goes_on_while_its_log_is_compacted_and_its_open_ledger_is_left_alone() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            leader = await log.lead()
            for n in range(6):
                await leader.append(b"%d" % n)
                await leader.roll()
            await leader.append(b"6")
            compacting = asyncio.create_task(log_of(cluster.client()).compactor().run())
            for n in range(7, 12):
                await leader.append(b"%d" % n)
                await leader.roll()
            assert (await compacting).extents >= 6
            await leader.append(b"12")
            await leader.close()
            assert await content_of(log) == [b"%d" % n for n in range(13)]

    run(work())


async def interrupted(compactor: Compactor, monkeypatch: pytest.MonkeyPatch, between: object) -> machine.Compacted:
    """Runs it with ``between`` awaited after the first copy was verified."""
    content, is_done = compactor._content, False

    async def then_disturbed(new: NewExtent) -> Content:
        nonlocal is_done
        found = await content(new)
        if not is_done:
            is_done = True
            await between()
        return found

    monkeypatch.setattr(compactor, "_content", then_disturbed)
    return await compactor.run()


@pytest.mark.rule("N7")
@pytest.mark.parametrize("what", ["trim", "overwrite", "compact"])
def test_a_run_that_others_changed_during_the_copy_is_left_as_they_made_it(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            for n in range(6):
                await publish(bookkeeper, log, values(5 * n, 5))

            async def disturb() -> None:
                if what == "trim":
                    await log.trim(12)
                elif what == "overwrite":
                    await log.overwrite([], PublishId.job("empty"))
                    await publish(bookkeeper, log, values(30, 2))
                else:
                    await log.compactor().run()
                await asyncio.sleep(0.005)
                await log.vacuum(delete_delay_ms=0, force=True)

            done = await interrupted(log_of(cluster.client()).compactor(), monkeypatch, disturb)
            head = (await log.head()).value
            start = {"trim": 12, "overwrite": 30, "compact": 0}[what]
            end = 32 if what == "overwrite" else 30
            assert (head.start_offset, head.next_offset) == (start, end)
            assert await content_of(log) == values(start, end - start)
            assert done.entries == (20 if what == "trim" else 0)

    run(work())


def test_a_bookie_that_dies_during_the_copy_costs_time_and_no_entry() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            for n in range(20):
                await publish(bookkeeper, log, values(10 * n, 10))
            is_killed = False

            def kill(_: int) -> None:
                nonlocal is_killed
                if not is_killed:
                    is_killed = True
                    cluster.kill("b1")

            done = await log.compactor(CompactionLimits(ledger_bytes_max=2000), kill).run()
            assert is_killed
            assert done.entries == 200
            assert await content_of(log) == values(0, 200)

    run(work())


@pytest.mark.rule("N4")
def test_a_cancelled_compaction_leaves_no_ledger_behind_and_the_next_one_begins_anew() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            for n in range(6):
                await publish(bookkeeper, log, values(5 * n, 5))
            before = await bookkeeper.list_ledgers()
            reached = asyncio.Event()
            compacting = asyncio.create_task(log.compactor(progress=lambda _: reached.set()).run())
            await reached.wait()
            compacting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await compacting
            assert await bookkeeper.list_ledgers() == before
            assert (await log.compactor().run()).entries == 30
            assert await content_of(log) == values(0, 30)

    run(work())


def test_entries_that_are_lost_end_the_compaction_and_the_log_stays() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            made = [await publish(bookkeeper, log, values(5 * n, 5)) for n in range(3)]
            before = await log.extents()
            bookkeeper.store.delete_ledger(made[1].ledger_id)
            ledgers = await bookkeeper.list_ledgers()
            with pytest.raises((NoSuchLedgerError, NoSuchEntryError)):
                await log.compactor().run()
            assert await log.extents() == before
            assert await bookkeeper.list_ledgers() == ledgers

    run(work())


def test_a_ledger_that_is_not_what_the_log_lists_is_not_copied() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            made = [await publish(bookkeeper, log, values(5 * n, 5)) for n in range(3)]
            found = bookkeeper.store.read_ledger(made[1].ledger_id)
            shorter = replace(found.value, last_entry_id=3)
            bookkeeper.store.write_ledger(made[1].ledger_id, shorter, found.version)
            with pytest.raises(IntegrityError, match=f"ledger {made[1].ledger_id}"):
                await log.compactor().run()

    run(work())


def test_a_wrong_password_is_told_before_anything_is_made() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            for n in range(2):
                await publish(bookkeeper, log, values(5 * n, 5))
            before = await bookkeeper.list_ledgers()
            with pytest.raises(WrongPasswordError):
                await NamedLog(bookkeeper, log.name, password=b"other").compactor().run()
            assert await bookkeeper.list_ledgers() == before
            assert (await bookkeeper.create_ledger()).ledger_id == max(before) + 1

    run(work())


def test_a_plan_says_what_would_be_done_and_does_nothing() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            for n in range(4):
                await publish(bookkeeper, log, values(5 * n, 5))
            before = await log.extents(), await bookkeeper.list_ledgers()
            (planned,) = await log.compactor().plan()
            assert list(planned) == before[0]
            assert (await log.extents(), await bookkeeper.list_ledgers()) == before

    run(work())
