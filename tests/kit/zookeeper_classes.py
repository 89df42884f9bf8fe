# SPDX-License-Identifier: Apache-2.0
"""The archive of the classes that a ZooKeeper server loads (``class_archives.py``). With it a server starts with two
thirds of the CPU time, and tests start a hundred servers.

``scripts/test`` makes it before the tests, by ``python -m tests.kit.zookeeper_classes``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bk_cli.local import zookeeper_server
from bk_core.errors import BookKeeperError
from tests.kit.class_archives import using, writing

ARCHIVE = Path(__file__).parents[2] / ".cache" / "zookeeper-classes.jsa"
MAKE_S = 60.0


class OrderlyServer(zookeeper_server.ZooKeeperServer):
    """A server that may take any time to end in order."""

    def end(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(MAKE_S)


def use() -> None:
    """Let the servers that this process starts use the archive, if it exists."""
    zookeeper_server.JAVA = (*zookeeper_server.JAVA, *using(ARCHIVE))


def make() -> None:
    """Make the archive if it does not exist. Java writes it when the server ends in order."""
    if ARCHIVE.exists():
        return
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        unfinished = Path(folder, "classes.jsa")
        zookeeper_server.JAVA = (*zookeeper_server.JAVA, *writing(unfinished))
        server = OrderlyServer(durable=False)
        try:
            server.start(folder)
            server.end()
            unfinished.replace(ARCHIVE)  # only a complete archive has this name
        except (BookKeeperError, OSError, subprocess.SubprocessError) as error:
            print(f"no archive of ZooKeeper's classes: {error}", file=sys.stderr)
        finally:
            server.stop()


if __name__ == "__main__":
    make()
