# SPDX-License-Identifier: Apache-2.0
"""Mutants of ``bk_spark``."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_OUTAGE, _CLIENTS, _PLAN = (
    "tests/spark/test_outage.py::",
    "tests/spark/workers/test_clients.py::",
    "tests/spark/plan/test_log_plan.py::",
)
_WATCH, _FOLLOW, _STREAM = (
    "tests/spark/stream/test_watch.py::",
    "tests/spark/stream/test_follow.py::",
    "tests/spark/stream/test_stream_reader.py::",
)
_CODECS = "tests/spark/codecs/test_codecs.py::"
_DROPPED = _OUTAGE + "test_a_client_that_is_of_no_use_is_dropped_at_the_end_and_one_that_is_closed_is_replaced"
_BATCH = _OUTAGE + "test_a_micro_batch_is_planned_written_and_committed_through_outages_and_is_there_once"
_JOBS = _OUTAGE + "test_jobs_and_loads_wait_as_long_as_their_option_says"
_KEPT_READER = _CLIENTS + "test_a_kept_reader_learns_the_bookies_of_each_plan_and_is_of_one_cluster_and_password"
_LEFT = _FOLLOW + "test_what_is_not_followed_any_more_leaves_nothing_behind"
_BEHIND = _STREAM + "test_a_source_that_ends_before_the_stream_is_an_error_when_that_lasts_and_forgiven_when_it_passes"

MUTANTS: tuple[Mutant, ...] = (
    # --- what a task costs ---
    # --- clients of a process ---
    Mutant(
        name="a client that broke stays cached",
        path="bk_spark/workers/clients.py",
        old="if thing is not None and not self._is_usable(thing):",
        new="if False:",
        tests=(_CLIENTS + "test_a_client_that_was_closed_is_connected_anew",),
        breaks="after one client broke, every task of this worker fails until Spark replaces it",
    ),
    Mutant(
        name="a kept reader does not learn the addresses of the next plan",
        path="bk_spark/workers/clients.py",
        old="    reader.update_bookies(bookies)\n",
        new="",
        tests=(_KEPT_READER,),
        breaks="a kept worker cannot find bookies that are new or have moved, and asks ZooKeeper for each ledger",
    ),
    Mutant(
        name="clients of other settings are one",
        path="bk_spark/workers/clients.py",
        old="    key = (options.metadata_service_uri, options.client_settings)\n    return _clients",
        new="    key = (options.metadata_service_uri, ())\n    return _clients",
        tests=(_CLIENTS + "test_a_client_is_kept_for_each_cluster_and_its_settings",),
        breaks="bookkeeper.* of a second job in the same worker are ignored",
    ),
    # --- writing ---
    Mutant(
        name="abort deletes after a commit was attempted",
        path="bk_spark/write/commit.py",
        old="    if not any(message is None for message in messages):\n        return 0\n",
        new="",
        tests=(_PLAN + "test_abort_deletes_only_what_was_never_offered_for_publishing",),
        breaks="the ledgers of a publish whose answer was lost: published rows",
    ),
    # --- streams ---
    Mutant(
        name="who waits for a first look is not told that the run is over",
        path="bk_spark/stream/watch.py",
        old="            self._over = True\n            self._news.notify_all()\n\n    def goes_on",
        new="            self._over = True\n\n    def goes_on",
        tests=(_WATCH + "test_who_waits_for_a_first_look_hears_at_once_that_the_run_is_over",),
        breaks="the JVM waits ten seconds for a client that was closed",
    ),
    Mutant(
        name="followers outlive their run",
        path="bk_spark/stream/follow.py",
        old="            for task in self._tasks.values():\n                task.cancel()\n"
        "            await asyncio.gather(*self._tasks.values(), return_exceptions=True)\n",
        new="",
        tests=(_LEFT,),
        breaks="a driver with many queries keeps a watch and a long poll for each that ever ran",
    ),
)
