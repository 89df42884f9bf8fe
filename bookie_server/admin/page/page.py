# SPDX-License-Identifier: Apache-2.0
"""The web page: its files, and the JSON that it reads. It changes nothing, and its load is bounded: every list has a
limit and a cursor, only one request at a time reads from the metadata store, and answers are kept for ``KEPT_S``.

The objects are those of ``bk … --json``; ``bk_core/cluster`` makes them.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, NoReturn, Protocol
from urllib.parse import parse_qsl

from bk_core.cluster import ledgers, replication
from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    MetadataCorruptError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchLogError,
    TransportError,
    WrongPasswordError,
)
from bk_core.metadata.layout import LEDGER_ID_MAX, check_log_name
from bk_core.model import BookieId, LedgerId, LedgerMetadata, LedgerState
from bookie_server.admin.http.server import HttpAnswer, HttpRefused, HttpRequest
from bookie_server.admin.page.gatherer import ClusterLook, Gatherer

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in (
        "page", "dom", "words", "charts", "overview", "ledgers", "logs", "repair"
    )},
}  # fmt: skip
LIMIT, LIMIT_MAX = 50, 200
PROBLEMS_MAX, FRAGMENTS_MAX = 50, 200
SHORT = 48
"""The number of samples of a bookie's numbers that a row of a table shows. They cover four minutes."""
TURN_S = 2.0
"""The longest time, in seconds, that a request waits for its turn to read from the metadata store."""
METADATA_S = 2.5
"""The deadline of each call to the metadata store, in seconds. It is less than the deadline of an answer."""
KEPT_S, KEPT_MAX = 1.0, 64
QUERY_MAX = 1024
"""The maximum length of the query in a URL, in characters."""

Asked = Mapping[str, str]


class Entries(Protocol):
    """A reader of data that only a client can read: the end of an open ledger, and the entries of a log. Each call
    takes 4 s at most."""

    def lac(self, ledger_id: LedgerId) -> dict[str, object]: ...
    def window(self, log: str, first: int | None, limit: int) -> dict[str, object]: ...


