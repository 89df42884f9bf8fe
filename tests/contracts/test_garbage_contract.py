# SPDX-License-Identifier: Apache-2.0
"""On every metadata store: which evidence makes a bookie believe that a ledger is deleted, and that it then forgets
it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bk_core.client import BookKeeper, ClientConfig
from bk_core.errors import BookieIdentityError, BookKeeperError, MetadataCorruptError, MetadataUnavailableError
from bk_core.metadata.port import MetadataStore
from bk_core.model import Fragment, LedgerId
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.port import RefusedError
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.garbage.collector import CollectorConfig
from bookie_server.garbage.garbage_thread import GarbageThread, StoreEvidence
from bookie_server.main import Bookie
from tests.kit.lanes import KEY, Lane, Listener, bookie_config
from tests.kit.metadata_worlds import MetadataWorld, a_ledger, before_read, tree_of
from tests.kit.waiting import until

BOOKIE = "b1:3181"
STATE = b'{"boot_count":3,"incarnation":"here","newest_sealed":0,"v":1}\n'
HELD = np.array([1, 2, 3], np.int64)


class Place:
    """A store with the ledgers 0 to 3, as a bookie sees it that has started on it."""

    def __init__(self, world: MetadataWorld) -> None:
        self.world = world
        self.store = world.open(timeout_s=world.brief_s, session_timeout_s=2.0)
        self.store.initialize_cluster()
        self.store.write_bookie_state(BOOKIE, STATE, None)
        for ledger_id in range(4):
            self.store.create_ledger(a_ledger(), ledger_id)
        self.evidence = StoreEvidence(self.store, BOOKIE, "here", 3)
        self.other = world.open()

    def raises(self, expected: type[BookKeeperError]) -> None:
        """Check that both looks fail with this error."""
        with pytest.raises(expected):
            self.evidence.look((1, 2))
        with pytest.raises(expected):
            self.evidence.compare(HELD)


@pytest.fixture
def place(metadata_world: MetadataWorld) -> Place:
    return Place(metadata_world)


@pytest.mark.rule("S9")
def test_a_look_tells_what_is_gone_from_what_is_there(place: Place) -> None:
    place.other.delete_ledger(2)
    found = place.evidence.look((1, 2, 3), 5)
    assert (found.look, found.gone, found.found) == (5, {2}, {1: 0, 3: 0})
    assert place.evidence.compare(HELD).missing == (2,)
    assert place.evidence.compare(HELD).listed == 3
    assert place.evidence.look((2,)).session == found.session


@pytest.mark.rule("S9")
def test_comparing_with_many_listed_ledgers_finds_just_what_is_missing(place: Place) -> None:
    held = np.array([0, 2, 3, 5, 2**40, 2**63 - 2], np.int64)
    place.other.create_ledger(a_ledger(), 2**40)
    assert place.evidence.compare(held).missing == (5, 2**63 - 2)
    assert place.evidence.compare(held[:2]).missing == ()
    assert place.evidence.compare(held[3:4]).missing == (5,)


@pytest.mark.rule("S9")
def test_a_record_that_cannot_be_read_is_a_record(place: Place) -> None:
    tree = tree_of(place.store)
    tree.set(place.store._znode_of(1), b"no ledger's record", -1)
    assert place.evidence.look((1,)).found == {1: -1}


@pytest.mark.rule("S9")
def test_a_root_that_is_gone_is_no_evidence(place: Place) -> None:
    delete_all(tree_of(place.other), place.world.root)
    place.raises(MetadataCorruptError)
    with pytest.raises(MetadataCorruptError):
        list(place.store.list_ledgers())


@pytest.mark.rule("S9")
@pytest.mark.parametrize("when", ["goes", "comes back"])
def test_a_cluster_that_goes_or_comes_back_during_a_look_is_no_evidence(
    place: Place, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, path, read = tree_of(place.other), f"{place.world.root}/INSTANCEID", place.store.read_ledger
    known = tree.get(path)[0]

    def reading(ledger_id: LedgerId) -> object:
        try:
            return read(ledger_id)
        finally:
            tree.delete(path) if when == "goes" else tree.create(path, known)

    monkeypatch.setattr(place.store, "read_ledger", reading)
    if when == "comes back":
        place.store.instance_id()
        tree.delete(path)
    with pytest.raises(MetadataCorruptError):
        place.evidence.look((1,))


@pytest.mark.rule("S9")
def test_another_cluster_at_the_same_address_is_no_evidence(place: Place) -> None:
    delete_all(tree_of(place.other), place.world.root)
    place.world.open().initialize_cluster()
    place.raises(MetadataCorruptError)


@pytest.mark.rule("S9")
@pytest.mark.parametrize("state", [None, STATE.replace(b"3", b"2"), STATE.replace(b"here", b"else"), b"[]", b"\xff"])
def test_a_store_that_was_put_back_or_taken_over_is_no_evidence(place: Place, state: bytes | None) -> None:
    found = place.other.read_bookie_state(BOOKIE)
    assert found is not None
    if state is None:
        tree_of(place.other).delete(f"{place.world.root}-bookies/{BOOKIE}")
    else:
        place.other.write_bookie_state(BOOKIE, state, found.version)
    place.raises(BookieIdentityError)


@pytest.mark.rule("S9", "M2")
def test_a_store_that_cannot_be_reached_is_no_evidence(place: Place) -> None:
    place.other.delete_ledger(2)
    place.world.suspend(place.store)
    place.raises(MetadataUnavailableError)
    place.world.resume(place.store)
    until(lambda: reachable(place.store))
    assert place.evidence.look((2,)).gone == {2}


@pytest.mark.rule("S9", "M2")
def test_a_look_over_two_sessions_says_nothing(place: Place) -> None:
    before_read(place.store, lambda: place.world.expire(place.store))
    with pytest.raises(MetadataUnavailableError):
        place.evidence.look((1, 2))
    until(lambda: reachable(place.store))
    before_read(place.store, lambda: place.world.expire(place.store))
    with pytest.raises(MetadataUnavailableError):
        place.evidence.compare(HELD)


@pytest.mark.rule("S9")
def test_each_look_begins_with_sync(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("sync", "read_ledger", "list_ledgers"):
        real = getattr(place.store, name)
        monkeypatch.setattr(place.store, name, lambda *a, real=real, name=name: (calls.append(name), real(*a))[1])
    place.evidence.look((1, 2))
    place.evidence.compare(HELD)
    assert calls == ["sync", "read_ledger", "read_ledger", "sync", "list_ledgers"]


def delete_all(tree: Any, path: str) -> None:
    for name in tree.children(path):
        delete_all(tree, f"{path}/{name}")
    tree.delete(path)


def reachable(store: MetadataStore) -> bool:
    try:
        store.sync()
    except MetadataUnavailableError:
        return False
    return True


# --- copies that live elsewhere ---


def move(place: Place, ledger_id: LedgerId, *ensemble: str, closed: bool = True) -> None:
    record = place.other.read_ledger(ledger_id)
    fragments = tuple(replace(each, ensemble=ensemble) for each in record.value.fragments)
    value = replace(record.value, fragments=fragments)
    place.other.write_ledger(ledger_id, value.closed_at(5, 50) if closed else value, record.version)


ELSEWHERE, HERE = ("b2:3181", "b3:3181", "b4:3181"), ("b2:3181", BOOKIE, "b4:3181")


@pytest.mark.rule("S9")
def test_a_ledger_lives_elsewhere_if_it_is_closed_and_no_fragment_names_this_bookie(place: Place) -> None:
    move(place, 1, *ELSEWHERE)
    move(place, 2, *ELSEWHERE, closed=False)
    move(place, 3, *HERE)
    assert place.evidence.look((1, 2, 3)).elsewhere == {1}
    assert place.evidence.compare(HELD, records=True).strays == (1,)
    assert place.evidence.compare(HELD).strays == ()


@pytest.mark.rule("S9")
def test_a_copy_is_given_up_under_the_lock_and_not_while_the_ledger_is_repaired(place: Place) -> None:
    move(place, 1, *ELSEWHERE)
    dropped: list[LedgerId] = []

    def drop(ledger_id: LedgerId, until: float) -> None:
        assert time.monotonic() < until < time.monotonic() + 3
        assert not place.other.lock_underreplicated(ledger_id, "a worker"), "nobody copies here meanwhile"
        dropped.append(ledger_id)

    assert place.other.lock_underreplicated(1, "a worker")
    assert not place.evidence.give_up(1, drop)
    place.other.unlock_underreplicated(1)
    assert place.evidence.give_up(1, drop)
    move(place, 1, *HERE)
    assert not place.evidence.give_up(1, drop), "the worker has named this bookie again"
    assert (dropped, place.other.underreplication_locks()) == ([1], {})


@pytest.mark.rule("S9")
def test_a_lock_that_could_not_be_given_back_goes_with_the_next_comparison(place: Place) -> None:
    move(place, 1, *ELSEWHERE)
    calls: list[LedgerId] = []

    def drop(ledger_id: LedgerId, until: float) -> None:
        calls.append(ledger_id)
        place.world.suspend(place.store)

    with pytest.raises(MetadataUnavailableError):
        place.evidence.give_up(1, drop)
    place.world.resume(place.store)
    assert calls == [1]

    def compares() -> bool:
        with contextlib.suppress(MetadataUnavailableError):
            return place.evidence.compare(HELD).listed > 0
        return False

    until(compares)
    assert place.other.lock_underreplicated(1, "a worker")


# --- the thread ---


class Collecting:
    """A garbage collection thread of a bookie that holds ledgers 1 to 3. A list takes the place of the loop."""

    def __init__(self, place: Place, **times: int) -> None:
        self.held: set[LedgerId] = {1, 2, 3}
        self.forgotten: list[LedgerId] = []
        self.asked = threading.Event()
        self.failures: list[BookKeeperError] = []
        self.thread = GarbageThread(
            place.store, place.evidence, held=self._held, forget=self._forget, failed=self.failures.append,
            config=CollectorConfig(**{"interval_ms": 60_000, "grace_ms": 100, "pause_ms": 10, "retry_ms": 50} | times),
        )  # fmt: skip
        self.thread.start()

    def _held(self) -> Iterable[LedgerId]:
        self.asked.set()
        return sorted(self.held)

    def _forget(self, ledger_ids: Sequence[LedgerId]) -> None:
        self.forgotten.extend(ledger_ids)
        self.held.difference_update(ledger_ids)

    def __enter__(self) -> Collecting:
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.stop()
        self.thread.join()
        assert not self.thread._thread.is_alive()


@pytest.mark.rule("S9")
def test_a_hint_has_a_deleted_ledger_forgotten_and_no_other(place: Place) -> None:
    with Collecting(place) as collecting:
        place.other.delete_ledger(2)
        collecting.thread.hint((1, 2, 3))
        until(lambda: collecting.forgotten == [2])
        time.sleep(0.3)
        assert collecting.forgotten == [2]


def test_a_bug_of_the_thread_is_told_and_not_only_logged(place: Place) -> None:
    with Collecting(place) as collecting:
        collecting.held = None  # type: ignore[assignment]  # a call that forgets fails
        place.other.delete_ledger(2)
        collecting.thread.hint((2,))
        until(lambda: "garbage collection failed" in str(collecting.failures))


@pytest.mark.rule("S9")
def test_without_a_hint_the_comparison_finds_it(place: Place) -> None:
    with Collecting(place, interval_ms=300) as collecting:
        place.other.delete_ledger(3)
        until(lambda: collecting.forgotten == [3])


@pytest.mark.rule("S9")
def test_a_store_without_any_ledger_has_nothing_forgotten(place: Place) -> None:
    for ledger_id in range(4):
        place.other.delete_ledger(ledger_id)
    with Collecting(place, interval_ms=100) as collecting:
        assert collecting.asked.wait(5)
        time.sleep(0.4)
        assert collecting.forgotten == []
        collecting.thread.hint((1, 3))
        until(lambda: collecting.forgotten == [1, 3])


@pytest.mark.rule("S9")
def test_a_ledger_made_again_in_the_grace_is_kept(place: Place) -> None:
    with Collecting(place, grace_ms=400) as collecting:
        place.other.delete_ledger(2)
        collecting.thread.hint((2,))
        until(lambda: collecting.thread._collector._first_look is None and collecting.thread._collector.candidates)
        place.other.create_ledger(a_ledger(), 2)
        until(lambda: collecting.thread._collector.candidates == 0)
        assert collecting.forgotten == []


@pytest.mark.long
@pytest.mark.rule("S9", "M2")
def test_a_bookie_cut_off_from_the_store_forgets_nothing_and_goes_on_later(place: Place) -> None:
    with Collecting(place, interval_ms=200, grace_ms=300) as collecting:
        place.other.delete_ledger(2)
        collecting.thread.hint((2,))
        until(lambda: collecting.thread._collector.candidates > 0)
        place.world.suspend(place.store)
        time.sleep(0.8 + 4 * place.world.brief_s)  # two looks that fail, each behind its grace, and comparisons
        assert collecting.forgotten == []
        place.world.resume(place.store)
        until(lambda: collecting.forgotten == [2], within_s=20)


@pytest.mark.long
@pytest.mark.rule("S9", "M2")
def test_a_session_lost_in_the_grace_begins_it_again(place: Place) -> None:
    with Collecting(place, grace_ms=800) as collecting:
        place.other.delete_ledger(2)
        collecting.thread.hint((2,))
        collector = collecting.thread._collector
        until(lambda: any(batch.session is not None for batch in collector._looks.values()))
        began = time.monotonic()
        time.sleep(0.5)
        place.world.expire(place.store)
        until(lambda: collecting.forgotten == [2])
        assert time.monotonic() - began > 1.2


# --- a bookie ---


async def forgotten(lane: Lane, ledger_id: LedgerId, within_s: float) -> None:
    """Wait until the bookie answers DELETED to a read."""
    async with asyncio.timeout(within_s):
        while await refusal(lane.read(ledger_id, 0, 0)) is not Reason.DELETED:
            await asyncio.sleep(0.02)


async def refusal(asked: Awaitable[object]) -> Reason:
    """Return the reason for which the bookie refused."""
    try:
        await asked
    except RefusedError as error:
        return error.reason
    return Reason.REASON_NONE


Story = Callable[[BookKeeper, MetadataStore, Bookie, Lane], Awaitable[None]]


def with_a_bookie(world: MetadataWorld, path: Path, story: Story, **settings: float) -> None:
    async def run() -> None:
        store = await asyncio.to_thread(world.open)
        await asyncio.to_thread(store.initialize_cluster)
        config = bookie_config(path, "zk://unused/ledgers", **settings)
        bookie = await Bookie.start(config, await asyncio.to_thread(world.open))
        transport = LaneTransport(Caller(store.instance_id()))
        client = BookKeeper(store, transport, instance_id=store.instance_id(), config=ClientConfig())
        try:
            await client.refresh_bookies()
            await story(client, store, bookie, Lane("grpc", transport, bookie.bookie_id))
        finally:
            await client.close()
            await bookie.stop()

    asyncio.run(run())


async def written(client: BookKeeper, entries: int = 3) -> LedgerId:
    async with await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
        for number in range(entries):
            await ledger.append(b"%d" % number)
        return ledger.ledger_id


async def still_there(client: BookKeeper, ledger_id: LedgerId) -> None:
    async with await client.open_ledger(ledger_id, recover=False) as reader:
        assert [each async for batch in reader.read(0, 2) for each in batch.to_list()] == [b"0", b"1", b"2"]


@pytest.mark.rule("S9")
def test_a_ledger_that_a_client_deletes_is_soon_forgotten(metadata_world: MetadataWorld, tmp_path: Path) -> None:
    async def story(client: BookKeeper, _store: MetadataStore, bookie: Bookie, lane: Lane) -> None:
        doomed, kept = await written(client), await written(client)
        await client.delete_ledger(doomed)
        await forgotten(lane, doomed, within_s=5)
        listener = Listener()
        session = lane.attach(doomed, listener, mode=AttachMode.WRITE)
        assert await listener.ended(session) == (0, Reason.DELETED)
        assert await refusal(lane.fence(doomed, KEY)) is Reason.DELETED
        await still_there(client, kept)

    with_a_bookie(metadata_world, tmp_path, story, gc_grace_s=0.2, gc_interval_s=3600)


@pytest.mark.rule("S9")
def test_a_ledger_deleted_by_others_is_found_by_comparison(metadata_world: MetadataWorld, tmp_path: Path) -> None:
    async def story(client: BookKeeper, store: MetadataStore, bookie: Bookie, lane: Lane) -> None:
        doomed, kept = await written(client), await written(client)
        await asyncio.to_thread(store.delete_ledger, doomed)  # as Apache's tools do, without a hint to bookies
        await forgotten(lane, doomed, within_s=10)
        await still_there(client, kept)

    with_a_bookie(metadata_world, tmp_path, story, gc_grace_s=0.2, gc_interval_s=1)


@pytest.mark.rule("S4")
def test_what_was_forgotten_stays_so_after_restarts(metadata_world: MetadataWorld, tmp_path: Path) -> None:
    found: list[LedgerId] = []

    async def deletes(client: BookKeeper, _store: MetadataStore, bookie: Bookie, lane: Lane) -> None:
        found.extend([await written(client), await written(client)])
        await client.delete_ledger(found[0])
        await forgotten(lane, found[0], within_s=5)

    async def looks(client: BookKeeper, _store: MetadataStore, bookie: Bookie, lane: Lane) -> None:
        await forgotten(lane, found[0], within_s=0.5)
        listener = Listener()
        assert await listener.ended(lane.attach(found[0], listener)) == (0, Reason.DELETED)
        await still_there(client, found[1])

    for story in (deletes, looks, looks):
        with_a_bookie(metadata_world, tmp_path, story, gc_grace_s=0.1, gc_interval_s=3600)


@pytest.mark.rule("S9")
def test_a_bookie_believes_no_hint(metadata_world: MetadataWorld, tmp_path: Path) -> None:
    async def story(client: BookKeeper, _store: MetadataStore, bookie: Bookie, lane: Lane) -> None:
        kept = await written(client)
        for _ in range(3):
            await lane.link.delete_hint([kept, 10**6, -1], deadline_s=5)
            await asyncio.sleep(0.2)
        await still_there(client, kept)

    with_a_bookie(metadata_world, tmp_path, story, gc_grace_s=0.05, gc_interval_s=3600)


@pytest.mark.rule("S4")
def test_a_copy_that_was_moved_goes_once_it_is_sealed_and_serves_until_then(
    metadata_world: MetadataWorld, tmp_path: Path
) -> None:
    found: list[LedgerId] = []

    async def write(client: BookKeeper, _store: MetadataStore, bookie: Bookie, lane: Lane) -> None:
        found.extend([await written(client), await written(client)])

    async def move_one(client: BookKeeper, store: MetadataStore, bookie: Bookie, lane: Lane) -> None:
        record = await asyncio.to_thread(store.read_ledger, found[0])
        moved = replace(record.value, fragments=(Fragment(0, ("b9:3181",)),))
        await asyncio.to_thread(store.write_ledger, found[0], moved, record.version)
        async with asyncio.timeout(10):
            while (answer := await lane.read(found[0], 0, 2))[0]:
                await lane.link.delete_hint(found, deadline_s=5)
                await asyncio.sleep(0.1)
        assert {gap.reason for gap in answer[1].unknown} == {Reason.COPY_DROPPED}, "it denies nothing"
        await still_there(client, found[1])

    async def look(client: BookKeeper, _store: MetadataStore, bookie: Bookie, lane: Lane) -> None:
        assert (await lane.read(found[0], 0, 2))[0] == {}
        await still_there(client, found[1])

    # no compaction: it moves frames from sealed to unsealed segments
    never = {"compaction_threshold": 1e-9, "major_compaction_threshold": 2e-9}
    for story in (write, move_one, look):  # each start seals the segment of the previous one
        with_a_bookie(metadata_world, tmp_path, story, gc_grace_s=0.1, gc_interval_s=3600, **never)
