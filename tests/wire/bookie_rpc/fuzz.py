# SPDX-License-Identifier: Apache-2.0
"""Mutated frames of Apache's wire: what the readers of a connection make of them is what one frame at a time gives, and
nothing else ever comes out of a reader.

A round is a number: it says which bursts are made, and how they are mutated. The readers keep what they learnt from the
bursts before they were mutated. After a fault the reader goes on behind the bad frame, so that every frame is tried.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bk_core.wire.bookie_rpc.connection import AnswerReader, RequestReader
from tests.kit.bookie_wire import as_expected, as_read, burst_of, frame

FRAMES_A_BURST = 40
BURSTS_A_ROUND = 10
KINDS = (("add",), ("read",), ("add", "read"), ("add", "read", "other", "fence"))
INTERESTING = (b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\x80" * 11, b"\x0a", b"\x02")


@dataclass
class Tally:
    """What was tried: whole frames, of which so many were mutated, and what went wrong. ``bookie`` and ``client``: of
    the mutated ones, those that went through a whole connection (``fuzz_ends``); ``tokens``: those that were about
    tokens (``fuzz_tokens``); ``doors``: hellos and requests to an admin port (``fuzz_doors``)."""

    frames: int = 0
    mutated: int = 0
    bookie: int = 0
    client: int = 0
    tokens: int = 0
    doors: int = 0
    faults: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """Turn an error of a round into a problem, which names the round."""
        try:
            yield
        except Exception:
            self.problems.append(f"{name}: {traceback.format_exc()}")


def run_round(number: int) -> Tally:
    """Tries one round."""
    rng = random.Random(number)
    answers, version, kinds = rng.random() < 0.5, rng.choice((3, 3, 2)), rng.choice(KINDS)
    large = rng.choice((20, 60, 300))
    clean = burst_of(number, answers=answers, version=version, count=FRAMES_A_BURST, kinds=kinds, large=large)
    reader: RequestReader | AnswerReader = AnswerReader(version) if answers else RequestReader()
    reader.version = version
    reader.read(b"".join(clean))
    tally = Tally()
    with tally.noting(f"round {number}"):
        for _ in range(BURSTS_A_ROUND):
            frames, mutated = mutated_frames(rng, clean)
            tally.mutated += mutated
            _try(reader, b"".join(frames), answers, version, tally)
    return tally


def _try(reader: RequestReader | AnswerReader, burst: bytes, answers: bool, version: int, tally: Tally) -> None:
    """Reads a burst to its end, and compares."""
    while burst:
        reader.version = version
        found = as_read(burst, reader)
        expected = as_expected(burst, answers=answers, version=version)
        if found != expected:
            raise AssertionError(f"{burst.hex()}: {found} instead of {expected}")
        items, used, fault, _ = found
        tally.frames += len(items) + fault
        if not fault:
            return
        tally.faults += 1
        burst = burst[used + 4 + int.from_bytes(burst[used : used + 4], "big") :]


def mutated_frames(rng: random.Random, clean: list[bytes], share: float = 0.6) -> tuple[list[bytes], int]:
    """The frames, of which about this share are mutated, and how many are."""
    frames, mutated = [], 0
    for one in clean:
        if rng.random() < 1 - share:
            frames.append(one)
            continue
        mutated += 1
        content = bytearray(one[4:])
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            mutate(rng, content, clean)
        if rng.random() < 0.02:
            frames.append(rng.randbytes(4) + content if rng.random() < 0.5 else one[:4] + content)
        else:
            frames.append(frame(bytes(content)))
    return frames, mutated


def mutate(rng: random.Random, content: bytearray, clean: list[bytes]) -> None:
    """Changes the content of a frame in one way, mostly in its first bytes, where numbers and tags are."""
    near = min(len(content), rng.choice((12, 60, 400)))
    at = rng.randrange(near + 1)
    way = rng.randrange(8)
    if way <= 1 and content:
        content[min(at, len(content) - 1)] ^= 1 << rng.randrange(8)
    elif way == 2 and content:
        content[min(at, len(content) - 1)] = rng.randrange(256)
    elif way == 3:
        content[at:at] = rng.choice(INTERESTING)
    elif way == 4:
        del content[at : at + rng.randrange(1, 6)]
    elif way == 5:
        del content[at:]
    elif way == 6:
        other = rng.choice(clean)[4:]
        begin = rng.randrange(len(other) + 1)
        content[at : at + rng.randrange(30)] = other[begin : begin + rng.randrange(30)]
    else:
        piece = content[at : at + rng.randrange(20)]
        content[at:at] = piece
