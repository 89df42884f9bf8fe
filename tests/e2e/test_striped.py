# SPDX-License-Identifier: Apache-2.0
"""Striped ledgers on real bookies that die in the middle of a frame: written, tailed, recovered and read by the API."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_cli.local.children import child_environment
from bk_cli.local.cluster import LocalCluster
from bk_core import blocking, client
from tests.kit.clusters import temporary_cluster
from tests.kit.striped import QUICK, ROWS, SHAPES, Strikes, check_changes, payloads, rows_of, until, write_with_changes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
every_shape = pytest.mark.parametrize("shape", SHAPES)


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Five bookies for the widest ensemble, and one to take the place of each that is killed."""
    with temporary_cluster(tmp_path_factory, bookies=7) as running:
        yield running


@pytest.fixture
def strikes(seven: LocalCluster) -> Iterator[Strikes]:
    made = Strikes(seven)
    yield made
    made.mend()


@every_shape
@pytest.mark.rule("P2")
async def test_frames_torn_by_ensemble_changes_are_tailed_and_read_to_the_byte(
    seven: LocalCluster, strikes: Strikes, shape: str
) -> None:
    async with await client.connect(seven.uri, config=QUICK) as writing, await client.connect(seven.uri) as reading:
        ledger = await writing.create_ledger(**SHAPES[shape].sizes)
        tailing = await reading.open_ledger(ledger.ledger_id, recover=False)
        tailed: list[bytes] = []

        async def tail() -> None:
            async for batch in tailing.tail():
                tailed.extend(batch.to_list())

        follower = asyncio.create_task(tail())
        written = await write_with_changes(ledger, SHAPES[shape], strikes)
        await until(lambda: len(tailed) == len(written), "a tail to the last entry of an idle writer")
        await ledger.close()
        await follower
        check_changes(ledger.metadata, SHAPES[shape])
        assert tailed == written
        reader = await reading.open_ledger(ledger.ledger_id, recover=False)
        found = [value async for batch in reader.read(0, reader.last_add_confirmed) for value in batch.to_list()]
        assert found == written
        assert reader.length == sum(map(len, written))
        for fragment in reader.metadata.fragments[1:]:
            start = fragment.first_entry_id
            for first, last in ((start - 1, start), (start, start), (start - 7, start + 7), (start - 1, start + ROWS)):
                found = [value async for batch in reader.read(first, last) for value in batch.to_list()]
                assert found == written[first : last + 1]


@every_shape
@pytest.mark.rule("P6")
def test_recovery_after_the_writer_was_killed_finds_all_that_was_confirmed(
    seven: LocalCluster, strikes: Strikes, shape: str
) -> None:
    command = [sys.executable, "-m", "tests.kit.striped", seven.uri, shape]
    with (
        subprocess.Popen(command, cwd=ROOT, env=child_environment(), stdout=subprocess.PIPE) as writer,
        blocking.connect(seven.uri, config=QUICK) as bookkeeper,
    ):
        try:
            assert writer.stdout is not None
            ledger_id = int(writer.stdout.readline())
            while int(writer.stdout.readline()) < 3 * ROWS:
                pass
            ensemble = bookkeeper.read_metadata(ledger_id).value.last_fragment.ensemble
            for index in SHAPES[shape].strikes[0]:
                strikes.stop(ensemble[index])
            strikes.kill(ensemble[SHAPES[shape].strikes[0][0]])
            asyncio.run(until(lambda: len(bookkeeper.read_metadata(ledger_id).value.fragments) > 1, "a change"))
            changed = int(writer.stdout.readline())  # and it goes on in the new ensemble
        finally:
            writer.kill()
        confirmed = max(map(int, writer.stdout.read().split()), default=changed)
        strikes.resume()
        sealed = bookkeeper.open_ledger(ledger_id, recover=True)
        found = payloads(sealed.read(0, sealed.last_add_confirmed))
        frames = -(-len(found) // ROWS)
        assert found == [row for frame in range(frames) for row in rows_of(frame)][: len(found)]
        assert sealed.last_add_confirmed >= confirmed >= 3 * ROWS
