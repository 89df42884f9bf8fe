# SPDX-License-Identifier: Apache-2.0
"""Apache's jars, and our Java programs compiled against them, in the cache of ``bk_cli/local/apache_jars.py``.

``python -m tests.interop.jars [NAME …]`` fills the cache, which CI does before its tests. It also makes the archives of
classes (``class_data.py``).
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bk_cli.local.apache_jars import PLUGIN, RESOLVE_S, VERSION, cached, resolved
from bk_cli.local.java import find_java

MAIN, SECOND, THIRD = VERSION, "4.18.0", "4.16.6"
"""The peers: the version that most people run, the newest version, and an older one."""

VERSIONS = (MAIN, SECOND, THIRD)

DISTRIBUTED_LOG, PULSAR = "distributedlog-4.17.3", "pulsar-4.2.4"
"""Applications that keep their data in ledgers. Each includes the client library that it was built with."""

OFFLOADER = ("org.apache.pulsar", "tiered-storage-jcloud", "4.0.8")
"""The newest offloader on Maven Central. Its formats are those of 4.2."""

COMPILE_S = 300.0
_PROGRAMS = "interop.jar"
_JAVA_SOURCES = Path(__file__).parent / "java"
_PLUGIN_SOURCES = Path(__file__).parents[2] / "contrib" / "java-token-auth" / "src" / "main" / "java"

_WITH_BENCHMARK = frozenset({MAIN})  # 4.18.0 has no benchmark
_APPLICATIONS = {
    DISTRIBUTED_LOG: ("org.apache.distributedlog", "distributedlog-core"),
    PULSAR: ("org.apache.pulsar", "pulsar-broker"),
}
_VERSIONS_OF = {PULSAR: ("org.apache.pulsar", "pulsar")}
"""The parent whose list of versions applies to all dependencies. Without it Maven mixes these with versions from other
lists."""
_SOURCES = {
    DISTRIBUTED_LOG: ("Lines.java", "Pattern.java", "distributedlog/*.java"),
    PULSAR: ("Lines.java", "pulsar/*.java"),
}
_SOURCES_OF_PEERS = ("*.java",)


class KitError(RuntimeError):
    """An error of the kit. It says what failed, with which value, and what to do."""

    def __init__(self, what: str, *, value: str = "", remedy: str = "") -> None:
        super().__init__("; ".join(filter(None, (what, value, remedy))))


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A version of Apache BookKeeper on this machine, or an application that uses it, with our programs for it."""

    version: str
    java: str
    jars: tuple[Path, ...]
    programs: tuple[Path, ...]

    @property
    def class_path(self) -> str:
        """The class path: our programs first, then all jars."""
        return os.pathsep.join(str(path) for path in (*self.programs, *self.jars))

    @property
    def has_benchmark(self) -> bool:
        """Whether Apache published its benchmark programs with this version."""
        return self.version in _WITH_BENCHMARK


@functools.cache
def toolchain(version: str = MAIN) -> Toolchain:
    """Return the jars of ``version``, or of an application, and our programs. Resolve and compile what the cache lacks.
    Raises KitError, PackageMismatchError (Maven is missing or fails), JavaMissingError."""
    java = find_java().path
    versions_of = (*_VERSIONS_OF[version], _artifacts(version)[0][2]) if version in _VERSIONS_OF else None
    jar_files = tuple(sorted(resolved(version, _artifacts(version), versions_of=versions_of).glob("*.jar")))
    sources = [path for glob in _SOURCES.get(version, _SOURCES_OF_PEERS) for path in sorted(_JAVA_SOURCES.glob(glob))]
    if version in VERSIONS:
        sources += sorted(_PLUGIN_SOURCES.rglob("*.java"))
    if not sources:
        return Toolchain(version, java, jar_files, ())
    of = _digest("".join([*(path.read_text(encoding="utf-8") for path in sources), *(p.name for p in jar_files)]))
    programs = cached(f"{version}-programs-{of[:8]}", functools.partial(_compile, sources, jar_files, java), COMPILE_S)
    return Toolchain(version, java, jar_files, (programs / _PROGRAMS,))


def offloader() -> Path:
    """Return the archive with Pulsar's offloader to object storage. Raises KitError and the errors of
    :func:`toolchain`."""
    folder = cached(f"offloader-{OFFLOADER[2]}", _fetch_offloader, RESOLVE_S)
    return folder / f"{OFFLOADER[1]}-{OFFLOADER[2]}.nar"


def _fetch_offloader(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KitError("there is no Maven to fetch the offloader", remedy="type: scripts/tools interop")
    command = [maven, "-B", "-ntp", "-q", f"{PLUGIN}:copy", f"-Dartifact={':'.join(OFFLOADER)}"]
    _run([*command, f"-DoutputDirectory={folder}"], RESOLVE_S, "Maven could not fetch the offloader")
    (jar,) = folder.glob("*.jar")
    jar.rename(jar.with_suffix(".nar"))  # Maven Central has a jar, but a broker loads only files with this name


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _compile(sources: list[Path], jars: tuple[Path, ...], java: str, folder: Path) -> None:
    beside = Path(os.path.realpath(java)).parent
    javac, jar = (shutil.which(name, path=str(beside)) or shutil.which(name) for name in ("javac", "jar"))
    if javac is None or jar is None:
        raise KitError("there is a Java, but no compiler", value=java, remedy="type: scripts/tools interop")
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
    """Return group, artifact and number of each artifact with the name ``version``, the main one first."""
    if version in _APPLICATIONS:
        return [(*_APPLICATIONS[version], version.rpartition("-")[2])]
    beside = ["bookkeeper-benchmark"] if version in _WITH_BENCHMARK else []
    return [("org.apache.bookkeeper", artifact, version) for artifact in ("bookkeeper-server", *beside)]


if __name__ == "__main__":
    from tests.interop import class_data, jars  # imports this module under its own name

    for wanted in sys.argv[1:] or VERSIONS:
        began = time.monotonic()
        found = jars.toolchain(wanted)
        class_data.make(found)
        if wanted == PULSAR:
            jars.offloader()
        print(f"{wanted}: {len(found.jars)} jars in {time.monotonic() - began:.1f} s, {found.jars[0].parent}")
