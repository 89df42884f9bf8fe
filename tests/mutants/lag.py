# SPDX-License-Identifier: Apache-2.0
"""Mutants of the code for lagging metadata servers: each leaves out one sync or one second look (RULES M5)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CONTRACT = "tests/contracts/test_metadata_lag_contract.py"
_LOGS = "tests/logs/test_lag.py"
_CLIENT = "tests/client/test_lag.py"
_SPARK = "tests/spark/test_lag.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="lag-node-that-the-server-does-not-know-is-absent",
        path="bk_core/metadata/tree/base.py",
        old="""        try:
            return self._tree.get(path)
        except NoNodeError:
            self._tree.sync(self._root)
            return self._tree.get(path)
""",
        new="""        return self._tree.get(path)
""",
        tests=(f"{_CONTRACT}::test_ledger_made_a_moment_ago_exists_through_a_server_that_lags[memory]",),
        breaks="a ledger that a task closed a moment ago is denied, and the job fails for good",
    ),
    Mutant(
        name="lag-second-look-without-a-sync-before-it",
        path="bk_core/metadata/tree/base.py",
        old="""        except NoNodeError:
            self._tree.sync(self._root)
            return self._tree.get(path)
""",
        new="""        except NoNodeError:
            return self._tree.get(path)
""",
        tests=(f"{_CONTRACT}::test_bookie_its_cookie_and_its_record_of_a_moment_ago_are_known[memory]",),
        breaks="a bookie that starts is told that it never was",
    ),
    Mutant(
        name="lag-missing-stat-is-believed",
        path="bk_core/metadata/tree/base.py",
        old="""        if stat is None:
            self._tree.sync(self._root)
            stat = self._tree.exists(path)
""",
        new="",
        tests=(f"{_CONTRACT}::test_log_made_a_moment_ago_can_be_watched_written_and_deleted[memory]",),
        breaks="a page cannot be made in a log that was created a moment ago",
    ),
    Mutant(
        name="lag-watch-of-nothing-is-believed",
        path="bk_core/metadata/tree/base.py",
        old="""        if present is None:
            self._tree.sync(self._root)
            present, cancel = self._watches.add(path, read_data, listener)
""",
        new="",
        tests=(f"{_CONTRACT}::test_time_and_watch_of_a_ledger_made_a_moment_ago_can_be_had[memory]",),
        breaks="a tail of a ledger that exists ends with: there is no such ledger",
    ),
    Mutant(
        name="lag-watch-that-was-once-of-nothing-stays-so",
        path="bk_core/metadata/tree/watches.py",
        old="            node.armed = False\n            return False\n",
        new="            return False\n",
        tests=(f"{_CONTRACT}::test_ledger_that_was_absent_can_be_watched_once_it_exists[memory]",),
        breaks="who asked too early for a ledger or log can never watch it",
    ),
    Mutant(
        name="lag-fresh-record-is-any-record",
        path="bk_core/metadata/tree/ledgers.py",
        old="            if fresh and not found.value.is_closed:\n",
        new="            if False:\n",
        tests=(
            f"{_CONTRACT}::test_ledger_closed_a_moment_ago_is_not_reported_open_to_who_asks_for_a_fresh_record[memory]",
        ),
        breaks="a ledger that was closed is reported open, and its publish refused",
    ),
    Mutant(
        name="lag-sync-asks-nobody",
        path="bk_core/metadata/zookeeper/session.py",
        old="        self._read(path, lambda: self._client.sync_async(path))\n",
        new="        self._check_usable()\n",
        tests=(f"{_CONTRACT}::test_sync_shows_what_was_done_before_it[ensemble]",),
        breaks="every sync of the product is none; one server hides it",
    ),
    Mutant(
        name="lag-publish-checks-records-that-may-be-old",
        path="bk_core/logs/ledgers.py",
        old="        metadata = store.read_ledger(ledger_id, fresh=True).value\n",
        new="        metadata = store.read_ledger(ledger_id).value\n",
        tests=(f"{_LOGS}::test_ledger_that_was_closed_a_moment_ago_passes_the_check_of_a_publish",),
        breaks="a job fails after all of its rows were written",
    ),
    Mutant(
        name="lag-change-of-a-log-begins-with-any-head",
        path="bk_core/logs/machines/change.py",
        old="sync=is_first or bool(self._doubts))",
        new="sync=bool(self._doubts))",
        tests=("tests/logs/test_changes.py", "tests/logs/test_fan_out.py"),
        breaks="a publish is refused because of a leader that ended, or a version that was published since",
    ),
    Mutant(
        name="lag-change-asks-nobody-before-it-reads-heads",
        path="bk_core/logs/sequences.py",
        old="""                if sync:
                    await asyncio.to_thread(self._first.store.sync)
