# SPDX-License-Identifier: Apache-2.0
"""The short form of the trial of healing, and tests of its kit: the account of copies, the oracle, the figures."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.amount import some
from tests.trials.bookie.journal import Journal
from tests.trials.harness import Figures
from tests.trials.heal.oracle import Journals, holds, pattern_of, wrong_entries
from tests.trials.heal.schedule import (
    ACK_QUORUM,
    BY_NAME,
    CORRUPT,
    DRAIN,
    KINDS,
    PARTITION,
    SHAPES,
    WIPE,
    Account,
    Act,
    Kind,
    TooManyGoneError,
    deal,
    turn_of,
)
from tests.trials.heal.stage import slots_of
from tests.trials.kit.network import networks_work

SHORT, SECURE = ("wipe", "corrupt stopped", "drain"), ("drain",)
"""The disturbances of the two tests. In the secure one an operator's command, and bookies that copy from each other,
need their roles. Meanwhile the clock of one bookie, which makes and checks grants, is wrong."""


@pytest.mark.e2e
@pytest.mark.thorough
@pytest.mark.zookeeper
@pytest.mark.timeout(240)
@pytest.mark.rule("D23", "L7")
@pytest.mark.parametrize(
    ("kinds", "seed", "secure"),
    [(SHORT, 1356, False), (SECURE, 1359, True)],
    ids=["open", "secure"],
)
def test_a_cluster_heals_itself_after_a_wipe_rotten_bytes_and_a_drain(
    tmp_path: Path, kinds: tuple[str, ...], seed: int, secure: bool
) -> None:
    """Runs the trial as a program of its own, because it makes networks and mounts where that is allowed."""
    options = ["--apache", "never", "--seed", str(seed), "--work", str(tmp_path), *(["--secure"] if secure else [])]
    command = [sys.executable, "-m", "tests.trials", "trial", "heal", *options, "--only", *kinds]
    command += ["--resume", str(tmp_path / "figures")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    of = f"scripts/trial heal --seed {seed}{' --secure' if secure else ''} --only {' '.join(kinds)}"
    figures = Figures.load(tmp_path / "figures", of)
    assert (ran.returncode, figures.problems) == (0, []), ran.stdout[-4_000:] + ran.stderr[-2_000:]
    acts = figures.tables["disturbance"]
    assert {name: acts[name] for name in kinds} == dict.fromkeys(kinds, 1)
    assert acts.total() > len(kinds) or not networks_work(), "no other bookie was disturbed meanwhile"
    counts = figures.counts
    assert counts["acknowledged"] > 500, "the clients hardly wrote anything, so the turns prove nothing"
    assert counts["copies checked at last"] > 2 * counts["entries checked at last"] > 1_000
    assert counts["starts refused after a wipe"] == kinds.count("wipe")
    assert counts["bookies removed"] == kinds.count("drain") == 1
    assert counts["entries corrupted"] == counts["entries mended"]
    assert (counts["entries mended"] > 0) is ("corrupt stopped" in kinds)
    assert counts["bookies that refused a client without a certificate"] == (6 if secure else 0)


# --- the account ---


def act(kind: Kind, slot: int) -> Act:
    return Act(kind, slot, 0.0, 1.0, 0.5)


def test_a_second_copy_is_never_destroyed_before_all_is_healed() -> None:
    account = Account()
    account.begin(act(WIPE, 1))
    account.back(act(WIPE, 1))
    for kind in (WIPE, CORRUPT, DRAIN):
        with pytest.raises(TooManyGoneError, match="gone"):
            account.begin(act(kind, 2))
    account.begin(act(PARTITION, 2))  # a partition destroys nothing
    with pytest.raises(TooManyGoneError, match="do not serve yet"):
        account.healed()
    account.back(act(PARTITION, 2))
    account.healed()
    account.begin(act(CORRUPT, 2))


@pytest.mark.parametrize("apache", [0, 2])
def test_every_turn_is_one_that_the_account_allows(apache: int) -> None:
    """Every kind comes, and only to bookies that can have it."""
    slots = slots_of(apache, mounts=True)
    seen: Counter[str] = Counter()
    for seed in range(some(200, 40)):
        rng = random.Random(seed)
        account = Account()
        for number in range(len(KINDS)):
            acts = turn_of(rng, deal(seed, number, KINDS).kind, slots, [kind for kind in KINDS if kind.companion])
            for each in acts:
                account.begin(each)
                seen[each.kind.name] += 1
                slot = slots[each.slot - 1]
                assert slot.ours or each.kind.apache
                assert slot.small or each.kind.name != "fill"
            for each in acts:
                account.back(each)
            account.healed()
    assert set(seen) == set(BY_NAME)
    assert all(qa == ACK_QUORUM for _, _, qa in SHAPES), "the account relies on this ack quorum"


# --- the oracle ---


def told(folder: Path, **journals: list[tuple[str, dict[str, object]]]) -> Journals:
    for name, lines in journals.items():
        journal = Journal(str(folder / f"{name}.journal"))
        for what, values in lines:
            journal.say(what, **values)
    known = Journals(folder)
    known.read()
    return known


def test_the_oracle_knows_a_loss_from_what_may_be(tmp_path: Path) -> None:
    lines: list[tuple[str, dict[str, object]]] = [
        ("ledger", {"ledger": 7}),
        ("sent", {"ledger": 7, "last": 9}),
        ("confirmed", {"ledger": 7, "last": 4}),
    ]
    journals = told(tmp_path, writer=lines, reader=[("lac", {"ledger": 7, "lac": 5})])
    known = journals.ledgers[7]
    assert [journals.judge(known, end) for end in (5, 9)] == [[], []]
    assert [text.split(":")[0] for text in journals.judge(known, 3)] == ["LOST", "LOST"]
    assert [text.split(":")[0] for text in journals.judge(known, 4)] == ["LOST"], "a reader got a higher LAC"
    assert [text.split(":")[0] for text in journals.judge(known, 10)] == ["CHANGED"]
    told(tmp_path, recoverer=[("end", {"ledger": 7, "end": 8})])
    journals.read()
    assert (journals.judge(known, 8), [text.split(":")[0] for text in journals.judge(known, 9)]) == ([], ["END MOVED"])


def test_a_ledger_whose_writer_died_is_unsettled_until_somebody_closes_it(tmp_path: Path) -> None:
    journals = told(tmp_path, writer=[("ledger", {"ledger": 7}), ("ledger", {"ledger": 8}), ("left", {"ledger": 7})])
    assert journals.unsettled() == [7]
    told(tmp_path, traffic=[("died", {"client": "writer"})])
    journals.read()
    assert journals.unsettled() == [7, 8]
    told(tmp_path, recoverer=[("end", {"ledger": 8, "end": 3})], conductor=[("deleted", {"ledger": 7})])
    journals.read()
    assert journals.unsettled() == []


def test_a_ledger_may_be_denied_only_after_it_was_deleted(tmp_path: Path) -> None:
    gone = ("error", {"ledger": 7, "name": "read", "code": "BK_NO_SUCH_LEDGER", "text": "no such ledger"})
    journals = told(tmp_path, writer=[("ledger", {"ledger": 7})], early=[gone], conductor=[("deleted", {"ledger": 7})])
    (text,) = journals.denied()
    assert text.startswith("LOST: early, ledger 7")
    assert told(tmp_path, late=[gone]).denied() == [text], "the error after the deletion is no loss"


def test_a_copy_has_what_its_write_sets_say() -> None:
    held = {index: [i for i in range(8) if holds(index, i, 4, 3)] for index in range(4)}
    assert held[0] == [0, 2, 3, 4, 6, 7]
    assert Counter(i for ids in held.values() for i in ids) == dict.fromkeys(range(8), 3)
    entries = {i: pattern_of(7).payload(i) for i in held[0]}
    assert wrong_entries(7, entries, held[0]) == ([], [])
    entries[2] = entries[3]
    del entries[6]
    assert wrong_entries(7, entries, held[0]) == ([6], [2])
