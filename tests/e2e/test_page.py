# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser, on a real cluster of which a bookie is killed: what a person sees on a wide screen and on
a narrow one, with keys alone, and with a screen reader."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.kit.browser import Tab, browser
from tests.kit.clusters import temporary_cluster
from tests.kit.page_world import HOSTILE, PageWorld, page_world

pytestmark = [pytest.mark.e2e, pytest.mark.zookeeper, pytest.mark.timeout(180)]

WIDE, NARROW = (1280, 800), (360, 740)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PageWorld, Tab, str]]:
    """A cluster with entries, a browser, and the address of the page."""
    with (
        temporary_cluster(tmp_path_factory) as cluster,
        page_world(cluster) as world,
        world.page() as url,
        browser(tmp_path_factory.mktemp("profile")) as tab,
    ):
        yield world, tab, url
        assert world.leader is not None
        world.leader.close()


def fits(tab: Tab) -> bool:
    """Whether nothing sticks out at the side."""
    return bool(tab.js("document.documentElement.scrollWidth <= innerWidth"))


def complaints(tab: Tab) -> list[str]:
    """Without requests that were answered 503 while a bookie died: the page asks again."""
    return [each for each in tab.complaints() if "503" not in each]


def test_an_operator_finds_out_what_is_wrong_and_what_to_do(seen: tuple[PageWorld, Tab, str]) -> None:
    world, tab, url = seen
    tab.resize(*WIDE)
    tab.go(url)
    tab.until_text("All is well: 4 bookies are up, and no ledger lacks a copy.", "#verdict")
    assert tab.js("document.title") == "✓ BookKeeper"
    assert tab.js("document.querySelectorAll('tbody tr').length") == 4

    world.kill_one()
    _live_log(world, tab)
    _repair(world, tab)
    _ledger(world, tab)
    _by_keys(tab)
    _narrow_and_dark(world, tab)
    tab.resize(*WIDE)
    tab.js("location.hash = '#/'")
    said = tab.until_text(f"{world.lost} is down", "#verdict", 25)
    count = len(world.lacking)  # chance places them
    assert ("1 ledger lacks a copy" if count == 1 else f"{count} ledgers lack a copy") in said
    problems = tab.text("#problems")
    assert "Start it again with its own command, bk bookie run." in problems
    assert "start bk autorecovery on two or three hosts" in problems
    assert f"{world.lost} ✕ down" in tab.text("tbody"), "colour is not the only sign"
    tab.until("document.querySelectorAll('tbody .spark polyline').length >= 4")
    assert ", full in " in tab.text("tbody"), "entries were appended a moment ago"
    _by_ear(tab)
    assert complaints(tab) == []
    assert tab.js("document.title") == "✕ BookKeeper", "nothing of a cluster's text has run"


def _ledger(world: PageWorld, tab: Tab) -> None:
    tab.js("location.hash = '#/ledgers'")
    tab.until("document.querySelectorAll('tbody tr').length >= 6")
    assert f"! lacks {world.lost}" in tab.text()
    tab.js("document.getElementById('f-id').focus()")
    tab.type(str(world.closed))
    tab.key("Enter", "\r")
    tab.until_text(f"{world.lost} (does not answer)", within_s=12)
    assert tab.js("document.querySelectorAll('.fragments rect').length") == 6
    assert tab.js("document.querySelectorAll('.fragments rect.away').length") >= 1
    said = tab.text()
    assert "! 2 of 3" in said
    assert HOSTILE in said
    assert tab.js("document.querySelectorAll('main img').length") == 0


def _live_log(world: PageWorld, tab: Tab) -> None:
    """What a leader appends now appears by itself, though a bookie of its ledger is gone."""
    assert world.leader is not None
    tab.js("location.hash = '#/log/orders'")
    tab.until("document.querySelectorAll('.chain li').length == 4")
    assert "● open for writing" in tab.text(".chain")
    tab.until_text('"city": "Lagos"', ".tail", 15)
    world.leader.append(b'{"order": 7, "note": "just now"}')
    tab.until_text("just now", ".tail", 15)
    tab.js("document.querySelector('[value=hex]').click()")
    tab.until_text("7b 22 6f 72 64 65 72", ".tail")
    tab.js("location.hash = '#/log/flights'")
    tab.until_text("Up to offset 1", ".tail", 15)
    tab.js("document.querySelector('[value=columns]').click()")
    tab.until_text("flight delay BK0 0 BK1 1", ".tail")


