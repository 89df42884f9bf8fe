# SPDX-License-Identifier: Apache-2.0
"""Real processes: one of four bookies is drained under a writer, stopped, and removed; every entry is readable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bk_cli import exit_codes, main
from bk_core import blocking
from tests.kit.canaries import PASSWORD
from tests.kit.clusters import temporary_cluster
from tests.kit.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.zookeeper, pytest.mark.timeout(120)]

LEDGERS, ENTRIES, PAYLOAD = 12, 20, b"x" * 8_000


class Writing(threading.Thread):
    """Appends to one ledger until it is told to stop."""

    def __init__(self, client: blocking.BookKeeper) -> None:
        super().__init__()
        self._ledger = client.create_ledger(password=PASSWORD)
        self._stopping = threading.Event()
        self.ledger_id, self.acked = self._ledger.ledger_id, 0
        self.members = self._ledger.metadata.last_fragment.ensemble

    def run(self) -> None:
        with self._ledger as ledger:
            while not self._stopping.wait(0.02):
                ledger.append(PAYLOAD)
                self.acked += 1

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)


@contextmanager
def autorecovery(uri: str, log: Path) -> Iterator[None]:
    command = ["-m", "bk_cli.main", "-v", "autorecovery", "--name", "healer", "--metadata-service-uri", uri]
    with log.open("w") as out:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen([sys.executable, *command], stdout=out, stderr=out, env=environment)
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(30) == 0, log.read_text()


@pytest.mark.rule("D23")
def test_bookie_is_drained_under_a_writer_and_removed(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    with temporary_cluster(tmp_path_factory) as cluster, blocking.connect(cluster.uri) as client:
        made = []
        for _ in range(LEDGERS):
            with client.create_ledger(password=PASSWORD) as ledger:
                for _ in range(ENTRIES):
                    ledger.append(PAYLOAD)
                made.append(ledger.ledger_id)
        writing = Writing(client)
        leaving = next(each for each in cluster.bookies if each.bookie_id == writing.members[0])

        def bk(*arguments: str) -> int:
            return main.run(["bookie", *arguments, "--metadata-service-uri", cluster.uri])

        writing.start()
        try:
            with autorecovery(cluster.uri, tmp_path_factory.mktemp("log") / "autorecovery.log"):
                capsys.readouterr()
                assert bk("drain", leaving.bookie_id, "--json") == 0
                told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
                assert (told[-1]["drained"], told[-1]["ledgersLeft"], told[-1]["blocked"]) == (True, 0, [])
                assert told[0]["ledgersLeft"] >= 1
                assert bk("remove", leaving.bookie_id) == exit_codes.CONFLICT, "it runs"
                acked = writing.acked
                leaving.stop()
                until(
                    lambda: bk("remove", leaving.bookie_id) == 0, 20, poll_s=0.3
                )  # its registration ends soon after the stop
                assert writing.acked > acked, "the writer goes on"

                def states() -> list[str]:
                    capsys.readouterr()
                    assert bk("list", "--json") == 0
                    return [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()]

                # the bookie is listed as long as a mark of autorecovery names it
                until(lambda: states() == ["writable"] * 3, 20, poll_s=0.3)
        finally:
            writing.stop()
        for ledger_id, entries in [*((each, ENTRIES) for each in made), (writing.ledger_id, writing.acked)]:
            reader = client.open_ledger(ledger_id, recover=False, password=PASSWORD)
            assert sum(len(batch) for batch in reader.read(0, entries - 1)) == entries
