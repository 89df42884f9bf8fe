# SPDX-License-Identifier: Apache-2.0
"""Where ZooKeeper's jars come from, and that a wrong download is never used."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_cli.local import zookeeper_jars
from bk_core.errors import IntegrityError, MetadataUnavailableError

NAMES = [path.rsplit("/", 1)[1] for path in zookeeper_jars.DOWNLOADS]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder in the place of Maven Central, with the jars of the installed pyspark."""
    there = {jar.name: jar for jar in zookeeper_jars.find_jars({})}
    for path in zookeeper_jars.DOWNLOADS:
        target = tmp_path / "repository" / path
        target.parent.mkdir(parents=True)
        target.symlink_to(there[target.name])
    return tmp_path / "repository"


def test_the_jars_of_pyspark_are_the_ones_that_would_be_downloaded(repository: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    jars = zookeeper_jars.download(tmp_path / "cache", notes.append, repository.as_uri())
    assert [jar.name for jar in jars] == NAMES
    assert len(notes) == len(NAMES)
    assert zookeeper_jars.download(tmp_path / "cache", notes.append, "file:///nowhere") == jars
    assert len(notes) == len(NAMES)  # the second time nothing was fetched


def test_a_download_with_a_wrong_checksum_is_refused_and_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    first = repository / next(iter(zookeeper_jars.DOWNLOADS))
    damaged = bytearray(first.read_bytes())
    damaged[1000] ^= 1
    first.unlink()
    first.write_bytes(damaged)
    with pytest.raises(IntegrityError, match="SHA-256"):
        zookeeper_jars.download(tmp_path / "cache", lambda _: None, repository.as_uri())
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_damaged_jar_in_the_cache_is_fetched_again(repository: Path, tmp_path: Path) -> None:
    jars = zookeeper_jars.download(tmp_path / "cache", lambda _: None, repository.as_uri())
    jars[0].write_bytes(b"half a jar")
    zookeeper_jars.download(tmp_path / "cache", lambda _: None, repository.as_uri())
    assert jars[0].stat().st_size > 1000


def test_no_network_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MetadataUnavailableError, match="pip install") as caught:
        zookeeper_jars.download(tmp_path / "cache", lambda _: None, (tmp_path / "none").as_uri())
    assert caught.value.outcome.value == "not applied"


def test_spark_home_is_used_where_pyspark_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    jars = tmp_path / "jars"
    jars.mkdir()
    for name in NAMES:
        (jars / name).write_bytes(b"")
    assert {jar.parent for jar in zookeeper_jars.find_jars({"SPARK_HOME": str(tmp_path)})} == {jars}


def test_a_folder_that_lacks_one_jar_is_not_used(tmp_path: Path) -> None:
    for name in NAMES[1:]:
        (tmp_path / name).write_bytes(b"")
    assert zookeeper_jars.jars_in(tmp_path) == []
