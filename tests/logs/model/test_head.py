# SPDX-License-Identifier: Apache-2.0
"""The nouns of a log and the rules that a head must obey."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import replace

import pytest

from bk_core.logs.model.head import (
    CONDEMNED_MAX,
    PUBLISHED_MAX,
    Extent,
    LogHead,
    LogPage,
    LogTransactions,
    PageRef,
    Published,
    PublishId,
    custom_metadata_for,
)
from tests.kit.extents import new_extent

UUID = "12345678-1234-5678-1234-567812345678"


def _extent(base: int, count: int = 10, *, is_open: bool = False) -> Extent:
    return Extent(ledger_id=base, entry_count=0 if is_open else count, base_offset=base, is_open=is_open)


HEAD = LogHead(
    uuid=UUID,
    next_offset=30,
    pages=(PageRef(name="p", base_offset=0, next_offset=10, extents=1, size_bytes=0),),
    tail=(_extent(10), _extent(20), _extent(30, is_open=True)),
)


def test_publish_ids_have_one_canonical_text_and_a_digest_of_16_bytes() -> None:
    assert PublishId.stream("q", 7).text == "stream/q/7"
    assert PublishId.txn("nightly", 3).text == "txn/nightly/3"
    assert PublishId.job(UUID).text == f"job/{UUID}"
    assert PublishId.stream("q", 7).digest == hashlib.sha256(b"stream/q/7").digest()[:16]


def test_a_sound_head_has_no_problem() -> None:
    assert HEAD.problem() is None
    assert LogHead(uuid=UUID, start_offset=5, next_offset=5).problem() is None


@pytest.mark.rule("N2")
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (replace(HEAD, tail=(_extent(10), _extent(20, is_open=True), _extent(30))), "open extents"),
        (replace(HEAD, tail=(*HEAD.tail, _extent(0, is_open=True), _extent(0, is_open=True))), "open extents"),
        (replace(HEAD, tail=(_extent(10), _extent(20), _extent(31, is_open=True))), "begins at 31"),
        (replace(HEAD, tail=(_extent(10), _extent(20), replace(_extent(30), is_open=True))), "with a count"),
        (replace(HEAD, next_offset=31, tail=HEAD.tail[:2]), "the head says 31"),
        (replace(HEAD, tail=(_extent(11, 9), _extent(20))), "is followed by"),
        (replace(HEAD, tail=(_extent(10, -5),), next_offset=5), "back to"),
        (replace(HEAD, start_offset=31), "outside"),
        (replace(HEAD, pages=(), start_offset=5), "outside"),
        (replace(HEAD, pages=(*HEAD.pages, replace(HEAD.pages[0], level=1))), "levels"),
        (replace(HEAD, condemned=tuple(range(CONDEMNED_MAX + 1))), "over the limit"),
        (
            replace(
                HEAD,
                published=(Published(publish_id=b"", base_offset=0, rows=0, time_ms=0),) * (PUBLISHED_MAX + 1),
            ),
            "over the limit",
        ),
    ],
)
def test_a_head_that_breaks_a_rule_says_which(broken: LogHead, words: str) -> None:
    assert words in (broken.problem() or "")


def test_a_page_holds_sealed_extents_only() -> None:
    assert LogPage(extents=(_extent(0), _extent(10))).problem() is None
    assert LogPage(extents=(_extent(0, is_open=True),)).problem() == "an open extent in a page"


@pytest.mark.rule("N4")
def test_the_newest_publish_of_an_id_is_found_and_others_are_not() -> None:
    a, b = PublishId.job("a"), PublishId.job("b")
    record = Published(publish_id=a.digest, base_offset=0, rows=1, time_ms=5)
    head = replace(HEAD, published=(record,))
    assert head.find_published(a) == record
    assert head.find_published(b) is None


def test_extents_know_where_they_end() -> None:
    extent = Extent(ledger_id=1, first_entry_id=3, entry_count=4, base_offset=100)
    assert (extent.next_offset, extent.end_entry_id) == (104, 7)
    new = new_extent(1, 4, 9, 0, first_entry_id=3)
    assert new.end_entry_id == 7
    assert pickle.loads(pickle.dumps(new)) == new


@pytest.mark.rule("N6")
def test_a_ledger_made_for_a_log_says_which_and_for_what() -> None:
    assert custom_metadata_for(UUID, PublishId.txn("é", 2), partition=3, attempt=1, codec="raw") == {
        "application": b"pyspark-bookkeeper",
        "bk.log.uuid": UUID.encode(),
        "bk.publish.id": "txn/é/2".encode(),
        "bk.partition": b"3",
        "bk.attempt": b"1",
        "bk.codec": b"raw",
    }


def test_a_transaction_record_is_named_by_the_digest_of_its_application() -> None:
    assert LogTransactions(app_id="é").key == hashlib.sha256("é".encode()).hexdigest()
