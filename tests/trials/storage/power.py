# SPDX-License-Identifier: Apache-2.0
"""A file system that loses what was not synced when its process is killed, like a loss of power.

Written bytes stay in this process until the file is synced, and names until their directory is. The real files have
what would be on the disk. ``kill -9`` alone is no loss of power, because the kernel's page cache survives it. A share
of the sectors (by ``seed``) goes to the real file at once, as a kernel may do, so that groups are torn.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from bookie_server.storage.disk.files import Files, Handle

SECTOR = 512
SHADOW = ".unsynced-"
_C = TypeVar("_C", bound=Callable[..., Any])


def _locked(call: _C) -> _C:
    @wraps(call)
    def locked(self: PowerLossFiles, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return call(self, *args, **kwargs)

    return locked


class _File:
    """A file: its real path now, and the writes that no sync has covered."""

    __slots__ = ("path", "size", "writes")

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = os.path.getsize(path)
        self.writes: list[tuple[int, bytes]] = []


class PowerLossFiles(Files):
    """The file system of one process with several threads and one data directory. When it is made, it deletes what an
    earlier process left of unsynced names. ``leak`` is the share of unsynced sectors that reach the disk all the
    same."""

    def __init__(self, root: str, seed: int, *, leak: float = 0.3) -> None:
        self._lock = threading.RLock()
        self._rng, self._leak = random.Random(seed), leak
        self._open: dict[Handle, _File] = {}
        self._seen: dict[str, _File] = {}  # by the path that this process sees
        self._gone: set[str] = set()
        self._changes: dict[str, list[Callable[[], None]]] = {}  # by directory, in order
        self._shadows = 0
        for directory, _, names in os.walk(root):
            for name in names:
                if SHADOW in name:
                    os.unlink(os.path.join(directory, name))

    # --- bytes ------------------------------------------------------------------------------------------------------

    def _real(self, path: str) -> _File:
        path = os.path.abspath(path)
        if path in self._gone:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        known = self._seen.get(path)
        if known is None:
            known = self._seen[path] = _File(path)
        return known

    def _opened(self, file: _File, flags: int) -> Handle:
        handle = os.open(file.path, flags | os.O_CLOEXEC)
        self._open[handle] = file
        return handle

    def _new(self, path: str) -> _File:
        path = os.path.abspath(path)
        self._shadows += 1
        directory, name = os.path.split(path)
        shadow = os.path.join(directory, f"{name}{SHADOW}{self._shadows}")
        with open(shadow, "xb"):
            pass
        file = self._seen[path] = _File(shadow)
        self._gone.discard(path)

        def appear() -> None:
            os.replace(file.path, path)
            file.path = path

        self._changes.setdefault(directory, []).append(appear)
        return file

    @_locked
    def create_preallocated(self, path: str, size: int) -> Handle:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, "exists", path)
        file = self._new(path)
        handle = self._opened(file, os.O_RDWR)
        self._preallocate(handle, size)
        file.size = size
        return handle

    @_locked
    def open_preallocated(self, path: str, size: int) -> Handle | None:
        file = self._real(path)
        return self._opened(file, os.O_RDWR) if file.size == size else None

    @_locked
    def _create(self, path: str) -> Handle:
        return self._opened(self._new(path), os.O_RDWR)

    @_locked
    def _append(self, handle: Handle, data: memoryview) -> None:
        self._put(handle, bytes(data), self._open[handle].size)

    @_locked
    def write(self, handle: Handle, buffers: Sequence[memoryview], offset: int) -> None:
        self._put(handle, b"".join(buffers), offset)

    def _put(self, handle: Handle, data: bytes, offset: int) -> None:
        file = self._open[handle]
        file.writes.append((offset, data))
        file.size = max(file.size, offset + len(data))
        if self._rng.random() < self._leak:
            share = self._rng.random()
            for at in range(0, len(data), SECTOR):
                if self._rng.random() < share:
                    os.pwrite(handle, data[at : at + SECTOR], offset + at)

    @_locked
    def deallocate(self, path: str, offset: int) -> int:
        file = self._real(path)
        size = max(0, file.size - offset)
        file.writes.append((offset, bytes(size)))
        if self._rng.random() < self._leak:
            Files().deallocate(file.path, offset)
        return size

    @_locked
    def sync_data(self, handle: Handle) -> None:
        file = self._open[handle]
        for offset, data in file.writes:
            os.pwrite(handle, data, offset)
        if os.fstat(handle).st_size < file.size:
            os.ftruncate(handle, file.size)
        file.writes.clear()

    def _sync_file(self, handle: Handle) -> None:
        self.sync_data(handle)

    @_locked
    def open_read(self, path: str) -> Handle:
        return self._opened(self._real(path), os.O_RDWR)

    @_locked
    def _pread(self, handle: Handle, size: int, offset: int) -> bytes:
        file = self._open[handle]
        size = max(0, min(size, file.size - offset))
        data = bytearray(os.pread(handle, size, offset).ljust(size, b"\0"))
        for at, written in file.writes:
            start, end = max(at, offset), min(at + len(written), offset + size)
            if start < end:
                data[start - offset : end - offset] = written[start - at : end - at]
        return bytes(data)

    def _read_into(self, handle: Handle, view: memoryview, offset: int) -> int:
        data = self._pread(handle, len(view), offset)
        view[: len(data)] = data
        return len(data)

    def read_past_cache(self, path: str, size: int, offset: int) -> bytes:
        handle = self.open_read(path)
        try:
            return self.read(handle, size, offset)
        finally:
            self.close(handle)

    def drop_cache(self, handle: Handle) -> None:
        """Do nothing: unsynced bytes must stay readable."""

    @_locked
    def size(self, handle: Handle) -> int:
        return self._open[handle].size

    @_locked
    def close(self, handle: Handle) -> None:
        self._open.pop(handle, None)
        super().close(handle)

    # --- names ------------------------------------------------------------------------------------------------------

    @_locked
    def _replace(self, old: str, new: str) -> None:
        old, new = os.path.abspath(old), os.path.abspath(new)
        file = self._real(old)
        self._seen[new] = self._seen.pop(old)
        self._gone.add(old)
        self._gone.discard(new)

        def move() -> None:
            os.replace(file.path, new)
            file.path = new

        self._changes.setdefault(os.path.dirname(new), []).append(move)

    @_locked
    def remove(self, path: str) -> None:
        path = os.path.abspath(path)
        file = self._real(path)
        del self._seen[path]
        self._gone.add(path)
        self._changes.setdefault(os.path.dirname(path), []).append(lambda: os.unlink(file.path))

    @_locked
    def sync_directory(self, path: str) -> None:
        for change in self._changes.pop(os.path.abspath(path), ()):
            change()

    @_locked
    def names(self, path: str) -> list[str]:
        path = os.path.abspath(path)
        there = {name for name in os.listdir(path) if SHADOW not in name}
        there |= {os.path.basename(seen) for seen in self._seen if os.path.dirname(seen) == path}
        return sorted(there - {os.path.basename(gone) for gone in self._gone if os.path.dirname(gone) == path})

    @_locked
    def exists(self, path: str) -> bool:
        path = os.path.abspath(path)
        return path not in self._gone and (path in self._seen or os.path.exists(path))

    @property
    def unsynced_bytes(self) -> int:
        """The number of bytes that a loss of power would take now."""
        with self._lock:
            files = {id(file): file for file in (*self._seen.values(), *self._open.values())}
            return sum(len(data) for file in files.values() for _, data in file.writes)
