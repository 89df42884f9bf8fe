# SPDX-License-Identifier: Apache-2.0
"""Takes the pictures of the page that docs/bookie.md shows, on a cluster of which a bookie is killed. Takes two
minutes, so that the plots show something."""

from __future__ import annotations

import math
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bk_cli.local.cluster import LocalCluster
from bk_core.blocking.logs import LogLeader
from tests.kit.browser import Tab, browser
from tests.kit.page_world import PageWorld, page_world

FOLDER = Path(__file__).parents[2] / "docs" / "images"
BYTES_MAX = 200_000
LOAD_S = 75
WIDE, NARROW = (1200, 760), (360, 640)


@contextmanager
def appending(world: PageWorld, leader: LogLeader) -> Iterator[None]:
    """Somebody appends, now more and now less."""
    ended = threading.Event()

    def work() -> None:
        number = 0
        while not ended.wait(1 / (60 + 50 * math.sin(time.monotonic() / 7))):
            number += 1
            offset = leader.append_nowait(world.order(number))
            if number % 20 == 0:
                leader.wait_confirmed(offset)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def take(tab: Tab, name: str, part: str, wanted: str) -> None:
    tab.js(f"location.hash = '#/{part}'")
    tab.until(wanted, 30)
    time.sleep(4)
    path = FOLDER / f"{name}.png"
    tab.screenshot(path)
    size = path.stat().st_size
    print(f"{path.relative_to(FOLDER.parents[1])}: {size:,} bytes")
    assert size < BYTES_MAX, "a picture in the docs is small"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bk-page-") as folder,
        LocalCluster(Path(folder) / "cluster", bookies=4, port=3181, zookeeper_port=2181) as cluster,
        page_world(cluster, "orders") as world,
        world.page() as url,
        browser(Path(folder) / "profile") as tab,
    ):
        assert world.leader is not None
        tab.resize(*WIDE)
        tab.go(url)
        with appending(world, world.leader):
            time.sleep(LOAD_S)
            take(tab, "page-log", "log/orders", "document.querySelectorAll('.tail tbody tr').length > 10")
            busy = world.client.read_metadata(world.leader.ledger_id).value.last_fragment.ensemble
            take(tab, "page-bookie", f"bookie/{max(busy)}", "document.querySelector('.plots')")
            world.kill_one()
            take(tab, "page-overview", "", "document.querySelector('#verdict')?.innerText.includes('is down')")
            take(tab, "page-ledger", f"ledger/{world.closed}", "document.querySelector('.fragments rect.away')")
            tab.resize(*NARROW)
            tab.prefer("dark")
            take(tab, "page-narrow", "", "document.querySelector('#verdict')")
        world.leader.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
