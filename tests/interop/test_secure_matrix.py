# SPDX-License-Identifier: Apache-2.0
"""A sample of the matrix in which all bookies require certificates, and ours also a role on the cluster. Our client has
grants for our bookies, and also uses Apache's, as mode mixed allows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core import blocking
from bk_core.client import ClientConfig
from bk_core.errors import BookKeeperError
from tests.interop.cells import BOOKIES, OPERATIONS, Cell
from tests.interop.jars import MAIN
from tests.interop.java_process import PeerError
from tests.interop.pattern import Pattern
from tests.interop.secured import Secured, java_settings
from tests.interop.stories import Matrix
from tests.interop.worlds import MixedCluster
from tests.kit.amount import thorough

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SAMPLE = (
    Cell("java-4.17.3", "ours", "v3", "CRC32C", "write"),
    Cell("ours", "mixed", "grpc", "CRC32C", "read"),
    Cell("java-4.17.3", "mixed", "v3", "MAC", "tail"),
    Cell("ours", "apache", "v3", "CRC32", "recover"),
    Cell("java-4.18.0", "ours", "v2", "CRC32", "change"),
    Cell("java-4.18.0", "mixed", "v2", "CRC32C", "delete"),
)
SLOW = (SAMPLE[0], SAMPLE[5])


@pytest.fixture(scope="module")
def matrix(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    path = tmp_path_factory.mktemp("secure-matrix")
    where, secured = zookeeper_server.connect_string, Secured(path)
    with MixedCluster(where, path, ours=Matrix.OURS, apache=Matrix.APACHE, secured=secured) as cluster:
        made = Matrix(cluster)
        yield made
        made.close()


@pytest.mark.rule("L7")
@pytest.mark.parametrize("cell", thorough(SAMPLE, SLOW), ids=str)
def test_a_cell_of_the_matrix_with_certificates_and_roles(matrix: Matrix, cell: Cell) -> None:
    assert not cell.impossible
    matrix.play(cell)


def test_the_sample_has_every_operation_and_every_kind_of_bookies() -> None:
    assert {cell.operation for cell in SAMPLE} == set(OPERATIONS)
    assert {cell.bookies for cell in SAMPLE} == set(BOOKIES)


def test_who_has_a_certificate_and_no_role_gets_nothing_from_our_bookies(matrix: Matrix) -> None:
    cluster = matrix.cluster
    assert cluster.secured is not None
    bookies = [bookie.bookie_id for bookie in cluster.ours]
    writer = matrix.party("java-4.17.3", "v3").create(bookies, (3, 3, 2), "CRC32C")
    writer.add(5, Pattern(seed=3, size_min=1, size_max=9), first=0)
    writer.close()
    conf = java_settings(cluster.secured.stranger)
    stranger = cluster.peer(MAIN).client(cluster.uri, conf=conf)
    with pytest.raises(PeerError):
        stranger.open(writer.ledger_id).read(0, 4)
    config = ClientConfig(lanes="bookie-rpc", **cluster.secured.stranger.settings())
    with blocking.connect(cluster.uri, config=config) as ours:
        reader = ours.open_ledger(writer.ledger_id, recover=False, password=b"passwd")
        with pytest.raises(BookKeeperError):
            list(reader.read(0, 4))
