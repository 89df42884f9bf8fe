# SPDX-License-Identifier: Apache-2.0
"""A cluster of mode secure as ``bk local --secure`` makes it: bookies copy what others lost because of their role, and
what roles give and take shows at clients within seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bk_cli import main
from bk_cli.local.cluster import LocalCluster
from bk_cli.local.local_security import ADMIN, BOOKIE, CLIENT, LocalSecurity
from bk_core import blocking
from bk_core.client import ClientConfig
from bk_core.errors import BookKeeperError, PermissionDeniedError
from bookie_server.ports.access.authority import KEPT_S
from tests.kit import canaries
from tests.kit.canaries import PASSWORD
from tests.kit.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.zookeeper, pytest.mark.timeout(240)]

LEDGERS, ENTRIES = 6, 50


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    path = tmp_path_factory.mktemp("secure")
    settings = {"auto_recovery": True, "lost_bookie_delay_s": 1.0, "session_timeout_s": 4.0}
    with LocalCluster(path, port=0, zookeeper_port=0, secure=True, settings=settings) as running:
        yield running
    assert running.security is not None
    keys = (running.security.key(who) for who in (ADMIN, BOOKIE, CLIENT))
    canaries.check(path, {line for key in keys for line in canaries.key_lines(key)})


def as_admin(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    assert cluster.security is not None
    with monkeypatch.context() as inner:
        for name, value in cluster.security.environment(ADMIN, cluster.uri).items():
            inner.setenv(name, value)
        assert main.run(command) == 0


def connected(cluster: LocalCluster) -> blocking.BookKeeper:
    return blocking.connect(cluster.uri, config=ClientConfig(**cluster.client_settings, reconnect_budget_ms=300))


@pytest.mark.rule("D23")
def test_bookies_with_their_role_copy_what_a_lost_one_had_and_without_it_nothing(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = ("bookie", LocalSecurity.identity(BOOKIE))
    as_admin(cluster, monkeypatch, "role", "revoke", *role)
    made = []
    with connected(cluster) as client:
        for _ in range(LEDGERS):
            with client.create_ledger(password=PASSWORD) as ledger:
                for number in range(ENTRIES):
                    ledger.append_nowait(b"entry %d" % number)
                made.append(ledger.ledger_id)
    with cluster.access().store() as store:

        def members() -> list[str]:
            return [each for ledger in made for each in store.read_ledger(ledger).value.last_fragment.ensemble]

        lost = max(cluster.bookies, key=lambda bookie: members().count(bookie.bookie_id))
        others = [bookie for bookie in cluster.bookies if bookie is not lost]
        named = members().count(lost.bookie_id)
        assert named > 0
        lost.kill()
        denied = f"{role[1]} may not"
        until(lambda: any(denied in bookie.log_path.read_text() for bookie in others), 60)
        assert members().count(lost.bookie_id) == named, "copied without the role"
        as_admin(cluster, monkeypatch, "role", "grant", *role)
        until(lambda: lost.bookie_id not in members() and not list(store.list_underreplicated()), 90)
    others[0].kill()  # of each ledger two copies are left, and one of them may be a copied one
    wanted = [b"entry %d" % number for number in range(ENTRIES)]
    with connected(cluster) as client:
        for ledger_id in made:
            reader = client.open_ledger(ledger_id, recover=False, password=PASSWORD)
            assert [value for batch in reader.read(0, ENTRIES - 1) for value in batch.to_list()] == wanted
    for bookie in (lost, others[0]):
        bookie.start()
    cluster.wait_ready([lost, others[0]])


def test_a_role_that_is_changed_shows_within_seconds_and_what_is_refused_leaves_nothing(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = LocalSecurity.identity(CLIENT)
    with connected(cluster) as client:
        allowed = client.log("orders-eu")
        with allowed.lead() as leader:
            leader.append(b"first")
        as_admin(cluster, monkeypatch, "role", "revoke", "writer", me)
        as_admin(cluster, monkeypatch, "role", "grant", "writer", me, "--log", "orders-*")
        time.sleep(KEPT_S + 0.5)
        with allowed.lead() as leader:
            leader.append(b"second")
        assert [bytes(each) for _, batch in allowed.read(0, 2) for each in batch.to_list()] == [b"first", b"second"]
        before = client.list_ledgers()
        with pytest.raises(PermissionDeniedError, match=f"{me} may not write to ledger"):
            client.create_ledger()
        with pytest.raises(PermissionDeniedError, match="--log invoices"), client.log("invoices").lead() as leader:
            leader.append(b"third")
        assert client.list_ledgers() == before
    open_client = ClientConfig(**{**cluster.client_settings, "security": "open"}, add_quorum_timeout_ms=12_000)
    with blocking.connect(cluster.uri, config=open_client) as untold, pytest.raises(BookKeeperError):
        untold.create_ledger().append(b"x")
