# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes over the kept data of a release: ZooKeeper and four bookies, in a folder."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from kazoo.client import KazooClient

from bk_cli.local.cluster import BookieProcess
from bk_cli.local.cluster_layout import free_bookie_ports
from bk_cli.local.zookeeper_server import ZooKeeperServer

ROOT = Path(__file__).parents[2]
BOOKIES = 4
SETTINGS = {"segment_size_bytes": (8 << 20) + (16 << 10), "segments_kept_free": 1, "scrub_interval_s": 3600.0}
"""The smallest segments that there can be, so that the data is small."""
READY_S = 60.0


def kept(release: str) -> Path:
    """The folder with the kept data of a release."""
    return ROOT / "tests" / "data" / f"release-{release}"


class ReleaseCluster:
    """The processes over the data in ``folder``, on free ports; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.zookeeper = ZooKeeperServer(durable=False)
        self.bookies: list[BookieProcess] = []
        self.uri = ""

    def __enter__(self) -> ReleaseCluster:
        try:
            self.uri = f"zk://{self.zookeeper.start(self.folder / 'zookeeper')}/ledgers"
            self.bookies = [
                BookieProcess(number, self.folder / f"bookie-{number}", port, self.uri, SETTINGS)
                for number, port in enumerate(free_bookie_ports(BOOKIES), start=1)
            ]
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        for bookie in self.bookies:
            bookie.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while not all(bookie.is_ready for bookie in self.bookies):
            for bookie in self.bookies:
                said = bookie.log_path.read_text(encoding="utf-8")
                assert bookie.is_running, f"bookie {bookie.number} ended with {bookie.exit_code}: {said}"
            assert time.monotonic() < deadline, "the bookies are not ready"
            time.sleep(0.05)

    def stop_bookies(self) -> list[int]:
        """Stop them cleanly; their exit codes. A second SIGTERM would end one that has all but ended."""
        for bookie in self.bookies:
            bookie.terminate()
        deadline = time.monotonic() + READY_S
        while any(bookie.is_running for bookie in self.bookies) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [bookie.stop() for bookie in self.bookies]

    def stop(self) -> None:
        self.stop_bookies()
        self.zookeeper.stop()


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
