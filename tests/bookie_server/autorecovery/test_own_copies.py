# SPDX-License-Identifier: Apache-2.0
"""A bookie marks its own copies that are incomplete, until they are whole (decision 0053)."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import urllib.request
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bk_cli.local.children import free_port
from bk_core.client.bookkeeper import connect
from bk_core.errors import BookKeeperError, MetadataUnavailableError
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from bk_core.model import ENTRY_ID_MAX, DigestType, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState
from bk_core.transport.port import BookieInfo
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import EntryRange, Reason
from bookie_server.autorecovery import own_copies, suspects
from bookie_server.autorecovery.main import AutoRecovery
from bookie_server.autorecovery.own_copies import OwnCopies
from bookie_server.autorecovery.settings import AutoRecoveryConfig
from bookie_server.autorecovery.suspects import OwnPart, Suspects, own_parts
from bookie_server.main import Bookie
from tests.kit.canaries import PASSWORD
from tests.kit.lanes import bookie_config, lane_to
from tests.kit.memory_cluster import FAST
from tests.kit.memory_store import MemoryStore, shared_cluster
from tests.kit.waiting import eventually

QUICK = AutoRecoveryConfig(lost_bookie_delay_s=600, poll_s=0.05, retry_s=0.1, retry_max_s=0.2)
ENTRIES = [b"entry %d " % number + b"x" * 2_000 for number in range(40)]


def record(*fragments: tuple[int, str], last: int | None = None, sizes: tuple[int, int] = (3, 2)) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=sizes[0],
        write_quorum_size=sizes[1],
        ack_quorum_size=sizes[1],
        fragments=tuple(Fragment(first, tuple(names)) for first, names in fragments),
        state=LedgerState.OPEN if last is None else LedgerState.CLOSED,
        last_entry_id=-1 if last is None else last,
        digest_type=DigestType.CRC32C,
    )


# --- pure -----------------------------------------------------------------------------------------------------------


def test_parts_are_those_of_the_fragments_that_name_the_bookie_and_have_entries() -> None:
    open_one = record((0, "abc"), (10, "abd"), (20, "acd"))
    assert own_parts(open_one, "b") == [OwnPart(0, 9, 1, 3, 2), OwnPart(10, 19, 1, 3, 2)]
    assert own_parts(open_one, "d")[-1] == OwnPart(20, None, 2, 3, 2)
    closed = record((0, "abc"), (10, "abd"), (20, "acd"), last=14)
    assert own_parts(closed, "d") == [OwnPart(10, 14, 2, 3, 2)]
    assert own_parts(closed, "x") == []
    assert own_parts(record((0, "abc"), last=-1), "a") == []


@pytest.mark.parametrize(
    ("part", "absent", "unknown", "lacking"),
    [
        (OwnPart(0, 9, 0, 3, 2), [(1, 1), (4, 4)], [], []),  # ids of the others: 1, 4, 7
        (OwnPart(0, 9, 0, 3, 2), [(1, 2)], [], [(1, 2)]),
        (OwnPart(0, 9, 0, 3, 2), [], [(7, 7)], []),
        (OwnPart(0, 9, 0, 3, 2), [], [(7, 8)], [(7, 8)]),
        (OwnPart(0, 9, 0, 3, 2), [(10, 90)], [], []),  # behind the end
        (OwnPart(0, 9, 0, 3, 2), [(1, 90)], [], [(1, 90)]),
        (OwnPart(0, None, 0, 3, 2), [(5, 2**63 - 2)], [], []),  # may never have been written
        (OwnPart(0, None, 0, 3, 2), [], [(5, 2**63 - 2)], [(5, 2**63 - 2)]),
        (OwnPart(5, 9, 0, 3, 3), [(0, 4)], [], []),  # of another fragment
    ],
)
def test_only_ids_of_own_write_sets_are_lacking_and_in_an_open_fragment_only_unknown_ones(
    part: OwnPart, absent: list[tuple[int, int]], unknown: list[tuple[int, int]], lacking: list[tuple[int, int]]
) -> None:
    gaps = tuple(EntryRange(*gap, Reason.LIMBO) for gap in unknown)
    found = part.lacking(ReadTrailer(part.asked_last, tuple(EntryRange(*gap) for gap in absent), gaps))
    assert [(gap.first, gap.last) for gap in found] == lacking


def test_a_mark_that_goes_is_made_again_less_and_less_often_and_at_least_every_hour() -> None:
    due, now, waits = Suspects(), 0.0, []
    due.note([7], now)
    for _ in range(10):
        began = now
        while not due.due(now, 10):
            now += 1
        waits.append(now - began)
        due.again(7, now, tried=True)
    assert waits == [0, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_suspects_are_due_once_in_order_until_they_are_settled() -> None:
    due = Suspects()
    due.note([3, 1, 2], 5.0)
    due.note([1, 9], 6.0)
    assert due.due(4.0, 10) == []
    assert due.due(5.0, 2) == due.due(5.0, 2) == [1, 2]
    due.forget(1)
    due.again(2, 6.0, tried=False)
    assert due.due(6.0, 10) == [3, 9]
    assert len(due) == 3
    due.note([1], 7.0)
    assert due.due(7.0, 10) == [3, 9, 1], "found damaged anew"


# --- with a store ---------------------------------------------------------------------------------------------------


class Own:
    """A bookie "a" whose index is a table: for each ledger what it does not have."""

    def __init__(self) -> None:
        self.store: MetadataStore = open_store(f"memory://{uuid.uuid4().hex}")
        self.store.initialize_cluster()
        self.gaps: dict[LedgerId, list[EntryRange]] = {}
        self.found: list[LedgerId] = []
        self.now = 0.0
        self.own = OwnCopies(self.store, "a", self._gaps, self._source, clock=lambda: self.now)

    def ledger(self, ledger_id: LedgerId, *lacks: EntryId, reason: Reason = Reason.DAMAGED) -> LedgerId:
        self.store.create_ledger(record((0, "abc"), last=9, sizes=(3, 3)), ledger_id)
        self.gaps[ledger_id] = [EntryRange(entry, entry, reason) for entry in lacks]
        self.found.append(ledger_id)
        return ledger_id

    def marked(self) -> dict[LedgerId, tuple[str, ...]]:
        return dict(self.store.list_underreplicated())

    def drop_mark(self, ledger_id: LedgerId) -> None:
        """A worker takes the ledger for whole."""
        mark = self.store.read_underreplicated(ledger_id)
        self.store.lock_underreplicated(ledger_id, "w")
        assert self.store.remove_underreplicated(ledger_id, mark.version)
        self.store.unlock_underreplicated(ledger_id)

    async def round(self, later_s: float = 0.0) -> None:
        self.now += later_s
        await self.own.round()

    async def _gaps(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> ReadTrailer:
        if ledger_id not in self.gaps:
            raise BookKeeperError("busy")
        through = min(last, first + 4)  # an answer is not always whole
        return ReadTrailer(through, (), tuple(gap for gap in self.gaps[ledger_id] if first <= gap.first <= through))

    async def _source(self) -> list[LedgerId]:
        found, self.found = self.found, []
        return found


@asynccontextmanager
async def own_world() -> AsyncIterator[Own]:
    own = Own()
    yield own
    own.store.close()


async def test_only_incomplete_copies_are_marked_and_a_mark_of_others_gets_this_bookie_too() -> None:
    async with own_world() as own:
        own.ledger(1)
        own.ledger(2, 7)
        own.ledger(3, 3, 4, reason=Reason.LIMBO)
        own.store.mark_underreplicated(3, ["c"])
        await own.round()
        assert own.marked() == {2: ("a",), 3: ("c", "a")}
        assert (own.own.counts(), own.own.marked, len(own.own.suspects)) == ((1, 1), 2, 3)
        assert str(own.own.lacking[3]) == "entries 3 to 3 (LIMBO), 4 to 4 (LIMBO)"
        await own.round(60)
        assert own.own.marked == 2, "the marks stand"


async def test_a_mark_that_vanishes_while_the_copy_is_incomplete_is_made_again_with_back_off() -> None:
    async with own_world() as own:
        own.ledger(2, 7)
        await own.round()
        for wait_s in (60, 120, 240):
            own.drop_mark(2)
            await own.round(wait_s - 1)
            assert own.marked() == {}
            await own.round(1)
            assert own.marked() == {2: ("a",)}
        own.gaps[2] = []  # repaired
        await own.round(480)
        assert own.marked() == {2: ("a",)}, "who repaired it removes the mark"
        assert own.own.lacking
        own.drop_mark(2)
        await own.round(480)
        assert own.marked() == {}
        assert (own.own.lacking, own.own.healed, len(own.own.suspects)) == ({}, 1, 0)


async def test_deleted_and_moved_ledgers_are_forgotten_and_what_cannot_be_judged_holds_up_no_other() -> None:
    async with own_world() as own:
        own.ledger(1, 5)
        own.ledger(2, 5)
        own.ledger(3, 5)
        own.ledger(4, 5)
        own.store.delete_ledger(1)
        value = own.store.read_ledger(2)
        own.store.write_ledger(2, record((0, "bcd"), last=9, sizes=(3, 3)), value.version)
        del own.gaps[3]
        await own.round()
        assert own.marked() == {4: ("a",)}
        assert len(own.own.suspects) == 3, "all but the deleted one"
        own.gaps[3] = [EntryRange(0, 0, Reason.DAMAGED)]
        await own.round(60)
        assert own.marked() == {3: ("a",), 4: ("a",)}


async def test_damage_that_was_found_before_the_record_named_the_bookie_is_marked_once_it_does() -> None:
    """A repair has written the copy, and names its bookie when it is done with the fragment."""

    async with own_world() as own:
        own.ledger(2, 5)
        value = own.store.read_ledger(2)
        moved = own.store.write_ledger(2, record((0, "bcd"), last=9, sizes=(3, 3)), value.version)
        await own.round()
        await own.round(60)
        assert own.marked() == {}
        own.store.write_ledger(2, value.value, moved.version)
        await own.round(3_600)
        assert own.marked() == {2: ("a",)}


@pytest.mark.parametrize(("reason", "looks"), [(Reason.DAMAGED, suspects.NOT_NAMED_LOOKS), (Reason.LIMBO, 0)])
async def test_what_no_record_gives_this_bookie_is_forgotten_in_the_end(reason: Reason, looks: int) -> None:
    async with own_world() as own:
        own.ledger(2, 5, *([ENTRY_ID_MAX] if reason is Reason.LIMBO else []), reason=reason)
        value = own.store.read_ledger(2)
        own.store.write_ledger(2, record((0, "bcd"), last=9, sizes=(3, 3)), value.version)
        await own.round()
        for _ in range(looks):
            assert len(own.own.suspects) == 1
            await own.round(3_600)
        assert len(own.own.suspects) == 0


async def test_a_round_makes_a_bounded_number_of_marks_and_none_is_left_out() -> None:
    async with own_world() as own:
        for ledger_id in range(own_copies.MARKS_MAX + 30):
            own.ledger(ledger_id, 5)
        await own.round()
        assert len(own.marked()) == own_copies.MARKS_MAX
        await own.round()
        assert len(own.marked()) == own_copies.MARKS_MAX + 30


async def test_a_store_that_is_away_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with own_world() as own:
        monkeypatch.setattr(own_copies, "POLL_S", 0.01)
        away = True
        sync = own.store.sync

        def maybe() -> None:
            if away:
                raise MetadataUnavailableError("away")
            sync()

        monkeypatch.setattr(own.store, "sync", maybe)
        own.ledger(1, 5)
        own.own.start()
        await asyncio.sleep(0.05)
        assert own.marked() == {}
        away = False
        await eventually(lambda: own.marked() == {1: ("a",)})
        await own.own.stop()


# --- with bookies and their disks -----------------------------------------------------------------------------------


class Bookies:
    """Bookies b0 to b3 in this process, on disks; one ledger on b0 to b2."""

    def __init__(self, path: Path) -> None:
        self.path, self.uri = path, f"memory://{uuid.uuid4().hex}"
        self.store = MemoryStore(shared_cluster(self.uri))
        self.store.initialize_cluster()
        self.running: dict[str, Bookie] = {}

    async def start(self, *names: str, accept_loss: bool = False, admin_port: int = 0) -> None:
        for name in names:
            changes = {"bookie_id": name, "session_timeout_s": 1.0, "admin_port": admin_port}
            never = {"compaction_threshold": 1e-9, "major_compaction_threshold": 1e-9}  # it joins frames
            config = bookie_config(self.path / name, self.uri, **changes, **never)
            self.running[name] = await Bookie.start(config, accept_loss=accept_loss)

    async def stop(self, *names: str) -> None:
        for name in names:
            await self.running.pop(name).stop()

    async def write(self, entries: list[bytes] = ENTRIES) -> LedgerId:
        """A closed ledger on the bookies that run, which are three; then b3 starts, too."""
        client = await connect(self.uri, config=FAST)
        async with await client.create_ledger(ensemble_size=3, password=PASSWORD, ack_quorum_size=3) as ledger:
            for entry in entries:
                await ledger.append(entry)
        await client.close()
        await self.start("b3")
        return ledger.ledger_id

    def own(self, name: str = "b0") -> OwnCopies:
        return self.running[name].own_copies

    async def told_by(self, name: str, ledger_id: LedgerId) -> tuple[int, set[Reason]]:
        """How many entries this bookie has, and why it does not know others. It denies none."""
        lane = lane_to(self.store, name)
        entries, trailer = await lane.read(ledger_id, 0, len(ENTRIES) - 1, bytes_max=1 << 26)
        await lane.transport.close()
        assert not trailer.absent
        return len(entries), {gap.reason for gap in trailer.unknown}

    async def info_of(self, name: str) -> BookieInfo:
        lane = lane_to(self.store, name)
        info = await lane.link.bookie_info(deadline_s=5)
        await lane.transport.close()
        return info

    async def seal(self, *names: str) -> None:
        """Stop these with their segments sealed."""
        for name in names:
            await self.stop(name)
            await self.start(name)
            await self.stop(name)

    def damage(self, name: str, *entries: bytes) -> None:
        """Of a bookie that is stopped."""
        for segment in (self.path / name / "bookie" / "segments").glob("*.segment"):
            data = segment.read_bytes()
            for entry in entries:
                at = data.find(entry)
                if at >= 0:
                    data = data[: at + 9] + b"?" + data[at + 10 :]
            segment.write_bytes(data)

    async def repair(self, ledger_id: LedgerId) -> None:
        client = await connect(self.uri, config=FAST)
        async with AutoRecovery(client, "worker", QUICK):
            await eventually(lambda: self.store.read_underreplicated(ledger_id) is None, 20)
        await client.close()

    async def close(self) -> None:
        await self.stop(*self.running)
        self.store.close()


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


@asynccontextmanager
async def three_bookies(path: Path) -> AsyncIterator[Bookies]:
    bookies = Bookies(path)
    await bookies.start("b0", "b1", "b2")
    try:
        yield bookies
    finally:
        await bookies.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_copies, "POLL_S", 0.05)
    monkeypatch.setattr(suspects, "LOOK_AGAIN_S", 0.3)


@pytest.mark.rule("S5")
@pytest.mark.usefixtures("quick")
async def test_damage_that_scrubbing_finds_is_marked_repaired_in_place_and_forgotten(tmp_path: Path) -> None:
    async with three_bookies(tmp_path) as bookies:
        ledger_id = await bookies.write()
        members = bookies.store.read_ledger(ledger_id).value.last_fragment.ensemble
        await bookies.seal("b0")
        bookies.damage("b0", ENTRIES[7], ENTRIES[30])
        port = free_port()
        await bookies.start("b0", admin_port=port)
        await eventually(lambda: dict(bookies.store.list_underreplicated()) == {ledger_id: ("b0",)}, 20)
        info = await bookies.info_of("b0")
        assert (info.limbo_ledgers, info.damaged_ledgers) == (0, 1)
        lines = (await asyncio.to_thread(fetched, f"http://127.0.0.1:{port}/metrics")).splitlines()
        assert {"bookie_ledgers_damaged 1", "bookie_own_copies_marked_total 1"} <= set(lines)
        assert any(re.fullmatch(r"scrubber_detectedScrubErrors [1-9]\d*", line) for line in lines)
        told = json.loads(await asyncio.to_thread(fetched, f"http://127.0.0.1:{port}/lacking"))
        assert [(each["ledgerId"], each["inLimbo"]) for each in told["lacking"]] == [(ledger_id, False)]
        assert "7 to 7 (DAMAGED)" in told["lacking"][0]["lacks"]
        assert await bookies.told_by("b0", ledger_id) == (len(ENTRIES) - 2, {Reason.DAMAGED})
        await bookies.repair(ledger_id)
        assert bookies.store.read_ledger(ledger_id).value.last_fragment.ensemble == members, "in place"
        assert await bookies.told_by("b0", ledger_id) == (len(ENTRIES), set())
        await eventually(lambda: bookies.own().healed == 1, 10)
        assert bookies.own().marked == 1


@pytest.mark.rule("S8")
@pytest.mark.usefixtures("quick")
async def test_limbo_is_repaired_in_place_marked_again_while_it_lasts_and_not_once_it_is_over(tmp_path: Path) -> None:
    async with three_bookies(tmp_path) as bookies:
        ledger_id = await bookies.write()
        members = bookies.store.read_ledger(ledger_id).value.last_fragment.ensemble
        await bookies.stop("b0")
        shutil.rmtree(tmp_path / "b0")
        await bookies.start("b0", accept_loss=True)
        await eventually(lambda: bookies.own().counts() == (1, 0), 10)
        assert bookies.own().marked == 0, "the start has marked it"
        mark = bookies.store.read_underreplicated(ledger_id)
        assert mark.value.missing == ("b0",)
        bookies.store.lock_underreplicated(ledger_id, "a worker that looks at little")
        bookies.store.remove_underreplicated(ledger_id, mark.version)
        bookies.store.unlock_underreplicated(ledger_id)
        await eventually(lambda: bookies.store.read_underreplicated(ledger_id) is not None, 10)
        await bookies.repair(ledger_id)
        assert bookies.store.read_ledger(ledger_id).value.last_fragment.ensemble == members
        assert await bookies.told_by("b0", ledger_id) == (len(ENTRIES), set())
        await bookies.stop("b0")
        await bookies.start("b0")
        again = bookies.own()
        source: Any = again._source
        await eventually(lambda: source._begun and not len(again.suspects), 10)
        assert (bookies.own().marked, list(bookies.store.list_underreplicated())) == (0, [])


@pytest.mark.long
@pytest.mark.rule("MUST4")
@pytest.mark.usefixtures("quick")
async def test_entry_that_is_damaged_on_every_copy_blocks_the_repair_which_says_so_and_is_denied_by_nobody(
    tmp_path: Path,
) -> None:
    async with three_bookies(tmp_path) as bookies:
        ledger_id = await bookies.write()
        members = bookies.store.read_ledger(ledger_id).value.last_fragment.ensemble
        await bookies.seal(*members)
        for name in members:
            bookies.damage(name, ENTRIES[7], *([ENTRIES[30]] if name == "b0" else []))
        await bookies.start(*members)
        named = {ledger_id: set(members)}
        await eventually(lambda: {k: set(v) for k, v in bookies.store.list_underreplicated()} == named, 20)
        client = await connect(bookies.uri, config=FAST)
        async with AutoRecovery(client, "worker", QUICK) as running:
            await eventually(lambda: ledger_id in running.workers.put_off, 20)
            why = running.workers.put_off[ledger_id].why
            assert "DAMAGED" in why, why
            assert all(name in why for name in members), why
        await client.close()
        for name in members:
            assert (await bookies.told_by(name, ledger_id))[1] == {Reason.DAMAGED}
        assert {k: set(v) for k, v in bookies.store.list_underreplicated()} == named, "the marks stay"
