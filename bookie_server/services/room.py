# SPDX-License-Identifier: Apache-2.0
"""What clients may hold of this process beside the machine's own bounds.

Three things the machine cannot see. Streams cost memory before they say anything: so many for a connection.
Answers of the control stream wait for clients to take them: so many bytes for all. And a message is gRPC's until its
last byte has come: up to 8 MiB for each stream that is being read, whether it sends slowly or not at all, and nobody
can tell which. That is bounded by the number of connections, and by :class:`MemoryWatch`, which says when it has become
too much for this machine; then streams that are silent are ended, and their memory with them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from pathlib import Path, PurePosixPath

STREAMS_MAX = 6
"""Streams of a connection: one of each kind, and another while the first one ends."""

ANSWER_BYTES_MAX = 64 << 20
"""Control answers of all clients that wait to be taken; fences may fill a quarter more."""

_FILES_WANTED = 1 << 16
_GROWTH = 64 << 20
_NO_LIMIT = 1 << 63


class AnswerRoom:
    """Bytes of control answers of all streams."""

    def __init__(self, bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self.bytes, self._bytes_max = 0, bytes_max

    def refuses(self, *, fence: bool) -> bool:
        """Whether an answer may not be kept until its client takes it."""
        return self.bytes > self._bytes_max + (self._bytes_max // 4 if fence else 0)


class MemoryWatch:
    """When too much of the machine's memory is taken. Pure: it is told how much, and says what to do.

    What has been given back cannot always be used again by others, and much may be rightly held. So after it has said
    "shed" it says so again only when as much again was taken as before and 64 MiB more, until it is well below its
    bound: a bookie that works hard near it does not end its idle clients' streams again and again.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = self._threshold = bytes_max

    def shed(self, resident_bytes: int) -> bool:
        """Whether silent streams are to be ended now."""
        if resident_bytes <= self._bytes_max // 8 * 7:
            self._threshold = self._bytes_max
        return resident_bytes > self._threshold

    def has_shed(self, resident_bytes: int) -> None:
        """They were; so much is taken now."""
        self._threshold = max(self._bytes_max, resident_bytes + _GROWTH)


def raise_files_max() -> None:
    """Have this process open as many files as it may: each connection is one, and the usual limit is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_allowed(wanted: int, files_kept: int) -> int:
    """As many of the wanted connections as leave ``files_kept`` files to all else: storage that cannot open its files
    is as good as broken. At least one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - files_kept))


def resident_bytes() -> int:
    """Memory of this process that is not paged out; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def memory_bytes_usable() -> int:
    """Three quarters of the memory that this process may take: of its control group's limit, or of the machine's."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *group_limits()) // 4 * 3


def group_limits(told: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Memory limits in bytes of this process's control group and of those around it; ``told`` names the group. In a
    container it may be named as the host sees it, while the one at the root is its own."""
    found = [_NO_LIMIT]
    with contextlib.suppress(OSError):
        for line in told.read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            folder, name = mounted, "memory.max"
            if controllers:  # the older kind has a tree a controller
                folder, name = mounted / "memory", "memory.limit_in_bytes"
            if not controllers or "memory" in controllers.split(","):
                for path in (PurePosixPath(group), *PurePosixPath(group).parents):
                    with contextlib.suppress(OSError, ValueError):
                        limit = folder / path.relative_to("/") / name
                        found.append(int(limit.read_text(encoding="ascii")))
    return found


def give_memory_back() -> None:
    """Let the system have what was freed."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
