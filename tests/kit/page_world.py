# SPDX-License-Identifier: Apache-2.0
"""A cluster for tests of the web page: logs and ledgers on four bookies, one of which is killed, and ``bk web``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from bk_cli.local.cluster import LocalCluster
from bk_core import blocking
from bk_core.blocking import BookKeeper
from bk_core.blocking.logs import LogLeader
from bk_core.metadata import open_store
from bk_core.model import LedgerId

CITIES = ("Berlin", "Lagos", "Lima", "Osaka")
HOSTILE = '<img src=x onerror="document.title=1">'
ROOT = Path(__file__).parents[2]


@dataclass
class PageWorld:
    cluster: LocalCluster
    client: BookKeeper
    note: str
    closed: LedgerId = -1
    leader: LogLeader | None = None
    lacking: list[LedgerId] = field(default_factory=list)

    @property
    def lost(self) -> str:
        """The bookie that is killed."""
        return self.cluster.bookies[0].bookie_id

    def fill(self) -> None:
        """Write a closed ledger with an ensemble change, a log of orders that stays open, and a log of flights."""
        self._write_torn_ledger()
        for part in range(3):
            with self.client.log("orders").lead() as leader:
                for number in range(40 * part + 20):
                    leader.append(self.order(number))
        self.leader = self.client.log("orders").lead()
        self.leader.append(self.order(1))
        flights = pa.table({"flight": [f"BK{n}" for n in range(60)], "delay": [n % 37 for n in range(60)]})
        self.client.log("flights").append_arrow(flights)

    def order(self, number: int) -> bytes:
        city, note = CITIES[number % 4], self.note if number == 1 else ""
        return json.dumps({"order": 1000 + number, "city": city, "cents": 199 * number % 5000, "note": note}).encode()

    def _write_torn_ledger(self) -> None:
        """Write a ledger with an ensemble change. All three bookies have its entries, so the replaced bookie lacks
        none."""
        custom = {"application": self.note.encode()}
        with self.client.create_ledger(ack_quorum_size=3, custom_metadata=custom) as writer:
            for number in range(60):
                writer.append(b"entry %d" % number)
            self.closed = writer.ledger_id
            member = writer.metadata.last_fragment.ensemble[0]
            stopped = next(each for each in self.cluster.bookies if each.bookie_id == member)
            stopped.stop()
            for number in range(40):
                writer.append(b"entry %d" % (60 + number))
            assert len(writer.metadata.fragments) == 2
        stopped.start()
        self.cluster.wait_ready([stopped])

    def kill_one(self) -> None:
        """Kill the first bookie with SIGKILL, and mark the ledgers that name it as an auditor would."""
        self.cluster.bookies[0].kill()
        with closing(open_store(self.cluster.uri)) as store:
            for ledger_id in store.list_ledgers():
                if any(self.lost in each.ensemble for each in store.read_ledger(ledger_id).value.fragments):
                    store.mark_underreplicated(ledger_id, [self.lost])
                    self.lacking.append(ledger_id)

    @contextmanager
    def page(self) -> Iterator[str]:
        """Run ``bk web`` in a process of its own, and yield its URL. Fail if the process does not end cleanly."""
        command = [sys.executable, "-m", "bk_cli.main", "web", "--port", "0", "--json"]
        process = subprocess.Popen(
            [*command, "--metadata-service-uri", self.cluster.uri],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
            assert process.wait(15) == 0
            process.stdout.close()


@contextmanager
def page_world(cluster: LocalCluster, note: str = HOSTILE) -> Iterator[PageWorld]:
    """Fill a cluster for the page. ``note`` is a user's text, which appears in several places."""
    with blocking.connect(cluster.uri) as client:
        world = PageWorld(cluster, client, note)
        world.fill()
        yield world
