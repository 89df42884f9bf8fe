# SPDX-License-Identifier: Apache-2.0
"""``bk rebalance``: what is refused. Plans: ``tests/protocol/replication/test_balance.py``; moves:
``tests/client/repairing/test_mover.py``; both on real bookies: ``tests/e2e/test_drain.py``."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator

import pytest

from bk_cli import exit_codes, main
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieServiceInfo, Endpoint


@pytest.fixture
def store() -> Iterator[MetadataStore]:
    opened = open_store(f"memory://{uuid.uuid4().hex}")
    opened.initialize_cluster()
    yield opened
    opened.close()


@pytest.mark.parametrize("options", [["--rate", "0"], ["--rate", "fast"], ["--tolerance", "-1"], ["--max-bytes", "0"]])
def test_rates_and_bounds_that_mean_nothing_are_refused(store: MetadataStore, options: list[str]) -> None:
    assert main.run(["rebalance", *options, "--metadata-service-uri", store.uri]) == exit_codes.USAGE


def test_one_bookie_alone_cannot_be_balanced(store: MetadataStore, capfd: pytest.CaptureFixture[str]) -> None:
    store.register_bookie(BookieServiceInfo("b1"))
    assert main.run(["rebalance", "--metadata-service-uri", store.uri]) == exit_codes.USAGE
    assert "no two bookies to balance; b1" in capfd.readouterr().err


@pytest.mark.long
def test_bookies_that_do_not_answer_cannot_be_balanced_and_are_named(
    store: MetadataStore, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        endpoint = Endpoint("direct", "127.0.0.1", mute.getsockname()[1], "direct")
        for name in ("b1", "b2"):
            store.register_bookie(BookieServiceInfo(name, (endpoint,)))
        assert main.run(["rebalance", "--metadata-service-uri", store.uri]) == exit_codes.UNAVAILABLE
    assert "silent: b1, b2" in capfd.readouterr().err
