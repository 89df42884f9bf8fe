# SPDX-License-Identifier: Apache-2.0
"""Real bookies whose nodes in ZooKeeper have ACLs: all works for who has an identity, and nothing for others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bk_cli.local.children import child_environment
from bk_core import blocking
from bk_core.client import ClientConfig
from bk_core.errors import MetadataAccessError, NoSuchLedgerError
from bk_core.metadata import open_store
from tests.kit.waiting import until
from tests.kit.zookeeper_auth import AuthCluster

pytestmark = [pytest.mark.e2e, pytest.mark.zookeeper, pytest.mark.timeout(240)]

USERS = {"app": "one", "bookie": "two", "ops": "three"}
LIST = "client=sasl:app; bookie=sasl:bookie; admin=sasl:ops"


def bk(cluster: AuthCluster, *arguments: str, user: str, acl: str) -> subprocess.CompletedProcess[str]:
    mine = {"BK_ZOOKEEPER_AUTH_PATH": cluster.paths[user]} if user else {}
    return subprocess.run(
        [sys.executable, "-m", "bk_cli.main", *arguments, "--metadata-service-uri", cluster.uri],
        env={**child_environment(), "BK_ZOOKEEPER_ACL": acl, **mine},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def listed(tmp_path: Path) -> Iterator[AuthCluster]:
    (tmp_path / "cluster").mkdir()
    settings = {
        "zookeeper_auth_path": str(tmp_path / "cluster" / "bookie.auth"),
        "zookeeper_acl": LIST,
        "auto_recovery": True,
        "lost_bookie_delay_s": 1.0,
    }
    with AuthCluster(tmp_path / "cluster", USERS, 4, settings) as running:
        yield running


def test_a_cluster_of_roles_writes_heals_recovers_and_deletes_and_a_stranger_does_nothing(listed: AuthCluster) -> None:
    config = ClientConfig(zookeeper_auth_path=listed.paths["app"], zookeeper_acl=LIST, reconnect_budget_ms=300)
    with (
        blocking.connect(listed.uri, config=config) as client,
        closing(open_store(listed.uri, auth_path=listed.paths["app"], acl=LIST)) as store,
    ):
        ledger = client.create_ledger(password=b"pw")
        for n in range(50):
            ledger.append(b"%d" % n)
        lost = next(each for each in listed.bookies if each.bookie_id in ledger.metadata.fragments[0].ensemble)
        lost.kill()
        for n in range(50, 100):
            ledger.append(b"%d" % n)
        reader = client.open_ledger(ledger.ledger_id, recover=True, password=b"pw")
        found = [value for batch in reader.read(0, 99) for value in batch.to_list()]
        assert found == [b"%d" % n for n in range(100)]

        def is_healed() -> bool:
            fragments = store.read_ledger(ledger.ledger_id).value.fragments
            return not any(lost.bookie_id in each.ensemble for each in fragments)

        until(is_healed, 60)
        with closing(open_store(listed.uri)) as stranger:
            for forbidden in (
                lambda: stranger.delete_ledger(ledger.ledger_id),
                lambda: stranger.read_ledger(ledger.ledger_id),
                stranger.writable_bookies,
                stranger.list_logs,
            ):
                with pytest.raises(MetadataAccessError):
                    forbidden()
        with pytest.raises(MetadataAccessError, match="zookeeper_auth_path"):
            blocking.connect(listed.uri)
        assert store.create_log("events", b"head").version == 0
        client.delete_ledger(ledger.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            store.read_ledger(ledger.ledger_id)
    said = bk(listed, "doctor", user="ops", acl=LIST)
    assert "ok    acls" in said.stdout, said.stdout + said.stderr
    refused = bk(listed, "ledger", "list", user="", acl="open")
    assert (refused.returncode, "BK_METADATA_ACCESS" in refused.stderr) == (5, True), refused.stderr


def test_a_running_cluster_gets_acls_and_gives_them_up_again(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    with AuthCluster(tmp_path / "cluster", USERS, 3, {}) as cluster:
        with blocking.connect(cluster.uri) as client:
            ledger = client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
            ledger.append(b"before")
            ledger.close()
        assert "note  acls" in bk(cluster, "doctor", user="", acl="open").stdout
        early = bk(cluster, "cluster", "secure-zookeeper", user="bookie", acl="creator")
        assert early.returncode == 5
        assert cluster.bookies[0].bookie_id in early.stderr
        with closing(open_store(cluster.uri)) as stranger:
            stranger.read_ledger(ledger.ledger_id)
        wrong = bk(cluster, "cluster", "secure-zookeeper", "--force", user="app", acl=LIST)
        assert "is not an admin" in wrong.stderr, wrong.stderr
        own = {"zookeeper_auth_path": cluster.paths["bookie"]}
        cluster.restart(own)
        cluster.restart({**own, "zookeeper_acl": "creator"})
        dry = bk(cluster, "cluster", "secure-zookeeper", "--dry-run", "--json", user="bookie", acl="creator")
        done = bk(cluster, "cluster", "secure-zookeeper", "--json", user="bookie", acl="creator")
        assert done.returncode == 0, done.stderr
        assert json.loads(dry.stdout)["other"] == json.loads(done.stdout)["changed"] > 5
        again = json.loads(bk(cluster, "cluster", "secure-zookeeper", "--json", user="bookie", acl="creator").stdout)
        assert (again["open"], again["other"]) == (0, 0)
        with closing(open_store(cluster.uri)) as stranger, pytest.raises(MetadataAccessError):
            stranger.delete_ledger(ledger.ledger_id)
        config = ClientConfig(zookeeper_acl="creator", zookeeper_auth_path=cluster.paths["bookie"])
        with blocking.connect(cluster.uri, config=config) as client:
            assert client.open_ledger(ledger.ledger_id, recover=False).last_add_confirmed == 0
        undone = bk(cluster, "cluster", "secure-zookeeper", "--undo", user="bookie", acl="open")
        assert undone.returncode == 0, undone.stderr
        with closing(open_store(cluster.uri)) as stranger:
            stranger.delete_ledger(ledger.ledger_id)
