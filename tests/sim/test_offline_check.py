# SPDX-License-Identifier: Apache-2.0
"""An offline check says before a start what that start will say, and touches nothing (RULES S8).

Lives of a bookie's storage are cut off at any operation, files of what is left are damaged in any way, the directory is
examined, and then the production starts on it.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import pytest

from bk_core.entries.frame import FRAME_HEADER_BYTES, FrameKind
from bk_core.errors import BookKeeperError
from bk_core.wire.lane.reasons import Reason
from bookie_server.storage.check.check import examine
from bookie_server.storage.check.findings import DirectoryFindings
from bookie_server.storage.index.ledger_states import EVERY_LEDGER
from tests.kit.index_state import state_of
from tests.sim.disk import SimDisk
from tests.sim.storage import DATA_DIR, SEGMENTS_DIR, ask
from tests.sim.storage_life import Life
from tests.sim.storage_workloads import WORKLOADS

TRIALS = 200
LAST_ID = 700
"""Greater than what the workloads write of a ledger, but for those of the checks."""


def cut_off(chance: random.Random) -> Life:
    """A life that was ended at some operation by a power loss, or by the end of its process and one later."""
    life = Life()
    life.disk.crash_at(chance.randint(40, 700))
    life.crashes(partial(life.run, WORKLOADS[chance.choice(sorted(WORKLOADS))]))
    life.disk.faults.no_space = life.disk.faults.no_byte = False
    life.crash(chance)
    return life


def damage(disk: SimDisk, chance: random.Random) -> None:
    """One file of segments is not what it was."""
    path = chance.choice([path for path in disk.paths() if path.startswith(SEGMENTS_DIR)])
    size, kind = len(disk.durable_bytes(path)), chance.random()
    if kind < 0.15 or not size:
        disk.lose_file(path)
    elif kind < 0.25:
        disk.truncate(path, chance.randrange(size))
    elif kind < 0.4:
        disk.break_sector(path, chance.randrange(size))
    elif kind < 0.5:
        at = chance.randrange(-(-size // 4096)) * 4096
        disk.put_at_rest(path, at, bytes(4096))
    elif kind < 0.7 and (records := records_in(disk.durable_bytes(path))):
        disk.flip_bit(path, chance.choice(records) + FRAME_HEADER_BYTES + chance.randrange(20))
    else:
        written = [at for at in range(0, size, 512) if any(disk.durable_bytes(path)[at : at + 512])] or [0]
        disk.flip_bit(path, chance.choice(written) + chance.randrange(512), chance.randrange(8))


def records_in(data: bytes) -> list[int]:
    """Where there are frames, of this life or an older one, that are keys."""
    places = range(0, len(data) - 2 * FRAME_HEADER_BYTES, 64)
    return [at for at in places if data[at : at + 2] == b"BK" and data[at + 3] == FrameKind.LEDGER_KEY]


def examined(disk: SimDisk, *, verify: bool) -> DirectoryFindings:
    """What the check finds, which must leave the disk as it was."""
    before, operations, names = disk.snapshot(), disk.operations, disk.names(SEGMENTS_DIR)
    found = examine(DATA_DIR, verify=verify, files=disk)
    assert disk.snapshot() == before
    assert (disk.operations, disk.names(SEGMENTS_DIR)) == (operations, names)
    return found


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.rule("S8")
def test_what_a_check_predicts_is_what_the_start_reports() -> None:
    seen: Counter[str] = Counter()
    for number in range(TRIALS):
        chance = random.Random(number)
        life = cut_off(chance)
        if not life.disk.exists(SEGMENTS_DIR) or not life.disk.names(SEGMENTS_DIR):
            continue
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            if life.disk.names(SEGMENTS_DIR):
                damage(life.disk, chance)
        quick, found = examined(life.disk, verify=False), examined(life.disk, verify=True)
        assert quick.start == found.start
        try:
            life.open()
        except BookKeeperError:
            seen["refused"] += 1
            continue
        report = life.back_end.report
        assert found.start == report, number
        assert found.limbo == report.unnamed
        compare_ledgers(found, life, number)
        compare_entries(found, life, number)
        seen["started"] += 1
        seen["damage"] += bool(report.damage)
        seen["limbo"] += report.limbo
        seen["a record lost"] += bool(report.ledgers_in_limbo)
        seen["tail"] += bool(report.tail_bytes_dropped)
        seen["drained"] += bool(report.drained)
        seen["lost entries"] += bool(found.lost)
    assert seen["started"] > TRIALS / 2, seen
    assert all(seen[what] for what in ("damage", "limbo", "a record lost", "tail", "drained", "lost entries")), seen


def compare_ledgers(found: DirectoryFindings, life: Life, number: int) -> None:
    """The same ledgers, and just those in limbo that were, or that the check said would be."""
    index = life.back_end.index
    assert sorted(found.ledgers) == index.ledger_ids(), number
    was = {ledger_id for ledger_id, ledger in found.ledgers.items() if ledger.trouble == "limbo"}
    expected = set(found.ledgers) if found.limbo else was | set(found.start.ledgers_in_limbo)
    now = {ledger_id for ledger_id in found.ledgers if index.folded(ledger_id)[1] is Reason.LIMBO}
    assert now == expected - {ledger for ledger in expected if index.folded(ledger)[1] is Reason.DAMAGED}, number
    assert not found.limbo or state_of(index, EVERY_LEDGER).trouble is Reason.LIMBO
    for ledger_id, ledger in found.ledgers.items():
        state, _ = index.folded(ledger_id)
        assert ledger.is_fenced == (state is not None and state.is_fenced), number


def compare_entries(found: DirectoryFindings, life: Life, number: int) -> None:
    """What the check calls lost is never denied; what is damaged it has named."""
    for ledger_id, ledger in found.ledgers.items():
        answer = ask(life.back_end, ledger_id, 0, LAST_ID)
        lost = {k for one in ledger.lost for k in range(one.first, min(one.last, LAST_ID) + 1)}
        assert not lost & (answer.absent - set(answer.found)), (number, ledger_id)
        damaged = {k for k, reason in answer.unknown.items() if reason is Reason.DAMAGED}
        if not found.bad_indexes and ledger.trouble != "two different keys":
            assert damaged <= lost, (number, ledger_id)
