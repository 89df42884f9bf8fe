# SPDX-License-Identifier: Apache-2.0
"""Real processes: two run ``bk upkeep``; the elected one is killed while it copies, and the other finishes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from bk_cli import main
from bk_core import blocking
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from tests.cli.data.test_log_upkeep import publish, values
from tests.kit.canaries import PASSWORD
from tests.kit.clusters import temporary_cluster
from tests.kit.metadata_worlds import tree_of
from tests.kit.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.zookeeper, pytest.mark.timeout(120)]

LEDGERS, EACH = 20, 200


@contextmanager
def upkeep(uri: str, name: str, rate: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "BK_LEDGER_PASSWORD": PASSWORD.decode()}
    options = ["--name", name, "--rate", rate, "--metadata-service-uri", uri]
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "bk_cli.main", "upkeep", *options], stdout=out, stderr=out, env=environment
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def end_vote(store: MetadataStore) -> None:
    """As ZooKeeper does ten seconds later, when it ends the session of the elected worker."""
    folder = "/ledgers-upkeep/election"
    tree_of(store).delete(f"{folder}/{min(tree_of(store).children(folder))}")


@pytest.mark.rule("N6")
def test_a_worker_killed_while_it_copies_is_followed_by_another(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first_log, second_log = tmp_path / "first.log", tmp_path / "second.log"
    with temporary_cluster(tmp_path_factory) as cluster, blocking.connect(cluster.uri) as client:
        for n in range(LEDGERS):
            publish(client, "events", values(n * EACH, EACH))
        log = client.log("events", password=PASSWORD)
        log.set_retention(retention_bytes=sum(extent.size_bytes for extent in log.extents()[1:]))
        at = ["--ledger-password", PASSWORD.decode(), "--json", "--metadata-service-uri", cluster.uri]
        assert main.run(["upkeep", "--dry-run", "--min-extents", "99", *at]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [each["do"] for each in told if "do" in each] == ["trim"]
        assert (told[-1]["elected"], log.head().value.start_offset) == (None, 0)
        assert main.run(["upkeep", "--once", "--min-extents", "99", *at]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["trimmedLedgers"] == 1
        log.set_retention(retention_bytes=0)  # else merged ledgers are a tenth of it at most

        with closing(open_store(cluster.uri)) as store, upkeep(cluster.uri, "first", "10k", first_log) as first:
            until(lambda: store.current_upkeep_worker() == "first", 20)
            with upkeep(cluster.uri, "second", "10m", second_log) as second:
                until(lambda: "compact of log events" in first_log.read_text(), 20)
                first.kill()
                end_vote(store)
                until(lambda: "second does the upkeep of the logs" in second_log.read_text(), 20)
                until(lambda: len(log.extents()) == 1, 20)
                assert main.run(["upkeep", "--once", *at]) == 0
                assert json.loads(capsys.readouterr().out)["elected"] == "second"
                second.terminate()
                assert second.wait(10) == 0
            assert store.current_upkeep_worker() is None
        start = log.head().value.start_offset
        assert start == EACH
        found = [entry for _, batch in log.read(start, LEDGERS * EACH) for entry in batch.to_list()]
        assert found == values(EACH, (LEDGERS - 1) * EACH)
        assert main.run(["upkeep", "--once", *at]) == 0
        done = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert any("readers may still need it" in each.get("why", "") for each in done), "N6: nothing is deleted yet"
        assert done[-1]["failures"] == 0
