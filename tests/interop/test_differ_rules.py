# SPDX-License-Identifier: Apache-2.0
"""The differential test accepts exactly the differences that the page lists. These tests need no servers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bk_core.wire.bookie_rpc.availability import encode_availability
from bk_core.wire.bookie_rpc.status import Status
from tests.interop.differ_operations import Operation
from tests.interop.differ_rules import ELSEWHERE, RULES, Said

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def listed() -> list[str]:
    """Return the first column of "What differs, and why"."""
    table = PAGE.read_text(encoding="utf-8").partition("## What differs, and why")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
    return rows[2:]


def test_each_listed_difference_has_a_rule_or_is_seen_elsewhere() -> None:
    assert sorted([*(rule.name for rule in RULES), *ELSEWHERE]) == sorted(listed())


@pytest.mark.parametrize(
    ("ours", "theirs", "listed"),
    [
        ([(0, 0)], [], True),
        ([(0, 1024)], [(0, 1023)], True),
        ([(5, 9), (2048, 2048)], [(5, 9)], True),
        ([(0, 10), (12, 16)], [(1, 10), (12, 16)], True),
        ([(0, 1)], [(0, 0)], False),
        ([(0, 9)], [(0, 1024)], False),
        ([(0, 2048)], [(0, 2046)], False),
        ([(0, 1024)], [(1, 1023)], False),
        ([(7, 7)], [(7, 7)], False),
    ],
)
def test_a_list_may_lack_an_entry_only_where_a_page_of_javas_index_begins(
    ours: list[tuple[int, int]], theirs: list[tuple[int, int]], listed: bool
) -> None:
    (rule,) = [rule for rule in RULES if rule.name == "list of entries"]
    asked = Operation(1, "list", 3, b"", None, 7, "")
    columns = [np.array(each, dtype=np.int64).reshape(-1, 2).T for each in (theirs, ours)]
    apache, own = (Said("v3", Status.EOK, listed=encode_availability(*each)) for each in columns)
    assert rule.fits(asked, apache, own) is listed


@pytest.mark.parametrize(
    ("message", "listed"),
    [
        ("0a06080310011803a2f39ffa0180808080201a0114", True),  # a field of 2^33 bytes
        ("0a06080310011803a2b698808020101a0114", True),  # a tag of 2^33 and more
        ("0a0808031001188080808080202001", False),  # a number, not a length, of more than 32 bits
        ("0a06080310011803a2f39ffa01808080800f1a0114", False),
    ],
)
def test_a_length_of_more_than_32_bits_is_one_of_a_field(message: str, listed: bool) -> None:
    (rule,) = [rule for rule in RULES if "too long" in rule.name]
    asked = Operation(1, "malformed", 3, bytes(4) + bytes.fromhex(message), None, 7, "")
    assert rule.fits(asked, Said("v3", Status.ENOLEDGER), Said("closed", None)) is listed


@pytest.mark.parametrize(("tenth", "listed"), [(0, True), (1, False), (2, True)])
def test_the_tenth_byte_of_a_number_is_1_to_java(tenth: int, listed: bool) -> None:
    (rule,) = [rule for rule in RULES if "too long" in rule.name]
    message = b"\x10" + b"\xff" * 9 + bytes((tenth,))
    asked = Operation(1, "malformed", 3, bytes(4) + message, None, 7, "")
    assert rule.fits(asked, Said("v3", Status.EOK), Said("v3", Status.EBADREQ)) is listed
