# SPDX-License-Identifier: Apache-2.0
"""The file system as storage sees it. Only this file opens, writes, syncs, renames, locks and preallocates (S10, S11).

Storage calls a :class:`Files`. The simulator replaces its system calls (the methods with an underscore) and keeps the
same promises:

- ``write`` is durable after ``sync_data`` on the same handle has returned; a name is durable after ``sync_directory``.
- Errors of ``write`` and of the syncs are ``OSError`` and are never retried (RULES S6).

The platform decides how to sync: Darwin's fsync does not reach the disk, so F_FULLFSYNC is used there. Functions that a
platform lacks are not called there. Where O_DIRECT is missing or refused (tmpfs, overlayfs: EINVAL), writes go through
the page cache; the sync after each group makes them equally durable, only slower.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeAlias, cast

import numpy as np

from bk_core.memory.huge_pages import private_memory

BLOCK = 4096
"""The alignment of buffers, offsets and lengths for O_DIRECT."""

Handle: TypeAlias = int
"""An open file. Other modules pass it back and use it for nothing else."""

_BUFFERS_MAX = 512
"""The maximum number of buffers in one system call; the system's own bound is 1,024."""

_REFUSED_DIRECT = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


def aligned_buffer(size: int) -> mmap.mmap:
    """Return zeroed memory of at least ``size`` bytes whose address is a multiple of the page size."""
    return private_memory(round_up(size, BLOCK))


def is_aligned(buffer: memoryview) -> bool:
    """Return whether the buffer's address is a multiple of :data:`BLOCK`."""
    return np.frombuffer(buffer, np.uint8).ctypes.data % BLOCK == 0


def round_up(value: int, step: int) -> int:
    """Return the smallest multiple of ``step`` (a power of two) that is at least ``value``."""
    return (value + step - 1) & -step


_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # <linux/falloc.h>


def _punch_hole() -> Callable[[int, int, int, int], int] | None:
    """Return Linux's fallocate, which Python does not have, or None on other systems."""
    if sys.platform != "linux":
        return None
    try:
        fallocate = ctypes.CDLL(None).fallocate
    except (OSError, AttributeError):
        return None
    if ctypes.sizeof(ctypes.c_long) < 8:  # off_t is not a long on such a system
        return None
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    return cast("Callable[[int, int, int, int], int]", fallocate)


_AT_ONCE: int | None = getattr(os, "RWF_NOWAIT", None) if hasattr(os, "preadv") else None


