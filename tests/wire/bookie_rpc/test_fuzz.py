# SPDX-License-Identifier: Apache-2.0
"""A few rounds of ``scripts/fuzz``, and that it would notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bk_core.transport.bookie_rpc import adds, reads
from bk_core.wire.bookie_rpc import layouts
from bk_core.wire.bookie_rpc.status import Status
from bookie_server.ports.access import tls
from bookie_server.ports.access.tokens import Claims
from bookie_server.ports.bookie_rpc import adds as bookie_adds
from tests.kit.amount import some
from tests.wire.bookie_rpc import fuzz_cli
from tests.wire.bookie_rpc.fuzz import Tally, run_rounds
from tests.wire.bookie_rpc.fuzz_doors import admin_round, hello_round
from tests.wire.bookie_rpc.fuzz_ends import bookie_round, client_round
from tests.wire.bookie_rpc.fuzz_tokens import token_round


@pytest.mark.rule("L5")
def test_mutated_frames_are_read_as_they_would_be_by_themselves() -> None:
    tally = run_rounds(range(some(40, 10)))
    assert tally.problems == []
    assert tally.faults > 50
    assert tally.frames > 2 * tally.faults, "readers went on behind the bad frames"


def test_it_notices_a_reader_that_trusts_a_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts._Part, "differs", lambda self, rows: None)
    assert run_rounds(range(12)).problems != []


def rounds_of(kind: Callable[[int], Tally], count: int) -> Tally:
    tally = Tally()
    for number in range(count):
        tally.add(kind(number))
    return tally


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


@pytest.mark.parametrize("kind", [token_round, hello_round, admin_round])
def test_it_notices_who_takes_any_token(kind: Callable[[int], Tally], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "verify", lambda *_: Claims("anybody", 1e12, ""))
    assert rounds_of(kind, 4).problems != []


def test_it_notices_doors_that_stand_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls.PortTls, "admitted", lambda self, principal, token, port: principal)
    for kind in (hello_round, admin_round):
        assert rounds_of(kind, 2).problems != []


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


def test_it_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_cli, "ROUNDS_A_CHUNK", 1)
    kept = tmp_path / "fuzz.json"
    assert fuzz_cli.main(["--frames", "10", "--resume", str(kept), "--jobs", "1"]) == 0
    first = kept.read_text(encoding="utf-8")
    assert fuzz_cli.main(["--frames", "10", "--resume", str(kept), "--jobs", "1"]) == 0
    assert kept.read_text(encoding="utf-8") == first
    assert "0 problems" in capsys.readouterr().out
