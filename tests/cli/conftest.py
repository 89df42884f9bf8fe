# SPDX-License-Identifier: Apache-2.0
"""A cluster for the tests of commands, and ``bk`` as a function."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bk_cli import main
from bk_cli.local.cluster import LocalCluster
from tests.kit import canaries
from tests.kit.clusters import temporary_cluster
from tests.kit.served_cluster import ServedCluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """ZooKeeper and four bookies as processes."""
    with temporary_cluster(tmp_path_factory) as running:
        yield running


@pytest.fixture(scope="session", params=["memory", pytest.param("processes", marks=pytest.mark.e2e)])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster | ServedCluster]:
    """Four bookies, once in this process and once as processes beside ZooKeeper; only their ``uri`` is used."""
    if request.param == "processes":
        yield request.getfixturevalue("cluster")
        return
    with ServedCluster(tmp_path_factory.mktemp("served")) as running:
        yield running


class Bk:
    """Runs command lines against the cluster. ``out`` and ``err`` are of the last one."""

    def __init__(self, uri: str, capture: pytest.CaptureFixture[str]) -> None:
        self._uri, self._capture = uri, capture
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        """The exit code of ``bk arguments``."""
        code = main.run([*arguments, "--metadata-service-uri", self._uri])
        self.out, self.err = self._capture.readouterr()
        assert not canaries.heard_in((self.out + self.err).encode()), arguments
        return code

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        """What ``bk arguments --json`` prints; the command must succeed."""
        assert self(*arguments, "--json") == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def bk_served(served: LocalCluster | ServedCluster, capfd: pytest.CaptureFixture[str]) -> Bk:
    """For tests that run on both kinds of clusters: a module names it ``bk``."""
    capfd.readouterr()
    return Bk(served.uri, capfd)


@pytest.fixture
def bk(cluster: LocalCluster, capfd: pytest.CaptureFixture[str]) -> Bk:
    capfd.readouterr()
    return Bk(cluster.uri, capfd)


@pytest.fixture
def new_ledger(bk: Bk, tmp_path: Any) -> Callable[..., int]:
    """Makes a closed ledger of the given lines through ``bk ledger append``; its id."""

    def make(*lines: str, options: tuple[str, ...] = ()) -> int:
        source = tmp_path / "lines"
        source.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        (made,) = bk.json("ledger", "append", str(source), *options)
        assert made["entries"] == len(lines)
        return int(made["ledgerId"])

    return make
