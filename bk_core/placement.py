# SPDX-License-Identifier: Apache-2.0
"""Chooses the bookies of ensembles. Pure. The caller passes the candidates, the facts about them (:class:`Landscape`),
and the source of randomness.

Without racks and weights all bookies are equal. With racks, the positions of the ensemble are filled one after the
other. A position gets a bookie with which no write set has too few racks, if there is such a bookie. Among several such
bookies, those are preferred whose rack is rarest in the write sets of that position. Among equal bookies one is chosen
at random, by weight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Protocol, TypeVar

from bk_core.errors import NotEnoughBookiesError, Outcome
from bk_core.model import BookieId, LedgerMetadata

T = TypeVar("T")

DEFAULT_RACK = "/default-rack"
WEIGHT_MULTIPLE_MAX = 3
"""The maximum weight of a bookie, as a multiple of the median weight, so that a new bookie does not get every
ledger."""

TRIES = 8
NAME_RACKS = "start bookies in other racks, check their racks in rack_script or rack_file, or set enforce_racks=False"


class RandomSource(Protocol):
    """The part of ``random.Random`` that the pure code uses."""

    def sample(self, population: Sequence[T], k: int) -> list[T]: ...
    def random(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Landscape:
    """The facts about bookies that placement uses. ``racks`` has the rack of each bookie whose rack is known.
    ``weights`` has the free bytes of bookies' disks, and is empty if free space does not count. Each write set should
    have members in ``racks_min`` racks, if there are that many. With ``enforced`` an ensemble with fewer racks is
    refused. A bookie whose rack is unknown is then not chosen, because it may be in the rack of another member.
    Apache's policy does the same."""

    racks: Mapping[BookieId, str] = field(default_factory=dict)
    weights: Mapping[BookieId, int] = field(default_factory=dict)
    racks_min: int = 2
    enforced: bool = False

    def rack_of(self, bookie: BookieId) -> str:
        return self.racks.get(bookie, DEFAULT_RACK)

    @property
    def is_flat(self) -> bool:
        """Whether all bookies are equal."""
        return not (self.racks or self.weights or self.enforced)

    def racks_of(self, places: Sequence[BookieId | None], write_quorum: int, start: int) -> set[str]:
        """Return the racks of the write set that begins at position ``start``. If racks are enforced, unknown racks do
        not count."""
        members = (places[(start + i) % len(places)] for i in range(write_quorum))
        racks = {self.rack_of(bookie) for bookie in members if bookie is not None}
        return racks - {DEFAULT_RACK} if self._needs_known_racks(write_quorum) else racks

    def left_out(self, bookies: Collection[BookieId], write_quorum: int) -> dict[BookieId, str]:
        """Return the bookies that cannot be chosen because racks are enforced, each with the reason."""
        if not self._needs_known_racks(write_quorum):
            return {}
        return {bookie: "its rack is unknown" for bookie in bookies if self.rack_of(bookie) == DEFAULT_RACK}

    def _needs_known_racks(self, write_quorum: int) -> bool:
        return self.enforced and min(write_quorum, self.racks_min) > 1

    def fewest_racks(self, ensemble: Sequence[BookieId], write_quorum: int) -> int:
        """Return the number of racks in the write set with the fewest racks."""
        return min(len(self.racks_of(ensemble, write_quorum, start)) for start in range(len(ensemble)))


FLAT = Landscape()


def choose_ensemble(
    writable: Collection[BookieId],
    size: int,
    random: RandomSource,
    *,
    exclude: Mapping[BookieId, str] = MappingProxyType({}),
    avoid: Collection[BookieId] = (),
    write_quorum: int = 0,
    landscape: Landscape = FLAT,
) -> tuple[BookieId, ...]:
    """Return ``size`` distinct writable bookies in random order. Bookies in ``avoid``, which have failed lately, are
    chosen only if there are too few other bookies. ``exclude`` maps bookies that cannot be used to the reason.

    Raises NotEnoughBookiesError, which says how many are needed, and lists the writable bookies with their racks or
    with the reason why they cannot be used.
    """
    rackless = landscape.left_out(writable, write_quorum or size)
    exclude = {**rackless, **exclude}
    usable = sorted(b for b in writable if b not in exclude)  # sorted, so that a simulation can be repeated
    if len(usable) < size:
        raise NotEnoughBookiesError(
            f"{size} writable bookies are needed and {len(usable)} can be used",
            value=writable_in_words(writable, exclude),
            remedy=NAME_RACKS
            if rackless
            else "start more bookies (bk bookie run) or ask for a smaller ensemble size; bk doctor says which run",
        )
    if not landscape.is_flat:
        places: list[BookieId | None] = [None] * size
        return _filled(places, usable, avoid, write_quorum or size, landscape, random)
    better = [bookie for bookie in usable if bookie not in avoid]
    if len(better) >= size:
        return tuple(random.sample(better, size))
    rest = [bookie for bookie in usable if bookie in avoid]
    return tuple(random.sample([*better, *random.sample(rest, size - len(better))], size))


