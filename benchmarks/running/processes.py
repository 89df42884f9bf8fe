# SPDX-License-Identifier: Apache-2.0
"""Measures the processor time that each kind of process spends during a measurement."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CLIENT, BOOKIES, ZOOKEEPER, RAW_SERVERS, BROKER = "client", "bookies", "ZooKeeper", "raw servers", "broker"
"""Kinds of processes. ``CLIENT`` is this process: our client runs in it, and the peers' clients that are Python."""
APACHES_CLIENT, APACHES_BOOKIES = "Apache's client", "Apache's bookies"
OURS = (CLIENT, BOOKIES, ZOOKEEPER)
PEERS = {
    "raw": (CLIENT, RAW_SERVERS),
    "kafka": (CLIENT, BROKER),
    "pulsar": (BROKER, BOOKIES),
    "apache": (APACHES_CLIENT, APACHES_BOOKIES, ZOOKEEPER),
}
"""The kinds of processes that work for each peer. The others idle meanwhile, but an idle Java still uses some time."""


class Processes:
    """Processes by their kind, each with all its descendants. Without ``/proc`` all costs are empty."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[int]] = {}

    @contextmanager
    def born(self, kind: str) -> Iterator[None]:
        """Record the processes that this process starts in the block as of ``kind``."""
        before = set(_children_of(os.getpid()))
        yield
        self._kinds.setdefault(kind, []).extend(set(_children_of(os.getpid())) - before)

    def spent_s(self) -> dict[str, float]:
        """Return the processor seconds of each kind since it began."""
        found = table()

        def seconds(pid: int) -> float:
            return found.get(pid, (0, 0.0))[1]

        spent = {kind: sum(map(seconds, self._all(found, kind))) for kind in self._kinds}
        return {CLIENT: seconds(os.getpid()), **spent}

    def resident_bytes(self, kind: str) -> int:
        """Return the resident memory of the processes of a kind."""
        return sum(map(_resident, self._all(table(), kind)))

    def _all(self, found: Mapping[int, tuple[int, float]], kind: str) -> Iterator[int]:
        return (each for pid in self._kinds.get(kind, ()) for each in with_descendants(found, pid))


def cost(
    before: Mapping[str, float], after: Mapping[str, float], kinds: Iterable[str], payload_bytes: int
) -> dict[str, float]:
    """Return the seconds per gigabyte of payload of each kind; empty if there was no payload."""
    if not payload_bytes:
        return {}
    spent = {kind: after[kind] - before.get(kind, 0.0) for kind in kinds if kind in after}
    return {kind: seconds / payload_bytes * 1e9 for kind, seconds in spent.items()}


def _children_of(pid: int) -> list[int]:
    return [child for child, (parent, _) in table().items() if parent == pid]


def table() -> dict[int, tuple[int, float]]:
    """Return the parent and the processor seconds of each process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        found[int(path.name)] = (int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return found


def with_descendants(processes: Mapping[int, tuple[int, float]], root: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield root
    for child, (parent, _) in processes.items():
        if parent == root:
            yield from with_descendants(processes, child)


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0  # it has just ended
    return pages * os.sysconf("SC_PAGE_SIZE")
