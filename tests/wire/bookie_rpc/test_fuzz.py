# SPDX-License-Identifier: Apache-2.0
"""A few rounds of ``scripts/prove fuzz``, and that it would notice."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from bk_core.transport.bookie_rpc import adds, reads
from bk_core.wire.bookie_rpc import layouts
from bk_core.wire.bookie_rpc.status import Status
from bookie_server.ports.access import tls
from bookie_server.ports.access.tokens import Claims
from bookie_server.ports.bookie_rpc import adds as bookie_adds
from tests.kit.amount import some
from tests.wire.bookie_rpc.fuzz import Tally, run_round
from tests.wire.bookie_rpc.fuzz_doors import admin_round, hello_round
from tests.wire.bookie_rpc.fuzz_ends import bookie_round, client_round
from tests.wire.bookie_rpc.fuzz_proof import ROUNDS_A_CHUNK, FuzzProof, FuzzWorld, run_chunk
from tests.wire.bookie_rpc.fuzz_tokens import token_round


def rounds_of(kind: Callable[[int], Tally], count: int) -> Tally:
    return run_chunk(range(count), (kind,))[0]


@pytest.mark.rule("L5")
def test_mutated_frames_are_read_as_they_would_be_by_themselves() -> None:
    tally = rounds_of(run_round, some(40, 10))
    assert tally.problems == []
    assert tally.faults > 50
    assert tally.frames > 2 * tally.faults, "readers went on behind the bad frames"


@pytest.mark.long
def test_it_notices_a_reader_that_trusts_a_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts._Part, "differs", lambda self, rows: None)
    assert rounds_of(run_round, 12).problems != []


@pytest.mark.rule("MUST1")
def test_a_bookies_connection_acks_nothing_that_is_not_kept_and_leaves_nothing() -> None:
    tally = rounds_of(bookie_round, some(12, 4))
    assert tally.problems == []
    assert tally.bookie > 600
    assert tally.faults > 20, "connections ended, and others went on"


@pytest.mark.rule("MUST4")
def test_a_clients_connection_hears_no_ack_and_no_absence_that_nobody_said() -> None:
    tally = rounds_of(client_round, some(30, 8))
    assert tally.problems == []
    assert tally.client > 200
    assert tally.faults > 20


def test_no_mutated_token_opens_anything() -> None:
    tally = rounds_of(token_round, some(10, 3))
    assert tally.problems == []
    assert tally.tokens > 200
    assert tally.faults > 100


@pytest.mark.parametrize("kind", [hello_round, admin_round])
def test_no_mutated_hello_or_request_opens_anything(kind: Callable[[int], Tally]) -> None:
    tally = rounds_of(kind, some(10, 3))
    assert tally.problems == []
    assert tally.doors >= 60 * some(10, 3)
    assert tally.doors // 5 < tally.faults < tally.doors, "some are let in, and many are not"


@pytest.mark.long
@pytest.mark.parametrize("kind", [token_round, hello_round, admin_round])
def test_it_notices_who_takes_any_token(kind: Callable[[int], Tally], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "verify", lambda *_: Claims("anybody", 1e12, ""))
    assert rounds_of(kind, 4).problems != []


@pytest.mark.long
def test_it_notices_doors_that_stand_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls.PortTls, "admitted", lambda self, principal, token, port: principal)
    for kind in (hello_round, admin_round):
        assert rounds_of(kind, 2).problems != []


@pytest.mark.long
def test_it_notices_connections_that_believe_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(adds.WireAdds, "_refused", lambda self, sent, places, _: self._taken(sent, places.size))
        assert rounds_of(client_round, 12).problems != []
    with monkeypatch.context() as patch:
        patch.setattr(reads, "_ABSENT", (*reads._ABSENT, Status.EIO, Status.ETOOMANYREQUESTS))
        assert rounds_of(client_round, 30).problems != []
    with monkeypatch.context() as patch:
        patch.setattr(bookie_adds, "refused_add", lambda reason: Status.EOK)
        assert rounds_of(bookie_round, 6).problems != []


@pytest.mark.long
def test_a_round_of_the_proof_tries_rounds_that_no_other_tries() -> None:
    ask = Namespace(seed=1000, jobs=2, doors=True)
    tried: list[int] = []
    pool = SimpleNamespace(map=lambda _, chunks: [tried.extend(chunk) or (Tally(mutated=1), 9) for chunk in chunks])
    world = FuzzWorld(pool, ask)  # type: ignore[arg-type]  # a pool that only notes
    figures = world.round(0)
    figures.add(world.round(1))
    assert tried == list(range(1000, 1000 + 2 * 2 * ROUNDS_A_CHUNK))
    assert (figures.rounds, figures.counts["mutated"], world.finish().note) == (2, 4, "at most 9 MiB a process")
    ask.frames = 5
    assert FuzzProof(ask).next(figures) == 2
    ask.frames = 4
    assert FuzzProof(ask).next(figures) is None
