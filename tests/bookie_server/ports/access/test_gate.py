# SPDX-License-Identifier: Apache-2.0
"""What a stream's client may do follows from the grants that it has shown: until when, for which ledger, how many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_core.access.grants import NO_LEDGER, Grant
from bk_core.access.needs import Need, On
from bk_core.access.roles import Right
from bk_core.wire.lane.reasons import Reason
from bookie_server.ports.access import gate as module
from bookie_server.ports.access.authority import Authority, GrantKeys
from bookie_server.ports.access.gate import Gate
from tests.kit.memory_store import MemoryCluster, MemoryStore

CLUSTER, WHO = "the-cluster", "CN=ingest"
WRITE = Need(On.LEDGER, Right.WRITE)
HINT = Need(On.ANYWHERE, Right.HINT)


class World:
    """An authority with a clock of the test's own, and the gate of one stream."""

    def __init__(self, folder: Path) -> None:
        path = folder / "keys"
        path.write_text("01" * 32 + "\n")
        path.chmod(0o600)
        self.keys, self.now_ms = GrantKeys(path), 1_000_000
        self.authority = Authority(MemoryStore(MemoryCluster()), self.keys, CLUSTER, now_ms=lambda: self.now_ms)
        self.gate = Gate(self.authority, WHO)

    def grant(self, ledger_id: int, rights: Right = Right.WRITE, *, life_ms: int = 1_000, identity: str = WHO) -> bytes:
        made = Grant(CLUSTER, identity, ledger_id, rights, self.now_ms - 1, self.now_ms + life_ms)
        return self.keys.now().sign(made)

    def reason(self, need: Need | None, ledger_id: int = NO_LEDGER) -> Reason | None:
        refusal = self.gate.refusal(need, ledger_id)
        return None if refusal is None else refusal[0]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.authority.close()


def test_a_grant_holds_for_its_ledger_its_right_and_its_time(world: World) -> None:
    assert world.reason(WRITE, 7) is Reason.GRANT_NEEDED
    world.gate.show([world.grant(7)])
    assert world.reason(WRITE, 7) is None
    assert world.reason(WRITE, 8) is Reason.GRANT_NEEDED
    assert world.reason(Need(On.LEDGER, Right.RECOVER), 7) is Reason.PERMISSION_DENIED
    assert world.reason(HINT, 7) is Reason.GRANT_NEEDED, "a grant for a ledger is none for the cluster"
    assert world.gate.left_ms(7) == 1_000
    world.now_ms += 999
    assert world.reason(WRITE, 7) is None
    world.now_ms += 1
    assert world.reason(WRITE, 7) is Reason.GRANT_NEEDED
    assert (world.gate.left_ms(7), world.gate.left_ms(8)) == (0, 0)


def test_a_grant_for_the_cluster_holds_wherever_no_ledger_is_meant(world: World) -> None:
    world.gate.show([world.grant(NO_LEDGER, Right.HINT)])
    assert world.reason(HINT) is None
    assert world.reason(HINT, 5) is None
    assert world.reason(WRITE, 5) is Reason.GRANT_NEEDED
    assert world.reason(WRITE, NO_LEDGER) is Reason.PERMISSION_DENIED, "no ledger is written"


def test_what_needs_nothing_is_free_and_what_no_rule_knows_is_denied(world: World) -> None:
    assert world.reason(Need(On.FREE)) is None
    assert world.reason(Need(On.IDENTITY)) is None
    assert world.reason(None, 7) is Reason.PERMISSION_DENIED
    nobody = Gate(world.authority, "")
    assert nobody.refusal(Need(On.FREE)) == (Reason.UNAUTHENTICATED, "this client has shown no identity")


def test_the_grant_of_another_client_counts_for_nothing_and_the_refusal_says_so(world: World) -> None:
    world.gate.show([world.grant(7, identity="CN=other"), b"no grant at all"])
    refusal = world.gate.refusal(WRITE, 7)
    assert refusal[0] is Reason.GRANT_NEEDED
    assert "ledger 7" in refusal[1]
    assert "the last one was refused" in refusal[1]
    world.gate.show([world.grant(7)])
    assert world.reason(WRITE, 7) is None


def test_a_newer_grant_takes_the_place_of_the_one_before(world: World) -> None:
    world.gate.show([world.grant(7, Right.WRITE, life_ms=500)])
    world.gate.show([world.grant(7, Right.WRITE | Right.RECOVER, life_ms=2_000)])
    assert world.gate.left_ms(7) == 2_000
    assert world.reason(Need(On.LEDGER, Right.RECOVER), 7) is None


def test_a_stream_remembers_so_many_grants_and_drops_ended_ones_before_old_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRANTS_MAX", 4)
    world.gate.show([world.grant(1), world.grant(2, life_ms=10), world.grant(3), world.grant(4)])
    assert [world.reason(WRITE, each) for each in (1, 2, 3, 4)] == [None] * 4, "as many as it may"
    world.now_ms += 20
    world.gate.show([world.grant(5)])
    assert [each for each in range(1, 6) if world.reason(WRITE, each) is None] == [1, 3, 4, 5], "2 had ended"
    world.gate.show([world.grant(6)])
    assert [each for each in range(1, 7) if world.reason(WRITE, each) is None] == [3, 4, 5, 6], "1 was the oldest"
