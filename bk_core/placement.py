# SPDX-License-Identifier: Apache-2.0
"""Which bookies to use. Pure: the candidates and the source of randomness come in from outside.

Issue of racks and load belongs here later; today every bookie is equal (facts: client.md §3.3, §3.5).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

from bk_core.errors import NotEnoughBookiesError
from bk_core.model import BookieId

T = TypeVar("T")


class RandomSource(Protocol):
    """The part of ``random.Random`` that the pure code may ask for."""

    def sample(self, population: Sequence[T], k: int) -> list[T]: ...
    def random(self) -> float: ...


def choose_ensemble(
    writable: Collection[BookieId],
    size: int,
    random: RandomSource,
    *,
    exclude: Collection[BookieId] = (),
    avoid: Collection[BookieId] = (),
) -> tuple[BookieId, ...]:
    """``size`` distinct writable bookies outside ``exclude``, in random order; of ``avoid`` only as many as are needed
    (quarantine: facts, client.md §3.5).

    Raises NotEnoughBookiesError saying how many are needed, how many are alive, and what to do.
    """
    usable = sorted(b for b in writable if b not in exclude)  # sorted: sets have no order a simulation could repeat
    if len(usable) < size:
        raise NotEnoughBookiesError(
            f"{size} writable bookies are needed and {len(usable)} can be used",
            value=f"writable: {', '.join(sorted(writable)) or 'none'}"
            + (f"; not usable: {', '.join(sorted(exclude))}" if exclude else ""),
            remedy="start more bookies (bk bookie run) or ask for a smaller ensemble size",
        )
    better = [bookie for bookie in usable if bookie not in avoid]
    if len(better) >= size:
        return tuple(random.sample(better, size))
    rest = [bookie for bookie in usable if bookie in avoid]
    return tuple(random.sample([*better, *random.sample(rest, size - len(better))], size))
