# SPDX-License-Identifier: Apache-2.0
"""The options of Java for archives of the classes that a program loads (Java's class data sharing). With an archive a
program starts with a half to two thirds of the CPU time. Everything also works without it.
"""

from __future__ import annotations

from pathlib import Path

_SILENT = "-Xlog:disable"
"""Keeps Java from printing anything of its own: some programs answer on their standard output. Java also starts without
a word if the archive is of another Java or of other jars."""


def using(archive: Path) -> list[str]:
    """Return the options with which a program uses the archive, or none if there is no such file."""
    return [_SILENT, f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def writing(archive: Path) -> list[str]:
    """Return the options with which a program writes the archive when it ends in order."""
    return [_SILENT, f"-XX:ArchiveClassesAtExit={archive}"]
