# SPDX-License-Identifier: Apache-2.0
"""Runs cells of the matrix that have all pairs of values, on one cluster. ``scripts/trial interop matrix`` runs all
cells."""

from __future__ import annotations

import math
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator

import pytest

from bk_cli.local.zookeeper_server import ZooKeeperServer
from tests.interop.cells import DIMENSIONS, Cell, all_cells, pairs_in, pairwise, possible
from tests.interop.matrix import MatrixTrial
from tests.interop.stories import STORIES, Matrix
from tests.interop.worlds import MixedCluster
from tests.trials.harness import Figures


@pytest.fixture(scope="module")
def matrix(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    path = tmp_path_factory.mktemp("matrix")
    with MixedCluster(zookeeper_server.connect_string, path, ours=Matrix.OURS, apache=Matrix.APACHE) as cluster:
        made = Matrix(cluster)
        yield made
        made.close()


@pytest.mark.interop
@pytest.mark.timeout(300)  # the first cell starts everything
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
    assert largest * second <= len(chosen) <= 2 * largest * second, (
        "the selection is smaller than the pairs of two dimensions, or over twice as large"
    )
    values = {value for cell in chosen for value in (cell.client, cell.bookies, cell.wire, cell.digest, cell.operation)}
    assert values == {value for dimension in DIMENSIONS for value in dimension}


def test_a_run_plays_every_cell_once_the_pairs_first() -> None:
    trial = MatrixTrial(Namespace(pairwise=False, rounds=None))
    played = [trial.next(Figures(rounds=number)) for number in range(len(trial.cells) + 1)]
    assert set(played[: len(pairwise())]) == set(pairwise())
    assert sorted(map(str, played[:-1])) == sorted(map(str, possible()))
    assert played[-1] is None
    assert {cell.wire for cell in trial.only(["java-4.18.0/mixed/v2"])} == {"v2"}
