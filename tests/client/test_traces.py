# SPDX-License-Identifier: Apache-2.0
"""Traces: one through client, bookies and commits, over each of our lanes; and nothing at all where nobody set one
up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.kit.lane_table import OURS

PREFIX = "bookkeeper."
BOOKIES = 3


class Trace:
    """The spans of the program ``tests.kit.traced_program``."""

    def __init__(self, spans: list[dict[str, Any]]) -> None:
        self.spans, self._children = spans, defaultdict[int | None, list[dict[str, Any]]](list)
        for span in spans:
            self._children[span["parent"]].append(span)

    def one(self, name: str, **about: Any) -> dict[str, Any]:
        """The only span of this name, about this."""
        wanted = {PREFIX + key: value for key, value in about.items()}.items()
        (found,) = [each for each in self.spans if each["name"] == name and wanted <= each["attributes"].items()]
        return found

    def below(self, span: dict[str, Any], *names: str) -> list[dict[str, Any]]:
        """Its children's children of these names, one for each generation."""
        found = [span]
        for name in names:
            found = [child for each in found for child in self._children[each["span"]] if child["name"] == name]
        assert all(each["trace"] == span["trace"] for each in found)
        return found


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    command = [sys.executable, "-m", "tests.kit.traced_program", str(tmp_path_factory.mktemp("traced"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "created log rows\n")
    return Trace([json.loads(line) for line in done.stdout.splitlines()])


@pytest.mark.parametrize("lane", OURS)
def test_one_trace_goes_through_client_bookies_and_their_commits(trace: Trace, lane: str) -> None:
    single = trace.below(trace.one(f"{lane} append"), "bookkeeper.append")
    (append,) = single
    assert append["attributes"]["bookkeeper.entries"] == 1
    adds = trace.below(append, "bookkeeper.bookie.add")
    assert len({add["attributes"]["bookkeeper.bookie"] for add in adds}) == BOOKIES
    commits = trace.below(append, "bookkeeper.bookie.add", "bookkeeper.bookie.commit")
    assert len(commits) == BOOKIES
    sessions = [f"{add['attributes']['bookkeeper.bookie']} session" for add in adds]
    named = append["attributes"]["bookkeeper.sessions"]
    assert sorted(each.rpartition(" ")[0] for each in named) == sorted(sessions), "as log lines name them"
    assert {str(each["attributes"]["bookkeeper.session"]) for each in commits} == {each.split()[-1] for each in named}


@pytest.mark.long
@pytest.mark.parametrize("lane", OURS)
def test_all_frames_of_a_batch_belong_to_who_appended_it_and_no_entry_has_a_span(trace: Trace, lane: str) -> None:
    write = trace.one(f"{lane} write")
    frames = trace.below(write, "bookkeeper.append")
    assert sum(each["attributes"]["bookkeeper.entries"] for each in frames) == 3_000
    assert 1 < len(frames) < 10
    adds = trace.below(write, "bookkeeper.append", "bookkeeper.bookie.add")
    assert len({add["attributes"]["bookkeeper.bookie"] for add in adds}) == BOOKIES
    # a group commit is below one of its frames, and a busy bookie commits frames of several writes together
    assert trace.below(write, "bookkeeper.append", "bookkeeper.bookie.add", "bookkeeper.bookie.commit")
    assert len(trace.below(write, "bookkeeper.close_ledger")) == 1
    roots = [each for each in trace.spans if each["name"] == "bookkeeper.append" and each["parent"] is None]
    assert len(roots) == len(OURS), "of the ledger that nobody's span is about, over each lane"


@pytest.mark.long
@pytest.mark.parametrize("lane", OURS)
def test_reads_and_recoveries_are_followed_to_the_bookies(trace: Trace, lane: str) -> None:
    (read,) = trace.below(trace.one(f"{lane} read"), "bookkeeper.read")
    assert (read["attributes"]["bookkeeper.first_entry"], read["attributes"]["bookkeeper.last_entry"]) == (0, 3_000)
    assert trace.below(read, "bookkeeper.bookie.read")
    recovery = trace.below(trace.one(f"{lane} recover"), "bookkeeper.open_ledger", "bookkeeper.recover_ledger")
    (recovered,) = recovery
    fences = trace.below(recovered, "bookkeeper.bookie.fence")
    assert len({each["attributes"]["bookkeeper.bookie"] for each in fences}) == BOOKIES
    reads = trace.below(recovered, "bookkeeper.bookie.read")
    assert reads
    assert all(each["attributes"]["bookkeeper.fence"] for each in reads)


@pytest.mark.long
@pytest.mark.parametrize("lane", OURS)
def test_an_error_is_in_the_trace_with_its_code_and_its_outcome(trace: Trace, lane: str) -> None:
    (missing,) = (each for each in trace.below(trace.one(f"{lane} read"), "bookkeeper.open_ledger") if each["error"])
    said = missing["attributes"]
    assert (said["error.type"], said["bookkeeper.outcome"]) == ("BK_NO_SUCH_LEDGER", "not applied")
    assert "999" in missing["error"]
    appends = trace.below(trace.one(f"{lane} recover"), "bookkeeper.append")
    fenced = Counter((each["attributes"].get("error.type"), each["error"] is not None) for each in appends)
    assert fenced == {(None, False): 1, ("BK_LEDGER_FENCED", True): 1}


@pytest.mark.long
def test_the_blocking_client_is_in_the_trace_of_its_thread(trace: Trace) -> None:
    blocking = trace.one("blocking")
    assert len(trace.below(blocking, "bookkeeper.append", "bookkeeper.bookie.add", "bookkeeper.bookie.commit")) == 3
    assert trace.below(blocking, "bookkeeper.create_ledger")
    assert trace.below(blocking, "bookkeeper.close_ledger")


def test_a_logs_leader_is_in_the_trace(trace: Trace) -> None:
    log = trace.one("log")
    for name in ("log.open", "log.take_over", "log.end_lead", "log.trim"):
        (found,) = trace.below(log, f"bookkeeper.{name}")
        assert found["attributes"] == {"bookkeeper.log": "events"}
    assert len(trace.below(log, "bookkeeper.append", "bookkeeper.bookie.add", "bookkeeper.bookie.commit")) == BOOKIES


def test_sparks_tasks_have_spans_with_their_ledgers_below(trace: Trace) -> None:
    spark = trace.one("spark")
    written = trace.below(spark, "bookkeeper.spark.write", "bookkeeper.append", "bookkeeper.bookie.add")
    assert len(written) == BOOKIES
    assert trace.below(spark, "bookkeeper.spark.write", "bookkeeper.close_ledger")
    assert trace.below(spark, "bookkeeper.log.publish")
    assert trace.below(spark, "bookkeeper.spark.read", "bookkeeper.read", "bookkeeper.bookie.read")


def test_without_an_sdk_nothing_of_opentelemetry_is_imported_and_nothing_is_made() -> None:
    code = (
        "import asyncio, sys; from bk_core.client import connect; from tests.kit import memory_store\n"
        "import bookie_server.main; from bk_core.observe.traces import spans\n"
        "print(spans(), [each for each in sys.modules if each.startswith('opentelemetry')])\n"
        "import opentelemetry.trace; print(spans())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.splitlines() == ["None []", "None"]
