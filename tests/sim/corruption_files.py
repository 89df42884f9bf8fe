# SPDX-License-Identifier: Apache-2.0
"""Damages everything but the newest segment: a sealed segment, its index, a checkpoint, the small files, and files that
are put in the place of others.

A start scans none of these; a frame or a block is checked when it is read. Most cases only run this check on the
changed bytes. One case of a few hundred is started in full, and every answer compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from bk_core.errors import IntegrityError
from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.index_file import decode_index_header
from bookie_server.storage.bytes.segment import decode_segment_header
from bookie_server.storage.log.segment_reader import check_stored_frame
from tests.kit.whole_files import (
    decode_checkpoint,
    decode_index_file,
    encode_checkpoint,
    encode_index_file,
    index_range,
)
from tests.sim.corruption import FULL_EVERY, Verdict, judge, recorded_position
from tests.sim.corruption_image import BLOCK, Image, make_image
from tests.sim.disk import SECTOR
from tests.sim.storage import DATA_DIR, SEGMENT_BYTES

Case = Callable[[int], tuple[str, Verdict]]
Ranges = Sequence[tuple[int, int]]
"""The changed ranges of a file, ascending: (first byte, end). For a file that was cut, the first byte that is gone."""
SECTORS_FULL_EVERY = 13
_OTHER_SEED = 3


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of damage: the number of its cases, and a function that judges the case with a number."""

    name: str
    total: Callable[[], int]
    case: Case


def image() -> Image:
    """Return the image that is damaged. It always has the same bytes."""
    return make_image(True)


def file_of(path: str, of: Image | None = None) -> bytes:
    data = (of or image()).files[path]
    assert data is not None
    return data


def path_of(suffix: str, of: Image | None = None) -> str:
    """Return the first file with this suffix."""
    return min(path for path, data in (of or image()).files.items() if data is not None and path.endswith(suffix))


@cache
def pairs(count: int) -> list[tuple[int, int]]:
    return [(one, other) for one in range(count) for other in range(one)]


# --- every way to change a file ---------------------------------------------------------------------------------------


