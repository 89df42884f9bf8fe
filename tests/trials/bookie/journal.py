# SPDX-License-Identifier: Apache-2.0
"""The journal of a client process, one JSON line a step, and the operations that follow from it.

The client writes a line before a call and another after it, each with one write. So whatever kills the process, the
journal has every result that it got. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sim.history import Kind, Operation, Outcome

DIGEST_BYTES = 8
NEVER = (
    "BK_LOCAL_PROTOCOL",
    "BK_REMOTE_PROTOCOL",
    "BK_INTEGRITY",
    "BK_METADATA_CORRUPT",
    "BK_NO_CLUSTER",
    "BK_NO_SUCH_LEDGER",
    "BK_INVALID_ARGUMENT",
)
"""Errors that no fault of a trial explains, so that each is a bug of ours. No trial deletes a ledger whose id a client
has."""


def payload(ledger: str, number: int) -> bytes:
    """Return the ``number``-th entry that the writer of a ledger appends. The ledger has a name in its round. No two
    entries are equal."""
    head = f"{ledger}/{number} ".encode()
    size = (number * 7919 + len(ledger)) % 400
    if number % 61 == 7:
        size = 3_000 + number * 31 % 30_000
    return head + b"." * size


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


class Journal:
    """Writes the lines of one process."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def say(self, what: str, **values: Any) -> None:
        line = json.dumps({"what": what, "at": time.monotonic_ns(), **values}, separators=(",", ":"))
        os.write(self._fd, line.encode() + b"\n")


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines so far, without a torn last line."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for line in data.split(b"\n")[:-1]:
        yield json.loads(line)


@dataclass(slots=True)
class Told:
    """The contents of the journals of one round. ``operations`` has the operations on each ledger, and ``finals`` the
    entries that each ledger had in the end."""

    operations: dict[int, list[Operation]] = field(default_factory=dict)
    finals: dict[int, list[bytes]] = field(default_factory=dict)
    hangs: list[str] = field(default_factory=list)
    bugs: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    takeovers_s: list[float] = field(default_factory=list)
    attempts: int = 0

    def add(self, ledger: int, **values: Any) -> None:
        self.operations.setdefault(ledger, []).append(Operation(**values))


def read_journals(paths: list[Path]) -> Told:
    """Read the journals of several client processes."""
    told = Told()
    for path in paths:
        lines = list(lines_of(path))
        _add_appends(path.stem, lines, told)
        for line in lines:
            _add_line(path.stem, line, told)
    return told


def _add_line(client: str, line: dict[str, Any], told: Told) -> None:
    match line["what"]:
        case "lac":
            name = f"{client}#{line['handle']}"
            _add_seen(told, name, line, Kind.LAC, entry_id=line["lac"])
        case "end":
            _add_seen(told, client, line, Kind.END, entry_id=line["end"])
        case "read":
            outcome = Outcome.OK if line["ok"] else Outcome.FAILED
            digests = _split(line["digests"])
            values = {"first": line["first"], "last": line["last"], "digests": digests, "denied": line.get("denied")}
            _add_seen(told, client, line, Kind.READ, outcome=outcome, **values)
        case "final":
            told.finals[line["ledger"]] = list(_split(line["digests"]))
        case "took_over":
            if not line["final"]:  # in the end nearly all ledgers are closed already
                told.takeovers_s.append(round(line["seconds"], 3))
        case "hang" | "bug" | "error":
            _add_trouble(client, line, told)


def _add_trouble(client: str, line: dict[str, Any], told: Told) -> None:
    if line["what"] == "hang":
        told.hangs.append(f"{client}: {line['name']} after {line['seconds']:.1f} s: {line['stack']}")
    elif line["what"] == "bug":
        told.bugs.append(f"{client}: {line['error']}")
    else:
        told.errors[f"{line['name']}: {line['code']}"] += 1
        if line["code"] in NEVER:
            told.bugs.append(f"{client}: {line['name']}: {line['text']}")


def _add_seen(told: Told, client: str, line: dict[str, Any], kind: Kind, **values: Any) -> None:
    told.add(line["ledger"], kind=kind, client=client, invoked=line["began"], returned=line["at"], **values)


def _split(text: str) -> tuple[bytes, ...]:
    data = bytes.fromhex(text)
    return tuple(data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES))


def _add_appends(client: str, lines: list[dict[str, Any]], told: Told) -> None:
    """Add the appends of one writer. Entries up to the last confirmed one are acknowledged, so a part of a batch may be
    acknowledged."""
    made = next((line for line in lines if line["what"] == "ledger"), None)
    if made is None:
        return
    given = {line["number"]: line["entry"] for line in lines if line["what"] == "given"}
    refused = {line["number"] for line in lines if line["what"] == "refused"}
    words = [line["confirmed"] for line in lines if line["what"] == "confirmed"]  # these ascend
    times = [line["at"] for line in lines if line["what"] == "confirmed"]
    for line in lines:
        if line["what"] != "append":
            continue
        number, count = line["number"], line["count"]
        digests = tuple(digest(payload(made["name"], each)) for each in range(number, number + count))
        entry: int = given.get(number, -1)
        sure = min(max(words[-1] - entry + 1, 0), count) if words and entry >= 0 else 0
        common = {"kind": Kind.APPEND, "client": client, "invoked": line["at"]}
        if sure:
            at = times[bisect_left(words, entry + sure - 1)]
            told.add(made["ledger"], **common, returned=at, first=number, digests=digests[:sure], entry_id=entry)
        if sure < count:
            outcome = Outcome.FAILED if number in refused else Outcome.UNKNOWN
            rest = {"first": number + sure, "digests": digests[sure:], "outcome": outcome}
            told.add(made["ledger"], **common, **rest)
