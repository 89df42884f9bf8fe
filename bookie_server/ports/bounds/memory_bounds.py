# SPDX-License-Identifier: Apache-2.0
"""Bounds on the memory and files that clients use in this process outside the machine.

The machine does not see three uses of memory. A stream needs memory before it carries a message; the number of streams
of a connection is bounded. Answers of the control stream wait for clients; their bytes are bounded for all clients
together. And a message is held until its last byte has come, up to 8 MiB for each stream. On the direct lane
:class:`MessageRoom` bounds these bytes. gRPC does not report them, so there they are bounded by the number of
connections, and by :class:`MemoryWatch`: when the process uses too much memory, silent streams are ended, which frees
their memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from pathlib import Path, PurePosixPath
from typing import Protocol

STREAMS_MAX = 6
"""The maximum number of streams of a connection: two of each of the three kinds, because a client may open a new one
while the old one ends."""

MESSAGE_ROOM_BYTES = 256 << 20
"""The maximum size of all long messages that are being received on the direct lane."""

ANSWER_BYTES_MAX = 64 << 20
"""The maximum size of all control answers that wait for clients, in bytes. Answers to fences may use a quarter more."""

_FILES_WANTED = 1 << 16
"""The number of open files to request from the system if it sets no hard limit, or a higher one."""
_GROWTH = 64 << 20
"""The growth of the process, in bytes, after which silent streams are ended again."""
_NO_LIMIT = 1 << 63

HELLO_TIMEOUT_S = 10.0
"""The number of seconds after which a client is disconnected that has opened a stream and sends nothing."""

WRITE_TIMEOUT_S = 60.0
"""The number of seconds after which a client is disconnected that reads none of its answers. It is disconnected sooner
if other streams wait for the memory."""

GRACE_S = 2.0
"""The seconds that the last answers of an ending stream may take to be written."""


class AnswerRoom:
    """The bytes of the control answers of all streams that wait for clients."""

    def __init__(self, bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self.bytes, self._bytes_max = 0, bytes_max

    def refuses(self, *, fence: bool) -> bool:
        """Return whether an answer must not be queued."""
        return self.bytes > self._bytes_max + (self._bytes_max // 4 if fence else 0)


class Receiver(Protocol):
    """A receiver of long messages."""

    def go_on(self) -> None:
        """Continue to receive, because there is room now."""
        ...


class MessageRoom:
    """The bytes of the long messages that are being received on all connections of a lane. A receiver that finds no
    room waits for its turn, and does not read meanwhile. Pure."""

    def __init__(self, bytes_max: int = MESSAGE_ROOM_BYTES) -> None:
        self._bytes, self._bytes_max = 0, bytes_max
        self._held: dict[Receiver, int] = {}
        self._waiting: dict[Receiver, int] = {}

    def is_short(self) -> bool:
        """Return whether a receiver waits."""
        return bool(self._waiting)

    def take(self, who: Receiver, size: int) -> bool:
        """Take room for a message of ``size`` bytes that ``who`` receives, and give back its room for the last one.
        Return False if ``who`` must wait."""
        self.give_back(who)
        if self._waiting or self._bytes + size > self._bytes_max:
            self._waiting[who] = size
            return False
        self._hold(who, size)
        return True

    def give_back(self, who: Receiver) -> None:
        """Give back the room of ``who``, and let waiting receivers continue."""
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
    """Decides when silent streams must be ended because memory is short. Pure; the memory in use is an argument.

    Freed memory cannot always be used again, and much memory may be in use for good reason. So after streams were
    ended, streams are ended again only when the process uses 64 MiB more than right after that, or has been well below
    the bound in between. Otherwise a busy bookie near its bound would end its idle clients' streams again and again.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = self._threshold = bytes_max

    def shed(self, resident_bytes: int) -> bool:
        """Return whether silent streams must be ended now."""
        if resident_bytes <= self._bytes_max // 8 * 7:
            self._threshold = self._bytes_max
        return resident_bytes > self._threshold

    def has_shed(self, resident_bytes: int) -> None:
        """Note that silent streams were ended, and that the process uses ``resident_bytes`` now."""
        self._threshold = max(self._bytes_max, resident_bytes + _GROWTH)


def raise_files_max() -> None:
    """Raise this process's limit of open files as far as the system permits, because each connection is an open file
    and the usual limit is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_allowed(wanted: int, files_kept: int) -> int:
    """Return how many of the wanted connections leave ``files_kept`` open files for everything else, because storage
    fails if it cannot open its files. It is at least one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - files_kept))


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, or 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def memory_bytes_usable() -> int:
    """Return three quarters of the memory that this process may use: of the limit of its control group, or of the
    machine."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *group_limits()) // 4 * 3


def group_limits(told: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Return the memory limits, in bytes, of this process's control group and of the groups that contain it. ``told``
    is the file that names the group. In a container the file may have the host's name of the group; then the group at
    the root is the process's own."""
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