def _filled(
    places: list[BookieId | None],
    usable: Sequence[BookieId],
    avoid: Collection[BookieId],
    write_quorum: int,
    landscape: Landscape,
    random: RandomSource,
) -> tuple[BookieId, ...]:
    """Return the ensemble with a usable bookie in each empty position. It is the best of TRIES attempts, because a
    position is filled before the positions after it are known. Raises NotEnoughBookiesError if racks are enforced and a
    write set has too few."""
    best, most, wanted = tuple[BookieId, ...](), -1, min(write_quorum, landscape.racks_min)
    for _ in range(TRIES):
        ensemble = _fill(list(places), usable, avoid, write_quorum, landscape, random)
        racks = landscape.fewest_racks(ensemble, write_quorum)
        if racks > most:
            best, most = ensemble, racks
        if racks >= wanted:
            break
    if landscape.enforced and most < wanted:
        raise NotEnoughBookiesError(
            f"write sets of {write_quorum} bookies in {wanted} racks are needed and cannot be formed",
            value="usable: " + ", ".join(f"{bookie} in {landscape.rack_of(bookie)}" for bookie in sorted(usable)),
            remedy=NAME_RACKS,
        )
    return best


def _fill(
    places: list[BookieId | None],
    usable: Sequence[BookieId],
    avoid: Collection[BookieId],
    write_quorum: int,
    landscape: Landscape,
    random: RandomSource,
) -> tuple[BookieId, ...]:
    left, size = list(usable), len(places)
    racks_wanted = min(write_quorum, landscape.racks_min)
    for at in (place for place, taken in enumerate(places) if taken is None):
        starts = [(at - i) % size for i in range(write_quorum)]  # of the write sets that this place is in

        def how_bad(bookie: BookieId, at: int = at, starts: list[int] = starts) -> tuple[bool, int, int]:
            tried = [*places[:at], bookie, *places[at + 1 :]]
            lacking = same = 0
            for start in starts:
                members = [tried[(start + i) % size] for i in range(write_quorum)]
                racks = landscape.racks_of(tried, write_quorum, start)
                lacking += max(0, racks_wanted - len(racks) - members.count(None))
                same += sum(1 for each in members if each and landscape.rack_of(each) == landscape.rack_of(bookie))
            return bookie in avoid, lacking, same

        marks = {bookie: how_bad(bookie) for bookie in left}
        least = min(marks.values())
        chosen = _by_weight([bookie for bookie in left if marks[bookie] == least], landscape.weights, random)
        places[at] = chosen
        left.remove(chosen)
    return tuple(bookie for bookie in places if bookie is not None)


def _by_weight(bookies: Sequence[BookieId], weights: Mapping[BookieId, int], random: RandomSource) -> BookieId:
    """Choose a bookie at random. A bookie with twice the weight is chosen twice as often. A bookie of unknown weight
    counts with the median weight."""
    known = [weights[bookie] for bookie in bookies if bookie in weights]
    if not known:
        return random.sample(bookies, 1)[0]
    middle = max(median(known), 1)
    counts = [min(max(weights.get(bookie, middle), 1), WEIGHT_MULTIPLE_MAX * middle) for bookie in bookies]
    at = random.random() * sum(counts)
    for bookie, count in zip(bookies, counts, strict=True):
        at -= count
        if at < 0:
            return bookie
    return bookies[-1]


def writable_in_words(writable: Collection[BookieId], excluded: Mapping[BookieId, str]) -> str:
    """Return a list of the writable bookies in words. A bookie that cannot be used is followed by the reason."""
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
    landscape: Landscape = FLAT,
) -> tuple[BookieId, ...] | NotEnoughBookiesError:
    """Return the last ensemble with new bookies at ``indices``, none of which is in ``gone``. The other members keep
    their positions (protocol document "Writing to ledgers"; TLA action ClientChangesEnsemble).

    The result is an error if there are too few spare bookies, or if racks are enforced and there are too few racks.
    With ``partly`` one spare bookie is enough, and only the first of ``indices`` get a new bookie.
    """
    ensemble = list(metadata.last_fragment.ensemble)
    failed = {ensemble[index]: "failed" for index in indices}
    others = dict.fromkeys(ensemble, "in the ensemble")
    rackless = landscape.left_out(writable, metadata.write_quorum_size)
    excluded = rackless | dict.fromkeys(gone, "failed before in this ledger") | others | failed
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
    if landscape.is_flat:
        for index, bookie in zip(indices, spare, strict=False):
            ensemble[index] = bookie
        return tuple(ensemble)
    empty = indices[: max(wanted, 1)]
    places = [None if at in empty else bookie for at, bookie in enumerate(ensemble)]
    usable = sorted(set(writable).difference(excluded))
    try:
        return _filled(places, usable, avoid, metadata.write_quorum_size, landscape, random)
    except NotEnoughBookiesError as error:
        error.outcome = Outcome.UNKNOWN
        return error