class Files:
    """The real file system. All methods block; all raise ``OSError``."""

    # --- segments -----------------------------------------------------------------------------------------------

    def create_preallocated(self, path: str, size: int) -> Handle:
        """Create a file of ``size`` zero bytes with its blocks allocated, open for direct writes where possible. Raises
        FileExistsError if the name is taken. After any other error the file is removed. The caller syncs."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        handle = self._open_direct(path, flags)
        try:
            self._preallocate(handle, size)
        except BaseException:
            os.close(handle)
            os.unlink(path)
            raise
        return handle

    def open_preallocated(self, path: str, size: int) -> Handle | None:
        """Open an existing file of exactly ``size`` bytes, allocate missing blocks, and keep its content. Return None
        if it has another size."""
        handle = self._open_direct(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        try:
            if self.size(handle) == size:
                self._preallocate(handle, size)  # a copy of the directory may have left holes
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        return None

    def _open_direct(self, path: str, flags: int) -> Handle:
        direct = getattr(os, "O_DIRECT", 0)
        if not direct:
            return os.open(path, flags, 0o644)
        try:
            return os.open(path, flags | direct, 0o644)
        except OSError as error:
            if error.errno not in _REFUSED_DIRECT:
                raise
        return os.open(path, flags & ~os.O_EXCL, 0o644)  # a refused O_CREAT may have left the empty file

    def _preallocate(self, handle: Handle, size: int) -> None:
        allocate = getattr(os, "posix_fallocate", None)
        if allocate is not None:
            try:
                allocate(handle, 0, size)
                return
            except OSError as error:
                if error.errno not in _REFUSED_DIRECT:
                    raise
        os.ftruncate(handle, size)

    def deallocate(self, path: str, offset: int) -> int:
        """Give the blocks from ``offset`` to the end of the file back to the file system. They then read as zeros, and
        the file keeps its size. Return the number of bytes, or 0 if the system cannot do this. The call does not sync
        the file."""
        punch = _punch_hole()
        handle = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        try:
            size = self.size(handle) - offset
            return size if size > 0 and punch and punch(handle, _KEEP_SIZE | _PUNCH_HOLE, offset, size) == 0 else 0
        finally:
            os.close(handle)

    def write(self, handle: Handle, buffers: Sequence[memoryview], offset: int) -> None:
        """Write all of ``buffers``, one behind the other, at ``offset``. The buffers and ``offset`` are aligned to
        :data:`BLOCK`. This is one system call unless that writes only a part, or the platform takes one buffer at a
        time."""
        while buffers:
            try:
                done = self._write_some(handle, buffers, offset)
            except OSError as error:
                # Some file systems accept O_DIRECT at open and refuse it at the first write; nothing was written yet.
                if error.errno != errno.EINVAL or not self._drop_direct(handle):
                    raise
                continue
            if done <= 0:
                raise OSError(errno.EIO, "the write made no progress")
            offset += done
            while buffers and done >= len(buffers[0]):
                done -= len(buffers[0])
                buffers = buffers[1:]
            if done:
                buffers = [buffers[0][done:], *buffers[1:]]

    def _write_some(self, handle: Handle, buffers: Sequence[memoryview], offset: int) -> int:
        if len(buffers) > 1 and hasattr(os, "pwritev"):
            return os.pwritev(handle, buffers[:_BUFFERS_MAX], offset)
        return os.pwrite(handle, buffers[0], offset)

    def _drop_direct(self, handle: Handle) -> bool:
        """Turn O_DIRECT off on an open file. Return False if it was not on."""
        direct = getattr(os, "O_DIRECT", 0)
        flags = fcntl.fcntl(handle, fcntl.F_GETFL)
        if not direct or not flags & direct:
            return False
        fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~direct)
        return True

    def sync_data(self, handle: Handle) -> None:
        """Make everything written to the file, and its size, durable. A failure is final (S6)."""
        self._platform_sync(handle)

    @cached_property
    def _platform_sync(self) -> Callable[[Handle], object]:
        """The platform's call to sync a file's data. It is looked up once, because the look-up of a missing name is
        slow."""
        full = getattr(fcntl, "F_FULLFSYNC", None)
        if full is not None:
            return lambda handle: fcntl.fcntl(handle, full)
        return getattr(os, "fdatasync", None) or os.fsync

    def open_read(self, path: str) -> Handle:
        return os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def read(self, handle: Handle, size: int, offset: int) -> bytes:
        """Return ``size`` bytes at ``offset``; fewer only at the end of the file."""
        data = self._pread(handle, size, offset)
        while len(data) < size and (more := self._pread(handle, size - len(data), offset + len(data))):
            data += more
        return data

    def _pread(self, handle: Handle, size: int, offset: int) -> bytes:
        return os.pread(handle, size, offset)

    def read_at_once(self, handle: Handle, size: int, offset: int) -> bytes | bytearray | None:
        """Return the ``size`` bytes at ``offset`` if all of them are in the page cache. Return None if they are not, or
        if the system cannot tell. Never blocks."""
        if _AT_ONCE is None:
            return None
        data = bytearray(size)
        try:
            return data if os.preadv(handle, [data], offset, _AT_ONCE) == size else None
        except OSError:
            return None

    def read_into(self, handle: Handle, view: memoryview, offset: int) -> int:
        """Fill ``view`` with the bytes at ``offset``, up to the end of the file; return their number."""
        done = 0
        while done < len(view) and (got := self._read_into(handle, view[done:], offset + done)):
            done += got
        return done

    def read_past_cache(self, path: str, size: int, offset: int) -> bytes:
        """Read as :meth:`read` does, but from the disk instead of the page cache, if the platform can (RULES S5)."""
        start = offset // BLOCK * BLOCK
        length = round_up(offset + size - start, BLOCK)
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
        handle = self._open_direct(path, flags)
        try:
            dont_need = getattr(os, "POSIX_FADV_DONTNEED", None)
            if dont_need is not None and hasattr(
                os, "posix_fadvise"
            ):  # helps only where O_DIRECT was refused; harmless elsewhere
                os.posix_fadvise(handle, start, length, dont_need)
            try:
                data = self._read_aligned(handle, length, start)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._drop_direct(handle):
                    raise
                data = self._read_aligned(handle, length, start)
        finally:
            os.close(handle)
        return data[offset - start : offset - start + size]

    def _read_aligned(self, handle: Handle, length: int, offset: int) -> bytes:
        view = memoryview(aligned_buffer(length))
        done = 0
        while done < length:
            got = self._read_into(handle, view[done:], offset + done)
            done += got
            if not got or got % BLOCK:  # the end of the file
                break
        return bytes(view[:done])

    def _read_into(self, handle: Handle, view: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(handle, [view], offset)
        data = os.pread(handle, len(view), offset)
        view[: len(data)] = data
        return len(data)

    def advise_random(self, handle: Handle) -> None:
        """Switch off read-ahead on this handle, because it would cache bytes beyond the durable position (RULES S5)."""
        if hasattr(os, "posix_fadvise") and hasattr(os, "POSIX_FADV_RANDOM"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)

    def drop_cache(self, handle: Handle) -> None:
        """Drop the file's cached pages, so that later reads come from the disk, except for bytes written and not
        synced. Called before a segment is scanned: pages that were cached before a direct write would hide acknowledged
        data (RULES S5)."""
        if hasattr(os, "posix_fadvise") and hasattr(os, "POSIX_FADV_DONTNEED"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def size(self, handle: Handle) -> int:
        return os.fstat(handle).st_size

    def close(self, handle: Handle) -> None:
        """Close a file. Never raises."""
        with contextlib.suppress(OSError):
            os.close(handle)

    # --- names and small files -------------------------------------------------------------------------------------

    def write_atomically(self, path: str, data: bytes) -> None:
        """Replace the file's content by writing ``<path>.tmp``, fsync, rename, and fsync of the directory. After an
        error the file has the old or the new content, never a mixture."""
        temporary = path + ".tmp"
        handle = self._create(temporary)
        try:
            self._append(handle, memoryview(data))
            self._sync_file(handle)
        except BaseException:
            with contextlib.suppress(OSError):  # a full disk must get its space back
                self.remove(temporary)
            raise
        finally:
            self.close(handle)
        self.rename(temporary, path)

    def create(self, path: str) -> Handle:
        """Create an empty file for appends and writes; an existing one is emptied. The caller syncs."""
        return self._create(path)

    def append(self, handle: Handle, data: bytes) -> None:
        """Write all of ``data`` behind earlier appends."""
        self._append(handle, memoryview(data))

    def _create(self, path: str) -> Handle:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o644)

    def _append(self, handle: Handle, data: memoryview) -> None:
        while data:
            data = data[os.write(handle, data) :]

    def _sync_file(self, handle: Handle) -> None:
        full = getattr(fcntl, "F_FULLFSYNC", None)
        if full is not None:
            fcntl.fcntl(handle, full)
        else:
            os.fsync(handle)

    def rename(self, old: str, new: str) -> None:
        """Rename a file within its directory, durably."""
        self._replace(old, new)
        self.sync_directory(os.path.dirname(new))

    def _replace(self, old: str, new: str) -> None:
        os.replace(old, new)

    def sync_directory(self, path: str) -> None:
        """Make the names in the directory durable. A failure is final (S6)."""
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            self._sync_file(handle)
        finally:
            self.close(handle)

    def read_file(self, path: str) -> bytes:
        handle = self.open_read(path)
        try:
            return self.read(handle, self.size(handle), 0)
        finally:
            self.close(handle)

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def remove(self, path: str) -> None:
        """Remove a file; the caller syncs the directory if that matters."""
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        """Make the directory and its missing parents, and make each new name durable in its parent. An existing
        directory is synced in its parent, too, because a process may have ended between making and syncing it."""
        path = os.path.abspath(path)
        parent, there = os.path.dirname(path), self._is_directory(path)
        if not there:
            if not self._is_directory(parent):
                self.make_directory(parent)
            self._make_directory(path)
        try:
            self.sync_directory(parent)
        except PermissionError:  # the parent belongs to another user, who made the directory for us
            if not there:
                raise

    def _is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def _make_directory(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)

    def lock(self, path: str) -> Handle:
        """Take an exclusive lock on a file. It is held until the handle is closed or the process ends. Raises
        BlockingIOError if another process holds it."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def place_of(self, path: str) -> str:
        """Return a text that identifies a file on this running machine. A copy of the file has another text, wherever
        it is."""
        stat = os.stat(path)
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                machine = file.read().strip()  # a cloned machine has the same name, but another boot id
        except OSError:
            machine = os.uname().nodename
        return f"{machine}:{stat.st_dev:x}:{stat.st_ino:x}"

    def free_bytes(self, path: str) -> int:
        """Return the free bytes that this process may use."""
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def total_bytes(self, path: str) -> int:
        """Return the size of the file system in bytes, without the space reserved for root, as ``df`` counts. So a full
        file system has a used share of 1, however much is reserved."""
        stat = os.statvfs(path)
        return (stat.f_blocks - stat.f_bfree + stat.f_bavail) * stat.f_frsize
