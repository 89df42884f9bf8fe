# SPDX-License-Identifier: Apache-2.0
"""The parts of the kit that need no jars: the cache and the patterns."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bk_cli.local import apache_jars
from bk_cli.local.apache_jars import CACHE_VARIABLE, HOME
from bk_core.errors import PackageMismatchError

WITHIN_S = 10.0


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Fills a folder, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, folder: Path) -> None:
        self.count += 1
        (folder / "a.jar").write_bytes(b"whole")


def test_a_folder_of_the_cache_is_made_once_and_anew_when_it_is_damaged(cache: Path) -> None:
    make = Maker()
    folder = apache_jars.cached("peer", make, WITHIN_S)
    assert folder == cache / "peer"
    assert apache_jars.cached("peer", make, WITHIN_S) == folder
    assert make.count == 1
    (folder / "a.jar").write_bytes(b"torn")
    apache_jars.cached("peer", make, WITHIN_S)
    assert (make.count, (folder / "a.jar").read_bytes()) == (2, b"whole")
    (folder / "a.jar").unlink()
    apache_jars.cached("peer", make, WITHIN_S)
    assert make.count == 3


def test_a_folder_that_could_not_be_made_leaves_nothing(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half.jar").touch()
        raise PackageMismatchError("no network")

    with pytest.raises(PackageMismatchError, match="no network"):
        apache_jars.cached("peer", fail, WITHIN_S)
    assert [path.name for path in cache.iterdir()] == ["peer.lock"]


def test_workers_wait_for_the_one_that_makes_the_folder(cache: Path) -> None:
    began, go_on = threading.Event(), threading.Event()
    make = Maker()

    def slow(folder: Path) -> None:
        began.set()
        assert go_on.wait(WITHIN_S)
        make(folder)

    first = threading.Thread(target=apache_jars.cached, args=("peer", slow, WITHIN_S))
    first.start()
    assert began.wait(WITHIN_S)
    with pytest.raises(PackageMismatchError, match="another process"):
        apache_jars.cached("peer", make, 0.0)
    go_on.set()
    assert (apache_jars.cached("peer", make, WITHIN_S) / "a.jar").read_bytes() == b"whole"
    first.join(WITHIN_S)
    assert make.count == 1


def test_without_maven_the_error_says_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(PackageMismatchError, match="apt-get install maven"):
        apache_jars.find_jars({})


def test_a_distribution_has_the_jars_or_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "other.jar").touch()
    with pytest.raises(PackageMismatchError, match="no distribution of Apache BookKeeper"):
        apache_jars.find_jars({HOME: str(tmp_path)})
    server = tmp_path / "lib" / "org.apache.bookkeeper-bookkeeper-server-4.17.3.jar"
    server.touch()
    assert apache_jars.find_jars({HOME: str(tmp_path)}) == (server, tmp_path / "lib" / "other.jar")
