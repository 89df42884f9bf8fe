# SPDX-License-Identifier: Apache-2.0
"""``bk cluster top`` and ``bk bookie inspect ID``: numbers of bookies that run, and rows of those that say nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from bk_cli import main
from bk_cli.local.children import free_port
from bk_cli.operate.cluster_top import DEADLINE_S, TopLook, _cells, look, notes, rows
from bk_core.cluster.admin_ports import AdminPorts, Numbers, parse_numbers, quantile_since
from bk_core.cluster.bookies import Marks
from bk_core.errors import BookKeeperError
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import BookieOrder, Order
from bk_core.model import BookieServiceInfo, Endpoint
from bookie_server.main import Bookie
from tests.kit.lanes import bookie_config


@pytest.mark.long
def test_a_bookie_that_runs_shows_its_numbers_and_a_mute_one_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uri, port = f"memory://{uuid.uuid4().hex}", free_port()
    store = open_store(uri)
    store.initialize_cluster()

    async def story() -> TopLook:
        bookie = await Bookie.start(bookie_config(tmp_path / "b", uri, admin_port=port), open_store(uri))
        try:
            # at this port another bookie answers than the one that published it, as on loopback of another host
            store.register_bookie(BookieServiceInfo("other", (Endpoint("httpserver", "127.0.0.1", port, "http"),), {}))
            with socket.create_server(("127.0.0.1", 0)) as mute:
                at = Endpoint("httpserver", "127.0.0.1", mute.getsockname()[1], "http")
                store.register_bookie(BookieServiceInfo("mute", (at,), {}))
                store.register_bookie(BookieServiceInfo("none", (), {}), read_only=True)
                store.write_bookie_order(bookie.bookie_id, BookieOrder(Order.READ_ONLY, 0))
                store.write_bookie_order("none", BookieOrder(Order.DRAIN, 0))
                began = time.monotonic()
                found = await asyncio.to_thread(look, store, AdminPorts(DEADLINE_S))
                assert time.monotonic() - began < 4
            assert await asyncio.to_thread(main.run, ["bookie", "inspect", bookie.bookie_id, *at_uri(uri)]) == 0
            assert await asyncio.to_thread(main.run, ["cluster", "top", "--once", "--json", *at_uri(uri)]) == 0
            return found
        finally:
            await bookie.stop()

    found = asyncio.run(story())
    (mine,) = [row for row in rows(found, found) if row.ready]
    assert (mine.state, mine.in_bytes_per_s, mine.why) == ("writable", None, "")
    assert (mine.total_bytes or 0) >= (mine.usable_bytes or 0) > 0
    why = {row.bookie_id: row.why for row in rows(found, found) if row.why}
    assert "no answer within" in why["mute"]
    assert "another bookie answers" in why["other"]
    assert "has no admin port" in why["none"]
    below = notes(rows(found, found), found.marks, 2)
    assert len(below) == 4
    text, _, printed = capfd.readouterr().out.partition("openFiles")
    assert "writable" in text
    objects = {each["bookieId"]: each for line in printed.splitlines()[1:] if (each := json.loads(line))}
    assert objects[mine.bookie_id]["appendsPerS"] == 0.0
    assert objects["none"]["error"].startswith("[BK_BOOKIE_UNREACHABLE]")
    assert (objects["none"]["order"], objects[mine.bookie_id]["order"], objects["mute"]["order"]) == (
        "drain", "read-only", None,
    )  # fmt: skip
    shown = {cells[0]: cells[1] for cells in (_cells(row, found.marks) for row in rows(found, found))}
    assert shown["none"] == "read-only, drains, no answer"
    assert str(shown[mine.bookie_id]).endswith(", set by hand")
    assert main.run(["bookie", "inspect", "nobody", *at_uri(uri)]) == 2
    store.close()


def at_uri(uri: str) -> list[str]:
    return ["--metadata-service-uri", uri]


def numbers(appended: int, started: int, commits: tuple[int, int], usable: int = 0) -> Numbers:
    return parse_numbers(
        f"bookie_WRITE_BYTES {appended}\nbookie_directory_usable_bytes {usable}\n"
        f'bookie_info{{bookie="b",version="1"}} 1\nprocess_start_time_seconds {started}\n'
        f'bookkeeper_server_ADD_ENTRY_REQUEST_count{{success="true"}} {appended}\n'
        f'bookie_commit_seconds_bucket{{directory="/a \\"b\\"",le="0.01"}} {commits[0]}\n'
        f'bookie_commit_seconds_bucket{{directory="/a \\"b\\"",le="+Inf"}} {commits[1]}\n'
    )


def at(at_s: float, said: Numbers | BookKeeperError) -> TopLook:
    return TopLook(at_s, {"b": "writable"}, {"b": said}, Marks(Counter(), is_all=True))


def test_rates_are_between_two_looks_of_one_process() -> None:
    before, now, again = numbers(1000, 5, (7, 7)), numbers(1500, 5, (7, 9)), numbers(20, 6, (1, 1))
    (row,) = rows(at(10, before), at(12, now))
    assert (row.appends_per_s, row.commit_p99_s) == (250.0, float("inf"))
    assert quantile_since(None, now, "bookie_commit_seconds", 0.5) == 0.01
    (row,) = rows(at(10, now), at(12, again))
    assert (row.appends_per_s, row.commit_p99_s) == (None, 0.01), "a bookie that was started again counts from 0"


def test_what_is_left_of_a_disk_lasts_for_so_long_at_the_rate_of_now() -> None:
    before, now = numbers(0, 5, (0, 0), usable=10_000_000), numbers(1000, 5, (0, 0), usable=9_000_000)
    (row,) = rows(at(10, before), at(12, now))
    assert row.full_in_s == 18_000
    assert _cells(row, Marks(Counter(), is_all=True))[4] == "5 h"
    (idle,) = rows(at(10, now), at(12, now))
    assert (idle.full_in_s, _cells(idle, Marks(Counter(), is_all=True))[4]) == (None, "-")


def test_text_that_is_no_metrics_is_refused() -> None:
    with pytest.raises(ValueError, match="no sample"):
        parse_numbers("<html>")


def test_look_needs_no_bookie() -> None:
    store: MetadataStore = open_store(f"memory://{uuid.uuid4().hex}")
    store.initialize_cluster()
    found = look(store, AdminPorts(DEADLINE_S))
    assert rows(found, found) == []
    store.close()
