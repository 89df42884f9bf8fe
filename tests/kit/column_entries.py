# SPDX-License-Identifier: Apache-2.0
"""Entries of arbitrary bytes that begin with a directory, for tests that read parts of entries without Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from bk_core.entries import arrow_directory
from bk_core.entries.arrow_directory import Column, Directory
from bk_core.entries.digest import crc32c


def column_entry(random: Random, sizes: Sequence[int] = (24, 0, 400, 64), head_bytes: int = 40) -> bytes:
    """Make an entry with columns of these sizes, which are multiples of 8. The bytes are random."""
    head, regions = random.randbytes(head_bytes), [random.randbytes(size) for size in sizes]
    columns = [Column(len(region), crc32c(region), 0) for region in regions]
    directory = arrow_directory.encode(7, len(head), crc32c(head), columns)
    return b"".join((directory, head, *regions))


def directory_of(entry: bytes) -> Directory:
    return arrow_directory.parse(memoryview(entry), len(entry))


def regions_of(entry: bytes, wanted: Sequence[int]) -> bytes:
    """Return the message's head and the wanted columns."""
    directory = directory_of(entry)
    return b"".join((entry[directory.head], *(entry[directory.column(k)] for k in wanted)))
