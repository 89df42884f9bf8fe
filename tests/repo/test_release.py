# SPDX-License-Identifier: Apache-2.0
"""The files that ``scripts/release`` makes are equal from build to build, complete, and fit every promised Python."""

from __future__ import annotations

import email
import importlib.util
import json
import tarfile
import zipfile
from email.message import Message
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bk_core

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("bk_core", "bookie_server", "bk_spark", "bk_cli")
EPOCH = 1_700_000_000


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_script", ROOT / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RELEASE = script()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Build the files once."""
    folder = tmp_path_factory.mktemp("release")
    built: list[Path] = RELEASE.build(RELEASE.copy_of_tree(folder / "tree", EPOCH), folder / "made", EPOCH)
    return built


@pytest.fixture(scope="module")
def wheel(made: list[Path]) -> zipfile.ZipFile:
    (path,) = (path for path in made if path.suffix == ".whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile) -> Message:
    name = f"pyspark_bookkeeper-{bk_core.__version__}.dist-info/METADATA"
    return email.message_from_bytes(wheel.read(name))


@pytest.mark.long
def test_two_builds_and_the_build_from_the_sdist_are_equal(tmp_path: Path) -> None:
    made = RELEASE.build_twice(tmp_path, EPOCH)  # raises if any of them differ
    names = [f"pyspark_bookkeeper-{bk_core.__version__}{end}" for end in ("-py3-none-any.whl", ".tar.gz")]
    assert [path.name for path in made] == names, "a pure wheel, for all platforms"


@pytest.mark.long
def test_builds_that_differ_are_refused(made: list[Path], tmp_path: Path) -> None:
    other = RELEASE.build(RELEASE.copy_of_tree(tmp_path / "tree", EPOCH), tmp_path / "made", EPOCH + 2, "wheel")
    with pytest.raises(RELEASE.NotReadyError, match=r"two builds of \S+\.whl differ"):
        RELEASE.must_be_equal(made, other)


def test_the_wheel_has_every_file_of_the_packages_and_the_pages_for_users(wheel: zipfile.ZipFile) -> None:
    there = set(wheel.namelist())
    tracked = RELEASE.run("git", "ls-files").splitlines()
    data = f"pyspark_bookkeeper-{bk_core.__version__}.data/data/share/doc/pyspark-bookkeeper/"
    files = {name for name in tracked if name.split("/")[0] in PACKAGES and (ROOT / name).is_file()}
    docs = {name.removeprefix(data) for name in there if name.startswith(data)}
    assert len(files) > 400
    assert files | {"pyspark_bookkeeper.py"} == {
        name for name in there if ".dist-info/" not in name and not name.startswith(data)
    }
    assert {"spark.md", "python.md", "cli.md", "operations.md", "errors.md", "grafana/bookie.json"} <= docs
    assert not [name for name in docs if name.startswith(("decisions", "proof", "formats", "releasing", "results"))]
    assert {f"{package}/py.typed" for package in PACKAGES} <= there


def test_the_metadata_names_the_pythons_the_types_and_the_licence(wheel: zipfile.ZipFile) -> None:
    said = metadata(wheel)
    assert said["Requires-Python"] == ">=3.11"
    classifiers = said.get_all("Classifier", [])
    assert [f"3.{minor}" for minor in range(11, 15)] == [
        each.rpartition(" ")[2] for each in classifiers if each.startswith("Programming Language :: Python :: 3.")
    ]
    assert "Typing :: Typed" in classifiers
    assert said["License-Expression"] == "Apache-2.0"
    assert said.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert not [each for each in said.get_all("Requires-Dist", []) if "pyspark" in each and "extra ==" not in each]


def test_the_sdist_has_what_builds_it_and_no_tests(made: list[Path]) -> None:
    (path,) = (path for path in made if path.name.endswith(".tar.gz"))
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
        assert {member.mtime for member in archive.getmembers()} == {EPOCH}
        assert {member.uid for member in archive.getmembers()} == {0}
    assert {
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "NOTICE",
        "docs/bookie.md",
        "deploy/bookie.toml",
    } <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks"))]


def test_the_bill_of_software_is_the_same_each_time_and_names_what_is_installed() -> None:
    text = RELEASE.software_bill("0.1.0", EPOCH)
    assert text == RELEASE.software_bill("0.1.0", EPOCH)
    assert text != RELEASE.software_bill("0.1.1", EPOCH)
    bill: dict[str, Any] = json.loads(text)
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    components = {each["name"]: each for each in bill["components"]}
    assert {"numpy", "pyarrow", "grpcio", "protobuf", "kazoo", "crc32c", "click", "rich", "pyspark"} <= set(components)
    assert {"pytest", "hatchling"} & set(components) == set(), "what builds and tests it is no part of it"
    assert all(each.get("purl", "").startswith("pkg:pypi/") for each in components.values())


def test_a_version_that_is_not_ready_is_refused_and_the_reasons_are_named() -> None:
    assert "the first heading of CHANGELOG.md is not 9.9.9" in list(RELEASE.what_is_missing("9.9.9"))


def test_a_release_without_a_tried_wheel_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        RELEASE.main(["--no-smoke"])
    assert "--rehearse" in capsys.readouterr().err