def _repair(world: PageWorld, tab: Tab) -> None:
    tab.js("location.hash = '#/repair'")
    tab.until(f"document.querySelectorAll('tbody tr').length == {len(world.lacking)}", 12)
    assert "no worker repairs (start bk autorecovery)" in tab.text("tbody")
    assert "✕ none (start bk autorecovery)" in tab.text()


def _by_ear(tab: Tab) -> None:
    names = tab.names()
    assert ("RootWebArea", "✕ BookKeeper") in names
    assert any(role == "status" for role, _ in tab.roles())
    assert any(role == "image" and name.startswith("Entries appended: now") for role, name in names)
    assert any(role == "columnheader" and name == "Lacks copies of" for role, name in names)


def _by_keys(tab: Tab) -> None:
    page = tab.js("location.href.replace(/#.*/, '')")
    tab.go("about:blank")
    tab.go(page + "#/logs")
    tab.until_text("orders", "tbody")
    reached = []
    while "orders" not in reached and len(reached) < 12:
        tab.key("Tab")
        reached.append(tab.js("document.activeElement.textContent.trim() || document.activeElement.id"))
    assert reached[:3] == ["Skip to the content", "BookKeeper", "Overview"]
    assert reached[-1] == "orders"
    assert tab.js("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is seen"
    tab.key("Enter", "\r")
    tab.until_text("Log orders", "h1")
    assert tab.js("document.activeElement.id") == "main", "a screen reader begins with what is new"


def _narrow_and_dark(world: PageWorld, tab: Tab) -> None:
    tab.resize(*NARROW)
    tab.prefer("dark")
    assert tab.js("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
    parts = {"": "#verdict", f"ledger/{world.closed}": ".fragments", "log/orders": ".chain", "ledgers": "tbody"}
    for part, place in parts.items():
        tab.js(f"location.hash = '#/{part}'")
        tab.until(f"document.querySelector({json.dumps(place)})?.innerText")
        assert fits(tab), part
    tab.js("location.hash = '#/'")
    tab.until_text("Not well", "#verdict")
    assert tab.js("getComputedStyle(document.querySelector('tbody tr')).display") == "block", "cards, not a wide table"
    roles = [role for role, _ in tab.roles()]
    assert roles.count("row") >= 5, "for a screen reader it is still a table"


def test_a_bookie_shows_itself_and_the_cluster_without_entries(seen: tuple[PageWorld, Tab, str]) -> None:
    world, tab, _ = seen
    port = world.cluster.bookies[3].ports[-1]
    me = world.cluster.bookies[3].bookie_id
    tab.resize(*WIDE)
    tab.go(f"http://127.0.0.1:{port}/")
    tab.until_text(f"Cluster, as bookie {me} sees it", "h1")
    tab.until_text("writable", "tbody")
    assert tab.js("document.querySelectorAll('tbody .spark').length") == 3, "its own numbers only"
    tab.js("location.hash = '#/log/orders'")
    assert "The page of a bookie shows no entries." in tab.until_text("Newest entries")
    assert complaints(tab) == []


@pytest.mark.parametrize("path", ["/", "/page/cluster", "/metrics"])
def test_a_web_site_whose_name_leads_to_loopback_reads_nothing(seen: tuple[PageWorld, Tab, str], path: str) -> None:
    world, _, url = seen
    ports = {"page": urlsplit(url).port, "bookie": world.cluster.bookies[3].ports[-1]}
    for name, port in ports.items():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", path, headers={"Host": f"rebound.example:{port}"})
        answer = connection.getresponse()
        assert (answer.status, b"127.0.0.1" in answer.read()) == (421, False), name
        connection.close()
