# SPDX-License-Identifier: Apache-2.0
"""``kill -9`` of all bookies in the middle of appends: every acknowledged entry is there afterwards, with its bytes."""

from __future__ import annotations

import random
import threading
import time

import pytest

from bk_cli.local.cluster import LocalCluster
from bk_core.blocking import LedgerWriter, connect
from bk_core.errors import BookKeeperError, WindowFullError

ENSEMBLES = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 2, 2)]
"""The ensemble size, write quorum and ack quorum of the ledger of each round. ``scripts/trial bookie`` kills bookies
for hours."""


def payload(round_number: int, entry: int) -> bytes:
    return b"%d/%d " % (round_number, entry) + b"*" * (entry * 31 % 300)


class Appender(threading.Thread):
    """Appends until the writer fails, and remembers the highest entry that was acknowledged."""

    def __init__(self, ledger: LedgerWriter, round_number: int) -> None:
        super().__init__(daemon=True)
        self.ledger, self.round_number = ledger, round_number

    def run(self) -> None:
        entry = 0
        while True:
            try:
                self.ledger.append_nowait(payload(self.round_number, entry))
            except WindowFullError:
                time.sleep(0.001)
            except BookKeeperError:
                return
            else:
                entry += 1
                if entry % 50 == 0:
                    time.sleep(0.001)


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.rule("MUST2")
def test_acknowledged_entries_survive_kill_9_of_all_bookies(cluster: LocalCluster) -> None:
    rng = random.Random(20260101)
    acknowledged = 0
    for round_number, (e, qw, qa) in enumerate(ENSEMBLES):
        with connect(cluster.uri) as bookkeeper:
            ledger = bookkeeper.create_ledger(ensemble_size=e, write_quorum_size=qw, ack_quorum_size=qa)
            appender = Appender(ledger, round_number)
            appender.start()
            time.sleep(rng.uniform(0.02, 0.5))
            for bookie in rng.sample(cluster.bookies, len(cluster.bookies)):
                bookie.kill()
            confirmed = ledger.last_add_confirmed  # as far as anybody was told
            ledger.abandon()
            appender.join(10)
        for bookie in cluster.bookies:
            bookie.start()
        cluster.wait_ready()
        with connect(cluster.uri) as bookkeeper:
            sealed = bookkeeper.open_ledger(ledger.ledger_id, recover=True)
            found = [value for batch in sealed.read(0, sealed.last_add_confirmed) for value in batch.to_list()]
        assert len(found) > confirmed, f"round {round_number}: entry {confirmed} was acknowledged and is gone"
        assert found == [payload(round_number, entry) for entry in range(len(found))]
        acknowledged += confirmed + 1
    assert acknowledged > 10 * len(ENSEMBLES), "the rounds hardly wrote anything: they prove nothing"
