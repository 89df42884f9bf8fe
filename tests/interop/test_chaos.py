# SPDX-License-Identifier: Apache-2.0
"""A few rounds of ``scripts/trial interop chaos`` on real processes, and tests of its judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from bk_cli.local.zookeeper_server import ZooKeeperServer
from tests.interop.chaos import (
    APACHE,
    OURS,
    Arena,
    ClientPlan,
    LedgerPlan,
    Round,
    Told,
    judge,
    plan_of,
)
from tests.interop.jars import MAIN
from tests.interop.parties import FENCED, Ended
from tests.interop.pattern import Pattern
from tests.interop.peer_client import Read
from tests.interop.secured import Secured
from tests.interop.worlds import MixedCluster
from tests.kit.uncertified import not_refusing

SEED, ROUNDS, SECURE_ROUNDS = 1104, (0, 1, 2), (2, 26)
"""The rounds of the tests. In them each kind of bookie is killed and stopped, and each kind of client recovers a ledger
of each kind. In the secure rounds both kinds write by both wires."""
PATTERN = Pattern(seed=1, size_max=200)


@pytest.fixture
def arena(
    request: pytest.FixtureRequest, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Arena]:
    path = tmp_path_factory.mktemp("chaos")
    secured, where = Secured(path) if request.param else None, zookeeper_server.connect_string
    with MixedCluster(where, path, ours=OURS, apache=APACHE, secured=secured) as cluster:
        yield Arena(cluster)


@pytest.mark.interop
@pytest.mark.timeout(300)
@pytest.mark.rule("MUST1", "MUST9", "MUST10", "MUST11", "L7")
@pytest.mark.parametrize(
    ("arena", "rounds"),
    [pytest.param(False, ROUNDS, marks=pytest.mark.thorough), (True, SECURE_ROUNDS)],
    ids=["open", "secure"],
    indirect=["arena"],
)
def test_bookies_of_both_kinds_die_and_no_acknowledged_entry_is_lost(arena: Arena, rounds: tuple[int, ...]) -> None:
    counts: Counter[str] = Counter()
    for number in rounds:
        report = Round(arena, SEED, number).run()
        assert report.problems == [], plan_of(SEED, number)
        counts.update(report.counts)
    assert counts["acknowledged"] >= 40 * len(rounds)
    assert counts["ledgers"] == 2 * len(rounds)
    faults = {f"{fault} of {who}" for fault in ("kill", "stop") for who in ("ours", "Apache")}
    assert faults == {name for name in counts if name.startswith(("kill", "stop"))}
    if arena.cluster.secured:
        assert not_refusing(arena.cluster.uri, arena.cluster.our_client) == {}


def by(writer: str, recoverer: str) -> LedgerPlan:
    return LedgerPlan(
        ClientPlan(writer, "v3", True), (3, 3, 2), "CRC32C", 10, ((0.5, ClientPlan(recoverer, "v3", True)),), ()
    )


def told(*, acked: int = 10, said: str = FENCED, late: str = FENCED, end: int = 9) -> Told:
    """Return the results of a round without a broken promise, with these changes."""
    read = Read(0, end, end + 1, 0, PATTERN.checksum(0, end), ())
    return Told(
        by("ours", "ours"),
        7,
        PATTERN,
        ended=Ended(acked, said),
        late=late,
        ends=[("ours", end), ("java", end)],
        lacs=[("java", end)],
        reads=[("ours", read), ("java", read)],
    )


def broken(of: Told) -> set[str]:
    return {problem.partition(":")[0] for problem in judge(of)}


def test_a_round_is_judged_by_all_that_clients_were_told() -> None:
    assert broken(told()) == set()
    assert broken(told(acked=9)) == set(), "the ledger may have entries that were in flight"
    assert broken(told(acked=11)) == {"LOST"}
    assert broken(told(said="", late="nothing")) == {"NOT FENCED"}
    assert broken(told(said="", late="BK_QUORUM_TIMEOUT: …")) == {"NOT FENCED"}
    assert broken(told(said="BK_NOT_ENOUGH_BOOKIES: …", late="BK_NOT_ENOUGH_BOOKIES: …")) == set()
    moved = told()
    moved.ends.append(("ours", 8))
    assert broken(moved) == {"END MOVED"}
    lagging = told()
    lagging.lacs.append(("ours", 10))
    assert broken(lagging) == {"LOST"}
    changed = told()
    changed.reads[1] = ("java", Read(0, 9, 10, 0, PATTERN.checksum(1, 10), ()))
    assert broken(changed) == {"CHANGED"}
    unread = told()
    del unread.reads[0]
    assert broken(unread) == {"UNREADABLE"}
    hanging = told()
    hanging.ended, hanging.taken_over = None, True
    assert broken(hanging) == {"HANG"}


def test_what_apaches_client_does_everywhere_is_no_problem_of_a_round() -> None:
    lagging = told()
    lagging.lacs.append(("ours", 10))
    lagging.plan = by("ours", MAIN)
    assert broken(lagging) == set()
    lagging.ended = Ended(11, FENCED)
    assert broken(lagging) == {"LOST"}, "the exception does not cover acknowledged entries"
    lagging.plan, lagging.ended = by(MAIN, "ours"), Ended(10, FENCED)
    assert broken(lagging) == {"LOST"}, "our recovery shows no such LAC"
    hanging = told()
    hanging.plan, hanging.ended, hanging.hangs_at = by(MAIN, "ours"), None, 9
    assert broken(hanging) == {"HANG"}, "no client took the ledger over"
    hanging.taken_over = True
    assert broken(hanging) == set()
    hanging.hangs_at = 10
    assert broken(hanging) == {"LOST"}
