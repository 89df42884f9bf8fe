# SPDX-License-Identifier: Apache-2.0
"""Finds the jars of a ZooKeeper server: in the pyspark wheel, in ``$SPARK_HOME``, or downloaded once with checksums."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from bk_core.errors import IntegrityError, MetadataUnavailableError, Outcome

REPOSITORY = "https://repo1.maven.org/maven2"
DOWNLOAD_TIMEOUT_S = 60.0

# Beginnings of the names of the jars that a server needs: their versions change with Spark's releases.
NEEDED = ("zookeeper-3", "zookeeper-jute-3", "slf4j-api-", "metrics-core-", "snappy-java-")
LOGGING = ("log4j-slf4j2-impl-", "log4j-api-", "log4j-core-")  # optional: they log errors to the log file

# path in the repository → SHA-256 of the jar
DOWNLOADS = {
    "org/apache/zookeeper/zookeeper/3.9.5/zookeeper-3.9.5.jar": (
        "936d025db1a85f085edea25048c3f5b3de5fc29329c371a10925e3b78b0b38a0"
    ),
    "org/apache/zookeeper/zookeeper-jute/3.9.5/zookeeper-jute-3.9.5.jar": (
        "abcbc7f9d6c493daa118da6fa3061a201e2c521217526e8535adfb56b629e52a"
    ),
    "org/slf4j/slf4j-api/2.0.17/slf4j-api-2.0.17.jar": (
        "7b751d952061954d5abfed7181c1f645d336091b679891591d63329c622eb832"
    ),
    "io/dropwizard/metrics/metrics-core/4.2.37/metrics-core-4.2.37.jar": (
        "3c70d19049d10f474ab803706b9c0677bcf5fd9e1afeb4f6c496f62e38b27678"
    ),
    "org/xerial/snappy/snappy-java/1.1.10.8/snappy-java-1.1.10.8.jar": (
        "50485d06037fea3d6e40c968386feeca6338cc9872e25549593ff3eb352cefcc"
    ),
}


def find_jars(environ: Mapping[str, str], note: Callable[[str], None] = lambda text: None) -> list[Path]:
    """Jars for the class path of ``org.apache.zookeeper.server.ZooKeeperServerMain``. ``note`` hears of a download.
    Raises MetadataUnavailableError if there are none and they cannot be downloaded, IntegrityError if a download has
    another checksum."""
    for folder in _folders(environ):
        if jars := jars_in(folder):
            return jars
    return download(cache_folder(environ), note)


def jars_in(folder: Path) -> list[Path]:
    """The jars of ``folder``, or nothing if one that is needed is missing."""
    there = sorted(folder.glob("*.jar"))
    picked = []
    for prefix in NEEDED + LOGGING:
        found = next((jar for jar in there if jar.name.startswith(prefix)), None)
        if found is not None:
            picked.append(found)
        elif prefix in NEEDED:
            return []
    return picked


def cache_folder(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "pyspark-bookkeeper" / "zookeeper-3.9.5"


def download(folder: Path, note: Callable[[str], None], repository: str = REPOSITORY) -> list[Path]:
    """Fetch what ``folder`` lacks. A file appears there only once its checksum was right."""
    folder.mkdir(parents=True, exist_ok=True)
    jars = []
    for path, checksum in DOWNLOADS.items():
        jar = folder / path.rsplit("/", 1)[1]
        if not jar.exists() or _sha256(jar.read_bytes()) != checksum:
            note(f"downloading {jar.name} from Maven Central (once; into {folder})")
            data = _fetch(f"{repository}/{path}")
            if _sha256(data) != checksum:
                raise IntegrityError(
                    "a downloaded jar is not what it should be",
                    value=f"{repository}/{path} has SHA-256 {_sha256(data)}",
                    remedy="try another network, or install pyspark, which brings the same jars",
                )
            partial = jar.with_suffix(f".{os.getpid()}")
            partial.write_bytes(data)
            partial.replace(jar)
        jars.append(jar)
    return jars


def _folders(environ: Mapping[str, str]) -> list[Path]:
    folders = []
    spec = importlib.util.find_spec("pyspark")  # looks for it without importing it
    if spec is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parent / "jars")
    if home := environ.get("SPARK_HOME"):
        folders.append(Path(home) / "jars")
    return folders


def _fetch(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_S) as answer:
            data: bytes = answer.read()
            return data
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise MetadataUnavailableError(
            "there is no ZooKeeper to start: no pyspark, no SPARK_HOME, and the download failed",
            value=f"{url}: {error}",
            remedy="type: pip install 'pyspark-bookkeeper[spark]', or give a running one with --zookeeper zk://HOST:2181/ledgers",
            outcome=Outcome.NOT_APPLIED,
        ) from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
