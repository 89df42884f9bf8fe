# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes over the kept data of a release: ZooKeeper and four bookies, in a folder."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from kazoo.client import KazooClient

from bk_cli.local.zookeeper_server import ZooKeeperServer
from tests.kit.process_cluster import ProcessCluster

ROOT = Path(__file__).parents[2]
BOOKIES = 4
SETTINGS = {"segment_size_bytes": (8 << 20) + (16 << 10), "segments_kept_free": 1, "scrub_interval_s": 3600.0}
"""The smallest segments that there can be, so that the data is small."""


def kept(release: str) -> Path:
    """The folder with the kept data of a release."""
    return ROOT / "tests" / "data" / f"release-{release}"


def release_cluster(folder: Path) -> ProcessCluster:
    """Return the cluster over the data in ``folder``."""
    return ProcessCluster(folder, ZooKeeperServer(durable=False), BOOKIES, SETTINGS)


def identity_of(directory: Path) -> str:
    fields = json.loads((directory / "IDENTITY").read_text(encoding="utf-8"))
    return str(fields["bookie_id"])


def znodes(uri: str) -> dict[str, str]:
    """Every persistent znode of ours, with its data in base64."""
    client = KazooClient(uri.removeprefix("zk://").partition("/")[0])
    client.start(timeout=10)
    try:
        return dict(_walk(client, "/"))
    finally:
        client.stop()
        client.close()


def _walk(client: KazooClient, path: str) -> Iterator[tuple[str, str]]:
    data, stat = client.get(path)
    if path.startswith("/zookeeper") or stat.ephemeralOwner:
        return
    yield path, base64.b64encode(data).decode("ascii")
    for child in sorted(client.get_children(path)):
        yield from _walk(client, f"{path.rstrip('/')}/{child}")


def pack(folder: Path, archive: Path) -> None:
    """All that has to be kept of a folder: directories of bookies, ZooKeeper's data, Spark's checkpoint."""
    names = [*(f"bookie-{number + 1}" for number in range(BOOKIES)), "zookeeper/data", "checkpoint"]
    owner = ["--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--sort=name"]
    command = ["tar", "--sparse", "--xz", *owner, "--exclude=LOCK", "-cf", str(archive), "-C", str(folder), *names]
    subprocess.run(command, check=True, env={"XZ_OPT": "-9", "PATH": "/usr/bin:/bin"})


def unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True, env={"PATH": "/usr/bin:/bin"})
