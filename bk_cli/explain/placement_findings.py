# SPDX-License-Identifier: Apache-2.0
"""Explains which bookies a ledger gets or got: turns what ``placement.py`` gathered into findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from bk_core.cluster.finding import Finding, fine, note, problem
from bk_core.errors import NotEnoughBookiesError
from bk_core.model import BookieId, LedgerId, LedgerMetadata
from bk_core.placement import WEIGHT_MULTIPLE_MAX, Landscape, RandomSource, choose_ensemble


@dataclass(frozen=True, slots=True)
class PlacementSeen:
    """The facts about placement. ``states`` has the state of every bookie that is registered, known by its cookie, or
    named by ``record``: ``writable``, ``read-only``, ``away``, ``unreadable`` or ``gone``. ``quarantined`` are the
    bookies whose recent failures this client has seen. ``record`` is the record of the ledger in question, or None for
    the next ledger, which then has these sizes."""

    states: Mapping[BookieId, str]
    landscape: Landscape
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    quarantined: tuple[BookieId, ...] = ()
    ledger_id: LedgerId | None = None
    record: LedgerMetadata | None = None

    @property
    def writable(self) -> list[BookieId]:
        return sorted(bookie for bookie, state in self.states.items() if state == "writable")


def explain_placement(seen: PlacementSeen, random: RandomSource) -> list[Finding]:
    """Return the findings about placement, the worst first."""
    found = [*_ensembles(seen), *_next(seen, random), *_tolerance(seen), *_left_out(seen), *_weights(seen)]
    return sorted(found, key=lambda each: ("problem", "note", "fine").index(each.weight.value))


def _ensembles(seen: PlacementSeen) -> Iterator[Finding]:
    if seen.record is None:
        return
    for fragment in seen.record.fragments:
        members = ", ".join(f"{bookie} ({_about(seen, bookie)})" for bookie in fragment.ensemble)
        name = f"ledger {seen.ledger_id} has from entry {fragment.first_entry_id}: {members}"
        wanted = min(seen.write_quorum_size, seen.landscape.racks_min)
        if not seen.landscape.racks or seen.landscape.fewest_racks(fragment.ensemble, seen.write_quorum_size) >= wanted:
            yield fine(name)
        else:
            have = seen.landscape.fewest_racks(fragment.ensemble, seen.write_quorum_size)
            yield note(f"{name}: a write set is in {have} racks, wanted {wanted}", _racks_remedy(seen, wanted))
    if len(seen.record.fragments) > 1:
        yield note("a fragment begins where a bookie was replaced: it failed, was read-only, or auto-recovery moved it")


def _racks_remedy(seen: PlacementSeen, wanted: int) -> str:
    racks = {seen.landscape.rack_of(bookie) for bookie in seen.writable}
    where = f"start bookies in other racks: all that are writable are in {', '.join(sorted(racks))}"
    return where if len(racks) < wanted else ""


def _next(seen: PlacementSeen, random: RandomSource) -> Iterator[Finding]:
    """Yield what the next ledger of these sizes would get."""
    sizes = f"E {seen.ensemble_size}, Qw {seen.write_quorum_size}"
    try:
        chosen = choose_ensemble(
            seen.writable,
            seen.ensemble_size,
            random,
            avoid=seen.quarantined,
            write_quorum=seen.write_quorum_size,
            landscape=seen.landscape,
        )
    except NotEnoughBookiesError as error:
        yield problem(f"a new ledger of {sizes} cannot be made: {error.what} ({error.value})", error.remedy)
        return
    yield fine(f"a new ledger of {sizes} could get: {', '.join(f'{b} ({_about(seen, b)})' for b in chosen)}")
    taken = [bookie for bookie in chosen if bookie in seen.quarantined]
    if taken:
        yield note(f"{', '.join(taken)} failed lately and would be taken all the same: there are too few others")
    if len(seen.writable) == seen.ensemble_size:
        what = f"there is no spare: {seen.ensemble_size} bookies are writable, and an ensemble takes all of them"
        yield note(f"{what}. When one fails, a writer cannot replace it", "start one bookie more")


def _tolerance(seen: PlacementSeen) -> Iterator[Finding]:
    """Yield how many bookies of a write set may be lost, and how many may be silent."""
    lost, slack = seen.ack_quorum_size - 1, seen.write_quorum_size - seen.ack_quorum_size
    sizes = f"Qw {seen.write_quorum_size}, Qa {seen.ack_quorum_size}"
    if lost:
        yield fine(f"with {sizes} a confirmed entry outlives the loss of {_bookies(lost)}")
    else:
        yield note(
            f"with {sizes} a confirmed entry may be on one bookie only, and is lost with it", "take Qa 2 or more"
        )
    if slack:
        yield fine(f"with {sizes} writers and recoveries go on at once without {_bookies(slack)} of a write set")
    else:
        what = "each bookie that is silent stops writers and recoveries until another one has taken its place"
        yield note(f"with {sizes} there is no slack: {what}", "take Qa below Qw, as 2 of 3")


def _bookies(count: int) -> str:
    return "1 bookie" if count == 1 else f"any {count} bookies"


def _left_out(seen: PlacementSeen) -> Iterator[Finding]:
    """Yield the bookies that cannot be chosen, or are chosen last."""
    words = {
        "read-only": ("take no new entries: full, set so by hand, or starting", "bk bookie list shows their room"),
        "away": (
            "have a cookie and are not registered",
            "start them, or remove their cookies if they are gone for good",
        ),
        "unreadable": ("have registrations that cannot be read", "restart them"),
        "gone": ("are not known to the cluster any more", ""),
    }
    for state, (why, remedy) in words.items():
        names = sorted(bookie for bookie, what in seen.states.items() if what == state)
        if names:
            yield note(f"left out: {', '.join(names)} {why}", remedy)
    rackless = seen.landscape.left_out(seen.writable, seen.write_quorum_size)
    if rackless:
        remedy = "name their racks in rack_script or rack_file"
        yield note(f"left out: {', '.join(sorted(rackless))} are in no known rack, and racks are enforced", remedy)
    if seen.quarantined:
        yield note(f"chosen last: {', '.join(sorted(seen.quarantined))} failed lately, as this client has seen")


def _weights(seen: PlacementSeen) -> Iterator[Finding]:
    weights = {bookie: seen.landscape.weights[bookie] for bookie in seen.writable if bookie in seen.landscape.weights}
    if not weights:
        yield fine("free space does not count (disk_weight_placement is off): all bookies are equal")
        return
    middle = max(median(weights.values()), 1)
    for bookie, free in sorted(weights.items(), key=lambda each: each[1]):
        share = min(max(free, 1), WEIGHT_MULTIPLE_MAX * middle) / middle
        cut = f", no more than {WEIGHT_MULTIPLE_MAX} times count" if free > WEIGHT_MULTIPLE_MAX * middle else ""
        yield fine(f"{bookie} is chosen {share:.2f} times as often as a bookie of median free space{cut}")
    silent = [bookie for bookie in seen.writable if bookie not in weights]
    if silent:
        yield note(f"{', '.join(silent)} did not say how much space they have: they count as the median")


def _about(seen: PlacementSeen, bookie: BookieId) -> str:
    parts = [seen.states.get(bookie, "gone")]
    if seen.landscape.racks:
        parts.append(seen.landscape.rack_of(bookie))
    return ", ".join(parts)
