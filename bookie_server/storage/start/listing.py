# SPDX-License-Identifier: Apache-2.0
"""Lists the files of a directory of segments at a start, and completes renames and removals that a crash interrupted.

Files with ``.tmp`` were never used. A segment that was being made and a drained one (``.free``) go to the pool if their
size is right. An ``.idx`` beside the ``.free`` of its generation is removed, because its segment was being drained
(docs/formats.md §3). So is an ``.unsealed`` beside a ``.free`` or an ``.idx``. If an ``.unsealed`` is alone, its
segment is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from bk_core.errors import StorageFailedError
from bookie_server.storage.bytes.segment import free_name, index_name, parse_name, segment_name, unsealed_name
from bookie_server.storage.disk.files import Files
from bookie_server.storage.disk.health import REMEDY


@dataclass(slots=True)
class Listing:
    """The generations with each kind of file. ``free`` are those for the pool, of the right size. ``lost`` are segments
    of which only the ``.unsealed`` is left."""

    segments: set[int] = field(default_factory=set)
    indexes: set[int] = field(default_factory=set)
    free: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)

    @property
    def newest(self) -> int:
        """The greatest generation in any file name, or 0 if there is none. Later segments must have a greater one."""
        return max([0, *self.segments, *self.indexes, *self.free, *self.lost])


def list_segments(files: Files, path: str, segment_bytes: int) -> Listing:
    """List the directory ``path`` and tidy it up. ``segment_bytes`` is the size that a free segment must have.

    Raises OSError if the directory cannot be read, and StorageFailedError if a sync fails.
    """
    found = Listing()
    unused: list[tuple[str, int]] = []
    unsealed: set[int] = set()
    for name in files.names(path):
        parsed = parse_name(name.removesuffix(".tmp"))
        if parsed is None:
            continue
        generation, kind = parsed
        if kind == "free" or (kind == "segment" and name.endswith(".tmp")):
            unused.append((name, generation))
        elif kind == "unsealed":
            unsealed.add(generation)
        elif name.endswith(".tmp"):
            files.remove(os.path.join(path, name))
        else:
            (found.segments if kind == "segment" else found.indexes).add(generation)
    unsealed -= found.segments - found.indexes
    found.lost = unsealed - found.indexes - {generation for _, generation in unused}
    _unmark(files, path, [unsealed_name(generation) for generation in sorted(unsealed - found.lost)])
    stale = {generation for _, generation in unused} & (found.indexes - found.segments)
    _unmark(files, path, [index_name(generation) for generation in sorted(stale)])
    found.indexes -= stale
    for name, generation in unused:
        _keep(files, path, name, generation, segment_bytes, found)
    return found


def _unmark(files: Files, path: str, names: list[str]) -> None:
    """Remove these files, and sync the directory. Other files show that these are out of date: the caller may rename or
    remove those only afterwards."""
    for name in names:
        files.remove(os.path.join(path, name))
    if names:
        _durably(lambda: files.sync_directory(path), names[0])


def _durably(change: Callable[[], None], name: str) -> None:
    try:
        change()
    except OSError as error:
        raise StorageFailedError(
            "an unused segment could not be put aside", value=f"{name}: {error}", remedy=REMEDY
        ) from error


def _keep(files: Files, path: str, name: str, generation: int, segment_bytes: int, found: Listing) -> None:
    handle = files.open_read(os.path.join(path, name))
    size = files.size(handle)
    files.close(handle)
    whole, free = os.path.join(path, name), os.path.join(path, free_name(generation))
    if size != segment_bytes or generation in found.segments or generation in found.free:
        files.remove(whole)
        return
    if whole != free:
        _durably(lambda: files.rename(whole, free), segment_name(generation))
    found.free.add(generation)
