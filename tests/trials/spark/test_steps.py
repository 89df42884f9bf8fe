# SPDX-License-Identifier: Apache-2.0
"""The steps of a publish are told apart in packets as the client library makes them; a held request arrives late."""

from __future__ import annotations

import struct
import uuid
from contextlib import closing
from dataclasses import replace

import pytest
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData, Transaction
from kazoo.security import OPEN_ACL_UNSAFE

from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.errors import MetadataUnavailableError
from bk_core.metadata import open_store
from bk_core.metadata.port import LogWrite
from bk_core.model import BookieId, Fragment, LedgerMetadata, LedgerState
from tests.kit.zookeeper_proxy import ZooKeeperProxy
from tests.trials.spark.steps import STEPS, head_multi_of

LEDGER = "/ledgers/00/0000/L0017"
HEAD = "/ledgers-logs/events"
RECORD = LedgerMetadata(
    ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, fragments=(Fragment(0, (BookieId("a"),)),)
)


def packet(request: Create | SetData | Delete | Transaction) -> tuple[int, bytes]:
    body = struct.pack(">ii", 7, request.type) + bytes(request.serialize())
    return request.type, struct.pack(">i", len(body)) + body


def create(path: str) -> Create:
    return Create(path, b"data", OPEN_ACL_UNSAFE, 0)


@pytest.mark.parametrize(
    ("request_", "step"),
    [
        (create(LEDGER), "ledger create"),
        (create("/ledgers/000/0000/0000/0000/L0017"), "ledger create"),
        (Transaction([Delete("/ledgers/idgen/ID-0000000017", -1), create(LEDGER)]), "ledger create"),
        (Transaction([Delete("/ledgers/idgen/ID-0000000017", -1)]), None),
        (Transaction([Delete("/ledgers/idgen/ID-0000000017", -1), create("/ledgers/00/0000")]), None),
        (SetData(LEDGER, b"data", 3), "ledger close"),
        (create(f"{HEAD}/pages/abc"), "page create"),
        (Transaction([SetData(HEAD, b"head", 3)]), "head multi"),
        (Transaction([SetData(HEAD, b"head", 3), create(f"{HEAD}/txns/ab")]), "head multi"),
        (Transaction([create(HEAD), create(f"{HEAD}/pages"), create(f"{HEAD}/txns")]), None),  # a new log
        (Transaction([CheckVersion(HEAD, 3), Delete(f"{HEAD}/txns/ab", 1)]), None),
        (create("/ledgers/idgen/ID-"), None),
        (create("/ledgers/00/0000"), None),
        (SetData("/ledgers/LAYOUT", b"data", 0), None),
        (Delete(LEDGER, 3), None),
    ],
)
def test_a_step_is_known_by_its_packet(request_: Create | SetData | Delete | Transaction, step: str | None) -> None:
    kind, data = packet(request_)
    assert [name for name, is_it in STEPS.items() if is_it(kind, data)] == ([] if step is None else [step])
    assert head_multi_of("events")(kind, data) == (step == "head multi")
    assert not head_multi_of("event")(kind, data)


@pytest.mark.zookeeper
def test_the_store_makes_the_packets_that_the_steps_know(zookeeper_server: ZooKeeperServer) -> None:
    path = f"{uuid.uuid4().hex[:12]}/ledgers"
    proxy = ZooKeeperProxy("127.0.0.1", zookeeper_server.port)
    with closing(proxy), closing(open_store(f"zk://127.0.0.1:{proxy.port}/{path}")) as store:
        store.initialize_cluster()
        store.create_ledger(RECORD)  # the first one also makes the folders
        seen = list[str]()

        def note(kind: int, packet: bytes) -> bool:
            seen.extend(name for name, is_it in STEPS.items() if is_it(kind, packet))
            return False

        proxy.lose_next_answer(applied=True, of=note)
        ledger_id, found = store.create_ledger(RECORD)
        closed = replace(found.value, state=LedgerState.CLOSED, last_entry_id=-1, length=0)
        store.write_ledger(ledger_id, closed, found.version)
        store.create_log("events", b"head")
        store.write_logs([LogWrite(name="events", head=b"new", version=0)])
        assert seen == ["ledger create", "ledger close", "head multi"]


@pytest.mark.zookeeper
def test_a_compare_and_set_that_is_under_way_arrives_though_its_client_is_gone(
    zookeeper_server: ZooKeeperServer,
) -> None:
    path = f"{uuid.uuid4().hex[:12]}/ledgers"
    proxy = ZooKeeperProxy("127.0.0.1", zookeeper_server.port)
    direct = open_store(f"zk://127.0.0.1:{zookeeper_server.port}/{path}")
    with closing(proxy), closing(direct):
        direct.initialize_cluster()
        direct.create_log("events", b"old")
        stop = proxy.stop_next(lambda kind, data: kind == Transaction.type, answered=False)
        store = open_store(f"zk://127.0.0.1:{proxy.port}/{path}", timeout_s=0.5, session_timeout_s=60.0)
        with closing(store), pytest.raises(MetadataUnavailableError):
            store.write_logs([LogWrite(name="events", head=b"new", version=0)])
        assert stop.reached.is_set()
        assert direct.read_log("events").value == b"old"
        stop.let_go.set()
        for _ in range(200):
            direct.sync()
            if direct.read_log("events").value == b"new":
                break
        assert direct.read_log("events").value == b"new"
