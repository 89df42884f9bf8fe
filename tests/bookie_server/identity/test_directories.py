# SPDX-License-Identifier: Apache-2.0
"""A bookie's several data directories: taken together, added to, and refused when one is missing, foreign or older."""

from __future__ import annotations

import errno
import json
import random
from pathlib import Path

import pytest

from bk_core.entries.frame import FrameKind, encode_record
from bk_core.errors import BookieIdentityError, InvalidArgumentError, MetadataUnavailableError
from bk_core.metadata.records import decode_cookie
from bk_core.model import DIRECTORY_PROPERTY, BookieServiceInfo
from bk_core.wire.lane.reasons import Reason
from bookie_server.identity.known_state import record_positions
from bookie_server.identity.registration import properties_of
from bookie_server.storage.disk.cookie import cookie_of, decode_identity
from bookie_server.storage.disk.files import Files, Handle
from tests.kit.directories_world import (
    IN_A,
    IN_B,
    OF_OTHERS,
    UNHEARD,
    A,
    B,
    C,
    bookie,
    incarnation,
    known,
    look,
    refused,
    remove,
    session,
    troubles,
    write,
)
from tests.kit.index_state import state_of
from tests.kit.memory_store import MemoryCluster, MemoryStore
from tests.kit.metadata_worlds import a_ledger_on
from tests.kit.segment_world import entries
from tests.sim.disk import SimDisk, SimulatedCrash

pytestmark = pytest.mark.rule("S8")


@pytest.fixture
def cluster() -> MemoryCluster:
    """Ledgers 1 to 3 name b1."""
    made = MemoryCluster()
    with session(made) as store:
        store.initialize_cluster()
        for ledger_id in (IN_A, IN_B, UNHEARD, OF_OTHERS):
            ensemble = ("b4", "b2", "b3") if ledger_id == OF_OTHERS else ("b1", "b2", "b3")
            store.create_ledger(a_ledger_on(ensemble), ledger_id)
    return made


@pytest.fixture
def disk(cluster: MemoryCluster) -> SimDisk:
    """Of a bookie with two directories and a ledger in each."""
    made = SimDisk()
    with bookie(cluster, made, A, B) as opened:
        write(opened[A], entries(IN_A, range(10)))
        write(opened[B], entries(IN_B, range(10)))
    return made


def test_directories_are_taken_in_any_order(cluster: MemoryCluster, disk: SimDisk) -> None:
    for paths in ((A, B), (B, A)):
        with bookie(cluster, disk, *paths) as opened:
            assert troubles(opened, IN_A) == {A: Reason.REASON_NONE}
            assert troubles(opened, IN_B) == {B: Reason.REASON_NONE}
            first = next(iter(opened.values())).directory
            assert first.path == A, "the bookie's incarnation stays"
    assert known(cluster) == {incarnation(disk, A): 3, incarnation(disk, B): 3}


def test_each_directory_has_an_incarnation_of_its_own_and_knows_all(cluster: MemoryCluster, disk: SimDisk) -> None:
    identities = [decode_identity(disk.durable_bytes(path + "/IDENTITY")) for path in (A, B)]
    ours = tuple(sorted(identity.incarnation for identity in identities))
    assert len(set(ours)) == 2
    assert [identity.directories for identity in identities] == [ours, ours]


def test_cookie_names_all_directories_as_apache_does(cluster: MemoryCluster, disk: SimDisk) -> None:
    cookies = {disk.durable_bytes(path + "/VERSION") for path in (A, B)}
    with session(cluster) as store:
        found = store.read_cookie("b1")
        cookies.add(found.value)
    [cookie] = cookies
    assert decode_cookie(cookie).ledger_dirs == decode_cookie(cookie).journal_dirs == (A, B)


def test_one_directory_is_recorded_as_ever(cluster: MemoryCluster) -> None:
    disk = SimDisk()
    with bookie(cluster, disk, A), session(cluster) as store:
        record = store.read_bookie_state("b1")
        assert sorted(json.loads(record.value)) == ["boot_count", "incarnation", "newest_sealed", "position", "v"]
    assert b"directories" not in disk.durable_bytes(A + "/IDENTITY")


