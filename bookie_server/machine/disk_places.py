# SPDX-License-Identifier: Apache-2.0
"""Places of bytes in a data directory, which the machine passes on and storage reads. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


class Place(NamedTuple):
    """The place of a frame: the generation of its segment, the offset in it, and the size in bytes. With ``run_of`` ≥ 0
    it is a run: several small frames of the ledger ``run_of``, perhaps with frames of other ledgers between them
    (docs/formats.md §3.5)."""

    generation: int
    offset: int
    size: int
    run_of: int = -1

    @property
    def is_run(self) -> bool:
        return self.run_of >= 0


@dataclass(frozen=True, slots=True, order=True)
class IndexBlock:
    """A block of the ``.idx`` of a sealed segment. ``number`` counts the index blocks, or is SPARSE_SECTION for all
    sparse records together. A look-up names the block if it must be read first."""

    generation: int
    number: int


Unresolved: TypeAlias = Place | IndexBlock
"""A place on disk that must be read before a look-up knows which entries it holds."""
