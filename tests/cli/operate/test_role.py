# SPDX-License-Identifier: Apache-2.0
"""``bk role`` on a metadata store in memory, and on a real ZooKeeper."""

from __future__ import annotations

import json
import logging
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from bk_cli import main
from bk_core.metadata import open_store
from bk_core.model import Fragment, LedgerMetadata
from tests.cli.conftest import Bk
from tests.kit.memory_store import MemoryStore as MemoryStore  # for memory://


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def uri(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        uri = f"memory://{uuid.uuid4().hex}"
    else:
        uri = f"{request.getfixturevalue('zookeeper_uri')}/{uuid.uuid4().hex}/ledgers"
    assert main.run(["cluster", "init", "--metadata-service-uri", uri]) == 0
    return uri


@pytest.fixture
def role(uri: str, capsys: pytest.CaptureFixture[str]) -> Bk:
    capsys.readouterr()
    return Bk(uri, capsys)


def test_a_role_is_given_shown_and_taken_away(role: Bk) -> None:
    assert role("role", "list") == 0
    assert role.out == "the table is empty: in mode secure no client may do anything\n"
    assert role("role", "grant", "writer", "CN=ingest", "--log", "orders-*") == 0
    assert role.out == "CN=ingest now has the role writer on log:orders-*\n"
    assert role("role", "grant", "writer", "CN=ingest", "--log", "orders-*", "--json") == 0
    line = {"identity": "CN=ingest", "role": "writer", "on": "log:orders-*"}
    assert json.loads(role.out) == {**line, "changed": False}
    assert role("role", "grant", "admin", "CN=admin-*") == 0
    assert role("role", "list", "--json") == 0
    assert [*map(json.loads, role.out.splitlines())] == [
        {"identity": "CN=admin-*", "role": "admin", "on": "cluster"},
        line,
    ]
    assert role("role", "revoke", "writer", "CN=ingest") == 0
    assert role.out == "CN=ingest had no such role writer (bk role list) on cluster\n"
    assert role("role", "revoke", "writer", "CN=ingest", "--log", "orders-*", "--json") == 0
    assert json.loads(role.out)["changed"] is True
    assert role("role", "check", "CN=ingest") == 0
    assert role.out == "CN=ingest has no rights on the cluster\n"


def test_check_says_what_an_identity_may_and_by_which_lines(role: Bk, uri: str) -> None:
    with closing(open_store(uri)) as store:
        ledger_id, _ = store.create_ledger(
            LedgerMetadata(
                ensemble_size=1,
                write_quorum_size=1,
                ack_quorum_size=1,
                fragments=(Fragment(0, ("b1:1",)),),
                custom_metadata={"bk.owner": b"CN=ingest", "team": b"sales"},
            )
        )
    assert role("role", "grant", "reader", "CN=*", "--ledgers", "team=sa*") == 0
    assert role("role", "grant", "writer", "CN=ingest", "--owned") == 0
    assert role("role", "check", "CN=ingest", "--ledger", str(ledger_id), "--json") == 0
    found = json.loads(role.out)
    assert found["rights"] == ["look", "read", "write", "recover", "hint"]
    assert [line["on"] for line in found["by"]] == ["ledgers:team=sa*", "owner"]
    assert role("role", "check", "CN=report", "--ledger", str(ledger_id)) == 0
    assert role.out.startswith(f"CN=report has these rights on ledger {ledger_id}: look, read (by reader of CN=* on ")
    assert role("role", "check", "CN=report", "--ledger", "99") == 3


def test_what_no_line_can_say_is_refused_and_changes_nothing(role: Bk) -> None:
    assert role("role", "grant", "admin", "CN=a", "--log", "x") == 2
    assert "[BK_INVALID_ARGUMENT] the role admin counts on the cluster only" in role.err
    assert role("role", "grant", "reader", "CN=a", "--log", "x", "--owned") == 2
    assert role("role", "grant", "reader", "CN=a", "--ledgers", "team") == 2
    assert role("role", "grant", "reader", "") == 2
    assert role("role", "list", "--json") == 0
    assert role.out == ""


def test_what_is_changed_is_appended_to_the_audit_file(uri: str, tmp_path: Path) -> None:
    path, logger = tmp_path / "audit.log", logging.getLogger("bk_core.audit")
    command = ["role", "grant", "reader", "CN=report", "--metadata-service-uri", uri]
    try:
        assert main.run(["--audit-file", str(path), *command]) == 0
        assert main.run(["--audit-file", str(tmp_path), *command]) == 2, "a directory is no file"
    finally:
        for handler in logger.handlers[:]:
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(logging.NOTSET)
    (event,) = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert (event["did"], event["outcome"], event["count"]) == ("set-roles", "done", 1)