class Page:
    """The page of one bookie, whose id ``me`` returns, or of a whole cluster, if ``me`` returns None."""

    def __init__(
        self,
        gatherer: Gatherer,
        *,
        me: Callable[[], BookieId | None],
        entries: Entries | None = None,
    ) -> None:
        self._store, self._gatherer, self._me, self._entries = gatherer.store, gatherer, me, entries
        folder = resources.files("bookie_server.admin.page") / "static"
        self._files = {
            path: HttpAnswer(200, (folder / name).read_text(encoding="utf-8"), kind)
            for path, (name, kind) in FILES.items()
        }
        self._parts: dict[str, Callable[[Asked], object]] = {
            "/page/cluster": self._cluster,
            "/page/repair": self._repair,
            "/page/ledgers": self._ledgers,
            "/page/ledger": self._ledger,
            "/page/logs": self._logs,
            "/page/log": self._log,
            "/page/lac": self._lac,
            "/page/tail": self._tail,
        }
        self._turn = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], tuple[float, HttpAnswer]] = OrderedDict()

    @property
    def paths(self) -> list[str]:
        return sorted([*self._files, *self._parts])

    def file(self, request: HttpRequest) -> HttpAnswer | None:
        return self._files.get(request.path)

    def has(self, path: str) -> bool:
        """Return whether :meth:`answer` has an answer for this path. The answer may take time."""
        return path in self._parts

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Return the answer to a request. Blocks. Raises HttpRefused for parameters that are wrong."""
        asked = _asked(request.query)
        self._gatherer.watch()
        if request.path == "/page/cluster":  # from memory
            return self._answered(request.path, asked)
        if not self._turn.acquire(timeout=TURN_S):
            return _error(503, "other requests are reading from the metadata service; ask again")
        try:
            key, now = (request.path, request.query), time.monotonic()
            if key in self._kept and now - self._kept[key][0] < KEPT_S:
                return self._kept[key][1]
            answer = self._answered(request.path, asked)
            self._kept[key] = time.monotonic(), answer
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
            return answer
        finally:
            self._turn.release()

    def _answered(self, path: str, asked: Asked) -> HttpAnswer:
        try:
            found = self._parts[path](asked)
        except (NoSuchLedgerError, NoSuchLogError) as error:
            return _error(404, str(error))
        except InvalidArgumentError as error:
            return _error(400, str(error))
        except WrongPasswordError as error:
            return _error(403, str(error))
        except (MetadataUnavailableError, TransportError) as error:
            return _error(503, str(error))
        except BookKeeperError as error:  # for instance a ledger whose record cannot be read
            return _error(500, str(error))
        return _json(200, found)

    # --- the cluster, as of the last look ---

    def _cluster(self, asked: Asked) -> object:
        """Return all bookies with their latest numbers, or one bookie with all of its numbers."""
        look, limit, only = self._gatherer.look(), _limit(asked), asked.get("bookie")
        rows = [each for each in look.bookies if each["bookieId"] > asked.get("after", "")]
        problems = look.verdict.get("problems", [])
        if only is not None:
            rows = [each for each in look.bookies if each["bookieId"] == only]
            problems = [each for each in problems if each["bookie"] == only]
        return {
            "me": self._me(),
            "entries": self._entries is not None,
            "agoS": round(time.monotonic() - look.seen_s, 1) if look.seen_s else None,
            "verdict": {**look.verdict, "problems": problems[:PROBLEMS_MAX], "problemCount": len(problems)},
            "bookies": rows[:limit] if only is not None else [_short(each) for each in rows[:limit]],
            "bookieCount": len(look.bookies),
            "after": rows[limit - 1]["bookieId"] if len(rows) > limit else None,
            "replication": look.replication,
        }

    def _repair(self, asked: Asked) -> object:
        look, limit, after = self._gatherer.look(), _limit(asked), _number(asked, "after", -1)
        store, states = self._store.get(), look.states
        later = [ledger_id for ledger_id in look.marks if ledger_id > after]
        found = []
        for ledger_id in later[:limit]:
            mark = replication.mark_object(store, ledger_id, look.marks[ledger_id], look.locks)
            found.append({**mark, "why": _why_not_yet(store.read_ledger, ledger_id, look, states)})
        return {
            "replication": look.replication,
            "ledgers": found,
            "after": later[limit - 1] if len(later) > limit else None,
            "listed": len(look.marks),
        }

    # --- ledgers ---

    def _ledgers(self, asked: Asked) -> object:
        state, bookie = asked.get("state", ""), asked.get("bookie", "")
        if state and state not in LedgerState.__members__:
            _refuse("state", state)

        def is_wanted(value: LedgerMetadata) -> bool:
            return (not state or value.state.name == state) and (
                not bookie or any(bookie in fragment.ensemble for fragment in value.fragments)
            )

        look = self._gatherer.look()
        part = ledgers.part_of_list(self._store.get(), _number(asked, "after", -1), _limit(asked), is_wanted)
        listed = [
            {**_bounded(ledgers.as_object(ledger_id, record)), "missing": look.marks.get(ledger_id, ())}
            for ledger_id, record in part.ledgers
        ]
        return {"ledgers": listed, "unreadable": part.unreadable, "after": part.after}

    def _ledger(self, asked: Asked) -> object:
        ledger_id, look = _number(asked, "id"), self._gatherer.look()
        store, states = self._store.get(), look.states
        found = store.read_ledger(ledger_id, fresh=True)
        mark, unreadable = None, ""
        try:
            mark = store.read_underreplicated(ledger_id)
        except MetadataCorruptError as error:
            unreadable = str(error)
        missing = mark.value.missing if mark is not None else ()
        repaired_by = look.locks.get(ledger_id)
        members = {bookie for fragment in found.value.fragments for bookie in fragment.ensemble}
        why = replication.why_not_yet(found.value, missing, states, look.replication, repaired_by)
        return {
            "ledger": _bounded(ledgers.as_object(ledger_id, found)),
            "copies": ledgers.copies(found.value, states)[-FRAGMENTS_MAX:],
            "members": {bookie: states.get(bookie, "unknown") for bookie in sorted(members)},
            "missing": missing,
            "sinceMs": mark.value.ctime_ms if mark is not None else None,
            "repairedBy": repaired_by,
            "why": why if mark is not None else unreadable or None,
            "entries": self._entries is not None,
        }

    # --- logs ---

    def _logs(self, asked: Asked) -> object:
        from bk_core.cluster import logs  # this imports the client, which a bookie without a page does not need

        store, limit, after = self._store.get(), _limit(asked), asked.get("after", "")
        names = sorted(store.list_logs())
        later = [name for name in names if name > after]
        return {
            "logs": logs.objects(store, later[:limit]),
            "logCount": len(names),
            "after": later[limit - 1] if len(later) > limit else None,
        }

    def _log(self, asked: Asked) -> object:
        from bk_core.cluster import logs  # as above

        name = check_log_name(asked.get("name", ""))
        before = _number(asked, "before") if "before" in asked else None
        head, extents, rest = logs.chain(self._store.get(), name, before, _limit(asked))
        return {
            "log": logs.as_object(name, head),
            "extents": [logs.extent_object(extent) for extent in extents],
            "before": rest,
            "entries": self._entries is not None,
        }

    # --- data that only a client can read ---

    def _lac(self, asked: Asked) -> object:
        return self._client().lac(_number(asked, "id"))

    def _tail(self, asked: Asked) -> object:
        first = _number(asked, "from") if "from" in asked else None
        return self._client().window(check_log_name(asked.get("log", "")), first, _limit(asked))

    def _client(self) -> Entries:
        if self._entries is None:
            raise HttpRefused(404, "a bookie shows no entries: bk web does")
        return self._entries


def _why_not_yet(
    read: Callable[[LedgerId], Any], ledger_id: LedgerId, look: ClusterLook, states: Mapping[BookieId, str]
) -> str:
    try:
        value = read(ledger_id).value
    except NoSuchLedgerError:
        return "the ledger is deleted: its mark goes with the next repair"
    except BookKeeperError as error:
        return str(error)
    locked = look.locks.get(ledger_id)
    return replication.why_not_yet(value, look.marks[ledger_id], states, look.replication, locked)


def _short(bookie: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a bookie with only the numbers that a line of a table shows."""
    numbers = bookie["numbers"]
    if numbers is None:
        return bookie
    series = {name: numbers["series"][name][-SHORT:] for name in ("added", "written", "p99Ms")}
    return {**bookie, "numbers": {**numbers, "series": series}}


