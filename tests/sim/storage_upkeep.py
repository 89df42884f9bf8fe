# SPDX-License-Identifier: Apache-2.0
"""Steps of a scripted life that give space back: checkpoints, and segments whose frames are all dead (RULES S4)."""

from __future__ import annotations

import random
from collections.abc import Callable

from bookie_server.storage.checkpoint import checkpoint_name, decode_checkpoint
from bookie_server.storage.checkpointer import Checkpointer, IndexSource
from bookie_server.storage.cookie import decode_identity
from tests.sim.storage import DATA_DIR, SEGMENTS_DIR
from tests.sim.storage_life import Life

STEP_BYTES = 4096
"""So that a checkpoint of a few ledgers takes more than one step."""


def checkpointer_of(life: Life) -> Checkpointer:
    """The one of the life's present process."""
    opened = life.back_end._open
    if life.checkpointer is None or life.checkpointer[0] is not opened:
        made = Checkpointer(opened.directory, IndexSource(opened.index), opened.log.health, opened.report.checkpoint)
        life.checkpointer = (opened, made)
    made = life.checkpointer[1]
    assert isinstance(made, Checkpointer)
    return made


def checkpoint(life: Life) -> None:
    """Write a checkpoint, to its end; a disk that is full may have no room for it."""
    checkpointer = checkpointer_of(life)
    if checkpointer.start():
        while checkpointer.busy:
            checkpointer.step(STEP_BYTES)


def give_back(life: Life) -> None:
    """Recycle every sealed segment without a live frame, as the bookie does: drop, checkpoint, recycle (I11)."""
    index, pool = life.back_end.index, life.back_end.log.pool
    life.back_end.upkeep.run()
    live = index.live_bytes()
    drained = [generation for generation in index.sealed_generations() if not live.get(generation)]
    for generation in drained:
        index.drop_segment(generation)
    checkpoint(life)
    for generation in drained:
        if checkpointer_of(life).may_recycle(generation):
            assert_covered(life, generation)
            pool.recycle(generation)
            life.recycled += 1


def assert_covered(life: Life, generation: int) -> None:
    """I11, by what is durable on the disk at this moment and by nothing else."""
    number = decode_identity(life.disk.durable_bytes(f"{DATA_DIR}/IDENTITY")).checkpoint
    path = f"{SEGMENTS_DIR}/{checkpoint_name(number)}"
    assert path in life.disk.paths(), f"IDENTITY names checkpoint {number}, which is not durable"
    durable = decode_checkpoint(life.disk.durable_bytes(path))
    assert durable.through >= generation, f"segment {generation} is recycled under {durable.through}"
    assert generation not in durable.segments, f"the checkpoint counts on segment {generation}, which is recycled"


def some_recycled(count: int) -> Callable[[Life], None]:
    """The script does what it is there for: otherwise it would prove nothing."""

    def step(life: Life) -> None:
        assert life.recycled >= count, f"{life.recycled} segments were recycled, not {count}"

    return step


def lose_checkpoint(life: Life) -> None:
    """The newest checkpoint is gone, or cannot be read, after a power loss."""
    life.crash(random.Random(1), "everything")
    paths = [path for path in life.disk.paths() if path.endswith(".checkpoint")]
    if paths:
        life.expects_damage = True
        life.disk.flip_bit(paths[-1], 5000 if len(life.disk.durable_bytes(paths[-1])) > 5000 else 20)
    life.open()
