# SPDX-License-Identifier: Apache-2.0
"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_cli.local import java
from bk_core.errors import JavaMissingError


def pretend_java(folder: Path, banner: str, code: int = 0) -> Path:
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho '{banner}' >&2\nexit {code}\n")
    binary.chmod(0o755)
    return binary


@pytest.mark.parametrize(
    ("banner", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("Unrecognized option", None),
    ],
)
def test_the_version_is_parsed_from_the_banner(tmp_path: Path, banner: str, major: int | None) -> None:
    assert java.major_version(str(pretend_java(tmp_path, banner))) == major


def test_a_java_that_fails_is_no_java(tmp_path: Path) -> None:
    assert java.major_version(str(pretend_java(tmp_path, 'openjdk version "17.0.1"', code=1))) is None


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    wanted = pretend_java(home, 'openjdk version "21.0.2"')
    pretend_java(other, 'openjdk version "17.0.2"')
    assert java.find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == java.Java(str(wanted), 21)


def test_an_old_java_home_falls_back_to_path(tmp_path: Path) -> None:
    pretend_java(tmp_path / "old", 'java version "1.8.0_392"')
    wanted = pretend_java(tmp_path / "new", 'openjdk version "17.0.2"')
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")}
    assert java.find_java(environ).path == str(wanted)


@pytest.mark.rule("E1")
def test_a_missing_java_names_what_was_found_and_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_FOLDERS", ())
    old = pretend_java(tmp_path, 'openjdk version "11.0.2"')
    with pytest.raises(JavaMissingError) as caught:
        java.find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    message = str(caught.value)
    assert message.startswith("[BK_JAVA_MISSING] ZooKeeper and Spark need Java 17 or later")
    assert f"{old} is Java 11" in message
    assert "type: " in message
    assert message.endswith("(not applied)")
