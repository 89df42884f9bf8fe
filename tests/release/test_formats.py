# SPDX-License-Identifier: Apache-2.0
"""The numbers of all formats against those of the releases whose data is kept, and those of ``docs/formats.md``: none
changes without a word on upgrade and roll back. ``test_upgrade.py`` starts bookies on that data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.release import formats
from tests.release.cluster import BOOKIES, kept, unpack

ROOT = Path(__file__).parents[2]
RELEASES = sorted(path.name.removeprefix("release-") for path in (ROOT / "tests" / "data").glob("release-*"))
SECTION = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8").partition("\n## 9. ")[2]
ROWS = {
    row[0]: row for row in re.findall(r"^\| ([^|]+) \| `([^|]+)` \| ([\d.]+) \| ([^|]+) \|$", SECTION, re.MULTILINE)
}
REMEDY = "before VERSION is released: scripts/release-data --formats; afterwards: name it in docs/formats.md, section 9"


def formats_of(release: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((kept(release) / "formats.json").read_text(encoding="utf-8"))
    return found


def test_the_page_has_the_version_of_every_format_that_is_written() -> None:
    assert {name: row[1] for name, row in ROWS.items()} == formats.versions()


@pytest.mark.parametrize("release", RELEASES)
def test_a_format_whose_version_differs_from_a_kept_release_says_how_it_is_rolled_back(release: str) -> None:
    before = formats_of(release)["versions"]
    assert set(before) <= set(ROWS), "a format cannot go: data of it may be there"
    undocumented = [
        name for name, version in formats.versions().items() if before.get(name) != version and ROWS[name][3] == "–"
    ]
    assert undocumented == [], REMEDY


@pytest.mark.parametrize("release", RELEASES)
def test_what_a_release_knows_has_its_meaning_for_good_and_what_was_added_is_named(release: str) -> None:
    before, now = flat(formats_of(release)), flat(formats.of_the_code())
    changed = {name: (was, now.get(name)) for name, was in before.items() if now.get(name) != was}
    assert changed == {}, "a number is never given another meaning, nor taken away"
    added = sorted(name for name in set(now) - set(before) if f"`{name}`" not in SECTION)
    assert added == [], REMEDY


def flat(known: dict[str, Any]) -> dict[str, Any]:
    flags = {f"flag {bit:#06x}": True for bit in (1 << k for k in range(16)) if known["kinds"]["known flags"] & bit}
    fields = {name: what for file in known["messages"].values() for name, what in file.items()}
    return {name: value for name, value in known["kinds"].items() if name != "known flags"} | flags | fields


@pytest.mark.parametrize("release", RELEASES)
def test_the_kept_files_are_in_the_formats_that_are_listed(release: str, tmp_path: Path) -> None:
    folder = kept(release)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1 << 20
    unpack(folder / "files.tar.xz", tmp_path)
    listed = formats_of(release)["versions"]
    written = list(written_in(tmp_path, json.loads((folder / "znodes.json").read_text(encoding="utf-8"))))
    assert {(name, version) for name, version in written if listed[name] != version} == set()
    names = {name for name, _ in written}
    in_memory = {
        "frame",
        "group",
        "stream offset",
        "topic offset",
        "hello",
        "direct lane",
        "Apache's wire",
        "grant",
        "table options",
    }
    inside = {"codec envelope", "codec arrow"}  # within entries
    passing = {"deleted log", "BookKeeperLogDeletedVersion"}  # there only while a deletion is under way, or for days
    assert set(listed) - names <= in_memory | inside | passing, "a format of which nothing is kept"


def written_in(folder: Path, znodes: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Every format and version that stands in the directories of the bookies and in ZooKeeper."""
    found = [formats.of_directory(folder / f"bookie-{number + 1}") for number in range(BOOKIES)]
    for each in (*found, formats.of_znodes(znodes)):
        yield from ((name, version) for name, versions in each.items() for version in versions)


def test_every_number_of_a_format_in_the_code_is_on_the_list() -> None:
    """A new file with a magic or a version of its own is one that somebody has to upgrade."""
    numbers = re.compile(r"^_?(?:[A-Z]+_)*(?:MAGIC|VERSION)\b.* = (?:b\"|0x|\d)|\"v\": (?:\d|[A-Z_])", re.MULTILINE)
    packages = [ROOT / name for name in ("bk_core", "bookie_server", "bk_spark")]
    files = {
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in package.rglob("*.py")
        if not path.name.endswith("_pb2.py") and numbers.search(path.read_text(encoding="utf-8"))
    }
    listed = {module.__file__ for module in vars(formats).values() if getattr(module, "__file__", None)}
    known = {Path(file).relative_to(ROOT).as_posix() for file in listed if Path(file).is_relative_to(ROOT)}
    no_format = {"bk_core/metadata/tree/tree.py", "bk_core/logs/machines/publication.py"}  # "any version"; a bound
    pulsar = ("messages/heads.py", "model/managed_ledger.py", "offloaded/blocks.py")
    theirs = {f"bk_core/pulsar/{name}" for name in pulsar}  # only read
    assert files - known - no_format - theirs == {"bk_core/logs/model/upkeep_record.py"}, (
        "add it to tests/release/formats.py"
    )
