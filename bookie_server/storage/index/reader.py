# SPDX-License-Identifier: Apache-2.0
"""Reads and checks blocks of ``.idx`` files one by one (RULES S7). It is synchronous and used on the thread of the
segment reader."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable

from bk_core.errors import IntegrityError
from bookie_server.machine.disk_places import IndexBlock
from bookie_server.storage.bytes.index_file import (
    IndexSections,
    decode_index_block,
    decode_index_header,
    decode_sparse,
)
from bookie_server.storage.bytes.segment import index_name
from bookie_server.storage.disk.files import BLOCK, Files, Handle
from bookie_server.storage.index.cache import SparseIndex
from bookie_server.storage.index.ledger_frames import BlockFrames
from bookie_server.storage.index.search import SPARSE_SECTION

_Read = Callable[[int, int], bytes]
"""A function that reads bytes by offset and size."""


class IndexReader:
    """Reads blocks, and keeps the handles and headers of the ``.idx`` files that were used last."""

    def __init__(self, path: str, incarnation: bytes, files: Files, open_max: int) -> None:
        self._path, self._incarnation, self._files, self._open_max = path, incarnation, files, open_max
        self._open: OrderedDict[int, tuple[Handle, IndexSections]] = OrderedDict()

    def read(self, block: IndexBlock) -> SparseIndex | BlockFrames:
        """Return the contents of the block. A block that fails its check is read again past the page cache. Raises
        IntegrityError if that fails, too, or the system refuses the read."""
        try:
            handle, sections = self._opened(block.generation)
            return _decoded(sections, block, lambda at, size: self._files.read(handle, size, at))
        except (IntegrityError, OSError):
            self.release(block.generation)
        path = self._path_of(block.generation)

        def past_cache(at: int, size: int) -> bytes:
            return self._files.read_past_cache(path, size, at)

        try:
            sections = self._sections(block.generation, past_cache)
            found = _decoded(sections, block, past_cache)
            if self._sections(block.generation, past_cache).header.edition != sections.header.edition:
                # Each of these reads opens the file: the block may be of another edition than the header.
                raise IntegrityError("an index file was rebuilt while it was read", value=str(block))
            return found
        except OSError as error:
            raise IntegrityError(
                "a block of an index file cannot be read", value=f"{block}: {error}", remedy="a scan rebuilds it"
            ) from error

    def release(self, generation: int) -> None:
        """Close the handle of a segment's ``.idx``, because the file is gone or replaced."""
        entry = self._open.pop(generation, None)
        if entry is not None:
            self._files.close(entry[0])

    def close(self) -> None:
        for generation in list(self._open):
            self.release(generation)

    def _opened(self, generation: int) -> tuple[Handle, IndexSections]:
        entry = self._open.get(generation)
        if entry is not None:
            self._open.move_to_end(generation)
            return entry
        handle = self._files.open_read(self._path_of(generation))
        try:
            sections = self._sections(generation, lambda at, size: self._files.read(handle, size, at))
        except BaseException:
            self._files.close(handle)
            raise
        entry = self._open[generation] = handle, sections
        if len(self._open) > self._open_max:
            self.release(next(iter(self._open)))
        return entry

    def _sections(self, generation: int, read: _Read) -> IndexSections:
        sections = decode_index_header(read(0, BLOCK))
        if sections.header.generation != generation or sections.header.incarnation != self._incarnation:
            raise IntegrityError("an index file is another segment's", value=f"{sections.header.generation:x}")
        return sections

    def _path_of(self, generation: int) -> str:
        return os.path.join(self._path, index_name(generation))


def _decoded(sections: IndexSections, block: IndexBlock, read: _Read) -> SparseIndex | BlockFrames:
    edition = sections.header.edition
    if block.number == SPARSE_SECTION:
        where = sections.sparse_range
        return SparseIndex(decode_sparse(sections, read(*where) if where[1] else b""), edition)
    rows = decode_index_block(sections, block.number, read(*sections.index_block_range(block.number)))
    return BlockFrames(block.generation, rows, edition)
