# SPDX-License-Identifier: Apache-2.0
"""Bounds on memory and files that clients take from this process outside the machine.

The machine does not see three things. A stream costs memory before it carries a message: the number for a connection is
bounded. Answers of the control stream wait for clients: their bytes are bounded for all clients together. And a message
is held until its last byte has come: up to 8 MiB for each stream being read. On the direct lane :class:`MessageRoom`
bounds these bytes. gRPC does not tell of them; they are bounded by the number of connections, and by
:class:`MemoryWatch`, which says when this machine is short of memory; then silent streams are ended, which frees it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from pathlib import Path, PurePosixPath
from typing import Protocol

STREAMS_MAX = 6
"""Streams of a connection: one of each kind, and another while the first one ends."""

MESSAGE_ROOM_BYTES = 256 << 20
"""Long messages that are being received on the direct lane, in bytes."""

ANSWER_BYTES_MAX = 64 << 20
"""Control answers of all clients that wait to be taken, in bytes; fences may use a quarter more."""

_FILES_WANTED = 1 << 16
_GROWTH = 64 << 20
_NO_LIMIT = 1 << 63

HELLO_TIMEOUT_S = 10.0
"""A client that sends nothing for so long after opening a stream is cut off."""

WRITE_TIMEOUT_S = 60.0
"""A client that takes nothing for so long is cut off; sooner, if others wait for the memory."""

GRACE_S = 2.0
"""How long the queued answers of an ending stream may take to be written."""


class AnswerRoom:
    """The bytes of control answers of all streams."""

    def __init__(self, bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self.bytes, self._bytes_max = 0, bytes_max

    def refuses(self, *, fence: bool) -> bool:
        """Whether an answer must not be queued."""
        return self.bytes > self._bytes_max + (self._bytes_max // 4 if fence else 0)


class Receiver(Protocol):
    """A receiver of long messages."""

    def go_on(self) -> None:
        """There is room for it now."""
        ...


class MessageRoom:
    """The bytes of long messages that are being received on all connections of a lane. A receiver that finds no room
    waits for its turn, and does not read meanwhile. Pure."""

    def __init__(self, bytes_max: int = MESSAGE_ROOM_BYTES) -> None:
        self._bytes, self._bytes_max = 0, bytes_max
        self._held: dict[Receiver, int] = {}
        self._waiting: dict[Receiver, int] = {}

    def is_short(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def take(self, who: Receiver, size: int) -> bool:
        """``who`` receives a message of ``size`` bytes now, instead of what it received before. False: it has to
        wait."""
        self.give_back(who)
        if self._waiting or self._bytes + size > self._bytes_max:
            self._waiting[who] = size
            return False
        self._hold(who, size)
        return True

    def give_back(self, who: Receiver) -> None:
        """``who`` receives nothing any more."""
        self._waiting.pop(who, None)
        self._bytes -= self._held.pop(who, 0)
        while self._waiting:
            first, size = next(iter(self._waiting.items()))
            if self._bytes + size > self._bytes_max:
                return
            del self._waiting[first]
            self._hold(first, size)
            first.go_on()

    def _hold(self, who: Receiver, size: int) -> None:
        self._held[who] = size
        self._bytes += size


class MemoryWatch:
    """Says when silent streams must be ended because memory is short. Pure: it is told how much memory is taken.

    Freed memory cannot always be used again by others, and much may be held for good reason. So after ending streams it
    does so again only when the process takes 64 MiB more than it did right afterwards, or was well below the bound in
    between. Otherwise a busy bookie near its bound would end its idle clients' streams again and again.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = self._threshold = bytes_max

    def shed(self, resident_bytes: int) -> bool:
        """Whether silent streams must be ended now."""
        if resident_bytes <= self._bytes_max // 8 * 7:
            self._threshold = self._bytes_max
        return resident_bytes > self._threshold

    def has_shed(self, resident_bytes: int) -> None:
        """Silent streams were ended, and the process takes ``resident_bytes`` now."""
        self._threshold = max(self._bytes_max, resident_bytes + _GROWTH)


def raise_files_max() -> None:
    """Allow this process as many open files as the system permits: each connection is one, and the usual
    limit is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_allowed(wanted: int, files_kept: int) -> int:
    """As many of the wanted connections as leave ``files_kept`` files for everything else, because storage fails if it
    cannot open its files. At least one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - files_kept))


def resident_bytes() -> int:
    """The resident memory of this process; 0 if the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def memory_bytes_usable() -> int:
    """Three quarters of the memory that this process may take: of its control group's limit, or of the machine's."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *group_limits()) // 4 * 3


def group_limits(told: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """The memory limits in bytes of this process's control group and of the groups around it. ``told`` is the file that
    names the group. In a container that may be the host's name for it; then the group at the root is its own."""
    found = [_NO_LIMIT]
    with contextlib.suppress(OSError):
        for line in told.read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            folder, name = mounted, "memory.max"
            if controllers:  # cgroup version 1 has a tree for each controller
                folder, name = mounted / "memory", "memory.limit_in_bytes"
            if not controllers or "memory" in controllers.split(","):
                for path in (PurePosixPath(group), *PurePosixPath(group).parents):
                    with contextlib.suppress(OSError, ValueError):
                        limit = folder / path.relative_to("/") / name
                        found.append(int(limit.read_text(encoding="ascii")))
    return found


def give_memory_back() -> None:
    """Return freed memory to the system."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
