# SPDX-License-Identifier: Apache-2.0
"""A strided sample of the corruption matrix; ``scripts/prove corrupt`` tries every bit, cut, sector and splice."""

from __future__ import annotations

import pytest

from tests.sim.corruption import Judge, judge
from tests.sim.corruption_image import BLOCK, make_image
from tests.sim.corruption_matrix import KINDS, run

pytestmark = pytest.mark.long

CASES = 150
REFUSED = 25  # starts twice, and reads everything between


@pytest.mark.rule("S3", "S8")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", KINDS)
def test_damage_is_noticed_and_nothing_is_denied_or_invented(name: str) -> None:
    total, cases = KINDS[name].total(), REFUSED if "refused" in name else CASES
    figures = run(name, 0, cases, max(1, total // cases) | 1)
    assert figures.problems == []
    assert figures.rounds >= min(cases, total) // 3


def test_an_image_that_nobody_touched_is_opened_without_a_word() -> None:
    for recorded in (True, False):
        assert judge(make_image(recorded), {}).outcome == "no effect"


def test_the_image_is_full_and_holds_every_kind_of_record() -> None:
    image = make_image()
    assert sum(group.size for group in image.groups) == 65536 - BLOCK
    kinds = {frame[3] for frame, place in image.acked if place.generation == image.generation}
    assert kinds == set(range(1, 8))
    regions = {image.region(offset) for offset in range(0, 65536, 4)}
    assert regions == {"segment header", "group header", "frame header", "columns", "payload", "padding"}


def test_what_a_scan_finds_decides_what_a_start_says() -> None:
    judging = Judge(make_image())
    data = bytearray(judging.image.newest_bytes())
    for number in range(0, 8 * len(data), 40_009):
        data[number >> 3] ^= 1 << (number & 7)
        assert judging.verdict(data) == judging.verdict(data, full=True)
        data[number >> 3] ^= 1 << (number & 7)
