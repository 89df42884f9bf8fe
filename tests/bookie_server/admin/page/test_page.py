# SPDX-License-Identifier: Apache-2.0
"""The page's JSON over HTTP on a memory store: what it says, its bounds, and what hostile questions get."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.cluster import bookies
from bk_core.cluster.admin_ports import parse_numbers
from bk_core.cluster.samples import ScrapedBookie
from bk_core.errors import MetadataUnavailableError
from bk_core.logs.model.codec import encode_head
from bk_core.logs.model.head import Extent, LogHead
from bk_core.metadata import open_store
from bk_core.metadata.layout import mark_path
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import BookieOrder, Order
from bk_core.model import BookieId, BookieServiceInfo, Endpoint, LedgerId, LedgerMetadata
from bookie_server.admin.http.server import HttpAnswer, HttpRefused, HttpRequest, HttpServer
from bookie_server.admin.page import gatherer as gathering
from bookie_server.admin.page import page as pages
from bookie_server.admin.page.gatherer import Gatherer, SharedStore
from bookie_server.admin.page.page import FRAGMENTS_MAX, LIMIT_MAX, Page
from bookie_server.ports.sockets import listening_socket
from tests.kit.metadata_worlds import a_ledger_on, tree_of
from tests.kit.waiting import until

METRICS = (
    'bookie_info{bookie="b1",version="1.0"} 1\nbookie_directory_total_bytes{directory="/d"} 100\n'
    'bookie_directory_usable_bytes{directory="/d"} 4\n'
)


class Client:
    """Stands for what only a client can say."""

    def lac(self, ledger_id: LedgerId) -> dict[str, object]:
        return {"lac": ledger_id + 1}

    def window(self, log: str, first: int | None, limit: int) -> dict[str, object]:
        return {"log": log, "first": first, "limit": limit}


class Served:
    """A page over a memory store, on a port. ``opened`` counts its sessions."""

    def __init__(self, uri: str, *, me: BookieId | None = None, entries: Client | None = None) -> None:
        self.uri, self.opened, self.told = uri, 0, dict[BookieId, ScrapedBookie | str]()
        self.gatherer = Gatherer(SharedStore(self._open), self._tell)
        self.page = Page(self.gatherer, me=lambda: me, entries=entries)
        listener = listening_socket("127.0.0.1", 0, "")
        self.port = listener.getsockname()[1]
        self.server = HttpServer(listener, self._quick, self.page.answer)
        self.gatherer.start()
        self.server.start()

    def _open(self) -> MetadataStore:
        self.opened += 1
        return open_store(self.uri)

    def _tell(self, _: Sequence[BookieServiceInfo]) -> Mapping[BookieId, ScrapedBookie | str]:
        return self.told

    def _quick(self, request: HttpRequest) -> HttpAnswer | None:
        return None if self.page.has(request.path) else self.page.file(request) or HttpAnswer(404, "no\n")

    def stop(self) -> None:
        self.server.stop()
        self.gatherer.stop()

    def get(self, path: str) -> tuple[int, str, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", path)
        answer = connection.getresponse()
        try:
            return answer.status, answer.read().decode(), answer.headers
        finally:
            connection.close()

    def json(self, path: str, status: int = 200) -> dict[str, Any]:
        found = self.get(path)
        assert found[0] == status, found[1]
        assert found[2]["Content-Type"].startswith("application/json")
        return json.loads(found[1])


@pytest.fixture
def store(store: MetadataStore) -> MetadataStore:
    for name in ("b1", "b2", "b3"):
        endpoint = Endpoint("direct", "127.0.0.1", 1, "direct")
        store.register_bookie(BookieServiceInfo(name, (endpoint,), {}))
        store.write_cookie(name, b"", None)
    return store


@pytest.fixture
def serve(store: MetadataStore) -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def make(**how: Any) -> Served:
        made.append(Served(store.uri, **how))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def ledger(*ensembles: str, custom: Mapping[str, bytes] | None = None) -> LedgerMetadata:
    names = [tuple(f"b{i}" for i in each) for each in ensembles]
    return a_ledger_on(*names, custom_metadata=custom or {})


def test_the_cluster_is_told_with_its_verdict_and_what_the_bookie_knows_of_itself(
    store: MetadataStore, serve: Callable[..., Served]
) -> None:
    store.write_cookie("b4", b"", None)
    ledger_id, _ = store.create_ledger(ledger("124"))
    store.mark_underreplicated(ledger_id, ["b4"])
    served = serve(me="b1")
    served.told = {"b1": ScrapedBookie(parse_numbers(METRICS), "it stops")}
    found = served.json("/page/cluster")
    assert found["me"] == "b1"
    assert not found["entries"]
    assert found["replication"] == {
        "enabled": True,
        "auditor": None,
        "lostBookieDelayS": None,
        "underReplicated": 1,
        "underRepair": 0,
        "allMarksCounted": True,
        "unreadable": [],
        "unreadableCount": 0,
    }
    states = {each["bookieId"]: (each["state"], each["underReplicated"]) for each in found["bookies"]}
    assert states == {"b1": ("writable", 0), "b2": ("writable", 0), "b3": ("writable", 0), "b4": ("away", 1)}
    shorts = {problem["short"] for problem in found["verdict"]["problems"]}
    assert shorts == {"b1 is not ready", "b1 is nearly full", "b4 is down", "1 ledger lacks a copy"}
    alone = served.json("/page/cluster?bookie=b4")
    assert [each["bookieId"] for each in alone["bookies"]] == ["b4"]
    assert [problem["short"] for problem in alone["verdict"]["problems"]] == ["b4 is down"]
    assert served.json("/page/cluster?bookie=b9")["bookies"] == []
    (lacking,) = served.json("/page/repair")["ledgers"]
    assert (lacking["ledgerId"], lacking["missing"]) == (ledger_id, ["b4"])
    assert "start bk autorecovery" in lacking["why"]


def test_every_list_has_a_limit_and_goes_on_after_its_cursor(
    store: MetadataStore, serve: Callable[..., Served]
) -> None:
    made = [store.create_ledger(ledger("123"))[0] for _ in range(LIMIT_MAX + 5)]
    for ledger_id in made:
        store.mark_underreplicated(ledger_id, ["b3"])
    names = sorted(f"log{n}" for n in range(LIMIT_MAX + 5))
    for name in names:
        store.create_log(name, encode_head(LogHead(uuid=str(uuid.uuid4()))))
    for n in range(LIMIT_MAX):
        store.write_cookie(f"c{n:03}", b"", None)
    served = serve()
    for path, rows, ids in (
        ("/page/ledgers", "ledgers", made),
        ("/page/repair", "ledgers", made),
        ("/page/logs", "logs", names),
        ("/page/cluster", "bookies", ["b1", "b2", "b3", *(f"c{n:03}" for n in range(LIMIT_MAX))]),
    ):
        key = {"ledgers": "ledgerId", "logs": "log", "bookies": "bookieId"}[rows]
        first = served.json(f"{path}?limit=1000000")
        rest = served.json(f"{path}?limit=200&after={first['after']}")
        assert len(first[rows]) == LIMIT_MAX
        assert [each[key] for each in first[rows] + rest[rows]] == ids, path
        assert rest["after"] is None
        assert len(served.json(f"{path}?limit=0")[rows]) == 1
    assert len(served.json("/page/cluster")["verdict"]["problems"]) == pages.PROBLEMS_MAX


def test_ledgers_are_found_by_state_and_by_bookie(store: MetadataStore, serve: Callable[..., Served]) -> None:
    one, _ = store.create_ledger(ledger("123"))
    two, found = store.create_ledger(ledger("124"))
    store.write_ledger(two, found.value.closed_at(9, 90), found.version)
    served = serve()

    def ids(query: str) -> list[int]:
        return [each["ledgerId"] for each in served.json(f"/page/ledgers?{query}")["ledgers"]]

    assert (ids("state=OPEN"), ids("state=CLOSED"), ids("bookie=b4"), ids("bookie=b4&state=OPEN")) == (
        [one],
        [two],
        [two],
        [],
    )
    assert "state is not valid" in served.get("/page/ledgers?state=open")[1]


def test_a_ledger_is_told_with_its_members_and_the_last_of_its_fragments(
    store: MetadataStore, serve: Callable[..., Served]
) -> None:
    ensembles = ["123", "124"] * FRAGMENTS_MAX
    ledger_id, _ = store.create_ledger(ledger(*ensembles, custom={"x": b"\xff", "<b>": b"<script>"}))
    store.mark_underreplicated(ledger_id, ["b4"])
    found = serve().json(f"/page/ledger?id={ledger_id}")
    assert found["members"] == {"b1": "writable", "b2": "writable", "b3": "writable", "b4": "gone"}
    assert found["ledger"]["fragmentCount"] == len(ensembles)
    assert len(found["ledger"]["fragments"]) == len(found["copies"]) == FRAGMENTS_MAX
    assert found["ledger"]["customMetadata"]["<b>"] == {"text": "<script>"}
    assert found["copies"][-1] == {"firstEntryId": 10 * (len(ensembles) - 1), "least": 2, "most": 2}
    assert found["missing"] == ["b4"]
    assert found["sinceMs"] > 0


def test_a_bookie_that_drains_is_told_as_such_and_no_problem(
    store: MetadataStore, serve: Callable[..., Served]
) -> None:
    ledger_id, _ = store.create_ledger(ledger("123"))
    store.mark_underreplicated(ledger_id, ["b3"])
    store.register_bookie(BookieServiceInfo("b4", (Endpoint("direct", "127.0.0.1", 1, "direct"),), {}))
    store.write_bookie_order("b3", BookieOrder(Order.DRAIN, 1))
    store.enable_replication(True)
    store.vote_for_auditor("h1")
    served = serve()
    found = served.json("/page/cluster")
    assert {each["bookieId"]: each["order"] for each in found["bookies"]}["b3"] == "drain"
    assert [problem["short"] for problem in found["verdict"]["problems"]] == ["1 ledger lacks a copy"]
    one = served.json(f"/page/ledger?id={ledger_id}")
    assert one["members"]["b3"] == "draining"
    assert one["why"].startswith("b3 drains")


def test_a_log_is_told_with_its_chain(store: MetadataStore, serve: Callable[..., Served]) -> None:
    tail = tuple(Extent(ledger_id=n, entry_count=5, size_bytes=9, base_offset=5 * n) for n in range(8))
    store.create_log("a", encode_head(LogHead(uuid=str(uuid.uuid4()), next_offset=40, tail=tail)))
    served = serve()
    found = served.json("/page/log?name=a&limit=3")
    assert [each["ledgerId"] for each in found["extents"]] == [5, 6, 7]
    assert found["before"] == 25
    assert [each["ledgerId"] for each in served.json("/page/log?name=a&before=25")["extents"]] == [0, 1, 2, 3, 4]
    assert "NO_SUCH_LOG" in served.json("/page/log?name=b", 404)["error"]


def test_only_the_page_of_a_client_tells_of_entries(serve: Callable[..., Served]) -> None:
    alone, whole = serve(me="b1"), serve(entries=Client())
    for path in ("/page/tail?log=a", "/page/lac?id=1"):
        assert alone.get(path)[0] == 404
    assert whole.json("/page/lac?id=1") == {"lac": 2}
    assert whole.json("/page/tail?log=a&from=7&limit=9999") == {"log": "a", "first": 7, "limit": LIMIT_MAX}
    assert whole.json("/page/tail?log=a")["first"] is None


HOSTILE = (
    "",
    "-1",
    "1e3",
    "0x10",
    " 1",
    "9" * 20,
    "9" * 19,
    "../../etc",
    "%00",
    "%ff",
    "1%0d%0aX:%20y",
    "<b>",
    "1;1",
    "%D9%A1",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_no_id_gets_a_400_and_never_reaches_the_store(serve: Callable[..., Served], text: str) -> None:
    served = serve(entries=Client())
    for path in ("ledger?id=", "lac?id=", "tail?log=a&from=", "log?name=a&before=", "ledgers?after=", "ledgers?limit="):
        status, said, headers = served.get(f"/page/{path}{text}".replace(" ", "%20"))
        assert status == 400, (path, said)
        assert "X" not in headers
    for name in ("..", "a/b", "%2e%2e%2f", "1", "a" * 201, ""):
        assert served.get(f"/page/log?name={name}")[0] == 400
        assert served.get(f"/page/tail?log={name}")[0] == 400


def test_a_question_that_is_too_long_or_has_too_much_is_refused(serve: Callable[..., Served]) -> None:
    served = serve()
    assert served.get(f"/page/ledgers?bookie={'a' * 2000}")[0] == 400
    assert served.get("/page/ledgers?" + "&".join(f"a{n}=1" for n in range(20)))[0] == 400


@given(st.text(st.characters(codec="ascii", exclude_characters=" ", min_codepoint=33), max_size=60))
def test_no_query_does_anything_but_being_refused_or_read(query: str) -> None:
    with contextlib.suppress(HttpRefused):
        assert 1 <= pages._limit(pages._asked(query)) <= LIMIT_MAX


def test_the_files_of_the_page_run_only_what_is_of_the_package(serve: Callable[..., Served]) -> None:
    served = serve()
    for path in pages.FILES:
        status, text, headers = served.get(path)
        assert (status, headers["X-Content-Type-Options"]) == (200, "nosniff")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=", 'onclick="'):
            assert word not in text, path
        assert set(re.findall(r"\bhttps?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}, path
    assert served.get("/page.js")[2]["Content-Type"].startswith("text/javascript")
    assert served.get("/../pyproject.toml")[0] == 404


def test_a_metadata_service_that_is_away_is_told_and_what_was_seen_stays(
    store: MetadataStore, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "PERIOD_S", 0.1)
    served = serve()
    assert served.json("/page/cluster")["verdict"]["well"]

    def away() -> MetadataStore:
        raise MetadataUnavailableError("ZooKeeper is away")

    monkeypatch.setattr(served.gatherer.store, "get", away)
    until(lambda: not served.json("/page/cluster")["verdict"]["well"])
    found = served.json("/page/cluster")
    assert "ZooKeeper is away" in found["verdict"]["problems"][0]["what"]
    assert len(found["bookies"]) == 3
    assert served.json("/page/logs", 503)["error"].startswith("[BK_METADATA_UNAVAILABLE] ZooKeeper is away")


def test_many_who_watch_cost_the_store_what_one_does_and_nobody_costs_nothing(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "IDLE_S", 0.2)
    monkeypatch.setattr(gathering, "PERIOD_S", 0.1)
    looks: list[int] = []
    read = bookies.look

    def counted(*arguments: Any, **how: Any) -> Any:
        looks.append(1)
        return read(*arguments, **how)

    monkeypatch.setattr(bookies, "look", counted)
    served = serve()
    time.sleep(0.3)
    assert (looks, served.opened) == ([], 0), "nobody has asked"
    askers = [threading.Thread(target=served.get, args=("/page/cluster",)) for _ in range(12)]
    for each in askers:
        each.start()
    for each in askers:
        each.join()
    assert 1 <= len(looks) <= 3
    time.sleep(0.5)
    rested = len(looks)
    time.sleep(0.4)
    assert len(looks) == rested, "nobody watches any more"
    assert served.gatherer.store.is_open is False
    served.json("/page/cluster")  # perhaps by the last look, which is not old yet
    until(lambda: (len(looks) > rested, served.opened) == (True, 2))


def test_lists_are_read_one_at_a_time_and_kept_for_a_moment(
    store: MetadataStore, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "TURN_S", 0.3)
    served, reads, go = serve(), list[str](), threading.Event()
    served.json("/page/cluster")
    opened = served.gatherer.store.get()

    def slow() -> list[str]:
        reads.append("logs")
        go.wait(5)
        return []

    monkeypatch.setattr(opened, "list_logs", slow)
    first = threading.Thread(target=served.get, args=("/page/logs",))
    first.start()
    until(lambda: bool(reads))
    assert "other requests are reading" in served.json("/page/ledgers", 503)["error"]
    assert served.json("/page/cluster")["verdict"]["well"], "this comes from memory"
    go.set()
    first.join()
    assert served.json("/page/logs") == served.json("/page/logs")
    assert reads == ["logs"]
    monkeypatch.setattr(pages, "KEPT_S", 0.0)
    served.json("/page/logs")
    assert reads == ["logs", "logs"]


@pytest.mark.rule("M6")
def test_nodes_that_cannot_be_read_are_named_and_all_else_is_told(
    store: MetadataStore, serve: Callable[..., Served]
) -> None:
    (bad, _), (good, _) = (store.create_ledger(ledger("123")) for _ in range(2))
    for ledger_id in (bad, good):
        store.mark_underreplicated(ledger_id, ["b3"])
    path = f"/ledgers/underreplication/ledgers{mark_path(bad)}"
    tree_of(store).set(path, b"garbage", -1)
    served = serve()
    found = served.json("/page/cluster")
    assert found["replication"]["underReplicated"] == 1
    assert [(node["kind"], node["path"]) for node in found["replication"]["unreadable"]] == [
        ("under-replication mark", path)
    ]
    (problem,) = [each for each in found["verdict"]["problems"] if "cannot be read" in each["short"]]
    assert (problem["rank"], path in problem["what"], "bk doctor" in problem["do"]) == ("bad", True, True)
    assert [each["ledgerId"] for each in served.json("/page/repair")["ledgers"]] == [good]
    one = served.json(f"/page/ledger?id={bad}")
    assert (one["missing"], path in one["why"]) == ([], True)