""",
        new="",
        tests=(f"{_LOGS}::test_logs_that_are_changed_are_read_behind_one_sync",),
        breaks="a write into logs fails because of a leader that ended before it began",
    ),
    Mutant(
        name="lag-log-is-read-by-any-head",
        path="bk_core/logs/store.py",
        old="""        if sync:
            self.store.sync()
        found""",
        new="""        found""",
        tests=(f"{_LOGS}::test_what_another_client_published_a_moment_ago_is_there_for_every_way_of_reading",),
        breaks="who was told that rows are published reads the log without them",
    ),
    Mutant(
        name="lag-takeover-begins-with-any-head",
        path="bk_core/logs/leading/requests.py",
        old="            found = self._store.read(sync=True)  # the leader may have changed a moment ago\n",
        new="            found = self._store.read()\n",
        tests=(f"{_LOGS}::test_takeover_begins_with_the_head_as_it_is",),
        breaks="a takeover fences leaders of the past first, and loses its race against the present one",
    ),
    Mutant(
        name="lag-ledger-is-opened-by-any-record",
        path="bk_core/client/bookkeeper.py",
        old="            return await asyncio.to_thread(self.store.read_ledger, ledger_id, fresh=True)\n",
        new="            return await asyncio.to_thread(self.store.read_ledger, ledger_id)\n",
        tests=(f"{_CLIENT}::test_ledger_that_was_closed_a_moment_ago_is_read_to_its_last_entry",),
        breaks="a ledger that was closed is read to its LAC, without its last entries",
    ),
    Mutant(
        name="lag-too-few-bookies-are-believed",
        path="bk_core/client/bookkeeper.py",
        old="""            self.store.sync()
            writable = self.store.writable_bookies()
""",
        new="""            pass
""",
        tests=(f"{_CLIENT}::test_bookies_that_registered_a_moment_ago_are_enough_for_a_ledger",),
        breaks="the first ledger after the start of the bookies fails",
    ),
    Mutant(
        name="lag-spare-is-looked-for-in-any-list",
        path="bk_core/client/bookkeeper.py",
        old="        await asyncio.to_thread(self.store.sync)  # rarely needed",
        new="        await asyncio.sleep(0)  # rarely needed",
        tests=(f"{_CLIENT}::test_bookie_that_registered_a_moment_ago_takes_the_place_of_one_that_failed",),
        breaks="a writer fails for want of a bookie that had come back",
    ),
    Mutant(
        name="lag-entries-that-are-denied-are-looked-for-where-they-were",
        path="bk_core/client/reading/quorum_lac.py",
        old="            await asyncio.to_thread(self.store.sync)\n",
        new="",
        tests=(f"{_CLIENT}::test_entries_whose_copies_moved_a_moment_ago_are_found_at_their_new_place",),
        breaks="entries whose copies were moved are reported lost",
    ),
    Mutant(
        name="lag-refresh-takes-any-record",
        path="bk_core/protocol/ends/follower.py",
        old="[ev.ReadMetadata(fresh=bool(self._callers))]",
        new="[ev.ReadMetadata()]",
        tests=(f"{_CLIENT}::test_who_asks_how_far_a_ledger_is_confirmed_hears_that_it_was_closed",),
        breaks="refresh_lac does not notice that the ledger was closed",
    ),
    Mutant(
        name="lag-bookie-starts-by-any-record-of-itself",
        path="bookie_server/identity/directories.py",
        old="        self._store.sync()  # the last process",
        new="        # a process",
        tests=(
            "tests/bookie_server/identity/test_loss.py::"
            "test_older_copy_of_a_directory_is_refused_though_the_server_knows_of_no_newer_one",
        ),
        breaks="a restored snapshot passes for the newest and denies what it acknowledged since",
    ),
    Mutant(
        name="lag-plan-of-a-batch-begins-without-a-sync",
        path="bk_spark/plan/resolve.py",
        old="    bookkeeper.store.sync()  # the plan",
        new="    # the plan",
        tests=(f"{_SPARK}::test_batch_reads_what_was_published_before_it_began",),
        breaks="a job does not read what the job before it wrote",
    ),
    Mutant(
        name="lag-plan-of-a-write-begins-without-a-sync",
        path="bk_spark/write/log_writer.py",
        old="    bookkeeper.store.sync()  # what is refused",
        new="    # what is refused",
        tests=(f"{_SPARK}::test_job_is_planned_though_leaders_ended_and_bookies_came_a_moment_ago",),
        breaks="a write is refused because of bookies that have come since",
    ),
    Mutant(
        name="lag-streams-sync-for-every-head",
        path="bk_spark/stream/follow.py",
        old="self._log.head(sync=False)",
        new="self._log.head()",
        tests=(f"{_SPARK}::test_streams_read_the_heads_of_logs_without_a_sync",),
        breaks="a thousand logs that are followed ask the leader of the metadata store all day",
    ),
)
