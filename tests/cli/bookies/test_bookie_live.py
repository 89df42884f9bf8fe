# SPDX-License-Identifier: Apache-2.0
"""The numbers of ``bk bookie inspect ID``, from a scrape of the bookie's metrics."""

from __future__ import annotations

import pytest

from bk_cli.bookies.bookie_live import facts_of
from bk_core.cluster.admin_ports import Numbers, parse_numbers
from bk_core.observe.metrics import Histogram, Scrape
from bookie_server.admin.bookie_metrics import METRICS


def scraped(**numbers: float) -> Numbers:
    found = Scrape(tuple(metric for metric in METRICS if metric.name in {*numbers, "bookie_commit_seconds"}))
    for name, value in numbers.items():
        found.put(name, value)
    return parse_numbers(found.text())


def test_a_bookie_that_says_nothing_has_no_numbers() -> None:
    facts = facts_of(Numbers())
    assert facts["ready"] is False
    assert {facts[name] for name in ("status", "startedMs", "commitP50Ms", "commitP99Ms", "isAuditor", "ledgers")} == {
        None
    }


@pytest.mark.parametrize(("number", "words"), [(1, "writable"), (0, "read-only"), (-1, "starting")])
def test_the_status_of_a_bookie_is_said_in_words(number: int, words: str) -> None:
    assert facts_of(scraped(bookkeeper_server_SERVER_STATUS=number))["status"] == words


def test_times_are_in_milliseconds_and_states_are_truths() -> None:
    times = Histogram((0.001, 0.0125, 0.1))
    for each in (0.0005, 0.0005, 0.011):
        times.observe(each)
    found = Scrape(tuple(metric for metric in METRICS if metric.name == "bookie_commit_seconds"))
    found.put("bookie_commit_seconds", times, "/d")
    commits = facts_of(parse_numbers(found.text()))
    assert (commits["commitP50Ms"], commits["commitP99Ms"]) == (1.0, 12.5)
    facts = facts_of(scraped(bookie_ready=1, bookie_auditor=1, process_start_time_seconds=1.5))
    assert (facts["ready"], facts["isAuditor"], facts["startedMs"]) == (True, True, 1500)
    assert facts_of(scraped(bookie_auditor=0))["isAuditor"] is False