class Target:
    """A file, an older file of its kind, and a check of changed bytes."""

    name: str

    @property
    def path(self) -> str:
        raise NotImplementedError

    def older(self) -> bytes:
        """Return the bytes of an intact file of the same directory that has another generation or number."""
        raise NotImplementedError

    def region(self, offset: int) -> str:
        """Return the part of the file to which a byte belongs."""
        raise NotImplementedError

    def check(self, data: bytes, changed: Ranges, *, full: bool) -> Verdict:
        """Return the verdict on changed bytes. With ``full``, also start; the start must agree with the file's own
        check."""
        raise NotImplementedError

    def original(self) -> bytes:
        return file_of(self.path)

    def kinds(self) -> Iterator[Kind]:
        def size() -> int:
            return len(self.original())

        def swaps() -> int:
            return len(pairs(size() // SECTOR))

        yield self._kind("each bit flipped", lambda: 8 * size(), self._flip, FULL_EVERY)
        yield self._kind("cut at each byte", size, self._cut, FULL_EVERY)
        yield self._kind("each sector zeroed", lambda: size() // SECTOR, self._zero)
        yield self._kind("each two sectors swapped", swaps, self._swap, 10 * SECTORS_FULL_EVERY)
        yield self._kind("each sector of an older one", lambda: size() // SECTOR, lambda k: self._older(k, SECTOR))
        yield self._kind("each block of an older one", lambda: size() // BLOCK, lambda k: self._older(k, BLOCK), 1)
        yield self._kind("an older one in its place", lambda: 1, lambda _: (self.older(), [(0, size())]), 1)

    def _kind(
        self,
        name: str,
        total: Callable[[], int],
        change: Callable[[int], tuple[bytes, Ranges]],
        full_every: int = SECTORS_FULL_EVERY,
    ) -> Kind:
        def case(number: int) -> tuple[str, Verdict]:
            data, changed = change(number)
            if data == self.original():
                return "the same bytes as before", Verdict("no effect")
            return self.region(changed[0][0]), self.check(data, changed, full=number % full_every == 0)

        return Kind(f"{self.name}: {name}", total, case)

    def _flip(self, number: int) -> tuple[bytes, Ranges]:
        data, at = bytearray(self.original()), number >> 3
        data[at] ^= 1 << (number & 7)
        return bytes(data), [(at, at + 1)]

    def _cut(self, number: int) -> tuple[bytes, Ranges]:
        return self.original()[:number], [(number, number + 1)]

    def _put(self, at: int, part: bytes) -> tuple[bytes, Ranges]:
        data = self.original()
        return data[:at] + part + data[at + len(part) :], [(at, at + len(part))]

    def _zero(self, number: int) -> tuple[bytes, Ranges]:
        return self._put(number * SECTOR, bytes(SECTOR))

    def _swap(self, number: int) -> tuple[bytes, Ranges]:
        other, one = (SECTOR * k for k in pairs(len(self.original()) // SECTOR)[number])
        data = self.original()
        a, b = data[one : one + SECTOR], data[other : other + SECTOR]
        whole = data[:one] + b + data[one + SECTOR : other] + a + data[other + SECTOR :]
        return whole, [(one, one + SECTOR), (other, other + SECTOR)]

    def _older(self, number: int, size: int) -> tuple[bytes, Ranges]:
        at = size * number
        return self._put(at, self.older()[at : at + size].ljust(size, b"\0"))


# --- a sealed segment -------------------------------------------------------------------------------------------------


@cache
def _sealed_places() -> list[Place | None]:
    """Return for each byte of the sealed segment the frame to which it belongs."""
    places: list[Place | None] = [None] * SEGMENT_BYTES
    for _, place in image().acked:
        if place.generation != image().generation:
            places[place.offset : place.offset + place.size] = [place] * place.size
    return places


class SealedSegment(Target):
    """The sealed segment. Reads check its frames, and a start checks its header and size. The bytes between frames are
    never read."""

    name = "sealed segment"

    @property
    def path(self) -> str:
        return image().sealed

    def older(self) -> bytes:
        return make_image(seed=_OTHER_SEED).newest_bytes()

    def region(self, offset: int) -> str:
        if offset < BLOCK:
            return "header"
        return "frame" if offset < SEGMENT_BYTES and _sealed_places()[offset] is not None else "between frames"

    def check(self, data: bytes, changed: Ranges, *, full: bool) -> Verdict:
        at_start = len(data) != SEGMENT_BYTES or not _is_right_header(data)
        problems, met = [], False
        for place in dict.fromkeys(p for low, high in changed for p in _sealed_places()[low:high] if p is not None):
            part = data[place.offset : place.offset + place.size]
            if part == self.original()[place.offset : place.offset + place.size]:
                continue
            met = True
            try:
                check_stored_frame(part, place, image().incarnation)
            except IntegrityError:
                continue
            problems.append(f"a changed frame at {place.offset} passed its check")
        if changed[0][0] < BLOCK and not at_start:
            problems.append("a changed header passed its check")
        outcome = "damage" if at_start else "found when it is read" if met else "not read"
        if full:
            verdict = judge(image(), {self.path: data})
            problems += verdict.problems
            if (verdict.outcome == "damage") != at_start:
                problems.append(f"a start says {verdict.outcome}, the header says {outcome}")
        return Verdict(outcome, tuple(problems))


def _is_right_header(data: bytes) -> bool:
    """Return whether a segment's header is that of the sealed segment."""
    try:
        return decode_segment_header(data[:BLOCK]) == decode_segment_header(file_of(image().sealed)[:BLOCK])
    except IntegrityError:
        return False


# --- its index --------------------------------------------------------------------------------------------------------


class IndexFile(Target):
    """An index file. A start reads its header and its summary; look-ups read the rest, block by block."""

    name = "index"

    @property
    def path(self) -> str:
        return path_of(".idx")

    def older(self) -> bytes:
        return _older_index()

    def region(self, offset: int) -> str:
        return _index_region(offset)

    def check(self, data: bytes, changed: Ranges, *, full: bool) -> Verdict:
        problems = []
        rebuilt = len(data) != len(self.original())
        rebuilt |= any(_index_region(at) in ("header", "summary") for low, high in changed for at in (low, high - 1))
        outcome = "rebuilt" if rebuilt else "found when it is read"
        try:
            header, _, _ = decode_index_file(data)
        except IntegrityError:
            pass
        else:
            if header.generation == decode_index_header(self.original()[:BLOCK]).header.generation:
                problems.append("a changed index passed its checks")
        if full:
            verdict = judge(image(), {self.path: data})
            problems += verdict.problems
            if (verdict.outcome == "rebuilt") != rebuilt:
                problems.append(f"a start says {verdict.outcome}, not {outcome}")
        return Verdict(outcome, tuple(problems))


@cache
def _older_index() -> bytes:
    """Return another segment's index, with the preceding generation, as the sectors of a removed file may still hold
    it."""
    other = make_image(seed=_OTHER_SEED)
    header, rows, states = decode_index_file(file_of(path_of(".idx", other), other))
    return encode_index_file(replace(header, generation=header.generation - 1), rows, states)


@cache
def _index_regions() -> list[tuple[int, str]]:
    sections = decode_index_header(file_of(path_of(".idx"))[:BLOCK])
    parts = {
        "index records": index_range(sections),
        "state records": sections.state_range,
        "sparse records": sections.sparse_range,
        "summary": sections.summary_range,
    }
    return [(sum(where), name) for name, where in parts.items()]


def _index_region(offset: int) -> str:
    if offset < BLOCK:
        return "header"
    return next((name for end, name in _index_regions() if offset < end), "summary")


# --- a checkpoint -----------------------------------------------------------------------------------------------------


class CheckpointFile(Target):
    """A checkpoint. A start reads all of it, and never trusts one that has changed."""

    name = "checkpoint"

    @property
    def path(self) -> str:
        return path_of(".checkpoint")

    def older(self) -> bytes:
        return _older_checkpoint()

    def region(self, offset: int) -> str:
        return "header" if offset < BLOCK else "records"

    def check(self, data: bytes, changed: Ranges, *, full: bool) -> Verdict:
        problems = []
        try:
            found = decode_checkpoint(data)
        except IntegrityError:
            pass
        else:
            if found.number == decode_checkpoint(self.original()).number:
                problems.append("a changed checkpoint passed its checks")
        if full:
            verdict = judge(image(), {self.path: data})
            problems += verdict.problems
            if verdict.outcome != "damage":
                problems.append("the loss of a checkpoint went unnoticed")
        return Verdict("damage", tuple(problems))


@cache
def _older_checkpoint() -> bytes:
    other = make_image(seed=_OTHER_SEED)
    found = decode_checkpoint(file_of(path_of(".checkpoint", other), other))
    return encode_checkpoint(replace(found, number=found.number - 1))


# --- small files, and files in the place of others --------------------------------------------------------------------


def _small(name: str) -> Iterator[Kind]:
    """Yield kinds of damage for a file that a start reads whole: all bits, and all lengths."""
    path = f"{DATA_DIR}/{name}"

    def flip(number: int) -> tuple[str, Verdict]:
        data = bytearray(file_of(path))
        data[number >> 3] ^= 1 << (number & 7)
        return "file", judge(image(), {path: bytes(data)})

    def cut(number: int) -> tuple[str, Verdict]:
        return "file", judge(image(), {path: file_of(path)[:number]})

    yield Kind(f"{name}: each bit flipped", lambda: 8 * len(file_of(path)), flip)
    yield Kind(f"{name}: cut at each byte", lambda: len(file_of(path)), cut)


@cache
def _places() -> list[tuple[str, str]]:
    """Return all pairs of files that hold promises: the file, and the file whose bytes it gets."""
    named = [path for path, data in image().files.items() if data and not path.endswith((".tmp", ".free", "/LOCK"))]
    return [(path, other) for path in sorted(named) for other in sorted(named) if path != other]


def _replaced(number: int) -> tuple[str, Verdict]:
    path, other = _places()[number]
    return _misplaced(path, {path: file_of(other)})


def _exchanged(number: int) -> tuple[str, Verdict]:
    path, other = _places()[number]
    return _misplaced(path, {path: file_of(other), other: file_of(path)})


def _lost(number: int) -> tuple[str, Verdict]:
    path = sorted({path for path, _ in _places()})[number]
    return _misplaced(path, {path: None})


def _misplaced(path: str, changed: dict[str, bytes | None]) -> tuple[str, Verdict]:
    verdict = judge(image(), changed, recorded=recorded_position(image(), image().newest_bytes()))
    if verdict.outcome not in ("damage", "refused", "rebuilt"):
        verdict = replace(verdict, problems=(*verdict.problems, f"{path} is another file and nobody noticed"))
    return path.rpartition(".")[2].rpartition("/")[2], verdict


def kinds() -> Iterator[Kind]:
    """Yield every kind of damage of this module."""
    for target in (SealedSegment(), IndexFile(), CheckpointFile()):
        yield from target.kinds()
    for name in ("IDENTITY", "VERSION"):
        yield from _small(name)
    yield Kind("files: each in the place of each other", lambda: len(_places()), _replaced)
    yield Kind("files: each two exchanged", lambda: len(_places()), _exchanged)
    yield Kind("files: each lost", lambda: len({path for path, _ in _places()}), _lost)


def forget_images() -> None:
    """Make the images anew. A mutant must not be judged by images that were made without it."""
    for made in (_sealed_places, _older_index, _older_checkpoint, _index_regions, _places):
        made.cache_clear()