def _bounded(ledger: dict[str, Any]) -> dict[str, Any]:
    """Return a ledger with only its last fragments, if it has very many."""
    fragments = ledger["fragments"]
    return {**ledger, "fragments": fragments[-FRAGMENTS_MAX:], "fragmentCount": len(fragments)}


# --- questions and answers ---


def _asked(query: str) -> Asked:
    """Return the parameters of a query. Raises HttpRefused."""
    if len(query) > QUERY_MAX:
        raise HttpRefused(400, f"a query has at most {QUERY_MAX} characters")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=8, errors="strict")
    except ValueError:  # also UnicodeDecodeError
        raise HttpRefused(400, "the query cannot be read") from None
    return dict(pairs)


def _number(asked: Asked, name: str, default: int | None = None) -> int:
    text = asked.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > LEDGER_ID_MAX:
        _refuse(name, text or "")
    return int(text)


def _limit(asked: Asked) -> int:
    return max(1, min(_number(asked, "limit", LIMIT), LIMIT_MAX))


def _refuse(name: str, text: str) -> NoReturn:
    raise HttpRefused(400, f"{name} is not valid: {text[:40]!r}")


def _json(status: int, value: object) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(value, separators=(",", ":")), "application/json; charset=utf-8")


def _error(status: int, text: str) -> HttpAnswer:
    return _json(status, {"error": " ".join(text.split())})
