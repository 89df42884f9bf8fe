# SPDX-License-Identifier: Apache-2.0
"""Rates and quantiles from two scrapes: what is not known is None, never zero."""

from __future__ import annotations

from bk_core.cluster.admin_ports import Numbers, parse_numbers
from bk_core.cluster.samples import SAMPLES_MAX, History, Sample, facts_of, sample_of
from bk_core.observe.metrics import Histogram, Metric, Scrape

METRICS = (
    Metric("bookie_info", "gauge", "who", ("bookie", "version")),
    Metric("bookkeeper_server_ADD_ENTRY_REQUEST_count", "counter", "entries", ("success",)),
    Metric("bookie_WRITE_BYTES", "counter", "bytes"),
    Metric("bookie_READ_BYTES", "counter", "bytes"),
    Metric("bookie_commit_seconds", "histogram", "commits", ("directory",)),
    Metric("bookie_directory_total_bytes", "gauge", "size", ("directory",)),
    Metric("bookie_directory_usable_bytes", "gauge", "free", ("directory",)),
    Metric("bookie_storage_frames_damaged", "counter", "damage", ("directory",)),
    Metric("bookie_storage_read_io_errors", "counter", "damage", ("directory",)),
    Metric("bookie_ledgers_in_limbo", "gauge", "limbo"),
    Metric("bookie_ledgers_damaged", "gauge", "damage"),
    Metric("bookie_sessions", "gauge", "writers"),
    Metric("process_resident_memory_bytes", "gauge", "memory"),
    Metric("process_start_time_seconds", "gauge", "start"),
)


def scrape(added: float, *commits: float, directory: str = "/d") -> Numbers:
    found, times = Scrape(METRICS), Histogram((0.001, 0.01, 0.1))
    for each in commits:
        times.observe(each)
    found.put("bookie_info", 1, 'b"1\\', "0.1.0")
    found.put("bookkeeper_server_ADD_ENTRY_REQUEST_count", added, "true")
    found.put("bookie_WRITE_BYTES", added * 100)
    found.put("bookie_READ_BYTES", added * 10)
    found.put("bookie_commit_seconds", times, directory)
    found.put("bookie_directory_total_bytes", 1000, directory)
    found.put("bookie_directory_usable_bytes", 400, directory)
    found.put("bookie_storage_frames_damaged", 2, directory)
    found.put("bookie_storage_read_io_errors", 1, directory)
    found.put("bookie_ledgers_in_limbo", 4)
    found.put("bookie_ledgers_damaged", 5)
    found.put("bookie_sessions", 6)
    found.put("process_resident_memory_bytes", 7)
    found.put("process_start_time_seconds", 8)
    return parse_numbers(found.text())


def series(*samples: Sample) -> dict[str, object]:
    history = History()
    for sample in samples:
        history.add(sample)
    return history.series()


def test_a_rate_is_the_difference_of_two_scrapes_by_their_time() -> None:
    found = series(sample_of(scrape(100), 10), sample_of(scrape(160), 15), sample_of(scrape(160), 20))
    assert found["added"] == [12.0, 0.0]
    assert found["written"] == [1200.0, 0.0]
    assert found["read"] == [120.0, 0.0]
    assert found["seconds"] == [5, 5]


def test_a_bookie_that_began_anew_or_tells_nothing_has_no_rate() -> None:
    found = series(
        sample_of(scrape(100), 10), sample_of(scrape(5), 15), sample_of(Numbers(), 20), sample_of(scrape(9), 25)
    )
    assert found["added"] == [None, None, None]
    assert found["p99Ms"] == [None, None, None]


def test_a_quantile_is_that_of_the_commits_between_two_scrapes() -> None:
    """The slow commits before the first scrape do not count; 98 fast ones and two of 10 to 100 ms do."""
    slow = [0.05] * 1000
    found = series(sample_of(scrape(0, *slow), 0), sample_of(scrape(0, *slow, *[0.0005] * 98, 0.05, 0.05), 5))
    assert (found["p50Ms"], found["p99Ms"]) == ([1.0], [100.0])
    beyond = series(sample_of(scrape(0), 0), sample_of(scrape(0, 5.0), 5))
    assert beyond["p99Ms"] == [100.0], "at least the last bound"
    assert series(sample_of(scrape(0, 0.1), 0), sample_of(scrape(0, 0.1), 5))["p99Ms"] == [None], "no commit, no time"


def test_what_a_scrape_tells_of_now() -> None:
    found = facts_of(scrape(7, directory='/a "b"'))
    assert found == {
        "damage": 3,
        "ledgers": None,
        "limboLedgers": 4,
        "damagedLedgers": 5,
        "sessions": 6,
        "memoryBytes": 7,
        "startedS": 8,
        "directories": [{"path": '/a "b"', "totalBytes": 1000, "usableBytes": 400}],
    }


def test_only_the_last_minutes_are_kept() -> None:
    found = series(*(sample_of(scrape(n), n) for n in range(SAMPLES_MAX * 2)))
    assert found["added"] == [1.0] * SAMPLES_MAX
