# SPDX-License-Identifier: Apache-2.0
"""The maintenance of a data directory: what is done first, what waits, and that space comes back only when it may."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from bk_core.errors import BookKeeperError
from bookie_server.storage.bytes.index_rows import Rows
from bookie_server.storage.disk.space import Usage
from bookie_server.storage.maintenance.index_port import Stopping
from bookie_server.storage.maintenance.tasks import LOOK_S, RETRY_MAX_S, RETRY_S
from tests.kit.maintained import Kept, limits
from tests.kit.segment_world import assert_honest, entries, fence_record, key_record
from tests.sim.disk import SimDisk

SLOW = limits(checkpoint_interval_s=60.0)


def files_of(disk: SimDisk, kind: str) -> list[str]:
    return [path.rpartition("/")[2] for path in disk.paths() if path.endswith("." + kind)]


@pytest.mark.rule("S4")
def test_a_segment_of_deleted_ledgers_goes_to_the_pool_and_its_state_is_kept() -> None:
    disk = SimDisk()
    kept = Kept(files=disk)
    kept.append(fence_record(5), key_record(6))
    kept.fill(1, 1)
    alive = kept.fill(2, 2)
    first = kept.index.sealed_generations()[0]
    kept.delete(1)
    kept.settle()
    assert kept.maintenance.space.recycled == kept.maintenance.space.checkpoints == 1
    assert kept.given_up == [first]
    assert f"{first:016x}.segment" not in files_of(disk, "segment")
    assert f"{first:016x}.idx" not in files_of(disk, "idx")
    kept.close(crash=True)
    disk.crash(random.Random(1), "nothing")
    again = Kept(files=disk)
    assert again.report.damage == []
    assert_honest(again, [*alive, fence_record(5), key_record(6)], healthy=True)
    assert again.index.is_deleted(1)


@pytest.mark.rule("I11")
def test_nothing_is_recycled_before_a_checkpoint_made_after_it_was_dropped_is_durable() -> None:
    kept = Kept()
    kept.fill(1, 2)
    kept.fill(2, 1)
    kept.delete(1)
    order: list[str] = []
    watch(kept.maintenance.space.checkpointer, "start", order)
    watch(kept.directory, "record_checkpoint", order)
    watch(kept.log.pool, "recycle", order)
    kept.settle()
    assert order[:2] == ["start", "record_checkpoint"]
    assert "recycle" in order[2:]
    assert order.count("start") == 1


def watch(thing: Any, name: str, order: list[str]) -> None:
    """Have calls of a method noted, which goes on as ever."""
    call = getattr(thing, name)

    def noted(*args: Any) -> Any:
        order.append(name)
        return call(*args)

    setattr(thing, name, noted)


def test_checkpoints_keep_their_distance_and_space_waits_for_the_next() -> None:
    kept = Kept(limits=SLOW)
    for ledger_id in (1, 2, 3):
        kept.fill(ledger_id, 1)
    kept.fill(9, 1)
    kept.delete(1)
    kept.settle(10)
    assert kept.maintenance.space.checkpoints == 1
    recycled = kept.maintenance.space.recycled
    kept.delete(2, 3)
    kept.settle(40)
    assert kept.maintenance.space.checkpoints == 1
    assert kept.maintenance.space.recycled == recycled
    assert kept.maintenance.space.drained > 0
    kept.settle(15)
    assert kept.maintenance.space.checkpoints == 2
    assert kept.maintenance.space.drained == 0


def test_a_wait_that_rounding_would_lose_is_a_wait() -> None:
    """A thread that is told to wait for 1e-16 s looks again at the same moment, for ever if the clock stands still."""
    kept = Kept()
    kept.now = 1e6
    kept.maintenance.tasks.add_paced("nothing", lambda _: 0, 1)
    [task] = [task for task in kept.maintenance.tasks._paced if task.name == "nothing"]
    task.run = lambda: 1e-16
    kept.settle(0.1)
    assert kept.maintenance.tasks.wait_s() > 0


def test_a_disk_short_of_space_does_not_wait_for_the_interval() -> None:
    disk = SimDisk()
    kept = Kept(files=disk, limits=limits(checkpoint_interval_s=3600))
    kept.fill(1, 1)
    kept.fill(2, 2)
    kept.delete(1)
    kept.settle(5)
    kept.delete(2)
    kept.fill(9, 1)
    kept.settle(20)
    assert kept.maintenance.space.checkpoints == 1
    before = kept.maintenance.space.recycled
    kept.log.pool.trim()
    while kept.log.pool.free_segments:
        kept.log.pool.ensure(kept.log.pool.spares + 1)
    kept.directory.usage = lambda kept_bytes: Usage(100 * kept.log.segment_bytes, 0, kept_bytes)
    kept.settle(LOOK_S + 1)
    assert kept.maintenance.space.checkpoints == 2
    assert kept.maintenance.space.recycled > before


def test_a_start_never_folds_the_state_of_many_segments() -> None:
    kept = Kept()
    kept.fill(1, 7)
    kept.settle(100)
    assert kept.maintenance.space.checkpoints == 0
    kept.fill(2, 1)
    kept.settle(LOOK_S + 1)
    assert kept.maintenance.space.checkpoints == 1
    assert kept.maintenance.space.checkpointer.newest.through >= 8


def test_sealing_comes_before_everything_else() -> None:
    kept = Kept()
    kept.fill(1, 3)
    kept.fill(2, 1)
    kept.delete(1)
    kept.maintenance.step()
    frames = [entries(3, range(k, k + 10), size=1700) for k in range(0, 90, 10)]
    for frame in frames:
        (place,) = kept.log.append_group([frame])
        kept.index.add(frame, place)
    kept.log.release_full()
    assert kept.log.seal_jobs
    kept.maintenance.wake()
    kept.now += LOOK_S  # a look and a checkpoint are due as well
    while kept.log.seal_jobs:
        kept.maintenance.step()
        assert not kept.maintenance.space.checkpointer.busy
        assert kept.maintenance.space.recycled == 0


class Failing:
    """Paced work that fails some times."""

    def __init__(self, times: int, error: Exception) -> None:
        self.left, self.error, self.at = times, error, list[float]()

    def step(self, kept: Kept) -> Callable[[int], int]:
        def work(budget_bytes: int) -> int:
            self.at.append(kept.now)
            if self.left:
                self.left -= 1
                raise self.error
            return 0

        return work


@pytest.mark.parametrize("error", [BookKeeperError("a deadline"), OSError(5, "bad"), AssertionError("a bug")])
def test_what_fails_is_counted_and_tried_again_ever_more_rarely_and_holds_up_nothing_else(error: Exception) -> None:
    kept = Kept()
    failing = Failing(8, error)
    kept.maintenance.tasks.add_paced("failing", failing.step(kept), 1 << 30)
    kept.fill(1, 1)
    kept.fill(2, 1)
    kept.delete(1)
    kept.settle(600)
    assert kept.maintenance.tasks.errors == 8
    waits = [b - a for a, b in zip(failing.at, failing.at[1:], strict=False)]
    assert waits[:8] == pytest.approx([min(RETRY_S * 2**k, RETRY_MAX_S) for k in range(8)])
    assert waits[8:] == pytest.approx([LOOK_S] * len(waits[8:]))
    assert kept.maintenance.space.recycled > 0


def test_a_stop_comes_through_whatever_is_under_way() -> None:
    kept = Kept()
    failing = Failing(1, Stopping())
    kept.maintenance.tasks.add_paced("failing", failing.step(kept), 1 << 30)
    with pytest.raises(Stopping):
        kept.settle()
    assert kept.maintenance.tasks.errors == 0


def test_the_index_hears_of_a_sealed_segment_even_if_it_could_not_be_asked_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept()
    kept.fill(1, 1)
    sealed = kept.index.sealed_generations()
    hear, deaf = kept.index.seal, [True]

    def seal(generation: int, summary: Rows) -> None:
        if deaf:
            deaf.pop()
            raise BookKeeperError("the loop does not answer")
        hear(generation, summary)

    monkeypatch.setattr(kept.index, "seal", seal)
    frames = [entries(3, range(k, k + 10), size=1700) for k in range(0, 60, 10)]
    for frame in frames:
        (place,) = kept.log.append_group([frame])
        kept.index.add(frame, place)
    kept.log.release_full()
    kept.settle(5)
    assert kept.maintenance.tasks.errors == 1
    assert len(kept.index.sealed_generations()) > len(sealed)
    assert_honest(kept, frames, healthy=True)


def test_the_statistics_say_what_there_is() -> None:
    kept = Kept()
    kept.fill(1, 2)
    kept.fill(2, 1)
    kept.settle()
    before = kept.maintenance.stats.read()
    assert before.segments_sealed == 3
    assert before.segments_unsealed == 1
    assert before.seals == 3
    assert before.live_bytes == sum(kept.index.live_bytes().values())
    assert before.dead_bytes == 3 * kept.log.segment_bytes - before.live_bytes
    assert before.checkpoint_number == before.segments_recycled == 0
    assert before.checkpoint_age_s is None
    kept.delete(1)
    kept.settle(30)
    after = kept.maintenance.stats.read()
    assert after.segments_recycled == kept.maintenance.space.recycled > 0
    assert after.segments_drained == 0
    assert after.checkpoint_number == 1
    assert after.checkpoint_bytes > 0
    assert 0 < after.checkpoint_age_s <= 30
    assert after.index_memory_bytes > 0
    assert "checkpoint_number=1 " in after.as_line()


def test_little_data_is_scrubbed_once_in_a_while_and_not_all_the_time() -> None:
    kept = Kept(limits=limits(scrub_bytes_per_s=8 << 20))
    kept.fill(1, 2)
    kept.settle(2 * limits().scrub_interval_s)
    assert kept.maintenance.scrub.scrubber.stats.passes in (2, 3)
    assert 2 * 2 * 40_000 < kept.maintenance.stats.read().scrubbed_bytes < 3 * 2 * 100_000


def test_scrubbing_gives_way_to_commits_and_still_gets_on() -> None:
    rate, time_s, read = 64 << 10, 600, []
    for busy in (0.0, 0.9):
        kept = Kept(limits=limits(scrub_bytes_per_s=rate, scrub_interval_s=1))
        kept.fill(1, 8)
        kept.maintenance.scrub.busy_s = partial(lambda kept, busy: busy * kept.now, kept, busy)
        kept.settle(time_s)
        read.append(kept.maintenance.stats.read().scrubbed_bytes)
    assert rate * time_s / 10 < read[1] < rate * time_s / 8 + (1 << 20)
    assert read[0] > 3 * read[1]


@pytest.mark.rule("S7")
def test_a_damaged_index_is_made_anew_and_what_it_names_is_served_again() -> None:
    disk = SimDisk()
    kept = Kept(files=disk, limits=limits(scrub_bytes_per_s=8 << 20))
    written = kept.fill(1, 2)
    generation = kept.index.sealed_generations()[0]
    disk.flip_bit(f"/data/segments/{generation:016x}.idx", 4096 + 100)
    kept.settle(60)
    assert kept.maintenance.stats.read().indexes_rebuilt == 1
    assert kept.maintenance.stats.read().detected_scrub_errors >= 1
    assert_honest(kept, written, healthy=True)


@pytest.mark.rule("S4")
def test_segments_of_which_little_lives_are_compacted_and_given_back() -> None:
    disk = SimDisk()
    kept = Kept(files=disk, limits=limits(compaction_threshold=0.5, checkpoint_interval_s=1))
    alive = [key_record(9)]
    kept.append(*alive)
    for k in range(20):
        alive.append(entries(9, range(k, k + 1), size=2000))
        kept.append(entries(1, range(10 * k, 10 * k + 10), size=1700), alive[-1])
    sealed = len(kept.index.sealed_generations())
    assert sealed >= 5
    kept.delete(1)
    kept.settle(30)
    stats = kept.maintenance.stats.read()
    assert stats.segments_sealed <= 2
    assert sealed - 1 <= stats.segments_recycled <= kept.log.newest_sealed
    assert stats.segments_drained == 0
    assert len(kept.given_up) == len(set(kept.given_up))
    assert stats.segments_compacted > 0
    assert stats.compaction_written_bytes > 0
    assert_honest(kept, alive, healthy=True)
    kept.close(crash=True)
    disk.crash(random.Random(3), "nothing")
    assert_honest(Kept(files=disk), alive, healthy=True)


def test_the_segment_that_is_being_compacted_is_let_go_before_it_is_recycled() -> None:
    kept = Kept(limits=limits(compaction_threshold=0.5))
    kept.fill(1, 1)
    alive = entries(9, range(3), size=2000)
    kept.append(alive)
    kept.fill(2, 3)
    kept.delete(2)
    compactor = kept.maintenance.compaction.compactor
    while compactor.generation is None:
        assert compactor.step(1)
    generation = compactor.generation
    kept.delete(1, 9)
    kept.settle(20)
    assert generation in kept.given_up
    assert compactor.generation is None
    assert kept.maintenance.space.drained == 0
