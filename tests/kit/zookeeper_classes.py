# SPDX-License-Identifier: Apache-2.0
"""An archive of the classes that a ZooKeeper server loads (Java's class data sharing), with which a server starts with
two thirds of the CPU time. Tests start a hundred servers. Without the archive everything works as well.

``python -m tests.kit.zookeeper_classes`` makes it, which ``scripts/test`` does before the tests.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bk_cli.local import zookeeper_server
from bk_core.errors import BookKeeperError

ARCHIVE = Path(__file__).parents[2] / ".cache" / "zookeeper-classes.jsa"
SILENT = "-Xlog:disable"
"""Java is not to complain if the archive is of another Java or of other jars. It starts without it then."""
MAKE_S = 60.0


class OrderlyServer(zookeeper_server.ZooKeeperServer):
    """A server that can end in order, however long that takes."""

    def end(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(MAKE_S)


def use() -> None:
    """Let the servers that this process starts use the archive, if there is one."""
    if ARCHIVE.exists():
        zookeeper_server.JAVA = (*zookeeper_server.JAVA, SILENT, f"-XX:SharedArchiveFile={ARCHIVE}")


def make() -> None:
    """Make the archive, if there is none. Java writes it when the server has ended in order."""
    if ARCHIVE.exists():
        return
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        unfinished = Path(folder, "classes.jsa")
        zookeeper_server.JAVA = (*zookeeper_server.JAVA, SILENT, f"-XX:ArchiveClassesAtExit={unfinished}")
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