def test_what_is_published_names_all_directories_in_any_order(cluster: MemoryCluster, tmp_path: Path) -> None:
    """So that a copy of one of them is told from it."""
    with bookie(cluster, Files(), f"{tmp_path}/a", f"{tmp_path}/b") as opened:
        first, second = (each.directory for each in opened.values())
        ours = properties_of([first, second])
        assert ours[DIRECTORY_PROPERTY] == properties_of([second, first])[DIRECTORY_PROPERTY]
        assert properties_of([first])[DIRECTORY_PROPERTY] in ours[DIRECTORY_PROPERTY]
        assert BookieServiceInfo("b1", (), ours).is_of_directory_of(BookieServiceInfo("b1", (), dict(ours)))
        theirs = properties_of([first])
        assert not BookieServiceInfo("b1", (), ours).is_of_directory_of(BookieServiceInfo("b1", (), theirs))


# --- one is missing ---


@pytest.mark.parametrize("lost", [A, B])
def test_a_missing_directory_is_refused(cluster: MemoryCluster, disk: SimDisk, lost: str) -> None:
    left = B if lost == A else A
    message = refused(cluster, disk, left)
    assert A in message
    assert B in message


@pytest.mark.parametrize("lost", [A, B])
def test_an_emptied_directory_is_refused(cluster: MemoryCluster, disk: SimDisk, lost: str) -> None:
    """A disk that is not mounted looks so."""
    remove(disk, lost)
    assert "missing" in refused(cluster, disk, A, B)


def test_a_missing_directory_is_refused_although_the_store_forgot_the_bookie(
    cluster: MemoryCluster, disk: SimDisk
) -> None:
    """Then what the other directories say of it counts."""
    [path] = [path for path in cluster._nodes if path.endswith("-bookies/b1")]
    del cluster._nodes[path]
    cluster._nodes[path.removesuffix("/b1")].children.remove("b1")
    assert "missing" in refused(cluster, disk, A)
    with bookie(cluster, disk, A, B):
        pass


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "gone"])
@pytest.mark.parametrize("lost", [A, B])
def test_accepted_loss_of_one_directory_distrusts_its_ledgers_only(
    cluster: MemoryCluster, disk: SimDisk, lost: str, replaced: bool
) -> None:
    left, whole, gone = (B, IN_B, IN_A) if lost == A else (A, IN_A, IN_B)
    remove(disk, lost)
    paths = (A, B) if replaced else (left,)
    for accept_loss in (True, False, False):
        with bookie(cluster, disk, *paths, accept_loss=accept_loss) as opened:
            home = lost if replaced else left
            assert troubles(opened, whole) == {left: Reason.REASON_NONE}
            assert troubles(opened, gone) == {home: Reason.LIMBO}
            assert troubles(opened, UNHEARD) == {home: Reason.LIMBO}
            assert troubles(opened, OF_OTHERS) == {}
            assert state_of(opened[home].index, gone).fenced
            assert look(opened[home], gone, 0, 20).absent == ()
            assert look(opened[left], whole, 0, 20).absent == ((10, 20),)
    assert set(known(cluster)) == {incarnation(disk, path) for path in paths}


def test_a_ledger_that_is_deleted_in_a_whole_directory_is_left_alone(cluster: MemoryCluster, disk: SimDisk) -> None:
    """Its metadata may be there still or again, as after a restore of the store."""
    with bookie(cluster, disk, A, B) as opened:
        write(opened[A], encode_record(FrameKind.DELETED, IN_A))
    remove(disk, B)
    for accept_loss in (True, False):
        with bookie(cluster, disk, A, B, accept_loss=accept_loss) as opened:
            assert troubles(opened, IN_A) == {}
            assert opened[A].index.is_deleted(IN_A)


def test_a_lost_directory_that_comes_back_is_refused(cluster: MemoryCluster, disk: SimDisk) -> None:
    with bookie(cluster, disk, A, accept_loss=True):
        pass
    assert "another data directory" in refused(cluster, disk, A, B)


@pytest.mark.parametrize("operations", range(0, 60, 3))
def test_an_accepted_loss_that_is_cut_short_is_taken_up_again(
    cluster: MemoryCluster, disk: SimDisk, operations: int
) -> None:
    """Wherever it is cut: without the flag it is refused, or it came to its end."""
    remove(disk, B)
    disk.crash_at(operations)
    try:
        with bookie(cluster, disk, A, B, accept_loss=True):
            pass
    except SimulatedCrash:
        pass
    disk.crash_at(None)
    disk.crash(random.Random(operations))
    try:
        with bookie(cluster, disk, A, B) as opened:
            assert list(troubles(opened, IN_B).values()) == [Reason.LIMBO]
    except BookieIdentityError:
        with bookie(cluster, disk, A, B, accept_loss=True) as opened:
            assert list(troubles(opened, IN_B).values()) == [Reason.LIMBO]
    with bookie(cluster, disk, A, B) as opened:
        assert list(troubles(opened, IN_B).values()) == [Reason.LIMBO]
        assert set(troubles(opened, IN_A)) == {A}
        assert look(opened[A], IN_A, 0, 9).pieces


