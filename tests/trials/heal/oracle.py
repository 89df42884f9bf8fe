# SPDX-License-Identifier: Apache-2.0
"""Collects from the clients' growing journals what the clients know about each ledger, and judges it.

The payload of an entry follows from ledger id and entry id (:class:`~tests.interop.pattern.Pattern`), and a writer that
fails appends nothing more to its ledger. So three numbers determine what a ledger must contain: the last entry sent,
the last entry confirmed, and its end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop.pattern import Pattern
from tests.trials.bookie.journal import NEVER

SIZE_MIN, SIZE_MAX = 40, 1_500
GONE_CODE = "BK_NO_SUCH_LEDGER"


def pattern_of(ledger_id: int) -> Pattern:
    return Pattern(seed=ledger_id, size_min=SIZE_MIN, size_max=SIZE_MAX)


@dataclass(slots=True)
class Known:
    """The clients' knowledge about one ledger. ``ends`` has every end that a client got. ``left`` says that the writer
    ended without closing the ledger, and ``closed`` that it closed it."""

    ledger_id: int
    writer: str
    sent: int = -1
    acked: int = -1
    lac: int = -1  # the highest LAC that a reader got
    ends: set[int] = field(default_factory=set)
    left: bool = False
    closed: bool = False
    deleted_at: int | None = None  # the time before the call, in ns of the machine's monotonic clock

    @property
    def is_settled(self) -> bool:
        return bool(self.ends)


class Journals:
    """The journals of a folder. :meth:`read` reads the lines added since the last call, without a torn last line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.ledgers: dict[int, Known] = {}
        self.log_acked: dict[int, str] = {}  # offset → the key of its payload
        self.errors: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._dead: set[str] = set()
        self._gone: list[tuple[str, dict[str, Any]]] = []
        self._wrong: list[tuple[str, dict[str, Any]]] = []

    def read(self) -> None:
        for path in sorted(self._folder.glob("*.journal")):
            with path.open("rb") as journal:
                journal.seek(self._offsets.get(path, 0))
                data = journal.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[path] = self._offsets.get(path, 0) + whole
            for line in data[:whole].splitlines():
                self._take(path.stem, json.loads(line))

    def _take(self, client: str, line: dict[str, Any]) -> None:
        what = line["what"]
        if what == "ledger":
            self._known(line["ledger"]).writer = client  # a journal of another client may have named the ledger before
            self.counts["ledgers"] += 1
        elif what == "wrong":
            self._wrong.append((client, line))
        elif what in ("hang", "bug"):
            self.problems.append(f"{what.upper()}: {client}: {json.dumps(line)[:1500]}")
        elif what == "error":
            self._take_error(client, line)
        elif what == "log":
            self.log_acked[line["offset"]] = line["key"]
        elif what == "died":
            self._dead.add(line["client"])
        elif what == "count":
            self.counts[line["of"]] += line["count"]
        else:
            self._take_of_ledger(what, line)

    def _known(self, ledger_id: int) -> Known:
        return self.ledgers.setdefault(ledger_id, Known(ledger_id, ""))

    def _take_error(self, client: str, line: dict[str, Any]) -> None:
        self.errors[f"{line['name']}: {line['code']}"] += 1
        if line["code"] == GONE_CODE and "ledger" in line:
            self._gone.append((client, line))
        elif line["code"] in NEVER:
            self.problems.append(f"BUG: {client}: {line['name']}: {line['text']}")

    def _take_of_ledger(self, what: str, line: dict[str, Any]) -> None:
        known = self._known(line["ledger"])
        if what == "sent":
            known.sent = max(known.sent, line["last"])
        elif what == "confirmed":
            known.acked = max(known.acked, line["last"])
        elif what == "lac":
            known.lac = max(known.lac, line["lac"])
        elif what == "end":
            known.ends.add(line["end"])
            known.closed = known.closed or line.get("closed", False)
        elif what == "left":
            known.left = True
        elif what == "deleted":
            known.deleted_at = line["at"]

    # --- judgement ---

    def alive(self) -> list[Known]:
        return [known for known in self.ledgers.values() if known.deleted_at is None]

    def unsettled(self) -> list[int]:
        """Return the ledgers whose writer ended, and which no client has closed."""
        return [
            known.ledger_id
            for known in self.alive()
            if (known.left or known.writer in self._dead) and not known.is_settled
        ]

    def judge(self, known: Known, end: int) -> list[str]:
        """Return the promises that a ledger which ends at ``end`` breaks."""
        found = []
        if known.acked > end:
            found.append(f"LOST: ledger {known.ledger_id} ends at {end}, entry {known.acked} was confirmed")
        if known.lac > end:
            found.append(f"LOST: ledger {known.ledger_id} ends at {end}, a reader was told of LAC {known.lac}")
        if end > known.sent:
            found.append(f"CHANGED: ledger {known.ledger_id} ends at {end}, nothing after {known.sent} was sent")
        if known.ends - {end}:
            found.append(f"END MOVED: ledger {known.ledger_id} ends at {end}, clients were told {sorted(known.ends)}")
        return found

    def denied(self) -> list[str]:
        """Return the ledgers and entries that a client found missing or changed before the trial deleted them."""
        found = []
        for client, line in self._gone + self._wrong:
            known = self.ledgers.get(line["ledger"])
            if known is None or known.deleted_at is None or known.deleted_at > line["at"]:
                found.append(f"LOST: {client}, ledger {line['ledger']}: {line['text']}")
        return found


def holds(index: int, entry_id: int, ensemble_size: int, write_quorum_size: int) -> bool:
    """Return whether the member ``index`` of an ensemble is in the entry's write set."""
    return (index - entry_id) % ensemble_size < write_quorum_size


def wrong_entries(ledger_id: int, found: dict[int, bytes], wanted: Iterable[int]) -> tuple[list[int], list[int]]:
    """Return which of the ``wanted`` entries are missing in a copy, and which have other bytes."""
    pattern, missing, changed = pattern_of(ledger_id), [], []
    for entry_id in wanted:
        payload = found.get(entry_id)
        if payload is None:
            missing.append(entry_id)
        elif payload != pattern.payload(entry_id):
            changed.append(entry_id)
    return missing, changed
