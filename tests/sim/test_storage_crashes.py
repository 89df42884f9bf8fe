# SPDX-License-Identifier: Apache-2.0
"""Disks that fail: syncs that lie, no room, damage at rest, directories that are lost or old (RULES S3, S5, S6, S8).

The production storage on the simulated disk. ``test_crash_points.py`` stops the machine at every operation.
"""

from __future__ import annotations

import random

import pytest

from bk_core.errors import BookieIdentityError, DataDirectoryError, StorageFailedError
from bk_core.wire.lane.reasons import Reason
from bookie_server.storage.bytes.segment import decode_group_header, encode_group_header, group_seed
from tests.kit.segment_world import entries, fence_record, key_record
from tests.sim.disk import KEEPS
from tests.sim.storage import SEGMENTS_DIR, StorageBackEnd, ask
from tests.sim.storage_life import IDLE, Life
from tests.sim.storage_workloads import WORKLOADS

pytestmark = pytest.mark.long  # minutes together: in scripts/test, not in scripts/check


@pytest.mark.rule("S6")
def test_a_sync_that_fails_and_lies_afterwards_ends_the_log_and_loses_nothing_acked() -> None:
    for n in range(1, 40):
        life = Life()
        life.open()
        frames = [entries(1, range(9 * k, 9 * k + 9), size=700) for k in range(20)]
        failed = False
        for k, frame in enumerate(frames):
            if k == n:
                life.disk.faults.syncs = 1
            try:
                life.commit([frame])
            except StorageFailedError:
                failed = True
                with pytest.raises(StorageFailedError):
                    life.commit([entries(1, [999])])
                break
        assert failed or n >= len(frames)
        life.kill()
        life.open()
        life.check()
        life.crash(random.Random(n), "nothing")
        life.open()
        life.check()


def test_a_full_disk_refuses_groups_and_takes_them_again_when_there_is_space() -> None:
    life = Life()
    life.run([[key_record(1), entries(1, range(10), size=2000)]])
    life.disk.faults.no_space = True
    refused = 0
    for k in range(8):
        try:
            life.commit([entries(1, range(10 + 10 * k, 20 + 10 * k), size=2000)])
        except DataDirectoryError:
            refused += 1
    assert refused > 3
    life.crash(random.Random(1), "nothing")
    with pytest.raises(DataDirectoryError):
        life.open()  # the tail must be copied before anything is answered, and there is no room for it
    life.disk.kill()
    life.disk.faults.no_space = False
    life.open()
    life.disk.faults.no_space = True
    life.run([IDLE])
    life.crash(random.Random(1), "nothing")
    life.open()  # nothing is to be copied: on a full disk the bookie comes up with reads
    life.check(more=False)
    with pytest.raises(DataDirectoryError):
        life.commit([entries(2, [1])])
    for _ in range(2):
        life.crash(random.Random(1), "nothing")
        life.open()
        life.check(more=False)
    life.crash(random.Random(1), "nothing")
    life.disk.faults.no_byte = True
    life.open()  # not even the boot can be counted, and reads are served all the same
    life.check(more=False)
    life.disk.kill()
    life.disk.faults.no_byte = life.disk.faults.no_space = False
    life.open()
    life.commit([entries(2, [1])])
    life.crash(random.Random(1), "nothing")
    life.open()
    life.check()


# --- damage at rest ---


def settled() -> Life:
    """A life with several sealed segments and an idle one that is open."""
    life = Life()
    life.run([*WORKLOADS["segments fill up"], [fence_record(8), entries(8, range(3))], IDLE])
    return life


@pytest.mark.rule("S8")
@pytest.mark.parametrize("kind", ["segment", "idx"])
@pytest.mark.parametrize("mark_too", [False, True])
def test_any_lost_file_is_never_a_denial(kind: str, mark_too: bool) -> None:
    count = len([p for p in settled().disk.paths() if p.endswith(kind) and p.startswith(SEGMENTS_DIR)])
    for number in range(count):
        life = settled()
        path = [p for p in life.disk.paths() if p.endswith(kind) and p.startswith(SEGMENTS_DIR)][number]
        life.crash(random.Random(1), "nothing")
        life.disk.lose_file(path)
        if mark_too:  # as in a directory of a bookie that made none
            life.disk.lose_file(path.removesuffix(kind) + "unsealed")
        for _ in range(2):
            life.open()
            if kind == "segment":
                assert life.back_end.report.damage or life.was_damaged, path
            life.check(damaged=kind == "segment")
            life.crash(random.Random(2))


@pytest.mark.rule("S3", "S8")
def test_any_segment_that_is_lost_before_it_is_sealed_is_never_a_denial() -> None:
    """Several at once have no index yet when the log goes on faster than they are sealed."""
    for number in range(100):
        life = Life()
        life.open()
        life.back_end.log.release_full = lambda: None  # type: ignore[method-assign]  # a sealer that is behind
        for k in range(16):
            life.commit([entries(1, range(9 * k, 9 * k + 9), size=700), fence_record(2 + k)])
        life.back_end.idle()
        life.crash(random.Random(1), "nothing")
        paths = [p for p in life.disk.paths() if p.endswith(".segment")]
        assert len(paths) > 2
        assert not [p for p in life.disk.paths() if p.endswith(".idx")]
        if number >= len(paths):
            return
        life.disk.lose_file(paths[number])
        for _ in range(2):
            life.open()
            assert life.back_end.report.damage or life.was_damaged, paths[number]
            life.check(damaged=True)
            life.crash(random.Random(2))


