# SPDX-License-Identifier: Apache-2.0
"""A bookie whose data is gone or older than it was: refused, or started with ``--accept-loss`` and denying nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from bk_core.errors import BookieIdentityError, DataDirectoryError, InvalidArgumentError
from bk_core.metadata.layout import mark_path
from bk_core.model import BookieServiceInfo, LedgerState
from bk_core.wire.lane.reasons import Reason
from bookie_server.identity.known_state import record_positions
from bookie_server.identity.loss import mark_lacking
from bookie_server.identity.opening import OpenStorage
from tests.kit import directories_world as several
from tests.kit.directories_world import session
from tests.kit.index_state import state_of
from tests.kit.memory_store import MemoryCluster, MemoryStore
from tests.kit.metadata_worlds import a_ledger_on
from tests.kit.segment_world import entries
from tests.sim.disk import SimDisk, SimulatedCrash

pytestmark = pytest.mark.rule("S8")

DATA = "/data"
NAMED, NAMED_BEFORE, NOT_NAMED, UNHEARD, CLOSED, IN_RECOVERY, NEW = 1, 2, 3, 4, 5, 6, 99


@pytest.fixture
def cluster() -> MemoryCluster:
    """Ledgers of b1: one in its last ensemble, one in an earlier, one that it never heard of; and three of others."""
    made = MemoryCluster()
    with session(made) as store:
        store.initialize_cluster()
        for ledger_id, ensembles in {
            NAMED: [("b1", "b2", "b3")],
            NAMED_BEFORE: [("b1", "b2", "b3"), ("b4", "b2", "b3")],
            NOT_NAMED: [("b4", "b2", "b3")],
            UNHEARD: [("b3", "b1", "b2")],
            CLOSED: [("b4", "b2", "b3")],
            IN_RECOVERY: [("b4", "b2", "b3")],
        }.items():
            _, created = store.create_ledger(a_ledger_on(*ensembles), ledger_id)
            if ledger_id == CLOSED:
                store.write_ledger(ledger_id, created.value.closed_at(9, 900), created.version)
            elif ledger_id == IN_RECOVERY:
                store.write_ledger(ledger_id, replace(created.value, state=LedgerState.IN_RECOVERY), created.version)
    return made


@contextmanager
def bookie(cluster: MemoryCluster, disk: SimDisk, **how: Any) -> Iterator[OpenStorage]:
    with several.bookie(cluster, disk, DATA, **how) as opened:
        yield opened[DATA]


def write(opened: OpenStorage, ledger_id: int, ids: range) -> None:
    several.write(opened, entries(ledger_id, ids))


def refused(cluster: MemoryCluster, disk: SimDisk) -> str:
    return several.refused(cluster, disk, DATA)


def assert_distrusted(opened: OpenStorage, *ledger_ids: int) -> None:
    """Fenced, takes no entry, and denies none."""
    for ledger_id in ledger_ids:
        state = state_of(opened.index, ledger_id)
        assert (state.fenced, state.trouble) == (True, Reason.LIMBO), ledger_id
        assert opened.index.lookup(ledger_id, 100, 200).absent == ()


def assert_trusted(opened: OpenStorage, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        state = state_of(opened.index, ledger_id)
        assert (state.fenced, state.trouble) == (False, Reason.REASON_NONE), ledger_id
        assert opened.index.lookup(ledger_id, 100, 200).absent == ((100, 200),)


def assert_fenced(opened: OpenStorage, *ledger_ids: int) -> None:
    """Nothing is doubted but that it takes normal adds."""
    for ledger_id in ledger_ids:
        state = state_of(opened.index, ledger_id)
        assert (state.fenced, state.trouble) == (True, Reason.REASON_NONE), ledger_id


def wiped(cluster: MemoryCluster) -> SimDisk:
    """The empty disk of a bookie that had data."""
    with bookie(cluster, SimDisk()) as opened:
        write(opened, NAMED, range(10))
    return SimDisk()


def test_wiped_directory_is_refused_and_nothing_is_written(cluster: MemoryCluster) -> None:
    disk = wiped(cluster)
    message = refused(cluster, disk)
    assert "--accept-loss" in message
    assert disk.paths() == SimDisk().paths()


def test_accepted_loss_puts_every_ledger_that_names_the_bookie_in_limbo(cluster: MemoryCluster) -> None:
    disk = wiped(cluster)
    with bookie(cluster, disk, accept_loss=True) as opened:
        assert_distrusted(opened, NAMED, NAMED_BEFORE, UNHEARD)
        assert_trusted(opened, NOT_NAMED, NEW)
        write(opened, NEW, range(5))
    for _ in range(2):
        with bookie(cluster, disk) as opened:
            assert_distrusted(opened, NAMED, NAMED_BEFORE, UNHEARD)
            assert_trusted(opened, NOT_NAMED, NEW)


def test_accepted_loss_fences_every_other_ledger_that_ended(cluster: MemoryCluster) -> None:
    """A repair or a recovery put another bookie in its place: whoever still writes by the record from before must not
    find the one bookie that forgot the fence."""
    disk = wiped(cluster)
    with bookie(cluster, disk, accept_loss=True) as opened:
        assert_fenced(opened, CLOSED, IN_RECOVERY)
        assert_trusted(opened, NOT_NAMED)
    with bookie(cluster, disk) as opened:
        assert_fenced(opened, CLOSED, IN_RECOVERY)


def test_ledgers_in_limbo_are_marked_once_for_repair(cluster: MemoryCluster) -> None:
    disk = wiped(cluster)
    with session(cluster) as store:
        with bookie(cluster, disk, accept_loss=True):
            assert dict(store.list_underreplicated()) == dict.fromkeys((NAMED, NAMED_BEFORE, UNHEARD), ("b1",))
        with bookie(cluster, disk):
            assert {i: mark.version for i in (NAMED, UNHEARD) if (mark := store.read_underreplicated(i))} == {
                NAMED: 0,
                UNHEARD: 0,
            }


def test_limbo_survives_power_loss_right_after_the_start(cluster: MemoryCluster) -> None:
    disk = wiped(cluster)
    with pytest.raises(SimulatedCrash), bookie(cluster, disk, accept_loss=True):
        raise SimulatedCrash
    disk.crash(random.Random(1), "nothing")
    with bookie(cluster, disk) as opened:
        assert_distrusted(opened, NAMED, NAMED_BEFORE, UNHEARD)


def test_older_directory_is_refused_or_serves_what_it_has_and_denies_nothing(cluster: MemoryCluster) -> None:
    disk = SimDisk()
    with bookie(cluster, disk) as opened:
        write(opened, NAMED, range(10))
        write(opened, NOT_NAMED, range(3))  # the store names it no more: it may have been replaced since
    snapshot = disk.snapshot()
    for k in (1, 2):
        with bookie(cluster, disk) as opened:
            write(opened, NAMED, range(10 * k, 10 * k + 10))
    restored = SimDisk()
    restored.restore(snapshot)
    message = refused(cluster, restored)
    assert "older" in message
    assert "--accept-loss" in message
    with bookie(cluster, restored, accept_loss=True) as opened:
        assert_distrusted(opened, NAMED, NAMED_BEFORE, UNHEARD, NOT_NAMED)
        found = opened.index.lookup(NAMED, 0, 9)
        assert [(piece.first, piece.last) for piece in found.pieces] == [(0, 9)] or found.unresolved
        assert_trusted(opened, NEW)
    with bookie(cluster, restored) as opened:
        assert_distrusted(opened, NAMED, NAMED_BEFORE, UNHEARD, NOT_NAMED)
    assert "older" in refused(cluster, disk), "the newer one comes back: now it lacks what the restored one took"


def test_directory_from_before_an_accepted_loss_is_refused(cluster: MemoryCluster) -> None:
    lost = SimDisk()
    with bookie(cluster, lost) as opened:
        write(opened, NAMED, range(10))
    with bookie(cluster, SimDisk(), accept_loss=True):
        pass
    assert "another data directory" in refused(cluster, lost)
    with bookie(cluster, lost, accept_loss=True) as opened:
        assert_distrusted(opened, NAMED, NAMED_BEFORE, UNHEARD)


def test_id_of_a_bookie_that_was_removed_is_not_free_for_an_empty_directory(cluster: MemoryCluster) -> None:
    """Old metadata and old writers still name it, and a new bookie there would deny what the old one had."""
    disk = wiped(cluster)
    with session(cluster) as store:
        store.delete_cookie("b1")
    assert "has stored data before" in refused(cluster, disk)
    with bookie(cluster, disk, accept_loss=True) as opened:
        assert_distrusted(opened, NAMED)


@pytest.mark.parametrize("was_used", [False, True])
def test_loss_cannot_be_accepted_where_nothing_is_lost(cluster: MemoryCluster, was_used: bool) -> None:
    disk = SimDisk()
    if was_used:
        with bookie(cluster, disk) as opened:
            write(opened, NAMED, range(10))
    with (
        pytest.raises(InvalidArgumentError, match="no loss to accept"),
        bookie(cluster, disk, accept_loss=True),
    ):
        pass
    with bookie(cluster, disk) as opened:
        assert_trusted(opened, NAMED)


def test_loss_is_not_accepted_for_a_bookie_that_is_running(cluster: MemoryCluster) -> None:
    disk = wiped(cluster)
    with session(cluster) as other:
        other.register_bookie(BookieServiceInfo("b1"))
        with (
            pytest.raises(BookieIdentityError, match="running already"),
            bookie(cluster, disk, accept_loss=True),
        ):
            pass
    assert disk.paths() == SimDisk().paths()


def test_swapped_directories_are_refused(cluster: MemoryCluster) -> None:
    disks = {bookie_id: SimDisk() for bookie_id in ("b1", "b2")}
    for bookie_id, disk in disks.items():
        with bookie(cluster, disk, bookie_id=bookie_id):
            pass
    with (
        pytest.raises(BookieIdentityError, match="belongs to another bookie"),
        bookie(cluster, disks["b1"], bookie_id="b2", accept_loss=True),
    ):
        pass


def test_directory_without_identity_is_never_taken_for_empty(cluster: MemoryCluster) -> None:
    disk = SimDisk()
    with bookie(cluster, disk) as opened:
        write(opened, NAMED, range(10))
    disk.lose_file("/data/IDENTITY")
    with pytest.raises(DataDirectoryError, match="not empty"), bookie(cluster, disk, accept_loss=True):
        pass


# --- a snapshot from between two starts ---


def noted(cluster: MemoryCluster, opened: OpenStorage) -> None:
    """What the running bookie does every few seconds."""
    with session(cluster) as store:
        record_positions(store, "b1", {opened.directory.identity.incarnation: opened.log.position})


@pytest.mark.parametrize("rolls", [False, True])
def test_snapshot_from_the_last_life_of_the_bookie_is_refused(cluster: MemoryCluster, rolls: bool) -> None:
    disk = SimDisk()
    with bookie(cluster, disk) as opened:
        write(opened, NAMED, range(10))
        noted(cluster, opened)
        snapshot = disk.snapshot()
        for k in range(1, 200 if rolls else 2):
            write(opened, NAMED, range(10 * k, 10 * k + 10))
        noted(cluster, opened)
    restored = SimDisk()
    restored.restore(snapshot)
    assert "restored snapshot" in refused(cluster, restored)
    with bookie(cluster, restored, accept_loss=True) as opened:
        assert_distrusted(opened, NAMED, NAMED_BEFORE, UNHEARD)
    with bookie(cluster, restored) as opened:
        assert_distrusted(opened, NAMED, NAMED_BEFORE, UNHEARD)


def test_snapshot_of_all_that_is_noted_is_taken(cluster: MemoryCluster) -> None:
    """Whatever else may be missing of it nobody can know; it is what a crash leaves."""
    disk = SimDisk()
    with bookie(cluster, disk) as opened:
        write(opened, NAMED, range(10))
        noted(cluster, opened)
        snapshot = disk.snapshot()
    restored = SimDisk()
    restored.restore(snapshot)
    with bookie(cluster, restored) as opened:
        assert_trusted(opened, NAMED)


@pytest.mark.long
def test_directory_after_power_loss_is_never_taken_for_an_older_one(cluster: MemoryCluster) -> None:
    chance, disk = random.Random(7), SimDisk()
    for _ in range(40):
        try:
            with bookie(cluster, disk) as opened:
                for k in range(60):
                    if k == 25:
                        disk.crash_at(chance.randint(1, 8))
                    write(opened, NEW, range(10 * k, 10 * k + 10))
                    noted(cluster, opened)
        except SimulatedCrash:
            disk.crash(chance)
    with bookie(cluster, disk) as opened:
        assert_trusted(opened, NAMED)


def test_damaged_end_of_the_log_is_damage_and_no_older_directory(cluster: MemoryCluster) -> None:
    """The bookie starts, in limbo: what can be read serves."""
    disk = SimDisk()
    with bookie(cluster, disk) as opened:
        for k in range(5):
            write(opened, NAMED, range(10 * k, 10 * k + 10))
        noted(cluster, opened)
        [newest] = [path for path in disk.paths() if path.endswith(".segment")]
    disk.flip_bit(newest, 8192 + 20)
    with bookie(cluster, disk) as opened:
        assert opened.report.limbo


@pytest.mark.long
@pytest.mark.parametrize("kind", ["wiped", "older in the same boot", "older"])
def test_power_loss_at_any_moment_of_an_accepted_start_denies_nothing(cluster: MemoryCluster, kind: str) -> None:
    """Each start afterwards is refused, or all ledgers are in limbo: at every write, sync and rename."""
    made = SimDisk()
    with bookie(cluster, made) as opened:
        write(opened, NAMED, range(10))
    snapshot = made.snapshot() if kind != "wiped" else SimDisk().snapshot()
    if kind == "older":
        for _ in range(2):
            with bookie(cluster, made):
                pass
    if kind == "older in the same boot":
        with session(cluster) as store:
            store.delete_cookie("b1")  # any reason to refuse that no boot count goes with
    with session(cluster) as store:
        before = (store.read_cookie("b1"), store.read_bookie_state("b1"))
    operations = refusals = 0
    for operations in range(1, 1000):
        disk = SimDisk()
        disk.restore(snapshot)
        with session(cluster) as store:
            put_back(store, *before)
        disk.crash_at(operations)
        try:
            with bookie(cluster, disk, accept_loss=True):
                disk.crash_at(None)
                break
        except SimulatedCrash:
            disk.crash(random.Random(operations))
        try:
            with bookie(cluster, disk) as opened:
                assert_distrusted(opened, NAMED, NAMED_BEFORE, UNHEARD)
        except (BookieIdentityError, DataDirectoryError):
            refusals += 1
            with bookie(cluster, disk, accept_loss=True) as opened:
                assert_distrusted(opened, NAMED, NAMED_BEFORE, UNHEARD)
    assert operations > 15
    assert refusals > 5


def put_back(store: MemoryStore, cookie: object, state: object) -> None:
    """The records of b1 as they were."""
    store.delete_cookie("b1")
    if cookie is not None:
        store.write_cookie("b1", cookie.value, None)
    known = store.read_bookie_state("b1")
    store.write_bookie_state("b1", state.value, known.version if known else None)


@pytest.mark.rule("M6")
def test_mark_that_cannot_be_read_stops_no_start_and_no_other_mark() -> None:
    store = MemoryStore()
    store.initialize_cluster()
    store.mark_underreplicated(2, ["b2"])
    path = f"/ledgers/underreplication/ledgers{mark_path(2)}"
    store.tree.set(path, b"garbage", -1)
    mark_lacking(store, "b1", [1, 2, 3])
    assert dict(store.list_underreplicated()) == {1: ("b1",), 3: ("b1",)}
    assert store.tree.get(path)[0] == b"garbage"


# --- while the metadata server does not know yet what the bookie noted at its last start ---


@pytest.mark.rule("M5")
def test_older_copy_of_a_directory_is_refused_though_the_server_knows_of_no_newer_one(cluster: MemoryCluster) -> None:
    """Taken for the newest it would deny what it acknowledged since."""
    disk = SimDisk()
    with bookie(cluster, disk):
        pass
    copy, behind = disk.snapshot(), cluster.copy()
    with bookie(cluster, disk) as opened:
        write(opened, NAMED, range(10))
    disk.restore(copy)
    with pytest.raises(BookieIdentityError, match="boot"), bookie(cluster, disk, behind=behind):
        pass


@pytest.mark.rule("M5")
def test_directory_that_was_used_a_moment_ago_starts_though_the_server_knows_no_cookie(cluster: MemoryCluster) -> None:
    behind, disk = cluster.copy(), SimDisk()
    with bookie(cluster, disk) as opened:
        write(opened, NAMED, range(10))
    with bookie(cluster, disk, behind=behind) as opened:
        assert opened.index.folded(NAMED)[0] is not None
