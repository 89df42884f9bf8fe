# SPDX-License-Identifier: Apache-2.0
"""Finds the Java that ZooKeeper and Spark need: from ``JAVA_HOME``, PATH or the platform's finder, 17 or later.

It needs only the standard library, so that ``scripts/bootstrap`` can run it (``python3 -m bk_cli.local.java``) before
anything is installed.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bk_core.errors import JavaMissingError

MAJOR_MIN = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_FOLDERS = (
    "/usr/lib/jvm/*/bin/java",
    "/opt/java/*/bin/java",
    "/opt/homebrew/opt/openjdk*/bin/java",
    "/usr/local/opt/openjdk*/bin/java",
)


@dataclass(frozen=True, slots=True)
class Java:
    """An executable that answered ``-version``."""

    path: str
    major: int

    @property
    def home(self) -> str:
        """The value of ``JAVA_HOME`` for this Java."""
        return os.path.dirname(os.path.dirname(os.path.realpath(self.path)))


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the first Java of version :data:`MAJOR_MIN` or later. Raises JavaMissingError, which says what was found
    and what to type."""
    seen = []
    for path in _candidates(os.environ if environ is None else environ):
        major = major_version(path)
        if major is not None and major >= MAJOR_MIN:
            return Java(path, major)
        seen.append(f"{path} is {'Java ' + str(major) if major else 'not a working Java'}")
    raise JavaMissingError(
        f"ZooKeeper and Spark need Java {MAJOR_MIN} or later, which was not found (17 and 21 are known good)",
        value=", ".join(seen[:4]) or "nothing in JAVA_HOME, on PATH or in the usual folders",
        remedy=f"type: {install_command()}",
    )


def major_version(path: str) -> int | None:
    """Return the major version that ``path -version`` prints (8 for ``1.8.0``), or None if it does not run."""
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found and done.returncode == 0 else None


def install_command() -> str:
    """Return the command that installs Java on this machine."""
    if platform.system() == "Darwin":
        return "brew install openjdk@17"
    if shutil.which("dnf"):
        return "sudo dnf install java-17-openjdk-headless"
    if shutil.which("apk"):
        return "sudo apk add openjdk17-jre-headless"
    return "sudo apt-get install openjdk-17-jre-headless"


def _candidates(environ: Mapping[str, str]) -> Iterator[str]:
    seen: set[str] = set()
    for path in _places(environ):
        if path and path not in seen and os.access(path, os.X_OK):
            seen.add(path)
            yield path


def _places(environ: Mapping[str, str]) -> Iterator[str]:
    if home := environ.get("JAVA_HOME"):
        yield os.path.join(home, "bin", "java")
    yield shutil.which("java", path=environ.get("PATH", "")) or ""
    if os.access("/usr/libexec/java_home", os.X_OK):  # macOS keeps its own list
        finder = ["/usr/libexec/java_home", "-v", f"{MAJOR_MIN}+"]
        home = subprocess.run(finder, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
        if home:
            yield os.path.join(home, "bin", "java")
    for folder in _FOLDERS:
        yield from sorted(glob.glob(folder))


if __name__ == "__main__":
    try:
        java = find_java()
        print(f"Java {java.major} ({java.path})")
    except JavaMissingError as error:
        sys.exit(str(error))
