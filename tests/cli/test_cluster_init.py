# SPDX-License-Identifier: Apache-2.0
"""``bk cluster init`` on a real ZooKeeper."""

from __future__ import annotations

import json
import uuid
from contextlib import closing

import pytest

from bk_cli import main
from bk_core.metadata import open_store
from tests.kit.metadata_worlds import tree_of

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def uri(zookeeper_uri: str) -> str:
    return f"{zookeeper_uri}/{uuid.uuid4().hex}/ledgers"


def init(uri: str, *more: str) -> int:
    return main.run(["cluster", "init", "--metadata-service-uri", uri, *more])


def test_a_cluster_is_made_once_and_the_second_run_says_that_it_is_there(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(uri) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"made a cluster at {uri}, instance id ")
    assert f"bk bookie run --data DIR --metadata-service-uri '{uri}'" in said.err
    assert init(uri) == 0
    assert capsys.readouterr().out == said.out.replace(
        f"made a cluster at {uri}", f"there is a cluster at {uri} already"
    )


def test_json_tells_who_made_it(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert [init(uri, "--json"), init(uri, "--json")] == [0, 0]
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["made"], second["made"]) == (True, False)
    assert first["instanceId"] == second["instanceId"]


def test_root_of_something_else_is_refused_and_its_exit_code_says_not_found(
    zookeeper_uri: str, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(uri) == 0
    with closing(open_store(uri)) as store:
        tree_of(store).create("/other" + uri[-20:-8], b"")
        tree_of(store).create(f"/other{uri[-20:-8]}/config", b"")
    assert init(f"{zookeeper_uri}/other{uri[-20:-8]}") == 3
    assert "[BK_NO_CLUSTER]" in capsys.readouterr().err


def test_a_mistyped_root_is_told_of_the_right_one(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(uri) == 0
    assert main.run(["ledger", "list", "--metadata-service-uri", uri.removesuffix("ledgers") + "ledger"]) == 3
    said = capsys.readouterr().err
    assert "[BK_NO_CLUSTER]" in said
    assert f"there is a cluster at {uri[uri.rindex('/', 0, -8) :]}" in said