def test_there_must_be_a_loss_to_accept(cluster: MemoryCluster, disk: SimDisk) -> None:
    for paths in ((A, B), (A, B, C)):
        with pytest.raises(InvalidArgumentError, match="no loss"), bookie(cluster, disk, *paths, accept_loss=True):
            pass


# --- one joins ---


def test_an_empty_directory_joins(cluster: MemoryCluster, disk: SimDisk) -> None:
    for paths in ((C, A, B), (A, B, C)):
        with bookie(cluster, disk, *paths) as opened:
            assert troubles(opened, UNHEARD) == {}
            assert look(opened[C], UNHEARD, 0, 5).absent == ((0, 5),)
    assert "missing" in refused(cluster, disk, A, B)
    assert set(known(cluster)) == {incarnation(disk, path) for path in (A, B, C)}
    cookies = {disk.durable_bytes(path + "/VERSION") for path in (A, B, C)}
    assert [decode_cookie(cookie).ledger_dirs for cookie in cookies] == [(A, B, C)]
    ours = tuple(sorted(known(cluster)))
    assert {decode_identity(disk.durable_bytes(path + "/IDENTITY")).directories for path in (A, B, C)} == {ours}


class OneIsFull(SimDisk):
    """One directory is on a disk without a free byte."""

    full = "/nowhere"

    def create_preallocated(self, path: str, size: int) -> Handle:
        if path.startswith(self.full):
            raise OSError(errno.ENOSPC, "full")
        return super().create_preallocated(path, size)

    def _append(self, handle: Handle, data: memoryview) -> None:
        if self._handles[handle][0].startswith(self.full):
            raise OSError(errno.ENOSPC, "full")
        super()._append(handle, data)


def test_an_empty_directory_joins_those_without_a_free_byte(cluster: MemoryCluster) -> None:
    disk = OneIsFull()
    with bookie(cluster, disk, A) as opened:
        write(opened[A], entries(IN_A, range(10)))
    disk.full = A
    for _ in range(2):
        with bookie(cluster, disk, A, B) as opened:
            assert look(opened[A], IN_A, 0, 12).absent == ((10, 12),)
            write(opened[B], entries(IN_B, range(10)))
    assert "missing" in refused(cluster, disk, A)
    disk.full = "/nowhere"
    for _ in range(2):
        with bookie(cluster, disk, B, A) as opened:
            assert troubles(opened, IN_B) == {B: Reason.REASON_NONE}
    assert {decode_cookie(disk.durable_bytes(path + "/VERSION")).ledger_dirs for path in (A, B)} == {(A, B)}


@pytest.mark.long
@pytest.mark.parametrize("first", [(A,), (A, B)])
@pytest.mark.parametrize("operations", range(0, 48, 2))
def test_a_join_or_first_start_may_be_cut_short_anywhere(operations: int, first: tuple[str, ...]) -> None:
    """Nothing was served from the new directory: it joins at the next start, or is not missed."""
    cut_short(operations, first, (A, B), "nothing")
    cut_short(operations, first, first, "everything")


def cut_short(operations: int, first: tuple[str, ...], again: tuple[str, ...], keep: str) -> None:
    disk, made = SimDisk(), MemoryCluster()
    with session(made) as store:
        store.initialize_cluster()
    if first == (A,):
        with bookie(made, disk, A):
            pass
    disk.crash_at(operations)
    try:
        with bookie(made, disk, A, B):
            raise SimulatedCrash
    except SimulatedCrash:
        pass
    disk.crash_at(None)
    served = len(known(made)) == 2 and all(known(made).values())
    disk.crash(random.Random(operations), keep)
    if again == (A,) and served:
        refused(made, disk, A)
        return
    for _ in range(2):
        with bookie(made, disk, *again) as opened:
            assert [each.report.damage for each in opened.values()] == [[]] * len(again)


