# SPDX-License-Identifier: Apache-2.0
"""Apache's FORCE_LEDGER: answered when every add of the ledger that came before it on the connection is durable."""

from __future__ import annotations

import pytest

from bk_core.wire.bookie_rpc.runs import AddAnswers
from tests.bookie_server.ports.bookie_rpc.test_connection import add, story
from tests.kit import bookie_requests as make
from tests.kit.rpc_bookie import answers


@pytest.mark.rule("P1")
def test_a_force_waits_for_both_sessions_of_its_ledger() -> None:
    """Adds of a writer and adds of a recovery are sessions of their own, and may become durable one after the other."""
    bookie, client = story()
    client.ask(add(7, 0) + add(7, 1, recovery=True))
    bookie.hold = True
    client.ask(add(7, 2) + add(7, 3, recovery=True))
    assert client.ask(make.force(1, 7)) == b""
    first, second = bookie.uncommitted
    bookie.uncommitted = [first]
    bookie.commit()
    (added,) = answers(client.take(), 3)
    assert isinstance(added, AddAnswers), "the force is not answered: an add of the other session is not durable"
    bookie.uncommitted = [second]
    bookie.commit()
    added, forced = answers(client.take(), 3)
    assert isinstance(added, AddAnswers)
    assert forced.response.forceLedgerResponse.ledgerId == 7


@pytest.mark.rule("P1")
def test_a_force_does_not_wait_for_adds_that_come_after_it() -> None:
    bookie, client = story()
    client.ask(add(7, 0))
    bookie.hold = True
    client.ask(add(7, 1))
    client.ask(make.force(1, 7))
    client.ask(add(7, 2))
    first, later = bookie.uncommitted
    bookie.uncommitted = [first]
    bookie.commit()
    assert [isinstance(item, AddAnswers) for item in answers(client.take(), 3)] == [True, False]
    bookie.uncommitted = [later]
    bookie.commit()
    assert [isinstance(item, AddAnswers) for item in answers(client.take(), 3)] == [True]
