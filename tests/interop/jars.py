# SPDX-License-Identifier: Apache-2.0
"""Apache's jars and our Java programs, compiled against them: resolved once by Maven, then kept in a cache.

``python -m tests.interop.jars [NAME …]`` fills the cache, which CI does before its tests. Maven's own settings say
where artifacts come from. A folder appears in the cache only when it is complete, and is checked against its list of
SHA-256 once a process. Workers that want the same folder wait for the one that makes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bk_cli.java import find_java

CACHE_VARIABLE = "PYSPARK_BOOKKEEPER_JARS"
"""The folder of the cache, if not ``~/.cache/pyspark-bookkeeper/jars``."""

MAIN, SECOND, THIRD = "4.17.3", "4.18.0", "4.16.6"
"""The peers: the version that most people run, the newest, and one before it."""

VERSIONS = (MAIN, SECOND, THIRD)

DISTRIBUTED_LOG, PULSAR = "distributedlog-4.17.3", "pulsar-4.2.4"
"""Applications that keep their data in ledgers; they bring the client library that they were built with."""

RESOLVE_S = 600.0  # a cold Maven fetches its plug-in and 100 MB of jars
COMPILE_S = 300.0
_LIST = "SHA256SUMS"
_PROGRAMS = "interop.jar"
_JAVA_SOURCES = Path(__file__).parent / "java"
_DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"

# What bookkeeper-server itself names has no logging back end; its ZooKeeper server needs the last two.
_BESIDE = (
    ("org.slf4j", "slf4j-api", "2.0.17"),
    ("org.slf4j", "slf4j-simple", "2.0.17"),
    ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.7"),
)
_WITH_BENCHMARK = frozenset({MAIN})  # 4.18.0 has none
_APPLICATIONS = {
    DISTRIBUTED_LOG: ("org.apache.distributedlog", "distributedlog-core"),
    PULSAR: ("org.apache.pulsar", "pulsar-broker"),
}
_VERSIONS_OF = {PULSAR: ("org.apache.pulsar", "pulsar")}
"""A parent whose list of versions holds for everything that is brought along: else Maven mixes those of others."""
_SOURCES = {DISTRIBUTED_LOG: ("Lines.java", "Pattern.java", "distributedlog/*.java"), PULSAR: ()}
_SOURCES_OF_PEERS = ("*.java",)
_OTHER_BACK_ENDS = (
    ("org.slf4j", "slf4j-reload4j"),
    ("org.slf4j", "slf4j-log4j12"),
    ("org.apache.logging.log4j", "log4j-slf4j-impl"),
    ("org.apache.logging.log4j", "log4j-slf4j2-impl"),
)


class KitError(RuntimeError):
    """The kit cannot do its work: what, which value, what to do."""

    def __init__(self, what: str, *, value: str = "", remedy: str = "") -> None:
        super().__init__("; ".join(filter(None, (what, value, remedy))))


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A version of Apache BookKeeper on this machine, or an application on it, with our programs for it."""

    version: str
    java: str
    jars: tuple[Path, ...]
    programs: tuple[Path, ...]

    @property
    def class_path(self) -> str:
        """Our programs first, then all jars."""
        return os.pathsep.join(str(path) for path in (*self.programs, *self.jars))

    @property
    def has_benchmark(self) -> bool:
        """Whether Apache published its benchmark programs with this version."""
        return self.version in _WITH_BENCHMARK


@functools.cache
def toolchain(version: str = MAIN) -> Toolchain:
    """The jars of ``version``, or of an application, and our programs; resolves and compiles what the cache lacks.
    Raises KitError, and JavaMissingError if there is no Java."""
    java = find_java().path
    jars = _cached(f"{version}-{_digest(_pom(version))[:8]}", functools.partial(_resolve, version), RESOLVE_S)
    jar_files = tuple(sorted(jars.glob("*.jar")))
    sources = [path for glob in _SOURCES.get(version, _SOURCES_OF_PEERS) for path in sorted(_JAVA_SOURCES.glob(glob))]
    if not sources:
        return Toolchain(version, java, jar_files, ())
    of = _digest("".join([*(path.read_text(encoding="utf-8") for path in sources), *(p.name for p in jar_files)]))
    programs = _cached(f"{version}-programs-{of[:8]}", functools.partial(_compile, sources, jar_files, java), COMPILE_S)
    return Toolchain(version, java, jar_files, (programs / _PROGRAMS,))


