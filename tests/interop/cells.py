# SPDX-License-Identifier: Apache-2.0
"""The matrix of client, operation, bookies, wire and digest. Pure.

A cell that cannot exist has a reason (:meth:`Cell.impossible`), and no cell is left out. :func:`pairwise` computes a
small selection that has every possible pair of values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from tests.interop.jars import MAIN, SECOND

OURS, JAVA_MAIN, JAVA_SECOND = "ours", f"java-{MAIN}", f"java-{SECOND}"

CLIENTS = (OURS, JAVA_MAIN, JAVA_SECOND)
BOOKIES = ("ours", "apache", "mixed")
WIRES = ("grpc", "v3", "v2")
DIGESTS = ("CRC32C", "CRC32", "MAC", "DUMMY")  # the digests that Apache has
OPERATIONS = ("write", "read", "tail", "recover", "change", "delete")
DIMENSIONS: tuple[tuple[str, ...], ...] = (CLIENTS, BOOKIES, WIRES, DIGESTS, OPERATIONS)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell, in which ``client`` does ``operation``. The other side of a story is always the other kind of
    client."""

    client: str
    bookies: str
    wire: str
    digest: str
    operation: str

    def __str__(self) -> str:
        return "/".join(astuple(self))

    @property
    def impossible(self) -> str:
        """The reason why the cell cannot exist. It is empty if the cell can exist."""
        if self.client == OURS and self.wire == "v2":
            return "our client writes, fences and follows on v3, not on v2"
        if self.client != OURS and self.wire == "grpc":
            return "Apache's client has no gRPC"
        if self.bookies == "apache" and self.wire == "grpc":
            return "Apache's bookies have no gRPC"
        if self.operation == "tail" and self.wire == "v2":
            return "v2 has no long poll"
        return ""


def all_cells() -> list[Cell]:
    """Return every combination, also those that cannot exist. Neighbours share most of what a story needs."""
    return [Cell(*values) for values in itertools.product(*DIMENSIONS)]


def possible() -> list[Cell]:
    return [cell for cell in all_cells() if not cell.impossible]


Pair = tuple[int, str, int, str]
"""A value of one dimension and a value of another: the dimension's number and the value, twice."""


def pairs_of(cell: Cell) -> set[Pair]:
    values = astuple(cell)
    return {(i, values[i], j, values[j]) for i, j in itertools.combinations(range(len(values)), 2)}


def pairwise(cells: Sequence[Cell] | None = None) -> list[Cell]:
    """Return a selection of ``cells`` (by default of all that can exist) that has every pair of values which any of
    them has. Each next cell is the first of those with the most missing pairs."""
    left = list(possible() if cells is None else cells)
    missing = pairs_in(left)
    chosen: list[Cell] = []
    while missing:
        best = max(left, key=lambda cell: len(pairs_of(cell) & missing))
        chosen.append(best)
        missing -= pairs_of(best)
    return sorted(chosen, key=left.index)


def pairs_in(cells: Iterable[Cell]) -> set[Pair]:
    return set().union(*map(pairs_of, cells))
