# SPDX-License-Identifier: Apache-2.0
"""Real processes: one of four bookies is lost, and ``bk autorecovery`` puts its copies on the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from bk_cli import main
from bk_cli.local.cluster import LocalCluster
from bk_core import blocking
from bk_core.client.repairing.repair import BURST_S
from bk_core.metadata import open_store
from bookie_server.autorecovery.settings import AutoRecoveryConfig
from tests.kit.canaries import PASSWORD
from tests.kit.clusters import temporary_cluster
from tests.kit.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.zookeeper, pytest.mark.timeout(300)]

LEDGERS, ENTRIES, PAYLOAD = 24, 40, b"x" * 8_000
RATE = 1_000_000


def _is_paced(log: str) -> bool:
    """A ledger's bytes are paid for before another one is begun in its stead, so the rate binds all but those that were
    begun together. By the process's own clock."""
    copied = [line for line in log.splitlines() if "bytes copied" in line]
    first, last = (datetime.fromisoformat(line[:23].replace(",", ".")) for line in (copied[0], copied[-1]))
    paid = (len(copied) - AutoRecoveryConfig().repairs_max) * ENTRIES * len(PAYLOAD)
    return (last - first).total_seconds() > paid / RATE - 2 * BURST_S > 0


def _write(cluster: LocalCluster) -> list[int]:
    made = []
    with blocking.connect(cluster.uri) as client:
        for _ in range(LEDGERS):
            with client.create_ledger(password=PASSWORD) as ledger:
                for _ in range(ENTRIES):
                    ledger.append(PAYLOAD)
                made.append(ledger.ledger_id)
    return made


@pytest.mark.rule("D23")
def test_copies_of_a_lost_bookie_are_put_back_at_the_rate_given(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    with temporary_cluster(tmp_path_factory) as cluster:
        ledgers = _write(cluster)
        cluster.bookies[0].kill()
        lost = cluster.bookies[0].bookie_id
        command = ["autorecovery", "--rate", str(RATE), "--lost-bookie-delay", "1s", "--name", "healer"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        log = tmp_path_factory.mktemp("log") / "autorecovery.log"
        with log.open("w") as out, closing(open_store(cluster.uri)) as store:
            named = [i for i in ledgers if lost in store.read_ledger(i).value.last_fragment.ensemble]
            assert len(named) > LEDGERS // 3
            process = subprocess.Popen(
                [sys.executable, "-m", "bk_cli.main", "-v", *command, "--metadata-service-uri", cluster.uri],
                stdout=out,
                stderr=out,
                env=environment,
            )
            try:
                until(lambda: bool(store.underreplication_locks()), 60)
                until(lambda: not list(store.list_underreplicated()), 120)
                assert _is_paced(log.read_text()), log.read_text()
                members = [store.read_ledger(i).value.last_fragment.ensemble for i in ledgers]
                assert not any(lost in ensemble for ensemble in members)
                assert main.run(["replication", "status", "--json", "--metadata-service-uri", cluster.uri]) == 0
                said = json.loads(capsys.readouterr().out.splitlines()[-1])
                assert (said["auditor"], said["underReplicated"], said["enabled"]) == ("healer", 0, True)
            finally:
                process.terminate()
                assert process.wait(30) == 0, log.read_text()
        cluster.bookies[1].kill()  # of each ledger two bookies are left, and one of them has a copied copy
        with blocking.connect(cluster.uri) as client:
            for ledger_id in ledgers:
                reader = client.open_ledger(ledger_id, recover=False, password=PASSWORD)
                assert sum(len(batch) for batch in reader.read(0, ENTRIES - 1)) == ENTRIES
