# SPDX-License-Identifier: Apache-2.0
"""Replacing failed bookies: the state of one ensemble change and the choice of the new ones. Pure.

Source: protocol document "Writing to ledgers"; TLA action ClientChangesEnsemble; facts: client.md §3.5.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bk_core.errors import NotEnoughBookiesError, Outcome
from bk_core.model import BookieId, EntryId, LedgerMetadata
from bk_core.placement import RandomSource, choose_ensemble
from bk_core.protocol.events import BookiesRead


@dataclass(slots=True)
class EnsembleChange:
    """``indices`` are replaced from ``first_entry_id`` on. ``ensemble`` is set once the bookies are chosen, ``intent``
    once the compare-and-set is under way."""

    first_entry_id: EntryId
    indices: tuple[int, ...]
    ensemble: tuple[BookieId, ...] | None = None
    intent: LedgerMetadata | None = None


def replacement(
    metadata: LedgerMetadata,
    indices: tuple[int, ...],
    bookies: BookiesRead,
    random: RandomSource,
    *,
    gone: Collection[BookieId] = (),
    partly: bool = False,
) -> tuple[BookieId, ...] | NotEnoughBookiesError:
    """The last ensemble with other bookies at ``indices``, none of ``gone``; good bookies keep their place.

    With too few spares an error, unless (``partly``) there is one at least: then the first of ``indices`` get one."""
    ensemble = list(metadata.last_fragment.ensemble)
    spares = set(bookies.writable).difference(ensemble, gone)
    wanted = min(len(indices), len(spares)) if partly else len(indices)
    try:
        spare = choose_ensemble(spares, max(wanted, 1), random, avoid=bookies.quarantined)
    except NotEnoughBookiesError as error:
        failed = ", ".join(ensemble[index] for index in indices)
        return NotEnoughBookiesError(
            f"{len(indices)} of {len(ensemble)} bookies of the ensemble failed ({failed}) and no spare can take over",
            value=error.value,
            remedy="start more bookies than the ensemble size, so that one can fail; "
            "then open the ledger with recover=True",
            outcome=Outcome.UNKNOWN,
        )
    for index, bookie in zip(indices, spare, strict=False):
        ensemble[index] = bookie
    return tuple(ensemble)
