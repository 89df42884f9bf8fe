# SPDX-License-Identifier: Apache-2.0
"""Real processes: a ledger that cannot come out of recovery is explained, and what the explanation says helps."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from bk_cli import main
from bk_cli.access import Access
from bk_cli.explain.ledger_seen import see_ledger
from bk_cli.local.children import child_environment
from bk_cli.local.cluster import BookieProcess, LocalCluster
from bk_core import blocking
from bk_core.errors import BookKeeperError
from tests.kit.canaries import PASSWORD
from tests.kit.clusters import temporary_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.zookeeper, pytest.mark.timeout(300)]


class AcceptsLoss(BookieProcess):
    def _command(self) -> list[str]:
        return [*super()._command(), "--accept-loss"]


def _open_ledger(cluster: LocalCluster) -> int:
    """Twenty entries on three bookies, and no writer any more."""
    with blocking.connect(cluster.uri) as client:
        ledger = client.create_ledger(password=PASSWORD)
        for number in range(20):
            ledger.append(b"entry %d" % number)
        time.sleep(1)  # the third copy of the last one
        ledger_id: int = ledger.ledger_id
        ledger.abandon()
    return ledger_id


def _explained(cluster: LocalCluster, ledger_id: int) -> tuple[dict[str, Any], str]:
    """Return what the command prints as JSON and as text."""
    command = [sys.executable, "-m", "bk_cli.main", "ledger", "explain", str(ledger_id)]
    command += ["--metadata-service-uri", cluster.uri]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=child_environment()).stdout
    found = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, env=child_environment())
    return json.loads(found.stdout), text


def _asked_while_two_hang(cluster: LocalCluster, ledger_id: int) -> float:
    """How long it takes to ask the bookies; the best of three times, because others use the machine, too."""
    hung, took_s = cluster.bookies[:2], list[float]()
    for each in hung:
        assert each.pid
        os.kill(each.pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            began = time.monotonic()
            seen = see_ledger(Access(cluster.uri), ledger_id)
            took_s.append(time.monotonic() - began)
            silent = {bookie for bookie, copy in seen.copies.items() if copy.trouble}
            assert silent == {each.bookie_id for each in hung}, "the third one has answered"
    finally:
        for each in hung:
            assert each.pid
            os.kill(each.pid, signal.SIGCONT)
    return min(took_s)


@pytest.mark.rule("MUST4")
def test_ledger_that_is_stuck_in_recovery_is_explained_and_the_remedy_helps(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    with temporary_cluster(tmp_path_factory, 3) as cluster:
        ledger_id = _open_ledger(cluster)
        whole, down, wiped = cluster.bookies
        down.kill()
        wiped.kill()
        shutil.rmtree(wiped.data_dir)
        in_limbo = AcceptsLoss(wiped.number, wiped.data_dir, wiped.port, cluster.uri)
        in_limbo.start()
        cluster.wait_ready([in_limbo])
        try:
            with blocking.connect(cluster.uri) as client, pytest.raises(BookKeeperError):
                client.open_ledger(ledger_id, recover=True, password=PASSWORD)
            found, text = _explained(cluster, ledger_id)
            worst = found["findings"][0]
            assert (found["state"], worst["weight"]) == ("IN_RECOVERY", "problem")
            assert worst["what"].startswith("in recovery for ")
            assert f"entry 20 is unknown on {down.bookie_id} (away), {wiped.bookie_id} (limbo)" in worst["what"] or (
                f"entry 20 is unknown on {wiped.bookie_id} (limbo), {down.bookie_id} (away)" in worst["what"]
            )
            assert f"denied by {whole.bookie_id}" in worst["what"]
            assert worst["remedy"].startswith(f"start {down.bookie_id} ")
            assert worst["what"].partition(": ")[2] in text  # it is a second older
            down.start()
            cluster.wait_ready([down])
            found, _ = _explained(cluster, ledger_id)
            assert "its last entry would be 19" in found["findings"][0]["what"]
            remedy = found["findings"][0]["remedy"].split()
            assert remedy[:3] == ["bk", "ledger", "recover"]
            arguments = [*remedy[1:], "--ledger-password", PASSWORD.decode(), "--metadata-service-uri", cluster.uri]
            assert main.run(arguments) == 0
            found, _ = _explained(cluster, ledger_id)
            assert found["state"] == "CLOSED"
            assert _asked_while_two_hang(cluster, ledger_id) < 0.7, "a whole command takes a second"
            with blocking.connect(cluster.uri) as client, client.log("events").lead() as leader:
                leader.append(b"x")
                assert main.run(["log", "explain", "events", "--metadata-service-uri", cluster.uri]) == 0
            assert main.run(["placement", "explain", "--disk-weight", "--metadata-service-uri", cluster.uri]) == 0
            said = capsys.readouterr().out
            assert "a leader writes ledger" in said
            assert "there is no spare: 3 bookies are writable" in said
        finally:
            in_limbo.kill()