def cache_folder() -> Path:
    """Where jars and classes are kept."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "pyspark-bookkeeper" / "jars"


# --- the cache ---


def _cached(name: str, make: Callable[[Path], None], within_s: float) -> Path:
    """The folder ``name``, which ``make`` fills if it is absent or damaged."""
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
                    raise KitError(
                        "another process has filled the cache of jars for too long", value=str(path)
                    ) from None
                time.sleep(0.2)
        yield


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- Maven and javac ---


def _resolve(version: str, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KitError("Apache's jars are not in the cache, and there is no Maven", remedy="apt-get install maven")
    with tempfile.TemporaryDirectory(prefix="pom") as scratch:
        pom = Path(scratch) / "pom.xml"
        pom.write_text(_pom(version), encoding="utf-8")
        command = [maven, "-B", "-ntp", "-q", "-C", "-f", str(pom), f"{_DEPENDENCY_PLUGIN}:copy-dependencies"]
        _run(
            [*command, f"-DoutputDirectory={folder}", "-DincludeScope=runtime"],
            RESOLVE_S,
            f"Maven could not resolve {_artifacts(version)[0]}",
            "see that Maven reaches its repository (its settings.xml), then try again",
        )
    _, artifact, number = _artifacts(version)[0]
    if not any(folder.glob(f"{artifact}-{number}.jar")):
        raise KitError(f"Maven left no {artifact} jar", value=version)


def _compile(sources: list[Path], jars: tuple[Path, ...], java: str, folder: Path) -> None:
    beside = Path(os.path.realpath(java)).parent
    javac, jar = (shutil.which(name, path=str(beside)) or shutil.which(name) for name in ("javac", "jar"))
    if javac is None or jar is None:
        raise KitError("there is a Java, but no compiler", value=java, remedy="apt-get install openjdk-17-jdk-headless")
    with tempfile.TemporaryDirectory(prefix="classes") as scratch:
        path = os.pathsep.join(map(str, jars))
        options = ["--release", "17", "-proc:none", "-Xlint:all,-serial,-deprecation,-classfile,-path,-try", "-Werror"]
        files = [str(source) for source in sources]
        _run(
            [javac, *options, "-cp", path, "-d", scratch, *files],
            COMPILE_S,
            "our Java programs do not compile against these jars",
        )
        _run([jar, "cf", str(folder / _PROGRAMS), "-C", scratch, "."], COMPILE_S, "the programs cannot be packed")


def _run(command: list[str], within_s: float, what: str, remedy: str = "") -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=within_s, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise KitError(what, value=f"it took more than {within_s:.0f} s", remedy=remedy) from None
    if done.returncode:
        raise KitError(what, value=(done.stdout + done.stderr)[-4000:], remedy=remedy)


def _artifacts(version: str) -> list[tuple[str, str, str]]:
    """Group, artifact and number of what has the name ``version``, the main one first."""
    if version in _APPLICATIONS:
        return [(*_APPLICATIONS[version], version.rpartition("-")[2])]
    beside = ["bookkeeper-benchmark"] if version in _WITH_BENCHMARK else []
    return [("org.apache.bookkeeper", artifact, version) for artifact in ("bookkeeper-server", *beside)]


def _pom(version: str) -> str:
    exclusions = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion>"
        for group, artifact in _OTHER_BACK_ENDS
    )
    dependencies = "\n".join(
        f"  <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{number}</version>"
        f"<exclusions>{exclusions}</exclusions></dependency>"
        for group, artifact, number in (*_BESIDE, *_artifacts(version))
    )
    managed = ""
    if version in _VERSIONS_OF:
        group, artifact = _VERSIONS_OF[version]
        managed = (
            f"<dependencyManagement><dependencies><dependency><groupId>{group}</groupId><artifactId>{artifact}"
            f"</artifactId><version>{_artifacts(version)[0][2]}</version><type>pom</type><scope>import</scope>"
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


if __name__ == "__main__":
    for wanted in sys.argv[1:] or VERSIONS:
        began = time.monotonic()
        found = toolchain(wanted)
        print(f"{wanted}: {len(found.jars)} jars in {time.monotonic() - began:.1f} s, {found.jars[0].parent}")
