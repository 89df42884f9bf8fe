# SPDX-License-Identifier: Apache-2.0
"""Apache's own requests, as its client sent them, get from our bookie what Apache's bookie answered.

Each file is played in its order on one bookie; what a hand sent came on a connection of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bk_core.wire.bookie_rpc.runs import WireAnswer
from bookie_server.machine.events import ReadOnlyChanged
from tests.kit.bookie_wire import told
from tests.kit.rpc_bookie import RpcBookie, RpcClient, answers

FOLDER = Path(__file__).parents[3] / "golden" / "apache_wire"
FILES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))

DIFFERS = {
    "add_again_other_payload": "another payload at an id gets EBADREQ, Apache takes it",
    "error_no_body": "EBADREQ; 4.17.3 says ENOLEDGER, 4.18.0 closes",
}
"""Labels whose answers differ on purpose (docs/compatibility.md)."""


def lines_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text(encoding="ascii").splitlines()]


def exchanges(name: str) -> list[tuple[str, str, bytes, list[dict[str, Any]]]]:
    """Label, by whom, the request, and what the bookie did."""
    made: list[tuple[str, str, bytes, list[dict[str, Any]]]] = []
    for line in lines_of(name):
        if line["from"] == "client" and "hex" in line:
            made.append((line["label"], line["by"], bytes.fromhex(line["hex"]), []))
        elif line["from"] == "bookie":
            made[-1][3].append(line)
    return made


def said(data: bytes, version: int) -> list[object]:
    """Answers in any order of their fields, without where they stood in the burst and when a LAC was learnt."""
    items: list[object] = []
    for each in told(answers(data, version)):
        if isinstance(each, WireAnswer):
            items.append(each.response.SerializeToString(deterministic=True))
        elif isinstance(each, tuple) and isinstance(each[0], str):
            items.append((*each[:2], *each[3 : None if each[0] == "AddAnswers" else -1]))
        else:
            items.append(each)
    return items


@pytest.mark.rule("L6")
@pytest.mark.parametrize("name", FILES)
def test_what_apaches_client_asks_gets_what_apaches_bookie_answers(name: str) -> None:
    version = int(name[-1])
    bookie = RpcBookie()
    java: RpcClient = bookie.connect()
    waiting: tuple[str, list[dict[str, Any]]] | None = None
    for label, by, request, expected in exchanges(name):
        bookie.read_only = "read_only" in label
        if bookie.read_only:
            bookie.feed(ReadOnlyChanged(True))
        client = bookie.connect() if by == "hand" or label in ("auth_disabled", "start_tls_refused") else java
        got = client.ask(request)
        if bookie.read_only:
            bookie.feed(ReadOnlyChanged(False))
            bookie.read_only = False
        if label == "long_poll_timeout":
            (timer,) = [each for each in bookie.timers if each is not None]
            bookie.fire(timer)
            got += client.take()
        if label in DIFFERS:
            continue
        closes = any(line.get("closed") for line in expected)
        assert client.closed == closes, label
        wanted = b"".join(bytes.fromhex(line["hex"]) for line in expected if "hex" in line)
        if label == "long_poll_piggyback":
            if waiting is None:
                assert got == b"", "it waits for the next add"
                waiting = (label, expected)
                continue
            wanted = b"".join(bytes.fromhex(line["hex"]) for line in waiting[1]) + wanted
            assert sorted(map(repr, said(got, version))) == sorted(map(repr, said(wanted, version)))
            continue
        assert said(got, version) == said(wanted, version), label


def test_another_payload_at_an_id_is_refused_alone() -> None:
    for name in FILES:
        bookie, version = RpcBookie(), int(name[-1])
        client = bookie.connect()
        for label, by, request, _ in exchanges(name):
            if by == "java" and label.startswith("add") and label != "add_again_other_payload":
                client.ask(request)
        (request,) = [request for label, _, request, _ in exchanges(name) if label == "add_again_other_payload"]
        (item,) = answers(client.ask(request), version)
        assert item.statuses.tolist() == [404]
        (ok,) = [request for label, _, request, _ in exchanges(name) if label == "add_again"]
        (item,) = answers(client.ask(ok), version)
        assert item.statuses.tolist() == [0]
