# SPDX-License-Identifier: Apache-2.0
"""Compaction: which runs of extents are chosen, and how a copy is told from its originals."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    InvalidArgumentError,
)
from bk_core.logs.model.compaction import (
    ENTRY_COST_BYTES,
    CompactionLimits,
    Content,
    Run,
    runs_to_compact,
    weight_of,
)
from bk_core.logs.model.head import Extent, LogHead

MIB = 1 << 20
UUID = "12345678-9abc-def0-1234-56789abcdef0"


def extents_of(*sizes: int, first: int = 0, **more: object) -> list[Extent]:
    """Extents of one entry each with these payload bytes, from offset ``first`` on."""
    return [
        Extent(ledger_id=n, entry_count=1, size_bytes=size, base_offset=n, created_ms=n, **more)
        for n, size in enumerate(sizes, first)
    ]


def ids(runs: Sequence[Run]) -> list[list[int]]:
    return [[extent.ledger_id for extent in each] for each in runs]


def test_small_neighbours_become_one_and_one_alone_stays() -> None:
    assert ids(runs_to_compact(extents_of(10, 20, 30), CompactionLimits())) == [[0, 1, 2]]
    assert runs_to_compact(extents_of(10), CompactionLimits()) == []
    assert runs_to_compact([], CompactionLimits()) == []


def test_a_merged_ledger_stays_within_its_bytes_and_large_extents_are_left_alone() -> None:
    limits = CompactionLimits(ledger_bytes_max=100 * MIB)
    sizes = [30 * MIB] * 5 + [60 * MIB] + [1, 2]
    runs = runs_to_compact(extents_of(*sizes), limits)
    assert ids(runs) == [[0, 1, 2], [3, 4], [6, 7]]
    assert all(sum(map(weight_of, each)) <= limits.ledger_bytes_max for each in runs)


@pytest.mark.rule("K8")
def test_codecs_and_schemas_are_never_mixed() -> None:
    codecs = [replace(each, codec=codec) for each, codec in zip(extents_of(*[1] * 6), "aabbba", strict=True)]
    assert ids(runs_to_compact(codecs, CompactionLimits())) == [[0, 1], [2, 3, 4]]
    numbers = [
        replace(each, schema_number=number) for each, number in zip(extents_of(*[1] * 4), (1, 1, 2, 2), strict=True)
    ]
    assert ids(runs_to_compact(numbers, CompactionLimits())) == [[0, 1], [2, 3]]


@pytest.mark.rule("N2")
def test_open_extents_are_never_touched() -> None:
    extents = [*extents_of(1, 1), *extents_of(0, 0, first=2, is_open=True)]
    assert ids(runs_to_compact(extents, CompactionLimits())) == [[0, 1]]


@pytest.mark.rule("M4")
def test_extents_that_a_newer_version_wrote_more_into_are_left_alone() -> None:
    extents = extents_of(1, 1, 1, 1, 1)
    extents[2] = replace(extents[2], unknown_fields=b"x")
    assert ids(runs_to_compact(extents, CompactionLimits())) == [[0, 1], [3, 4]]
    extents[4] = replace(extents[4], fragment_unknown_fields=(b"", b"x"))
    assert ids(runs_to_compact(extents, CompactionLimits())) == [[0, 1]]


def test_a_gap_in_the_offsets_ends_a_run() -> None:
    extents = [*extents_of(1, 1), *extents_of(1, 1, first=3)]
    assert ids(runs_to_compact(extents, CompactionLimits())) == [[0, 1], [3, 4]]


@pytest.mark.rule("N7")
def test_a_run_spans_a_tenth_of_the_retention_at_most() -> None:
    head = LogHead(uuid=UUID, created_ms=1, ledger_key=b"", retention_ms=10_000, retention_bytes=500 * MIB)
    limits = CompactionLimits().for_log(head)
    assert (limits.span_ms_max, limits.ledger_bytes_max) == (1000, 50 * MIB)
    created = (0, 900, 100, 1001, 2000, 2002)
    extents = [replace(each, created_ms=ms) for each, ms in zip(extents_of(*[1] * 6), created, strict=True)]
    assert ids(runs_to_compact(extents, limits)) == [[0, 1, 2], [3, 4]]
    backwards = [replace(each, created_ms=ms) for each, ms in zip(extents_of(*[1] * 3), (1500, 900, 400), strict=True)]
    assert ids(runs_to_compact(backwards, limits)) == [[0, 1]]
    assert CompactionLimits().for_log(replace(head, retention_ms=0, retention_bytes=0)) == CompactionLimits()


def test_whoever_compacts_after_every_publish_copies_each_byte_a_few_times_only() -> None:
    limits = CompactionLimits(ledger_bytes_max=1000 * ENTRY_COST_BYTES)
    extents: list[Extent] = []
    copied = 0
    for n in range(4000):
        extents.append(Extent(ledger_id=n, entry_count=1, base_offset=n))
        while runs := runs_to_compact(extents, limits):
            for each in runs:
                at = extents.index(each[0])
                copied += sum(extent.entry_count for extent in each)
                extents[at : at + len(each)] = [replace(each[0], entry_count=sum(e.entry_count for e in each))]
    assert sum(extent.entry_count for extent in extents) == 4000
    assert len(extents) < 30
    cheap = 1000 // 16  # below this a ledger is copied again each time
    assert copied / 4000 < cheap / 2 + 10


def test_limits_must_be_positive() -> None:
    with pytest.raises(InvalidArgumentError, match="ledger_bytes_max"):
        CompactionLimits(ledger_bytes_max=0)
    with pytest.raises(InvalidArgumentError, match="copy_bytes_max"):
        CompactionLimits(copy_bytes_max=-1)


def test_content_is_the_same_however_it_was_cut_and_differs_for_anything_else() -> None:
    entries = [random.Random(1).randbytes(n % 7) for n in range(50)]

    def content(values: list[bytes], *cuts: int) -> Content:
        found, bounds = Content(), (0, *cuts, len(values))
        for start, stop in pairwise(bounds):
            found = found.with_batch(EntryBatch.from_list(values[start:stop]))
        return found

    whole = content(entries)
    assert whole == content(entries, 1, 1, 20, 49)
    assert whole.entries == 50
    others = [
        entries[:-1],
        [*entries[1:], entries[0]],
        [entries[0] + entries[1], b"", *entries[2:]],
        [*entries[:5], b"changed"[: len(entries[5])], *entries[6:]],
    ]
    assert all(content(other) != whole for other in others)
