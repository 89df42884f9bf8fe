# SPDX-License-Identifier: Apache-2.0
"""Captures of Apache's wire protocol are whole: every operation is there, and every frame can be taken apart."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.capture import BOTH, FOLDER, V2, V3, VERSIONS, fields

FILES = [(version, wire) for version in VERSIONS for wire in (3, 2)]
EACH_FILE = pytest.mark.parametrize(("version", "wire"), FILES, ids=[f"{v}-v{w}" for v, w in FILES])

READ, ADD, AUTH, BATCH_READ = 2, 1, 3, 7  # operations of v2


def captured(version: str, wire: int) -> list[dict[str, Any]]:
    text = (FOLDER / f"{version}-v{wire}.jsonl").read_text(encoding="ascii")
    return [json.loads(line) for line in text.splitlines()]


def bodies(lines: list[dict[str, Any]], sender: str) -> Iterator[tuple[str, bytes]]:
    """Labels and frames without their length; not of the frame whose length is a lie."""
    for line in lines:
        if line["from"] == sender and "hex" in line and line["label"] != "error_frame_too_long":
            frame = bytes.fromhex(line["hex"])
            assert struct.unpack_from(">i", frame) == (len(frame) - 4,), line["label"]
            yield line["label"], frame[4:]


@EACH_FILE
def test_every_operation_is_asked_and_answered(version: str, wire: int) -> None:
    lines = captured(version, wire)
    wanted = {*BOTH, *(V3 if wire == 3 else V2)}
    assert {line["label"] for line in lines} == wanted
    assert {line["label"] for line in lines if line["from"] == "client"} == wanted
    assert {line["label"] for line in lines if line["from"] == "bookie"} == wanted


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_of_v3_carry_the_transaction_of_a_request(version: str) -> None:
    lines = captured(version, 3)
    asked = {(label, header(body)[3]) for label, body in bodies(lines, "client")}
    answered = [(label, header(body)[3]) for label, body in bodies(lines, "bookie")]
    assert set(answered) <= asked
    assert len(set(answered)) == len(answered)
    assert {header(body)[1] for _, body in bodies(lines, "bookie")} == {3}


@pytest.mark.parametrize("version", VERSIONS)
def test_frames_of_v2_have_the_length_of_their_kind(version: str) -> None:
    lines = captured(version, 2)
    for label, body in bodies(lines, "client"):
        if label not in ("error_unknown_operation", "error_entry_too_short"):
            check_request_of_v2(label, body)
    for label, body in bodies(lines, "bookie"):
        check_answer_of_v2(label, body)


def check_request_of_v2(label: str, body: bytes) -> None:
    opcode, flags = body[1] or body[3], body[3] if body[0] else 0
    key = 20 if flags & 1 else 0
    if opcode == ADD:
        assert len(body) >= 24 + 32, label
    elif opcode == READ:
        assert len(body) == 20 + key, label
    elif opcode == BATCH_READ:
        assert len(body) == 40 + key, label
    else:
        assert opcode == AUTH, label


def check_answer_of_v2(label: str, body: bytes) -> None:
    opcode = body[1] or body[3]
    if opcode == AUTH:
        return
    (code,) = struct.unpack_from(">i", body, 4)
    if opcode == BATCH_READ:
        at = 32
        while at < len(body):
            (size,) = struct.unpack_from(">i", body, at)
            at += 4 + size
        assert at == len(body), label
        assert (code == 0) == (len(body) > 32), label
    else:
        assert opcode in (ADD, READ), label
        assert (opcode == READ and code == 0) == (len(body) > 24), label


@EACH_FILE
def test_the_library_called_only_the_errors_errors(version: str, wire: int) -> None:
    said = {(line["label"], line["rc"]) for line in captured(version, wire) if line["from"] == "library"}
    failed = {label for label, code in said if code != 0}
    refused = {"fencing_read_unknown_ledger", *(["start_tls_refused"] if wire == 3 else [])}
    assert failed == {label for label, _ in said if label.startswith("error_")} | refused


def header(body: bytes) -> dict[int, int]:
    """The numbers of a v3 frame's header; everything else in the frame can be parsed, too."""
    values = dict(walk(body))
    return {field: value for (outer, field), value in values.items() if outer == 1}


def walk(body: bytes) -> Iterator[tuple[tuple[int, int], int]]:
    for outer, value in fields(body):
        if isinstance(value, bytes):
            yield from (((outer, field), inner) for field, inner in fields(value) if isinstance(inner, int))