@pytest.mark.parametrize("failing", [1, 2], ids=["announcing", "noting"])
@pytest.mark.parametrize("again", [(A, B, C), (A, B)])
def test_a_join_that_the_store_did_not_hear_the_end_of_is_taken_up_again(
    cluster: MemoryCluster, disk: SimDisk, monkeypatch: pytest.MonkeyPatch, again: tuple[str, ...], failing: int
) -> None:
    """The new directory was made, or announced and opened too, and the store is gone when it is to note that."""
    write_state, calls = MemoryStore.write_bookie_state, list[bytes]()

    def fails_once(store: MemoryStore, bookie_id: str, state: bytes, version: int | None) -> None:
        calls.append(state)
        if len(calls) == failing:
            raise MetadataUnavailableError("made to fail")
        write_state(store, bookie_id, state, version)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "write_bookie_state", fails_once)
        with pytest.raises(MetadataUnavailableError), bookie(cluster, disk, A, B, C):
            pass
    assert sorted(known(cluster).values()) == [0, 1, 1][2 - failing :]
    for _ in range(2):
        with bookie(cluster, disk, *again) as opened:
            assert [each.report.damage for each in opened.values()] == [[]] * len(again)
    assert set(known(cluster)) == {incarnation(disk, path) for path in again}


# --- one is another ---


def test_a_cookie_of_other_directories_is_refused(cluster: MemoryCluster, disk: SimDisk) -> None:
    with session(cluster) as store:
        found = store.read_cookie("b1")
        store.write_cookie("b1", cookie_of("b1", store.instance_id(), [A, C]), found.version)
    assert "cookie" in refused(cluster, disk, A, B)


def test_a_directory_of_another_bookie_is_refused(cluster: MemoryCluster, disk: SimDisk) -> None:
    with bookie(cluster, disk, C, bookie_id="b9"):
        pass
    with pytest.raises(BookieIdentityError, match="another bookie"), bookie(cluster, disk, A, B, C):
        pass


def test_an_older_directory_is_refused_and_distrusted_alone(cluster: MemoryCluster, disk: SimDisk) -> None:
    old = {path: data for path, data in disk.snapshot().items() if path.startswith(B + "/")}
    with bookie(cluster, disk, A, B) as opened:
        write(opened[B], entries(IN_B, range(10, 20)))
    disk.restore({**{p: d for p, d in disk.snapshot().items() if not p.startswith(B + "/")}, **old})
    assert f"{B}: boot 2 here, 2 in the store" in refused(cluster, disk, A, B)
    with bookie(cluster, disk, A, B, accept_loss=True) as opened:
        assert troubles(opened, IN_B) == {B: Reason.LIMBO}
        assert troubles(opened, IN_A) == {A: Reason.REASON_NONE}
    with bookie(cluster, disk, A, B) as opened:
        assert troubles(opened, UNHEARD) == {B: Reason.LIMBO}


def test_a_snapshot_of_one_directory_from_this_life_is_refused(cluster: MemoryCluster, disk: SimDisk) -> None:
    with bookie(cluster, disk, A, B) as opened:
        old = {path: data for path, data in disk.snapshot().items() if path.startswith(B + "/")}
        write(opened[B], entries(IN_B, range(10, 20)))
        with session(cluster) as store:
            positions = {each.directory.identity.incarnation: each.log.position for each in opened.values()}
            record_positions(store, "b1", positions)
            record_positions(store, "b1", dict.fromkeys(positions, (0, 0)))
    disk.restore({**{p: d for p, d in disk.snapshot().items() if not p.startswith(B + "/")}, **old})
    assert "restored snapshot" in refused(cluster, disk, A, B)


@pytest.mark.parametrize("deleted", [False, True], ids=["held", "deleted"])
def test_a_ledger_in_two_directories_is_refused(cluster: MemoryCluster, disk: SimDisk, deleted: bool) -> None:
    with bookie(cluster, disk, A, B) as opened:
        write(opened[B], encode_record(FrameKind.DELETED if deleted else FrameKind.FENCE, IN_A))
    with pytest.raises(BookieIdentityError, match=f"ledger {IN_A}") as caught, bookie(cluster, disk, A, B):
        pass
    assert A in str(caught.value)
    assert B in str(caught.value)


def test_segments_put_into_the_wrong_directory_are_damage(cluster: MemoryCluster, disk: SimDisk) -> None:
    """Each directory's files carry its own incarnation."""
    files = disk.snapshot()
    for name in [name for name in files if name.startswith(A + "/segments/")]:
        other = B + name.removeprefix(A)
        files[name], files[other] = files.get(other, b""), files[name]
    disk.restore(files)
    with bookie(cluster, disk, A, B) as opened:
        assert all(each.report.limbo for each in opened.values())
        for each in opened.values():
            assert look(each, IN_A, 0, 9).pieces == ()
            assert look(each, IN_A, 0, 9).absent == ()
