# SPDX-License-Identifier: Apache-2.0
"""A slow task gets a second attempt on another host, and the first ends after the job: nothing twice, nothing lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bk_core.blocking import BookKeeper
from tests.spark.modes import late
from tests.spark.modes.kit import Source

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.mark.thorough
@pytest.mark.rule("N4", "N6")
@pytest.mark.parametrize("mode", ["standalone"], indirect=True, scope="session")  # Spark speculates between hosts only
@pytest.mark.parametrize("small", ["0", "32k"])
def test_a_late_attempt_of_a_finished_task_changes_nothing(
    source: Source, client: BookKeeper, tmp_path: Path, small: str
) -> None:
    source.spark.dataSource.register(late.late_source(tmp_path))
    source.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        writer = (
            source.rows(60).write.format("bookkeeper_late").options(metadataServiceUri=source.uri, smallTaskBytes=small)
        )
        writer.mode("append").save(source.log)
    finally:
        source.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert (tmp_path / late.BEGUN).exists()
    deadline = time.monotonic() + late.LATE_S
    while not (tmp_path / late.ENDED).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    wanted = [f"row {i}" for i in range(60)]
    assert source.values() == wanted
    head = client.log(source.log).head().value
    listed = {extent.ledger_id for extent in head.tail}
    attempts = [of_attempt(client, ledger, head.uuid) for ledger in set(client.list_ledgers()) - listed]
    zombies = 1 if small == "0" else 0  # nobody reads the zombie's ledger, vacuum finds it; Spark drops its message
    assert attempts.count(("0", "0")) == zombies
    source.append(source.rows(1, start=60))
    assert source.values() == [*wanted, "row 60"]


def of_attempt(client: BookKeeper, ledger_id: int, log_uuid: str) -> tuple[str, str] | None:
    """Partition and attempt that made a ledger for this log."""
    custom = client.read_metadata(ledger_id).value.custom_metadata
    if custom.get("bk.log.uuid") != log_uuid.encode():
        return None
    return custom["bk.partition"].decode(), custom["bk.attempt"].decode()
