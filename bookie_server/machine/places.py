# SPDX-License-Identifier: Apache-2.0
"""Where bytes of a data directory lie, as the machine hands it on and storage reads it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a frame lies: segment generation, offset in the segment, bytes. With ``run_of`` ≥ 0 several small frames of
    that ledger lie there, maybe with other things between them (docs/formats.md §3.5)."""

    generation: int
    offset: int
    size: int
    run_of: int = -1

    @property
    def is_run(self) -> bool:
        return self.run_of >= 0


@dataclass(frozen=True, slots=True, order=True)
class IndexBlock:
    """A block of the ``.idx`` of a sealed segment: its number among the index blocks, or SPARSE_SECTION for all sparse
    records together. Named where a look-up needs it, as a :class:`Place` is where a frame must say what it holds."""

    generation: int
    number: int


Unresolved: TypeAlias = Place | IndexBlock
"""What must be read before it can say which entries it holds."""
