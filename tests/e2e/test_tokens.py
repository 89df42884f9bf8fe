# SPDX-License-Identifier: Apache-2.0
"""Tokens with real processes: an operator makes keys and tokens with ``bk``, and bookies show theirs to each other."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_cli.local.children import child_environment
from bk_core.errors import AuthenticationError
from tests.kit import canaries
from tests.kit.tls_cluster import TlsCluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

HEAL_S = 60.0


def bk(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bk_cli.main", *arguments],
        env={**child_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Cluster(TlsCluster):
    """Its bookies look at tokens alone; their certificates are for TLS and for ZooKeeper."""

    def __init__(self, path: Path) -> None:
        self.key, self.tokens = path / "issuer.key", path
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(self.key)], check=True)
        keys = path / "keys.json"
        keys.write_text(bk("token", "keys", str(self.key)).stdout)
        super().__init__(
            path / "cluster",
            bookies=4,
            tls_client_auth="none",
            token_keys_path=str(keys),
            token_path=str(path / "bookie"),
            tls_clients=["ingest", "bookie"],
            auto_recovery=True,
            lost_bookie_delay_s=0.0,
        )

    def token(self, subject: str) -> Path:
        path = self.tokens / subject
        audience = self.instance_id()
        made = bk(
            "token", "create", f"--key={self.key}", f"--subject={subject}", f"--audience={audience}", f"--output={path}"
        )
        assert made.returncode == 0, made.stderr
        assert path.stat().st_mode & 0o777 == 0o600
        return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path = tmp_path_factory.mktemp("tokens")
    with Cluster(path) as running:
        running.token("bookie")
        yield running
    tokens = [path.read_bytes().strip() for path in path.iterdir() if path.name in ("bookie", "ingest", "web")]
    assert canaries.check(path / "cluster", {part for token in tokens for part in token.split(b".")[1:]}) > 4


def test_an_operator_asks_with_a_token_and_gets_nothing_without(cluster: Cluster) -> None:
    token = str(cluster.token("ingest"))
    told = {**cluster.environment, "BK_TOKEN_PATH": token}
    for command in (("bookie", "list"), ("doctor",), ("cluster", "top", "--once")):
        said = bk(*command, **told)
        assert said.returncode == 0, (command, said.stdout, said.stderr)
        assert "does not let" not in said.stdout + said.stderr
    looked = bk("bookie", "inspect", cluster.bookies[0].bookie_id, **told)
    assert looked.returncode == 0, looked.stderr
    untold = bk("bookie", "list", **cluster.environment)
    assert "BK_UNAUTHENTICATED" in untold.stdout + untold.stderr, untold
    assert "writable," not in untold.stderr
    for command in (("bookie", "list", "--json"), ("bookie", "list"), ("cluster", "top", "--once")):
        assert bk(*command, **cluster.environment).returncode == 7, command
    asked = bk(
        "bookie",
        "inspect",
        cluster.bookies[0].bookie_id,
        "--token-path",
        str(cluster.token("web")),
        **cluster.environment,
    )
    assert "not let in" in asked.stdout + asked.stderr, asked
    assert Path(token).read_text().split(".")[2] not in looked.stdout + looked.stderr


def test_bookies_show_their_tokens_to_each_other_when_they_heal_a_ledger(cluster: Cluster) -> None:
    with cluster.client(token_path=str(cluster.token("ingest"))) as bookkeeper:
        with bookkeeper.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3) as ledger:
            for n in range(100):
                ledger.append_nowait(b"%d" % n)
        before = ledger.metadata.fragments[0].ensemble
        lost = next(each for each in cluster.bookies if each.bookie_id in before)
        lost.kill()
        until = time.monotonic() + HEAL_S
        while lost.bookie_id in _ensemble(cluster, ledger.ledger_id):
            assert time.monotonic() < until, cluster.bookies[1].log_path.read_text()[-3000:]
            time.sleep(0.5)
        reader = bookkeeper.open_ledger(ledger.ledger_id, recover=False)
        found = [value for batch in reader.read(0, 99) for value in batch.to_list()]
        assert found == [b"%d" % n for n in range(100)]
    with cluster.client() as stranger:
        before = stranger.list_ledgers()
        with pytest.raises(AuthenticationError, match="wants a token"):
            stranger.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        assert stranger.list_ledgers() == before


def _ensemble(cluster: Cluster, ledger_id: int) -> tuple[str, ...]:
    with cluster.client(token_path=str(cluster.tokens / "ingest")) as bookkeeper:
        return bookkeeper.open_ledger(ledger_id, recover=False).metadata.fragments[0].ensemble
