# SPDX-License-Identifier: Apache-2.0
"""A disk in memory that loses what was not synced, in every way in which a real one may (RULES S3, S6).

:class:`SimDisk` puts its own system calls under the product's :class:`~bookie_server.storage.disk.files.Files`.
Functions composed of them (write whole, write atomically, read past the cache) are the product's code. A file is
durable bytes and unsynced writes in order. A directory is durable names and unsynced operations in order. Reads return
the cache. A crash keeps any subset of unsynced sectors of 512 bytes and any subset of unsynced directory operations.

All random choices come from the ``random.Random`` that the caller passes, so that a seed decides everything.

This file has over 400 lines because a disk's faults and what a crash keeps of its files and names are one model.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bookie_server.storage.disk.files import Files, Handle, round_up

SECTOR = 512
KEEPS = ("nothing", "everything", "a prefix", "some sectors")
"""The ways in which a crash keeps parts of what was not synced."""


class SimulatedCrash(BaseException):
    """Raised where the machine stops. It is not an Exception, because no code under test may handle it."""


class _Inode:
    """A file. ``writes`` has (offset, bytes) since the last sync, in order. ``cache`` is what a read returns."""

    __slots__ = ("bad", "cache", "directory", "durable", "stale", "writes")

    def __init__(self, directory: bool = False) -> None:
        self.directory = directory
        self.durable, self.cache = bytearray(), bytearray()
        self.writes: list[tuple[int, bytes]] = []
        self.bad: set[int] = set()  # sectors that cannot be read
        self.stale: set[int] = set()  # sectors that the cache holds as before their last write

    def sync(self) -> None:
        self.durable[len(self.durable) :] = bytes(max(0, len(self.cache) - len(self.durable)))
        for offset, data in self.writes:
            self.durable[offset : offset + len(data)] = data
        self.writes.clear()

    @property
    def dirty(self) -> bool:
        return bool(self.writes) or len(self.cache) != len(self.durable)


@dataclass(frozen=True, slots=True)
class _NameChange:
    """A name that was given to a file (``inode``), removed (None), or moved from ``old``. A moved file has one name,
    even if an earlier move of it was lost: no file system shows two names for a file that was never linked twice."""

    path: str
    inode: _Inode | None
    old: str | None = None

    def apply(self, names: dict[str, _Inode]) -> None:
        if self.old is not None:
            for path in [path for path, inode in names.items() if inode is self.inode]:
                del names[path]
        if self.inode is not None:
            names[self.path] = self.inode
        else:
            names.pop(self.path, None)


@dataclass
class _Faults:
    """The faults to come. 0 means never."""

    syncs: int = 0  # this number of syncs fail; later ones succeed without saving the lost bytes
    misdirected: int = 0  # the bytes by which the next write misses its place
    short_reads: int = 0
    stale_writes: int = 0
    no_space: bool = False  # the disk has no room for a segment
    no_byte: bool = False  # the disk has no room for any other byte either


class SimDisk(Files):
    """One file system. ``operations`` counts writes, syncs, renames, creations and removals since it was made.

    After :class:`SimulatedCrash` every call raises it again until :meth:`crash` or :meth:`kill`.
    """

    def __init__(self, *, capacity: int = 1 << 40) -> None:
        self.operations = 0
        self.kinds: Counter[str] = Counter()
        self.faults = _Faults()
        self.reads_failed = 0
        self._capacity = capacity
        self._crash_at: int | None = None
        self._down = False
        self._durable: dict[str, _Inode] = {"/": _Inode(directory=True)}
        self._names = dict(self._durable)
        self._changes: list[_NameChange] = []
        self._handles: dict[Handle, tuple[str, _Inode]] = {}
        self._next_handle = 3
        self._direct: set[Handle] = set()  # handles that write past the cache: those of segments
        self._locks: dict[str, Handle] = {}
        self._dirty: dict[_Inode, None] = {}
        self._hiding: dict[_Inode, None] = {}  # the cache differs from the durable bytes, and nothing will write it

    # --- the end of the machine, or of the process ------------------------------------------------------------------

    def crash_at(self, operations: int | None) -> None:
        """Raise SimulatedCrash after this number of operations (1: at the next one), or never (None)."""
        self._crash_at = None if operations is None else self.operations + operations

    @property
    def operations_left(self) -> int | None:
        """The number of operations until the machine stops, or None if it is not to stop. A crash or the end of the
        process resets it."""
        if self._crash_at is None or self._crash_at <= self.operations:
            return None
        return self._crash_at - self.operations

    def crash(self, chance: random.Random, keep: str | None = None, names: str | None = None) -> None:
        """Lose power and get it back. A legal part of what was not synced survives, and no file is open any more.

        ``keep`` is one of :data:`KEEPS`, drawn if None. ``names`` is the same for names, by default ``keep``.
        """
        for inode in self._dirty:
            self._lose(inode, chance, keep or chance.choice(KEEPS))
        for change in _kept(self._changes, chance, names or keep or chance.choice(KEEPS)):
            change.apply(self._durable)
        for path in sorted(self._durable):  # a lost directory also loses its durable files
            if os.path.dirname(path) not in self._durable:
                del self._durable[path]
        self._names = dict(self._durable)
        for inode in self._names.values():
            inode.stale.clear()
        for inode in self._hiding:
            inode.cache = bytearray(inode.durable)
        self._hiding.clear()
        self._dirty.clear()
        self._changes.clear()
        self._let_go()

    def kill(self) -> None:
        """End the process while the machine runs on. Handles and locks are gone, and written bytes stay in the
        cache."""
        self._let_go()

    def _let_go(self) -> None:
        self._handles.clear()
        self._locks.clear()
        self._down = False
        self._crash_at = None
        self.faults = _Faults(no_space=self.faults.no_space, no_byte=self.faults.no_byte)

    def _lose(self, inode: _Inode, chance: random.Random, keep: str) -> None:
        writes, size = inode.writes, len(inode.cache)
        inode.writes = []
        if keep == "nothing" or (keep != "everything" and chance.random() < 0.5):
            size = min(size, len(inode.durable))
        inode.durable[len(inode.durable) :] = bytes(max(0, size - len(inode.durable)))
        if keep != "nothing":
            for offset, data in _surviving(writes, chance, keep):
                end = min(offset + len(data), size)
                if offset < end:
                    inode.durable[offset:end] = data[: end - offset]
        inode.cache = bytearray(inode.durable)

    def _point(self, kind: str) -> None:
        """Count an operation, at which the machine may stop."""
        self._alive()
        self.operations += 1
        self.kinds[kind] += 1
        if self.operations == self._crash_at:
            self._down = True
            raise SimulatedCrash(f"{kind}, operation {self.operations}")

    def _alive(self) -> None:
        if self._down:
            raise SimulatedCrash("the machine is down")

    # --- copies of the whole disk -----------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, bytes | None]:
        """Return what is durable: bytes by path, None for a directory."""
        return {path: None if inode.directory else bytes(inode.durable) for path, inode in self._durable.items()}

    def restore(self, snapshot: dict[str, bytes | None]) -> None:
        """Replace the contents of the disk by this copy. No file may be open."""
        self._durable = {}
        for path, data in snapshot.items():
            inode = self._durable[path] = _Inode(directory=data is None)
            inode.durable[:] = inode.cache[:] = data or b""
        self._names = dict(self._durable)
        self._changes.clear()
        self._dirty.clear()
        self._hiding.clear()
        self._let_go()

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.restore({"/": None})

    # --- damage -----------------------------------------------------------------------------------------------------

    def paths(self) -> list[str]:
        """Return the durable files, sorted."""
        return sorted(path for path, inode in self._durable.items() if not inode.directory)

    def durable_bytes(self, path: str) -> bytes:
        """Return the durable bytes of a file."""
        return bytes(self._durable[path].durable)

    def flip_bit(self, path: str, offset: int, bit: int = 0, *, cached: bool = True) -> None:
        """Flip one bit of a file at rest. If ``cached`` is False, the page cache still hides this."""
        inode = self._durable[path]
        inode.durable[offset] ^= 1 << bit
        if cached:
            inode.cache[offset] ^= 1 << bit
        else:
            self._hiding[inode] = None

    def put_at_rest(self, path: str, offset: int, data: bytes) -> None:
        """Change bytes of a file at rest, as a write of another file does that missed its place."""
        inode = self._names[path]
        inode.durable[offset : offset + len(data)] = data
        inode.cache[offset : offset + len(data)] = data

    def copy_range(self, path: str, source: int, target: int, size: int) -> None:
        """Copy a part of a file at rest over another part."""
        self.put_at_rest(path, target, bytes(self._names[path].cache[source : source + size]))

    def lose_file(self, path: str) -> None:
        """Remove a file for good."""
        self._durable.pop(path, None)
        self._names.pop(path, None)
        self._changes = [change for change in self._changes if change.path != path]

    def truncate(self, path: str, size: int) -> None:
        """Cut the end of a file off for good."""
        inode = self._durable[path]
        del inode.durable[size:]
        del inode.cache[size:]

    def break_sector(self, path: str, offset: int) -> None:
        """Let reads of this sector fail with EIO from now on."""
        self._durable[path].bad.add(offset // SECTOR)

    def mend_sectors(self, path: str) -> None:
        """Let all sectors of the file be read again, with their old bytes, as after the repair of a cable or a
        controller."""
        self._durable[path].bad.clear()

    # --- segments ---------------------------------------------------------------------------------------------------

    def create_preallocated(self, path: str, size: int) -> Handle:
        self._alive()
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "exists", path)
        if self.faults.no_space or self.faults.no_byte:
            raise OSError(errno.ENOSPC, "the simulated disk is full", path)
        inode = self._link(path)
        inode.cache = bytearray(size)
        self._dirty[inode] = None
        self._point("create")
        return self._open_segment(path, inode)

    def open_preallocated(self, path: str, size: int) -> Handle | None:
        inode = self._find(path)
        return self._open_segment(path, inode) if len(inode.cache) == size else None

    def _open_segment(self, path: str, inode: _Inode) -> Handle:
        handle = self._open(path, inode)
        self._direct.add(handle)
        return handle

    def deallocate(self, path: str, offset: int) -> int:
        inode = self._find(path)
        size = max(0, len(inode.cache) - offset)
        self._put(inode, offset, bytes(size))
        self._point("deallocate")
        return size

    def write(self, handle: Handle, buffers: Sequence[memoryview], offset: int) -> None:
        inode = self._inode(handle)
        offset += self.faults.misdirected
        self.faults.misdirected = 0
        data = b"".join(buffers)
        if self.faults.stale_writes and handle in self._direct:
            self.faults.stale_writes -= 1
            inode.stale.update(range(offset // SECTOR, (offset + len(data)) // SECTOR))
        self._put(inode, offset, data)
        self._point("write")

    def _put(self, inode: _Inode, offset: int, data: bytes) -> None:
        if offset > len(inode.cache):
            inode.cache[len(inode.cache) :] = bytes(offset - len(inode.cache))
        inode.cache[offset : offset + len(data)] = data
        inode.writes.append((offset, data))
        inode.bad.difference_update(
            range(round_up(offset, SECTOR) // SECTOR, (offset + len(data)) // SECTOR)
        )  # the disk remaps the sectors
        self._dirty[inode] = None

    def sync_data(self, handle: Handle) -> None:
        self._point("sync")
        self._sync(handle)

    def _sync_file(self, handle: Handle) -> None:
        self._point("sync")
        self._sync(handle)

    def _sync(self, handle: Handle) -> None:
        inode = self._inode(handle)
        if self._sync_fails():
            # Linux does this: the pages are now clean although they never reached the disk, and the next sync succeeds.
            inode.durable[len(inode.durable) :] = bytes(max(0, len(inode.cache) - len(inode.durable)))
            inode.writes.clear()
            self._dirty.pop(inode, None)
            self._hiding[inode] = None
            raise OSError(errno.EIO, "the simulated sync failed")
        inode.sync()
        self._dirty.pop(inode, None)

    def _sync_fails(self) -> bool:
        if not self.faults.syncs:
            return False
        self.faults.syncs -= 1
        return True

    def open_read(self, path: str) -> Handle:
        return self._open(path, self._find(path))

    def _pread(self, handle: Handle, size: int, offset: int) -> bytes:
        inode = self._inode(handle)
        self._check_sectors(inode, size, offset)
        if self.faults.short_reads and size > 1:
            self.faults.short_reads -= 1
            size //= 2
        data = bytes(inode.cache[offset : offset + size])
        return self._hide_stale(inode, data, offset) if inode.stale else data

    def read_at_once(self, handle: Handle, size: int, offset: int) -> bytes | None:
        data = self._pread(handle, size, offset)
        return data if len(data) == size else None

    def _read_into(self, handle: Handle, view: memoryview, offset: int) -> int:
        data = self._pread(handle, len(view), offset)
        view[: len(data)] = data
        return len(data)

    def _hide_stale(self, inode: _Inode, data: bytes, offset: int) -> bytes:
        """Return the bytes with those that were read ahead before they were written: zeros, as fresh space holds."""
        shown = bytearray(data)
        for sector in range(offset // SECTOR, (offset + len(data) - 1) // SECTOR + 1):
            if sector in inode.stale:
                start, end = max(0, sector * SECTOR - offset), min(len(data), (sector + 1) * SECTOR - offset)
                shown[start:end] = bytes(end - start)
        return bytes(shown)

    def _check_sectors(self, inode: _Inode, size: int, offset: int) -> None:
        if inode.bad and not inode.bad.isdisjoint(range(offset // SECTOR, (offset + size - 1) // SECTOR + 1)):
            self.reads_failed += 1
            raise OSError(errno.EIO, "the simulated sector cannot be read")

    def read_past_cache(self, path: str, size: int, offset: int) -> bytes:
        self._alive()
        inode = self._find(path)
        self._check_sectors(inode, size, offset)
        shown = self._on_disk(inode) if inode.dirty else inode.durable
        return bytes(shown[offset : offset + size])

    def advise_random(self, handle: Handle) -> None:
        self._inode(handle)

    def drop_cache(self, handle: Handle) -> None:
        inode = self._inode(handle)
        inode.stale.clear()
        inode.cache[:] = self._on_disk(inode)

    def _on_disk(self, inode: _Inode) -> bytearray:
        """Return what a read past the cache sees. The kernel writes dirty pages first, without making them durable."""
        shown = bytearray(inode.durable)
        shown[len(shown) :] = bytes(max(0, len(inode.cache) - len(shown)))
        for at, data in inode.writes:
            shown[at : at + len(data)] = data
        return shown

    def size(self, handle: Handle) -> int:
        return len(self._inode(handle).cache)

    def close(self, handle: Handle) -> None:
        self._handles.pop(handle, None)
        for path, holder in list(self._locks.items()):
            if holder == handle:
                del self._locks[path]

    # --- names and small files --------------------------------------------------------------------------------------

    def _create(self, path: str) -> Handle:
        self._alive()
        inode = self._link(path)  # it replaces a file of that name, whose old bytes are of no use any more
        self._point("create")
        return self._open(path, inode)

    def _append(self, handle: Handle, data: memoryview) -> None:
        inode = self._inode(handle)
        if self.faults.no_byte:
            self._put(inode, len(inode.cache), bytes(data[: len(data) // 2]))
            self._point("write")
            raise OSError(errno.ENOSPC, "the simulated disk is full")
        self._put(inode, len(inode.cache), bytes(data))
        self._point("write")

    def _replace(self, old: str, new: str) -> None:
        self._change(_NameChange(new, self._find(old), old))
        self._point("rename")

    def remove(self, path: str) -> None:
        self._find(path)
        self._change(_NameChange(path, None))
        self._point("remove")

    def sync_directory(self, path: str) -> None:
        self._point("sync directory")
        self._find(path)
        inside = [change for change in self._changes if os.path.dirname(change.path) == path]
        self._changes = [change for change in self._changes if os.path.dirname(change.path) != path]
        if self._sync_fails():
            raise OSError(errno.EIO, "the simulated directory sync failed")
        for change in inside:
            change.apply(self._durable)

    def names(self, path: str) -> list[str]:
        self._find(path)
        return sorted(os.path.basename(name) for name in self._names if name != "/" and os.path.dirname(name) == path)

    def exists(self, path: str) -> bool:
        self._alive()
        return path in self._names

    def _is_directory(self, path: str) -> bool:
        self._alive()
        return path in self._names and self._names[path].directory

    def _make_directory(self, path: str) -> None:
        self._find(os.path.dirname(path))
        self._change(_NameChange(path, _Inode(directory=True)))
        self._point("make directory")

    def lock(self, path: str) -> Handle:
        self._alive()
        if path in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        inode = self._names.get(path) or self._link(path)
        handle = self._locks[path] = self._open(path, inode)
        return handle

    def free_bytes(self, path: str) -> int:
        return 0 if self.faults.no_space or self.faults.no_byte else self._capacity // 2

    def total_bytes(self, path: str) -> int:
        return self._capacity

    # --- inside -----------------------------------------------------------------------------------------------------

    def _link(self, path: str) -> _Inode:
        self._find(os.path.dirname(path))
        inode = _Inode()
        self._change(_NameChange(path, inode))
        return inode

    def _change(self, change: _NameChange) -> None:
        self._alive()
        change.apply(self._names)
        self._changes.append(change)

    def _find(self, path: str) -> _Inode:
        self._alive()
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def _open(self, path: str, inode: _Inode) -> Handle:
        self._next_handle += 1
        self._handles[self._next_handle] = (path, inode)
        return self._next_handle

    def _inode(self, handle: Handle) -> _Inode:
        self._alive()
        if handle not in self._handles:
            raise OSError(errno.EBADF, "not open")
        return self._handles[handle][1]


def _kept(changes: list[_NameChange], chance: random.Random, keep: str) -> list[_NameChange]:
    if keep == "nothing":
        return []
    if keep == "everything":
        return changes
    if keep == "a prefix":
        return changes[: chance.randint(0, len(changes))]
    return [change for change in changes if chance.random() < 0.5]


def _surviving(writes: list[tuple[int, bytes]], chance: random.Random, keep: str) -> list[tuple[int, bytes]]:
    """Return the parts of writes, in order, that reached the disk."""
    if keep == "everything" or not writes:
        return writes
    if keep == "a prefix":  # the write under way is torn at a sector, or sometimes within one
        last = chance.randrange(len(writes))
        offset, data = writes[last]
        step = SECTOR if chance.random() < 0.8 else 1
        cut = chance.randint(0, len(data) // step) * step
        return [*writes[:last], (offset, data[:cut])]
    likely = chance.choice((0.1, 0.5, 0.9))
    return [
        (offset + at, data[at : at + SECTOR])
        for offset, data in writes
        for at in range(0, len(data), SECTOR)
        if chance.random() < likely
    ]
