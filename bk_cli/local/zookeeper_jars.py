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
from bk_core.installing import how_to_install

REPOSITORY = "https://repo1.maven.org/maven2"
DOWNLOAD_TIMEOUT_S = 60.0

# Prefixes of the names of the jars that a server needs. The versions behind them change with Spark's releases.
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

# parts of Netty, which a server with TLS needs in addition
NETTY = {
    "io/netty/netty-buffer/4.2.13.Final/netty-buffer-4.2.13.Final.jar": (
        "39e9ab9ecaff178898a5eb37568096f1efd4f768a7bd162e0cde3eefa19137d5"
    ),
    "io/netty/netty-codec-base/4.2.13.Final/netty-codec-base-4.2.13.Final.jar": (
        "a0407d1e9b77e9807aabf367e06602475faab567bfcb8e07ff5bd22c24cd923e"
    ),
    "io/netty/netty-common/4.2.13.Final/netty-common-4.2.13.Final.jar": (
        "cccffbdd68586b5473c67d6ac37145625e7abbfae304e7a512616576b0187697"
    ),
    "io/netty/netty-handler/4.2.13.Final/netty-handler-4.2.13.Final.jar": (
        "50efc30aeca2ef21311f2502389e500bfc168c311edb1ae04a2db4d6bb5d7f7f"
    ),
    "io/netty/netty-resolver/4.2.13.Final/netty-resolver-4.2.13.Final.jar": (
        "2cd68d6a746aeb2ec92923fa168d250526d7ad3dbe1877e7bcbe6e8acdb2c193"
    ),
    "io/netty/netty-transport/4.2.13.Final/netty-transport-4.2.13.Final.jar": (
        "d9b2200bfe6e47c2dfa2f0952df6fbdfd42bf58bdd9007e9ac17c789274388c5"
    ),
    "io/netty/netty-transport-native-unix-common/4.2.13.Final/netty-transport-native-unix-common-4.2.13.Final.jar": (
        "052b8429276ac96bd1f1067ce963b4e57c627ca331071f4df2e63f759234f6b1"
    ),
    "io/netty/netty-transport-classes-epoll/4.2.13.Final/netty-transport-classes-epoll-4.2.13.Final.jar": (
        "2ed9cf6ca8bee3ae80501938e5fa0b7c20947d704222a774a60ae65d38e0285e"
    ),
}


def find_jars(
    environ: Mapping[str, str], note: Callable[[str], None] = lambda text: None, *, tls: bool = False
) -> list[Path]:
    """Return jars for the class path of ``org.apache.zookeeper.server.ZooKeeperServerMain``, with Netty's if ``tls``.
    ``note`` is called with a line about a download. Raises MetadataUnavailableError if there are no jars and they
    cannot be downloaded, and IntegrityError if a download has another checksum."""
    for folder in _folders(environ):
        netty = sorted(folder.glob("netty-*.jar")) if tls else []
        if (jars := jars_in(folder)) and (netty or not tls):
            return [*jars, *netty]
    return download(cache_folder(environ), note, tls=tls)


def jars_in(folder: Path) -> list[Path]:
    """Return the needed jars of ``folder``, or nothing if one of them is missing."""
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


def download(
    folder: Path, note: Callable[[str], None], repository: str = REPOSITORY, *, tls: bool = False
) -> list[Path]:
    """Fetch the jars that ``folder`` lacks. A file appears there only after its checksum was verified."""
    folder.mkdir(parents=True, exist_ok=True)
    jars = []
    for path, checksum in {**DOWNLOADS, **(NETTY if tls else {})}.items():
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
            remedy=f"{how_to_install('spark')}, or give a running one with --zookeeper zk://HOST:2181/ledgers",
            outcome=Outcome.NOT_APPLIED,
        ) from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
