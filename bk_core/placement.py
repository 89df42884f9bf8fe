# SPDX-License-Identifier: Apache-2.0
"""Chooses bookies. Pure: the caller passes the candidates and the source of randomness. All bookies are equal: racks
and load do not count."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypeVar

from bk_core.errors import NotEnoughBookiesError, Outcome
from bk_core.model import BookieId, LedgerMetadata

T = TypeVar("T")


class RandomSource(Protocol):
    """The part of ``random.Random`` that the pure code uses."""

    def sample(self, population: Sequence[T], k: int) -> list[T]: ...
    def random(self) -> float: ...


def choose_ensemble(
    writable: Collection[BookieId],
    size: int,
    random: RandomSource,
    *,
    exclude: Mapping[BookieId, str] = MappingProxyType({}),
    avoid: Collection[BookieId] = (),
) -> tuple[BookieId, ...]:
    """``size`` distinct writable bookies in random order. Of ``avoid`` (failed lately) only as many are taken as are
    needed; ``exclude`` maps bookies that cannot be used to the reason.

    Raises NotEnoughBookiesError, which names how many are needed, which are writable, and why some cannot be used.
    """
    usable = sorted(b for b in writable if b not in exclude)  # sorted, so that a simulation can be repeated
    if len(usable) < size:
        raise NotEnoughBookiesError(
            f"{size} writable bookies are needed and {len(usable)} can be used",
            value=writable_in_words(writable, exclude),
            remedy="start more bookies (bk bookie run) or ask for a smaller ensemble size; bk doctor says which run",
        )
    better = [bookie for bookie in usable if bookie not in avoid]
    if len(better) >= size:
        return tuple(random.sample(better, size))
    rest = [bookie for bookie in usable if bookie in avoid]
    return tuple(random.sample([*better, *random.sample(rest, size - len(better))], size))


def writable_in_words(writable: Collection[BookieId], excluded: Mapping[BookieId, str]) -> str:
    """The writable bookies in words, each that cannot be used with the reason."""
    each = (f"{bookie} ({excluded[bookie]})" if bookie in excluded else bookie for bookie in sorted(writable))
    return f"writable: {', '.join(each) or 'none'}"


def replacement(
    metadata: LedgerMetadata,
    indices: tuple[int, ...],
    writable: Collection[BookieId],
    avoid: Collection[BookieId],
    random: RandomSource,
    *,
    gone: Collection[BookieId] = (),
    partly: bool = False,
) -> tuple[BookieId, ...] | NotEnoughBookiesError:
    """The last ensemble with other bookies at ``indices``, none of them from ``gone``; the others keep their places
    (protocol document "Writing to ledgers"; TLA action ClientChangesEnsemble).

    Returns an error if there are too few spares. With ``partly`` one spare is enough; then only the first of
    ``indices`` get a new bookie."""
    ensemble = list(metadata.last_fragment.ensemble)
    failed = {ensemble[index]: "failed" for index in indices}
    others = dict.fromkeys(ensemble, "in the ensemble")
    excluded = dict.fromkeys(gone, "failed before in this ledger") | others | failed
    spares = len(set(writable).difference(excluded))
    wanted = min(len(indices), spares) if partly else len(indices)
    try:
        spare = choose_ensemble(writable, max(wanted, 1), random, exclude=excluded, avoid=avoid)
    except NotEnoughBookiesError as error:
        return NotEnoughBookiesError(
            f"{len(indices)} of {len(ensemble)} bookies of the ensemble failed ({', '.join(failed)}) and "
            f"{f'only {spares} can be replaced' if spares else 'no spare can take over'}",
            value=error.value,
            remedy="start more bookies than the ensemble size, so that one can fail (bk doctor says which run); "
            "then open the ledger with recover=True",
            outcome=Outcome.UNKNOWN,
        )
    for index, bookie in zip(indices, spare, strict=False):
        ensemble[index] = bookie
    return tuple(ensemble)
