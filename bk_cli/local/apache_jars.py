# SPDX-License-Identifier: Apache-2.0
"""Finds the jars of Apache's bookie for ``bk local --apache``: in a distribution, or resolved once by Maven and kept.

Maven's own settings say where artifacts come from. A folder appears in the cache only when it is complete. It has a
list of SHA-256 sums, which are checked at each use. Processes that want the same folder wait for the one that makes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bk_core.errors import PackageMismatchError

VERSION = "4.17.3"
HOME = "BOOKKEEPER_HOME"
CACHE_VARIABLE = "PYSPARK_BOOKKEEPER_JARS"
"""Environment variable with the folder of the cache, if it is not ``~/.cache/pyspark-bookkeeper/jars``."""

RESOLVE_S = 600.0  # a cold Maven fetches its plug-in and 100 MB of jars
_LIST = "SHA256SUMS"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"

Artifact = tuple[str, str, str]
"""The group, the name and the version of an artifact of Maven."""

# The dependencies of bookkeeper-server include no logging back end; its ZooKeeper server needs the last two.
_BESIDE: tuple[Artifact, ...] = (
    ("org.slf4j", "slf4j-api", "2.0.17"),
    ("org.slf4j", "slf4j-simple", "2.0.17"),
    ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.7"),
)
_OTHER_BACK_ENDS = (
    ("org.slf4j", "slf4j-reload4j"),
    ("org.slf4j", "slf4j-log4j12"),
    ("org.apache.logging.log4j", "log4j-slf4j-impl"),
    ("org.apache.logging.log4j", "log4j-slf4j2-impl"),
)


def find_jars(environ: Mapping[str, str], note: Callable[[str], None] = lambda text: None) -> tuple[Path, ...]:
    """Return jars for the class path of ``org.apache.bookkeeper.server.Main``: those of ``$BOOKKEEPER_HOME/lib``, or of
    :data:`VERSION`. ``note`` is called with a line about a download. Raises PackageMismatchError."""
    if home := environ.get(HOME):
        jars = tuple(sorted(Path(home, "lib").glob("*.jar")))
        if not any("bookkeeper-server" in jar.name for jar in jars):
            raise PackageMismatchError(
                f"${HOME} is no distribution of Apache BookKeeper",
                value=f"{home}/lib has no jar of bookkeeper-server",
                remedy="set it to an unpacked distribution, or unset it, and Maven fetches the jars",
            )
        return jars
    folder = resolved(VERSION, [("org.apache.bookkeeper", "bookkeeper-server", VERSION)], note)
    return tuple(sorted(folder.glob("*.jar")))


def resolved(
    name: str,
    artifacts: Sequence[Artifact],
    note: Callable[[str], None] = lambda text: None,
    *,
    versions_of: Artifact | None = None,
) -> Path:
    """Return the folder of the cache with all jars that the artifacts need. Its name begins with ``name``.
    ``versions_of`` is a parent artifact whose list of versions applies to all dependencies. Raises
    PackageMismatchError."""
    pom = _pom(artifacts, versions_of)
    digest = hashlib.sha256(pom.encode()).hexdigest()[:8]
    return cached(f"{name}-{digest}", partial(_resolve, name, pom, note), RESOLVE_S)


def cache_folder() -> Path:
    """Return the folder in which jars and classes are kept."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "pyspark-bookkeeper" / "jars"


def cached(name: str, make: Callable[[Path], None], within_s: float) -> Path:
    """Return the folder ``name`` of the cache. If it is absent or damaged, call ``make`` to fill it. Raises
    PackageMismatchError if another process has been filling it for longer than ``within_s``."""
    folder = cache_folder() / name
    if _is_whole(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{name}.lock"), within_s):
        if _is_whole(folder):  # another process made it meanwhile
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=folder.parent))
        try:
            make(made)
            sums = [f"{_sha256(path)}  {path.name}\n" for path in sorted(made.iterdir())]
            (made / _LIST).write_text("".join(sums), encoding="ascii")
            made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return folder


def _is_whole(folder: Path) -> bool:
    try:
        lines = (folder / _LIST).read_text(encoding="ascii").splitlines()
        return bool(lines) and all(_sha256(folder / name) == sum for sum, name in (line.split("  ") for line in lines))
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _locked(path: Path, within_s: float) -> Iterator[None]:
    deadline = time.monotonic() + within_s
    with open(path, "w", encoding="ascii") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise PackageMismatchError(
                        "another process has been filling the cache of jars for too long",
                        value=str(path),
                        remedy="end it, or name another folder in " + CACHE_VARIABLE,
                    ) from None
                time.sleep(0.2)
        yield


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _resolve(name: str, pom: str, note: Callable[[str], None], folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise PackageMismatchError(
            "the jars of Apache BookKeeper are not here, and there is no Maven to fetch them",
            value=name,
            remedy=f"install Maven (apt-get install maven), or set {HOME} to an unpacked distribution",
        )
    note(f"fetching the jars of Apache BookKeeper {name} with Maven (once; into {folder.parent})")
    with tempfile.TemporaryDirectory(prefix="pom") as scratch:
        path = Path(scratch) / "pom.xml"
        path.write_text(pom, encoding="utf-8")
        command = [maven, "-B", "-ntp", "-q", "-C", "-f", str(path), f"{PLUGIN}:copy-dependencies"]
        command += [f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=RESOLVE_S, check=False, stdin=subprocess.DEVNULL
            )
            failed = done.returncode != 0 and (done.stdout + done.stderr)[-4000:]
        except subprocess.TimeoutExpired:
            failed = f"it took more than {RESOLVE_S:.0f} s"
    if failed:
        raise PackageMismatchError(
            f"Maven could not resolve {name}",
            value=failed,
            remedy="see that Maven reaches its repository (its settings.xml), then try again",
        )


def _pom(artifacts: Sequence[Artifact], versions_of: Artifact | None) -> str:
    exclusions = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion>"
        for group, artifact in _OTHER_BACK_ENDS
    )
    dependencies = "\n".join(
        f"  <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{number}</version>"
        f"<exclusions>{exclusions}</exclusions></dependency>"
        for group, artifact, number in (*_BESIDE, *artifacts)
    )
    managed = ""
    if versions_of:
        group, artifact, number = versions_of
        managed = (
            f"<dependencyManagement><dependencies><dependency><groupId>{group}</groupId><artifactId>{artifact}"
            f"</artifactId><version>{number}</version><type>pom</type><scope>import</scope>"
            "</dependency></dependencies></dependencyManagement>\n"
        )
    return f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
 <modelVersion>4.0.0</modelVersion>
 <groupId>interop</groupId><artifactId>peer</artifactId><version>1</version>
{managed} <dependencies>
{dependencies}
 </dependencies>
</project>
"""
