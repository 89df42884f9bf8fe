# SPDX-License-Identifier: Apache-2.0
"""Steps of a scripted life that free space: checkpoints, drained segments, compaction, all maintenance (S4)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from bookie_server.identity.opening import OpenStorage
from bookie_server.machine.disk_places import Place
from bookie_server.storage.disk.cookie import decode_identity
from bookie_server.storage.index.checkpoint import checkpoint_name
from bookie_server.storage.maintenance.checkpointer import Checkpointer
from bookie_server.storage.maintenance.index_port import DirectIndexPort
from bookie_server.storage.maintenance.maintenance import Maintenance
from bookie_server.storage.maintenance.schedule import MaintenanceLimits
from bookie_server.storage.maintenance.tasks import LOOK_S
from tests.kit.whole_files import decode_checkpoint
from tests.sim.disk import SimDisk
from tests.sim.storage import DATA_DIR, SEGMENTS_DIR
from tests.sim.storage_life import Life

STEP_BYTES = 4096
"""The bytes of one step. A checkpoint of a few ledgers takes more than one step."""
LIMITS = MaintenanceLimits(checkpoint_interval_s=1.0, major_compaction_interval_s=1000.0)


def maintenance_on(
    opened: OpenStorage, now_s: Callable[[], float], release: Callable[[int], None], recycled: Callable[[int], None]
) -> Maintenance:
    """Return the product's maintenance of an open directory. ``recycled`` is called with the segments that the pool
    gets back."""
    recycle = opened.log.pool.recycle

    def heard(generation: int) -> None:
        recycle(generation)
        recycled(generation)

    opened.log.pool.recycle = heard

    def copy(frames: Sequence[bytes | bytearray | memoryview]) -> list[Place]:
        return opened.log.append_group(frames, reserve=True)

    return Maintenance(
        opened.directory, opened.log, DirectIndexPort(opened.index), opened.reader, newest=opened.report.checkpoint,
        copy=copy, release=release, give_up=release, now_s=now_s, limits=LIMITS,
    )  # fmt: skip


def maintenance_of(life: Life) -> Maintenance:
    """Return the maintenance of the life's present process, with the life's clock."""
    opened = life.back_end._open
    if life.maintenance is None or life.maintenance[0] is not opened:
        made = maintenance_on(opened, lambda: life.now_s, opened.reader.release, partial(_note_recycled, life))
        life.maintenance = (opened, made)
    found = life.maintenance[1]
    assert isinstance(found, Maintenance)
    return found


def _note_recycled(life: Life, generation: int) -> None:
    life.recycled += 1
    try:
        assert_covered(life.disk, generation)
    except AssertionError as error:  # maintenance would regard the error as one to try again
        life.violations.append(str(error))


def maintain(life: Life, *, steps: int = 1000) -> None:
    """Let time pass, and do all work that is due, or ``steps`` steps of it."""
    maintenance = maintenance_of(life)
    errors, compacted = maintenance.tasks.errors, maintenance.compaction.compactor.stats.segments
    for _ in range(4):
        life.now_s += LOOK_S
        while steps and maintenance.step():
            steps -= 1
    life.compacted += maintenance.compaction.compactor.stats.segments - compacted
    assert not life.violations, life.violations[0]
    full = life.disk.faults.no_space or life.disk.faults.no_byte
    assert full or maintenance.tasks.errors == errors, "maintenance failed on a disk that is well"


def beside_commits(groups: Sequence[list[bytes]], life: Life) -> None:
    """Do a few steps of maintenance between one commit and the next."""
    for frames in groups:
        life.commit(frames)
        maintain(life, steps=2)


def compacting_beside(groups: Sequence[list[bytes] | Callable[[Life], None]], life: Life) -> None:
    """Commit after each smallest step of compaction, until compaction has nothing more to do."""
    maintenance, waiting = maintenance_of(life), list(groups)
    while maintenance.compaction.compactor.step(1) or waiting:
        maintenance.space.note_drained(maintenance.compaction.compactor.take_drained())
        if waiting:
            life.run([waiting.pop(0)])
    maintenance.space.note_drained(maintenance.compaction.compactor.take_drained())


def look(life: Life) -> None:
    """Check everything with the process that did all this, and not only with the next one."""
    life.check(more=False)


def checkpointer_of(life: Life) -> Checkpointer:
    """Return the checkpointer of the life's maintenance."""
    return maintenance_of(life).space.checkpointer


def checkpoint(life: Life) -> None:
    """Write a checkpoint to its end. A full disk may have no room for it."""
    checkpointer = checkpointer_of(life)
    if checkpointer.start():
        while checkpointer.busy:
            checkpointer.step(STEP_BYTES)


def give_back(life: Life) -> None:
    """Recycle every sealed segment without a live frame, as the bookie does: drop, checkpoint, recycle (I11)."""
    index, pool = life.back_end.index, life.back_end.log.pool
    life.back_end.log_maintenance.run()
    live = index.live_bytes()
    drained = [generation for generation in index.sealed_generations() if not live.get(generation)]
    for generation in drained:
        index.drop_segment(generation)
    checkpoint(life)
    for generation in drained:
        if checkpointer_of(life).may_recycle(generation):
            assert_covered(life.disk, generation)
            pool.recycle(generation)
            life.recycled += 1


def assert_covered(disk: SimDisk, generation: int) -> None:
    """Check I11 by what is durable on the disk at this moment, and by nothing else."""
    number = decode_identity(disk.durable_bytes(f"{DATA_DIR}/IDENTITY")).checkpoint
    path = f"{SEGMENTS_DIR}/{checkpoint_name(number)}"
    assert path in disk.paths(), f"IDENTITY names checkpoint {number}, which is not durable"
    durable = decode_checkpoint(disk.durable_bytes(path))
    assert durable.through >= generation, f"segment {generation} is recycled under {durable.through}"
    assert generation not in durable.segments, f"the checkpoint counts on segment {generation}, which is recycled"


def some_recycled(count: int) -> Callable[[Life], None]:
    """Check that the script recycled at least ``count`` segments. Otherwise it would prove nothing."""

    def step(life: Life) -> None:
        assert life.recycled >= count, f"{life.recycled} segments were recycled, not {count}"

    return step


def some_compacted(count: int) -> Callable[[Life], None]:
    """Check that the script compacted at least ``count`` segments."""

    def step(life: Life) -> None:
        assert life.compacted >= count, f"{life.compacted} segments were compacted, not {count}"

    return step


def lose_checkpoint(life: Life) -> None:
    """Lose power, and lose the newest checkpoint or its readability."""
    life.crash(random.Random(1), "everything")
    paths = [path for path in life.disk.paths() if path.endswith(".checkpoint")]
    if paths:
        life.expects_damage = True
        life.disk.flip_bit(paths[-1], 5000 if len(life.disk.durable_bytes(paths[-1])) > 5000 else 20)
    life.open()
