# SPDX-License-Identifier: Apache-2.0
"""Mutants of what an operator is told, and of the load that an operator puts on a cluster."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_EXPLAIN = "tests/e2e/test_ledger_explain.py"
_TOP = "tests/cli/test_cluster_top.py"
_PLACEMENT = "tests/cli/test_placement_findings.py::test_who_is_chosen_and_who_is_left_out"
_AUDITOR = "tests/bookie_server/autorecovery/test_auditor.py"
_BENCH = "tests/cli/test_bench.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a bookie that hangs holds up bk ledger explain",
        "bk_cli/ledger_seen.py",
        "ANSWER_S = 0.4\n",
        "ANSWER_S = 1.4\n",
        (f"{_EXPLAIN}::test_ledger_that_is_stuck_in_recovery_is_explained_and_the_remedy_helps",),
        "at 3 am the command that says which bookie hangs hangs, too",
    ),
    Mutant(
        "top says nothing of a drain",
        "bk_cli/cluster_top.py",
        "    ordered = state_in_words(row.state, row.order)\n",
        "    ordered = row.state\n",
        (f"{_TOP}::test_a_bookie_that_runs_shows_its_numbers_and_a_mute_one_says_so",),
        "a bookie that was drained by a colleague looks as one with a full disk",
    ),
    Mutant(
        "a disk is full in no time",
        "bk_cli/cluster_top.py",
        "        return self.usable_bytes / self.in_bytes_per_s\n",
        "        return (self.total_bytes or 0) / self.in_bytes_per_s\n",
        (f"{_TOP}::test_what_is_left_of_a_disk_lasts_for_so_long_at_the_rate_of_now",),
        "what lasts for a day is told to last for a month",
    ),
    Mutant(
        "no word of quorums without slack",
        "bk_cli/placement_findings.py",
        "    if slack:\n",
        "    if slack >= 0:\n",
        (_PLACEMENT,),
        "Qw = Qa looks safe, and the first bookie that is down stops every writer",
    ),
    Mutant(
        "a failed bookie is left out for ever",
        "bk_core/client/ranges.py",
        "if until > now}",
        "if until > 0}",
        ("tests/client/test_write_and_read.py::"
         "test_a_failed_bookie_is_avoided_until_nothing_else_is_left_or_its_time_is_over",),
        "a long-lived writer uses three of ten bookies after a rolling restart",
    ),
    Mutant(
        "one record that is not answered ends the audit",
        "bk_core/metadata/scan.py",
        "    except BookKeeperError as error:\n        return error\n",
        "    except MetadataCorruptError as error:\n        return error\n",
        (f"{_AUDITOR}::test_records_that_cannot_be_read_hide_no_other_and_are_looked_at_again",),
        "the ledgers behind it lack a copy, and nobody marks them",
    ),
    Mutant(
        "what was repaired while it waited for its turn is marked",
        "bookie_server/autorecovery/auditor.py",
        "        missing = _missing(self._store.read_ledger(ledger_id).value, wanted)\n",
        "        missing = _missing(record, wanted)\n",
        (f"{_AUDITOR}::test_what_is_repaired_or_deleted_after_it_was_read_is_not_marked",),
        "a bookie that was drained and removed is named by marks for ever",
    ),
    Mutant(
        "two auditors at once",
        "bookie_server/autorecovery/auditor.py",
        "            if number % VOTE_EVERY == 0 and not",
        "            if number == 0 and not",
        (f"{_AUDITOR}::test_who_is_no_longer_elected_goes_on_no_further_than_its_next_look_at_the_vote",),
        "an auditor that slept through its succession marks a million ledgers by what it knew before",
    ),
    Mutant(
        "a repair gets a look that began before it asked",
        "bookie_server/autorecovery/worker.py",
        """            named, self._named, self._next = tuple(self._named), {}, None
            return await self._look(named)
""",
        """            named, self._named = tuple(self._named), {}
            seen = await self._look(named)
            self._next = None
            return seen
""",
        ("tests/bookie_server/autorecovery/test_worker.py::"
         "test_who_asks_while_a_look_is_under_way_gets_the_next_one_together_with_others",),
        "a bookie that has just come back is taken for lost, and its ledgers are copied all the same",
    ),
    Mutant(
        "a dry run says yes to what a drain refuses",
        "bk_cli/bookie_leaving.py",
        "        _refuse_stuck(bookie_id, watch.left.values())\n        found",
        "        found",
        ("tests/cli/test_bookie_leaving.py::test_dry_run_says_whether_a_bookie_may_leave_and_changes_nothing",),
        "a host is turned off that has what nobody else can take",
    ),
    Mutant(
        "bk bench leaves its ledgers when it is stopped",
        "bk_cli/bench.py",
        "            if not (keep and is_whole):\n",
        "            if is_whole and not keep:\n",
        (f"{_BENCH}::test_a_real_cluster_is_as_before_however_it_ends",),
        "each load that somebody stops stays on the disks for ever",
    ),
    Mutant(
        "bk bench knows no rate",
        "bk_cli/bench_load.py",
        "load.entries_per_s if load.entries_per_s else 0.0\n",
        "load.entries_per_s if load.entries_per_s > 1e9 else 0.0\n",
        (f"{_BENCH}::test_a_rate_and_an_amount_bound_it",),
        "a careful load on a production cluster takes all of it",
    ),
)  # fmt: skip
