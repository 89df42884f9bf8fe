# SPDX-License-Identifier: Apache-2.0
"""Archives of the classes that Apache's programs load (Java's class data sharing). With them a bookie or a client
starts with half of the CPU time. They lie beside the jars in the cache. Everything also works without them.

``python -m tests.interop.jars`` makes them. It runs programs that do what those of the tests do and then end in order,
because Java writes an archive only then.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bk_cli.local.apache_jars import cache_folder, cached
from bk_cli.local.zookeeper_server import ZooKeeperServer
from tests.interop.jars import Toolchain
from tests.interop.pattern import Pattern
from tests.kit.class_archives import using, writing

MAKE_S = 180.0
BOOKIES = "BookieHost"
"""The program whose archive serves programs that have none of their own, such as Apache's tools."""
_made_in: Path | None = None
"""While archives are made, the folder in which a program leaves its archive when it ends."""


@functools.cache
def _name_of(tools: Toolchain) -> str:
    java = Path(tools.java).resolve()
    key = f"{java} {java.stat().st_mtime_ns} {tools.class_path}"
    return f"{tools.version}-classes-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def options(tools: Toolchain, main: str) -> list[str]:
    """Return the options with which a program uses an archive, if there is one, or writes it."""
    if _made_in is not None:
        return writing(_made_in / f"{main}.jsa")
    folder = cache_folder() / _name_of(tools)
    return using(folder / f"{main}.jsa") or using(folder / f"{BOOKIES}.jsa")


def make(tools: Toolchain) -> None:
    """Make the archives for a version of Apache BookKeeper, if they do not exist. A failure is printed."""
    try:
        cached(_name_of(tools), functools.partial(_fill, tools), MAKE_S)
    except Exception as error:
        print(f"no archive of the classes of {tools.version}: {error}", file=sys.stderr)


@contextlib.contextmanager
def _making(folder: Path) -> Iterator[None]:
    global _made_in
    _made_in = folder
    try:
        yield
    finally:
        _made_in = None


def _fill(tools: Toolchain, folder: Path) -> None:
    from tests.interop.peers import ApacheCluster  # peers imports this module

    server = ZooKeeperServer(durable=False)
    with tempfile.TemporaryDirectory(prefix="classes-") as name:
        address = server.start(Path(name) / "zookeeper")
        try:
            with _making(folder), ApacheCluster(tools, address, Path(name) / "apache") as cluster:
                cluster.start(3)
                peer = cluster.peer_client()
                ledger = peer.client(cluster.uri).create()
                ledger.add(10, Pattern(seed=1, size_min=10, size_max=10))
                ledger.read(0, 9)
                ledger.close()
                cluster.end(MAKE_S)
        finally:
            server.stop()
