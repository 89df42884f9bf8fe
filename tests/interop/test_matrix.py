# SPDX-License-Identifier: Apache-2.0
"""Cells of the matrix in which all pairs of values meet, on one cluster. ``scripts/trial interop matrix`` runs all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_cli.local.zookeeper_server import ZooKeeperServer
from tests.interop.cells import DIMENSIONS, Cell, all_cells, pairs_in, pairwise, possible
from tests.interop.matrix import Results
from tests.interop.stories import STORIES, Matrix
from tests.interop.worlds import MixedCluster


@pytest.fixture(scope="module")
def matrix(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    path = tmp_path_factory.mktemp("matrix")
    with MixedCluster(zookeeper_server.connect_string, path, ours=Matrix.OURS, apache=Matrix.APACHE) as cluster:
        made = Matrix(cluster)
        yield made
        made.close()


@pytest.mark.interop
@pytest.mark.timeout(300)  # the first one starts everything
@pytest.mark.rule("P6", "MUST6", "MUST9", "MUST11")
@pytest.mark.parametrize("cell", pairwise(), ids=str)
def test_a_cell_of_the_matrix(matrix: Matrix, cell: Cell) -> None:
    matrix.play(cell)


def test_every_combination_is_a_cell_or_has_a_reason() -> None:
    cells = all_cells()
    assert len(cells) == len(set(cells)) == math.prod(map(len, DIMENSIONS))
    assert {cell for cell in cells if not cell.impossible} == set(possible())
    assert Counter(cell.wire for cell in possible()) == {"v3": 216, "v2": 120, "grpc": 48}
    assert {cell.operation for cell in cells} == set(STORIES)
    v2 = Cell("java-4.17.3", "ours", "v2", "MAC", "tail")
    assert v2.impossible == "v2 has no long poll"
    assert not Cell("java-4.17.3", "ours", "v2", "MAC", "recover").impossible


def test_the_selection_has_every_pair_that_can_be() -> None:
    chosen = pairwise()
    assert pairs_in(chosen) == pairs_in(possible())
    assert not any(cell.impossible for cell in chosen)
    largest, second = sorted(map(len, DIMENSIONS))[-2:][::-1]
    assert largest * second <= len(chosen) <= 2 * largest * second, "hardly more than the pairs of two dimensions"
    values = {value for cell in chosen for value in (cell.client, cell.bookies, cell.wire, cell.digest, cell.operation)}
    assert values == {value for dimension in DIMENSIONS for value in dimension}


def test_the_results_of_a_run_can_be_gone_on_from(tmp_path: Path) -> None:
    cells = [cell for cell in all_cells() if str(cell).startswith("java-4.18.0/apache/v2/MAC/")]
    tail = next(cell for cell in cells if cell.operation == "tail")
    first, second, *others = (cell for cell in cells if cell != tail)
    results = Results.load(tmp_path / "results")
    assert not results.passes(cells), "nothing ran"
    assert not results.passes([tail]), "there was nothing to run"
    results.add(first, 1.5, "")
    results.add(second, 2.0, "StoryError: the end: 8, wanted 9")
    for cell in others:
        results.add(cell, 1.0, "")
    again = Results.load(tmp_path / "results")
    assert (again.passes(cells), again.passes([first, tail])) == (False, True)
    assert f"FAILED {second}: StoryError: the end: 8, wanted 9" in again.table(cells)
    again.add(second, 2.0, "")
    table = Results.load(tmp_path / "results").table(cells)
    assert again.passes(cells)
    assert "5 of 5 cells passed in 6 s; 1 of them not at once." in table  # 1.5 + 2 + 3 × 1
    assert "1 combinations are no cells: v2 has no long poll." in table
    assert "| java-4.18.0 | v2 | apache | 1/1 | 1/1 | – | 1/1 | 1/1 | 1/1 |" in table
