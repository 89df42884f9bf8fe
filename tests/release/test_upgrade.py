# SPDX-License-Identifier: Apache-2.0
"""Upgrade and roll back: bookies of this version on the data that a release left, with nothing changed before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.process_cluster import ProcessCluster
from tests.release import contents, conversation
from tests.release.cluster import ROOT, identity_of, kept, release_cluster, unpack, znodes
from tests.release.test_formats import RELEASES, formats_of, written_in

pytestmark = [pytest.mark.e2e, pytest.mark.zookeeper, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(release: str, tmp_path: Path) -> Iterator[ProcessCluster]:
    unpack(kept(release) / "files.tar.xz", tmp_path)
    with release_cluster(tmp_path) as running:
        yield running


def kept_of(release: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((kept(release) / "kept.json").read_text(encoding="utf-8"))
    return found


def test_all_is_there_after_an_upgrade_writers_go_on_and_what_they_write_can_be_rolled_back(
    release: str, cluster: ProcessCluster
) -> None:
    made = kept_of(release)
    contents.check(cluster.uri, made)
    appended = contents.append(cluster.uri, made)
    assert cluster.stop_bookies() == [0, 0, 0, 0]
    cluster.start()
    contents.check(cluster.uri, made, appended)
    nodes = znodes(cluster.uri)
    assert cluster.stop_bookies() == [0, 0, 0, 0]
    understood = formats_of(release)["versions"]
    written = set(written_in(cluster.path, nodes))
    assert len({name for name, _ in written}) >= 14
    assert {(name, version) for name, version in written if understood[name] != version} == set()


def test_the_same_bytes_get_the_same_answers(release: str, cluster: ProcessCluster) -> None:
    """What a client of the release says on the direct lane, word for word, and what its bookie answered."""
    said = conversation.load(kept(release))
    bookie = cluster.bookies[0]
    (read,) = {each["id"] for name, each in kept_of(release)["ledgers"].items() if name == "wide"}
    asked = list(conversation.requests(identity_of(bookie.data_dir), read))
    assert [(each.stream, each.frames, each.rest) for each in asked] == [
        (each.stream, each.frames, each.rest) for each in said
    ], "and today's client says the same"
    for before, now in zip(said, conversation.hold(bookie.port, said), strict=True):
        request = conversation.REQUESTS[before.stream].FromString(before.rest)
        assert now.answer_frames == before.answer_frames, request
        answers = [conversation.lasting(each.stream, each.answer_rest) for each in (before, now)]
        assert answers[0] == answers[1], request


@pytest.mark.spark
@pytest.mark.thorough
def test_a_query_of_spark_goes_on_from_the_kept_checkpoint(release: str, cluster: ProcessCluster) -> None:
    made = kept_of(release)
    command = [sys.executable, "-m", "tests.release.continue_query", cluster.uri, str(cluster.path / "checkpoint")]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    contents.check(cluster.uri, made, copied=40)