@pytest.mark.rule("S8")
@pytest.mark.parametrize("keep", KEEPS)
def test_a_start_that_is_cut_off_after_it_found_a_loss_hides_nothing_of_it(keep: str) -> None:
    """Its own new segment must not look like that of a directory that never held anything."""
    for n in range(1, 2000):
        life = Life()
        life.run([[key_record(1), entries(1, range(5)), fence_record(1)], IDLE])
        life.crash(random.Random(n), "nothing")
        for path in [path for path in life.disk.paths() if path.endswith((".segment", ".unsealed"))]:
            life.disk.lose_file(path)
        life.disk.crash_at(n)
        came_through = not life.crashes(life.open)
        if not came_through:
            life.crash(random.Random(n), keep)
            life.open()
        assert life.back_end.holdings.facts(1).trouble is not Reason.REASON_NONE, f"operation {n}"
        life.check(damaged=True)
        life.crash(random.Random(n), "nothing")
        life.open()
        life.check(damaged=True)
        if came_through:
            return
    raise AssertionError("the start never came to its end")


@pytest.mark.rule("S3")
def test_bits_that_flip_at_rest_are_never_a_denial() -> None:
    for seed in range(60):
        chance, life = random.Random(seed), settled()
        for _ in range(chance.randint(1, 3)):
            life.back_end.flip_bit(chance)
        if chance.random() < 0.5:
            life.check(damaged=True)
        life.crash(chance)
        for _ in range(2):
            life.open()
            life.check(damaged=True)
            life.crash(chance)


@pytest.mark.rule("S5")
def test_sectors_that_cannot_be_read_are_never_a_denial() -> None:
    for seed in range(30):
        chance, life = random.Random(seed), settled()
        assert life.back_end.eio_on_read(chance)
        life.check(damaged=True)
        assert life.disk.reads_failed
        life.crash(chance)
        life.open()
        life.check(damaged=True)


@pytest.mark.rule("S5")
def test_what_the_cache_read_ahead_of_a_write_hides_nothing() -> None:
    life = Life()
    life.run([[key_record(1), entries(1, range(5))]])
    life.disk.faults.stale_writes = 100
    life.run([[entries(1, range(5, 9)), fence_record(2)], [entries(1, range(9, 12))]])
    assert set(ask(life.back_end, 1, 0, 11).found) == set(range(12))
    assert life.back_end._open.reader.rereads
    life.kill()  # the stale pages live on
    life.open()
    life.check()


@pytest.mark.rule("S3")
def test_a_write_that_missed_its_place_is_damage_once_the_position_is_on_record() -> None:
    life = Life()
    life.run([[key_record(1), entries(1, range(5))], [entries(1, range(5, 9))]])
    life.disk.faults.misdirected = 8192
    life.run([[entries(1, range(9, 12))]])
    assert set(ask(life.back_end, 1, 9, 11).unknown) == {9, 10, 11}, "every read checks the stamp"
    life.crash(random.Random(1))
    life.open()
    life.check(damaged=True, lost=range(9, 12))


@pytest.mark.rule("S5")
def test_a_frame_written_over_another_ledgers_is_damage() -> None:
    life = Life()
    life.run([[key_record(1), entries(1, range(5)), entries(2, range(5))], [fence_record(3)]])
    (_, one), (_, other) = life.back_end.frames_on_record()
    assert one.size == other.size
    path = f"{SEGMENTS_DIR}/{one.generation:016x}.segment"
    life.disk.copy_range(path, one.offset, other.offset, one.size)
    life.check(damaged=True)
    assert ask(life.back_end, 2, 0, 4).unknown
    life.crash(random.Random(1))
    life.open()
    life.check(damaged=True)


@pytest.mark.rule("S3")
def test_a_flipped_bit_in_the_last_group_of_an_idle_bookie_is_damage() -> None:
    life = Life()
    life.run([[key_record(1), entries(1, range(5))], [entries(1, range(5, 9)), fence_record(1)]])
    end = life.back_end.log.position[1]
    life.run([IDLE])
    life.disk.flip_bit(life.back_end.newest_segment(), end - 4096 + 8)
    life.crash(random.Random(1))
    life.open()
    life.check(damaged=True)
    life.crash(random.Random(1))
    life.open()
    life.check(damaged=True)


@pytest.mark.rule("S3")
def test_a_group_that_is_missing_between_whole_ones_is_damage() -> None:
    """All bytes are good; only the numbers of the groups tell."""
    life = Life()
    life.run([[key_record(1), entries(1, range(5))], [entries(1, range(5, 9))], IDLE])
    path, incarnation = life.back_end.newest_segment(), life.back_end._open.directory.identity.incarnation_bytes
    data = life.disk.durable_bytes(path)
    for at in range(8192, len(data), 4096):
        header = decode_group_header(data[at : at + 64], incarnation)
        if header is not None:
            changed = encode_group_header(header._replace(number=header.number + 1), group_seed(incarnation))
            life.disk.put_at_rest(path, at, changed)
    life.crash(random.Random(1))
    life.open()
    assert life.back_end.report.limbo
    life.check(damaged=True)


@pytest.mark.rule("S8")
def test_an_empty_directory_under_a_known_id_is_refused_and_in_limbo_when_it_is_allowed() -> None:
    life = settled()
    life.crash(random.Random(1))
    life.disk.wipe()
    with pytest.raises(BookieIdentityError):
        life.open()
    back_end = StorageBackEnd()
    back_end.commit([entries(1, range(3))])
    back_end.wipe([1])
    back_end.restart()
    assert back_end.holdings.facts(1).fenced
    assert ask(back_end, 1, 0, 2).unknown == dict.fromkeys(range(3), Reason.LIMBO)
