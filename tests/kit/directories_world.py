# SPDX-License-Identifier: Apache-2.0
"""A bookie with several data directories on a simulated disk, and functions to open, write, damage and inspect them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import BookieIdentityError
from bk_core.wire.lane.reasons import Reason
from bookie_server.config import BookieConfig
from bookie_server.identity.known_state import read_known_state
from bookie_server.identity.opening import OpenStorage, open_storage
from bookie_server.storage.disk.cookie import decode_identity
from bookie_server.storage.disk.files import Files
from bookie_server.storage.index.index import Lookup
from tests.kit.memory_store import MemoryCluster, MemoryStore
from tests.sim.disk import SimDisk

A, B, C = "/a", "/b", "/c"
IN_A, IN_B, UNHEARD, OF_OTHERS = 1, 2, 3, 4


@contextmanager
def session(cluster: MemoryCluster) -> Iterator[MemoryStore]:
    store = MemoryStore(cluster, uri="memory://directories")
    try:
        yield store
    finally:
        store.close()


@contextmanager
def bookie(
    cluster: MemoryCluster,
    disk: Files,
    *paths: str,
    accept_loss: bool = False,
    bookie_id: str = "b1",
    behind: MemoryCluster | None = None,
) -> Iterator[dict[str, OpenStorage]]:
    """Open the directories, and yield them by path. With ``behind`` the bookie's metadata server lags, and has this
    older state."""
    config = BookieConfig(
        data_dirs=tuple(map(Path, paths)),
        metadata_service_uri="memory://x",
        bookie_id=bookie_id,
        session_timeout_s=0.01,
    )
    with session(cluster) as store:
        if behind is not None:
            store.tree.lag(behind)
        opened = open_storage(
            config, store, "host", 3181, files=disk, segment_size_bytes=64 << 10, accept_loss=accept_loss
        )
        try:
            yield {each.directory.path: each for each in opened}
        finally:
            for each in opened:
                each.log.close()
                each.reader.close()
                each.directory.close()


def write(opened: OpenStorage, frame: bytes) -> None:
    [place] = opened.log.append_group([frame])
    opened.index.add(frame, place)


def refused(cluster: MemoryCluster, disk: SimDisk, *paths: str) -> str:
    before = disk.paths()
    with pytest.raises(BookieIdentityError) as caught, bookie(cluster, disk, *paths):
        pass
    assert disk.paths() == before, "a refused start made files"
    assert "--accept-loss" in str(caught.value)
    return str(caught.value)


def remove(disk: SimDisk, path: str) -> None:
    for name in [name for name in disk.paths() if name.startswith(path + "/") and not name.endswith("segments")]:
        disk.lose_file(name)


def known(cluster: MemoryCluster) -> dict[str, int]:
    """Return the boot count of each incarnation, as the store has them."""
    with session(cluster) as store:
        return {name: each.boot_count for name, each in read_known_state(store, "b1").directories.items()}


def incarnation(disk: SimDisk, path: str) -> str:
    return decode_identity(disk.durable_bytes(path + "/IDENTITY")).incarnation


def troubles(opened: dict[str, OpenStorage], ledger_id: int) -> dict[str, Reason]:
    """Return the reason of the ledger's trouble in each directory that knows the ledger."""
    return {path: each.index.folded(ledger_id)[1] for path, each in opened.items() if each.index.folded(ledger_id)[0]}


def look(opened: OpenStorage, ledger_id: int, first: int, last: int) -> Lookup:
    """Look entries up. Where the index alone cannot resolve a place, read it."""
    resolved: dict[Any, Any] = {}
    while (found := opened.index.lookup(ledger_id, first, last, resolved=resolved)).unresolved:
        resolved |= {place: opened.reader.membership(place) for place in found.unresolved}
    return found
