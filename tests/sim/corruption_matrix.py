# SPDX-License-Identifier: Apache-2.0
"""Numbers every way to damage a small data directory, and judges it. ``scripts/prove corrupt`` runs all."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from tests.sim import corruption_files
from tests.sim.corruption import FULL_EVERY, Judge, Verdict, judge_refused, recorded_position
from tests.sim.corruption_files import Kind, pairs
from tests.sim.corruption_image import BLOCK, Image, make_image
from tests.sim.disk import SECTOR
from tests.sim.storage import SEGMENT_BYTES
from tests.trials.harness import Figures

SECTORS = SEGMENT_BYTES // SECTOR
SPLICES = 10_000
_GROUP_BITS = 64 * 8
UNCOVERED = ("padding", "space never written")
"""The parts whose bytes no checksum covers and nothing reads."""


DONE = "cases of damage"
"""The heading of the table of cases by kind."""


# --- the newest segment -----------------------------------------------------------------------------------------------


@cache
def _judge_of(recorded: bool) -> Judge:
    return Judge(make_image(recorded))


@cache
def _covered(image: Image) -> npt.NDArray[np.bool_]:
    """Return the bytes whose change must be noticed. The last idle group is not among them: without it the groups
    before it are a tail, and an intact tail is kept (a stated exception)."""
    covered = np.array([image.region(offset) not in UNCOVERED for offset in range(SEGMENT_BYTES)])
    if image.recorded:
        covered[image.groups[-1].offset :] = False
    return covered


def _scanned(recorded: bool, number: int, data: bytes | bytearray, region: str) -> tuple[str, Verdict]:
    """Return the verdict. It is also a problem if a change of covered bytes was not noticed."""
    judging = _judge_of(recorded)
    verdict = judging.verdict(data, full=number % FULL_EVERY == 0)
    if verdict.outcome == "no effect":
        image = judging.image
        now, before = (np.frombuffer(part, np.uint8) for part in (data, image.newest_bytes()))
        # Groups that no remaining header records as durable may be gone without a trace (S3).
        end = recorded_position(image, bytes(data)) if image.recorded else SEGMENT_BYTES
        if len(now) != len(before) or bool(((now != before) & _covered(image))[:end].any()):
            verdict = Verdict(verdict.outcome, (*verdict.problems, "bytes that matter changed and nobody noticed"))
    return region, verdict


def _flip(recorded: bool, number: int) -> tuple[str, Verdict]:
    image = _judge_of(recorded).image
    data = bytearray(image.newest_bytes())
    data[number >> 3] ^= 1 << (number & 7)
    return _scanned(recorded, number, data, image.region(number >> 3))


def _flip_group_header(number: int) -> tuple[str, Verdict]:
    group = _judge_of(True).image.groups[number // _GROUP_BITS]
    return _flip(True, group.offset * 8 + number % _GROUP_BITS)


def _cut(number: int) -> tuple[str, Verdict]:
    return _scanned(True, number, _judge_of(True).image.newest_bytes()[:number], "truncated")


def _put(number: int, region: str, *parts: tuple[int, bytes]) -> tuple[str, Verdict]:
    data = bytearray(_judge_of(True).image.newest_bytes())
    for offset, part in parts:
        data[offset : offset + len(part)] = part
    return _scanned(True, number, data, region)


def _sector(number: int, data: bytes | None = None) -> bytes:
    source = _judge_of(True).image.newest_bytes() if data is None else data
    return source[number * SECTOR : (number + 1) * SECTOR]


def _zeroed(number: int) -> tuple[str, Verdict]:
    return _put(number, "sector", (number * SECTOR, bytes(SECTOR)))


def _older(number: int) -> tuple[str, Verdict]:
    return _put(number, "sector", (number * SECTOR, _sector(number, _judge_of(True).image.older)))


def _older_block(number: int) -> tuple[str, Verdict]:
    start = number * BLOCK
    return _put(number, "block", (start, _judge_of(True).image.older[start : start + BLOCK]))


def _swapped(number: int) -> tuple[str, Verdict]:
    one, other = pairs(SECTORS)[number]
    return _put(number, "two sectors", (one * SECTOR, _sector(other)), (other * SECTOR, _sector(one)))


def _copied(number: int) -> tuple[str, Verdict]:
    target, source = divmod(number, SECTORS)
    return _put(number, "sector", (target * SECTOR, _sector(source)))


def _spliced(number: int) -> tuple[str, Verdict]:
    """Put a piece of this segment, of an older one, or of another bookie's, over another place: at the bounds of a
    frame or a block, or anywhere."""
    rng = random.Random(number)
    image = _judge_of(True).image
    name, source = rng.choice(
        [("itself", image.newest_bytes()), ("older", image.older), ("other bookie", _foreign().newest_bytes())]
    )
    step = rng.choice([1, 64, 64, SECTOR, BLOCK])
    size = min(rng.choice([step, 4 * step, 64, 256, 4096, 12288]), SEGMENT_BYTES - BLOCK)
    at, to = (rng.randrange((SEGMENT_BYTES - size) // step + 1) * step for _ in range(2))
    if name != "itself" and rng.random() < 0.5:
        at = to
    return _put(number, f"from {name}", (to, source[at : at + size]))


def _refused(recorded: bool, number: int) -> tuple[str, Verdict]:
    image = _judge_of(recorded).image
    return image.region(number * SECTOR), judge_refused(image, number)


@cache
def _foreign() -> Image:
    return make_image(seed=2, bookie_id="bookie-2:3181")


# --- all kinds --------------------------------------------------------------------------------------------------------


def _group_bits() -> int:
    return len(_judge_of(True).image.groups) * _GROUP_BITS


def _kinds() -> Iterator[Kind]:
    bits = SEGMENT_BYTES * 8
    yield Kind("newest segment: each bit flipped", lambda: bits, lambda k: _flip(True, k))
    yield Kind("newest segment: each bit of a group's header", _group_bits, _flip_group_header)
    yield Kind("newest segment, last group not on record: each bit", lambda: bits, lambda k: _flip(False, k))
    yield Kind("newest segment: cut at each byte", lambda: SEGMENT_BYTES, _cut)
    yield Kind("newest segment: each sector zeroed", lambda: SECTORS, _zeroed)
    yield Kind("newest segment: each sector of an older generation", lambda: SECTORS, _older)
    yield Kind("newest segment: each block of an older generation", lambda: SEGMENT_BYTES // BLOCK, _older_block)
    yield Kind("newest segment: each two sectors swapped", lambda: len(pairs(SECTORS)), _swapped)
    yield Kind("newest segment: each sector over each other", lambda: SECTORS * SECTORS, _copied)
    yield Kind("newest segment: pieces spliced", lambda: SPLICES, _spliced)
    yield Kind("newest segment: each sector refused, then read", lambda: SECTORS, lambda k: _refused(True, k))
    yield Kind(
        "newest segment, last group not on record: each sector refused, then read",
        lambda: SECTORS, lambda k: _refused(False, k),
    )  # fmt: skip
    yield from corruption_files.kinds()


KINDS = {kind.name: kind for kind in _kinds()}


# --- running them -----------------------------------------------------------------------------------------------------


def run(name: str, first: int, count: int, stride: int = 1) -> Figures:
    """Run ``count`` cases of a kind, from number ``first`` on."""
    logging.disable(logging.CRITICAL)
    kind, done = KINDS[name], Figures()
    for number in range(first, min(first + count * stride, kind.total()), stride):
        region, verdict = kind.case(number)
        done.rounds += 1
        done.table("what a start makes of it")[f"{name}: {region}: {verdict.outcome}"] += 1
        done.problems += [f"{name} {number}: {problem}" for problem in verdict.problems]
    done.table(DONE)[name] = done.rounds
    return done


def check_sample(name: str, cases: int) -> None:
    """Run ``cases`` cases of a kind, evenly spread, on a new image. Raises AssertionError for a problem."""
    for made in (_judge_of, _covered, _foreign, make_image):
        made.cache_clear()
    corruption_files.forget_images()
    problems = run(name, 0, cases, max(1, KINDS[name].total() // cases) | 1).problems
    assert not problems, problems[0]
