# SPDX-License-Identifier: Apache-2.0
"""``bk bookie list`` where bookies are many, mute, away or gone. Those that are well: ``test_doctor.py``."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest

from bk_cli import main
from bk_core.cluster.bookies import count_marks, look
from bk_core.metadata import open_store
from bk_core.metadata.records import BookieOrder
from bk_core.model import BookieId, BookieServiceInfo, Endpoint, LedgerId
from bk_core.transport.caller import Caller
from tests.kit.memory_store import MemoryStore
from tests.kit.waiting import in_thread


@pytest.mark.long
def test_a_hundred_bookies_that_do_not_answer_cost_no_more_than_one(capfd: pytest.CaptureFixture[str]) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    store = open_store(uri)
    store.initialize_cluster()
    command = ["bookie", "list", "--metadata-service-uri", uri]
    with socket.create_server(("127.0.0.1", 0), backlog=512) as mute:
        for number in range(100):
            endpoint = Endpoint("direct", "127.0.0.1", mute.getsockname()[1], "direct")
            store.register_bookie(BookieServiceInfo(f"b{number:02}", (endpoint,), {}), read_only=number >= 97)
        store.write_cookie("c", b"", None)
        store.mark_underreplicated(5, ["b00", "gone"])
        store.mark_underreplicated(6, ["b00"])
        began = time.monotonic()
        assert main.run([*command, "--json"]) == 0
        assert time.monotonic() - began < 2
        rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert main.run(command) == 0
    states = {row["bookieId"]: row["state"] for row in rows}
    assert list(states) == sorted(states)
    assert (states["b96"], states["b97"], states["c"], states["gone"]) == ("writable", "read-only", "away", "gone")
    assert all("BK_BOOKIE_UNREACHABLE" in row["error"] for row in rows if row["bookieId"].startswith("b"))
    assert {row["bookieId"]: row["underReplicated"] for row in rows if row["underReplicated"]} == {"b00": 2, "gone": 1}
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert ["b00", "writable", "no", "-", "-", "2", "-", "-", "direct", "-"] in lines
    assert ["c", "away", "-", "-", "-", "0", "-", "-", "-", "-"] in lines
    assert not count_marks(store, timeout_s=-1).is_all, "a cut count says so"
    store.close()


class SlowLists(MemoryStore):
    """Answers what is not needed to ask bookies once they are asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def bookie_orders(self) -> dict[BookieId, BookieOrder]:  # known_bookies begins with it
        assert self.asked.wait(10)
        return super().bookie_orders()

    def list_underreplicated(self) -> Iterator[tuple[LedgerId, tuple[BookieId, ...]]]:
        assert self.asked.wait(10)
        return super().list_underreplicated()


def test_marks_cookies_and_orders_are_read_while_the_bookies_are_asked() -> None:
    with closing(SlowLists()) as store, socket.create_server(("127.0.0.1", 0)) as bookie:
        store.initialize_cluster()
        store.register_bookie(BookieServiceInfo("b", (Endpoint("direct", *bookie.getsockname(), "direct"),), {}))
        store.mark_underreplicated(5, ["b"])

        def hang_up() -> None:
            bookie.accept()[0].close()
            store.asked.set()

        answering = in_thread(hang_up)
        rows, marks = look(store, Caller(store.instance_id()))
        answering.result(10)
    assert [(row.bookie_id, row.lacks) for row in rows] == [("b", 1)]
    assert marks.is_all
