# SPDX-License-Identifier: Apache-2.0
"""Files that can be written without changing the disk, so that a start can be tried out.

Reads come from another :class:`Files`. Everything that is written, made, renamed and removed stays in memory and is
read back from there. The other files are never written, renamed, removed or synced.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from typing import TypeAlias

from bookie_server.storage.disk.files import Files, Handle, aligned_buffer

_Bytes: TypeAlias = bytearray | mmap.mmap
"""The content of a file of the overlay. That of a segment is an mmap, which takes memory only where it is written."""


class Overlay(Files):
    """Files over those of ``base``. Handles of the overlay's own files are negative; all others are the base's. A
    recycled segment begins with zeros here, because its old content means nothing."""

    def __init__(self, base: Files) -> None:
        self._base = base
        self._names: dict[str, _Bytes | str | None] = {}  # content, path of a file of the base, or None: removed
        self._handles: dict[Handle, _Bytes] = {}
        self._last_handle = -1

    # --- reading ----------------------------------------------------------------------------------------------------

    def open_read(self, path: str) -> Handle:
        file = self._file(path)
        return self._base.open_read(file) if isinstance(file, str) else self._opened(file)

    def read(self, handle: Handle, size: int, offset: int) -> bytes:
        if handle >= 0:
            return self._base.read(handle, size, offset)
        return bytes(memoryview(self._handles[handle])[offset : offset + size])

    def read_at_once(self, handle: Handle, size: int, offset: int) -> None:
        """Return None, because users of the overlay may wait for the disk."""

    def read_into(self, handle: Handle, view: memoryview, offset: int) -> int:
        data = self.read(handle, len(view), offset)
        view[: len(data)] = data
        return len(data)

    def read_past_cache(self, path: str, size: int, offset: int) -> bytes:
        file = self._file(path)
        if isinstance(file, str):
            return self._base.read_past_cache(file, size, offset)
        return bytes(memoryview(file)[offset : offset + size])

    def advise_random(self, handle: Handle) -> None:
        if handle >= 0:
            self._base.advise_random(handle)

    def drop_cache(self, handle: Handle) -> None:
        if handle >= 0:
            self._base.drop_cache(handle)

    def size(self, handle: Handle) -> int:
        return self._base.size(handle) if handle >= 0 else len(self._handles[handle])

    def close(self, handle: Handle) -> None:
        if handle >= 0:
            self._base.close(handle)
        else:
            self._handles.pop(handle, None)

    def names(self, path: str) -> list[str]:
        own = {os.path.basename(name): file for name, file in self._names.items() if os.path.dirname(name) == path}
        made = [name for name, file in own.items() if file is not None]
        return sorted(made + [name for name in self._base.names(path) if name not in own])

    def exists(self, path: str) -> bool:
        return self._names[path] is not None if path in self._names else self._base.exists(path)

    def place_of(self, path: str) -> str:
        return self._base.place_of(path)

    def free_bytes(self, path: str) -> int:
        return self._base.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._base.total_bytes(path)

    # --- changes in memory ---------------------------------------------------------------------------------------

    def create_preallocated(self, path: str, size: int) -> Handle:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, "exists", path)
        return self._make(path, aligned_buffer(size))

    def open_preallocated(self, path: str, size: int) -> Handle | None:
        handle = self.open_read(path)
        found = self.size(handle)
        if handle < 0 and found == size:
            return handle
        self.close(handle)
        return self._make(path, aligned_buffer(size)) if found == size else None

    def deallocate(self, path: str, offset: int) -> int:
        """Do nothing, as on a system that cannot do it."""
        return 0

    def sync_data(self, handle: Handle) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def remove(self, path: str) -> None:
        self._file(path)
        self._names[path] = None

    def lock(self, path: str) -> Handle:
        """Lock nothing. The command that examines a directory locks it on disk."""
        return self._opened(bytearray())

    def make_directory(self, path: str) -> None:
        raise OSError(errno.EROFS, "no directory is made here", path)

    def write(self, handle: Handle, buffers: Sequence[memoryview], offset: int) -> None:
        data = b"".join(buffers)
        self._handles[handle][offset : offset + len(data)] = data

    def _create(self, path: str) -> Handle:
        return self._make(path, bytearray())

    def _append(self, handle: Handle, data: memoryview) -> None:
        file = self._handles[handle]
        assert isinstance(file, bytearray), "only small files are appended to"
        file += data

    def _sync_file(self, handle: Handle) -> None: ...

    def _replace(self, old: str, new: str) -> None:
        self._names[new], self._names[old] = self._file(old), None

    # --- inside -----------------------------------------------------------------------------------------------------

    def _file(self, path: str) -> _Bytes | str:
        """Return the content of the file in the overlay, or its path in the base. Raises FileNotFoundError if there is
        no such file."""
        file = self._names.get(path, path)
        if file is None or (path not in self._names and not self._base.exists(path)):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return file

    def _make(self, path: str, file: _Bytes) -> Handle:
        self._names[path] = file
        return self._opened(file)

    def _opened(self, file: _Bytes) -> Handle:
        self._last_handle -= 1
        self._handles[self._last_handle] = file
        return self._last_handle
