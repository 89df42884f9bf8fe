# SPDX-License-Identifier: Apache-2.0
"""Mutants of what threads do together, and of glue that no other file here has: most are seen by controlled schedules
(``tests/sim/threads``)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ENGINES = "tests/bookie_server/engine/test_engine.py::test_"
ORDERS = "tests/sim/threads/test_committer_orders.py::test_"
BOOKIE = ("tests/sim/threads/test_bookie_threads.py::test_many_orders_of_a_bookies_threads_keep_its_promises",)


COMMITTER = (
    Mutant(
        "the size of a group is not told",
        "bookie_server/engine/committer.py",
        "        self._committed(places, max(self._size.bytes, sum([place.size for place in places])))\n",
        "        self._committed(places, 0)\n",
        ("tests/bookie_server/engine/test_committer.py::test_each_answer_says_how_large_a_group_may_be",),
        "a stream brings 32 MiB, and a single add waits behind them",
    ),
    Mutant(
        "a stream is bounded by the setting alone",
        "bookie_server/machine/adds.py",
        "        self._pause_above = min(2 * group - 1, limit) if group else limit\n",
        "        self._pause_above = limit\n",
        (
            "tests/bookie_server/machine/test_machine_admission.py::"
            "test_no_more_of_a_stream_is_taken_than_two_groups_as_the_disk_has_them_now",
        ),
        "a stream brings 32 MiB, and a single add waits behind them",
    ),
    Mutant(
        "frames are put and nobody is woken",
        "bookie_server/engine/committer.py",
        "self._took_s >= self._inline_s:\n                self._wake.notify()\n            elif",
        "self._took_s >= self._inline_s:\n                pass\n            elif",
        (ORDERS + "what_is_put_while_the_thread_falls_asleep_is_committed",),
        "an append waits until something else happens on the bookie",
        "S10",
    ),
    Mutant(
        "a commit on the loop overtakes a group that the loop has not heard of",
        "bookie_server/engine/committer.py",
        "        if self._held or self._untold or self._copies or self._halted or self._stopping:\n",
        "        if self._held or self._copies or self._halted or self._stopping:\n",
        (
            "tests/bookie_server/engine/test_committer.py::"
            "test_groups_of_the_thread_and_of_the_loop_are_told_in_their_order",
        ),
        "frames are acknowledged that are not on disk, and the index names wrong places",
        "P1",
    ),
    Mutant(
        "the position is not recorded after commits on the loop",
        "bookie_server/engine/committer.py",
        "            self._watched = False\n            self._wake.notify()\n",
        "            self._watched = False\n",
        (
            "tests/bookie_server/engine/test_committer.py::"
            "test_the_position_is_recorded_after_the_last_commit_on_the_loop",
        ),
        "damage at the end of the log is taken for a torn tail: an acked entry is denied",
        "S3",
    ),
    Mutant(
        "whether there is work is looked up before the lock",
        "bookie_server/engine/committer.py",
        "        with self._wake:\n            while True:\n                work = None",
        "        if not (self._copies or self._frames or self._stopping or self._log.position_unrecorded):\n"
        "            with self._wake:\n"
        "                self._wake.wait()\n"
        "        with self._wake:\n            while True:\n                work = None",
        (ORDERS + "what_is_put_while_the_thread_falls_asleep_is_committed",),
        "a wake-up is lost: an append waits for ever",
        "S10",
    ),
    Mutant(
        "copies are asked for and nobody is woken",
        "bookie_server/engine/committer.py",
        "            self._copies.append(copies)\n            self._wake.notify()\n",
        "            self._copies.append(copies)\n",
        (ORDERS + "copies_asked_for_while_the_thread_sleeps_are_made",),
        "compaction waits for half a minute and gives up: space does not come back",
    ),
    Mutant(
        "copies are put beside a stop without looking",
        "bookie_server/engine/committer.py",
        "            if self._stopping:\n                copies.done.cancel()\n                return copies.done\n",
        "",
        (ORDERS + "copies_asked_for_beside_a_stop_are_made_or_cancelled",),
        "the maintenance thread waits at a stop for copies that nobody makes",
    ),
    Mutant(
        "whether it stops is looked up outside the lock",
        "bookie_server/engine/committer.py",
        "        with self._wake:\n            if self._stopping:\n                copies.done.cancel()\n"
        "                return copies.done\n            self._copies.append(copies)\n",
        "        if self._stopping:\n            copies.done.cancel()\n            return copies.done\n"
        "        with self._wake:\n            self._copies.append(copies)\n",
        (ORDERS + "copies_asked_for_beside_a_stop_are_made_or_cancelled",),
        "the maintenance thread waits at a stop for copies that nobody makes",
    ),
    Mutant(
        "copies that are left at the stop are not cancelled",
        "bookie_server/engine/committer.py",
        "            self._stopping = True\n            self._cancel_copies()\n",
        "            self._stopping = True\n",
        (ORDERS + "copies_that_a_halted_log_leaves_behind_are_cancelled_by_the_stop",),
        "the maintenance thread waits at a stop for copies that nobody makes",
    ),
    Mutant(
        "who waits for copies is not woken",
        "bookie_server/engine/committer.py",
        "            done.set_running_or_notify_cancel()  # without it",
        "            # without it",
        (
            "tests/bookie_server/engine/test_committer.py::"
            "test_who_waits_for_copies_hears_at_once_that_nobody_writes_them_any_more",
        ),
        "a stop takes up to half a second longer",
    ),
    Mutant(
        "copies wait for a log that never goes on",
        "bookie_server/engine/committer.py",
        "            if not resume:\n                self._cancel_copies()\n",
        "",
        (
            "tests/bookie_server/engine/test_committer.py::"
            "test_who_waits_for_copies_hears_at_once_that_nobody_writes_them_any_more",
        ),
        "the maintenance of a failed directory waits for its deadline",
    ),
    Mutant(
        "a refused group does not halt the thread",
        "bookie_server/engine/committer.py",
        "        except BookKeeperError as error:\n            self._halted = True\n            self._post",
        "        except BookKeeperError as error:\n            self._post",
        (ORDERS + "what_stands_behind_a_refused_group_is_not_written",),
        "a group behind a refused one is written although the machine gave it up: ids and answers shift",
        "P1",
    ),
    Mutant(
        "a thread that resumes is not woken",
        "bookie_server/engine/committer.py",
        "                self._cancel_copies()\n            self._wake.notify()\n",
        "                self._cancel_copies()\n",
        (ORDERS + "copies_that_waited_while_the_log_was_halted_are_made_after_it_resumes",),
        "compaction, which is to make room on a full disk, waits until the next append",
    ),
    Mutant(
        "queued frames outlive the failure that ends them",
        "bookie_server/engine/committer.py",
        "            self._frames.clear()\n            self._halted = not resume\n",
        "            self._halted = not resume\n",
        (ORDERS + "what_stands_behind_a_refused_group_is_not_written",),
        "a group that the machine has given up is written and taken for the next one",
        "P1",
    ),
    Mutant(
        "a final failure lets the thread go on",
        "bookie_server/engine/committer.py",
        "            self._halted = not resume\n",
        "            self._halted = False\n",
        (ORDERS + "nothing_is_written_or_told_behind_a_failed_sync",),
        "a bookie whose disk failed reports failures again and again instead of one end",
        "S6",
    ),
    Mutant(
        "the answer is posted before the sync",
        "bookie_server/engine/committer.py",
        "                places = self._append(group)\n"
        "                with self._wake:\n"
        "                    self._untold += 1\n"
        "                self._post(self._told, places)\n",
        "                planned = self._log.position\n"
        "                places, at = [], planned[1]\n"
        "                for frame in group.frames:\n"
        "                    places.append(Place(planned[0], at, len(frame)))\n"
        "                    at += len(frame)\n"
        "                self._untold += 1\n"
        "                self._post(self._told, places)\n"
        "                self._append(group)\n",
        BOOKIE,
        "what was acked is lost with the power",
        "S3",
    ),
    Mutant(
        "the position is not recorded when it gets quiet",
        "bookie_server/engine/committer.py",
        "self._wake.wait(IDLE_S if unrecorded and not self._watched else None)",
        "self._wake.wait(None)",
        (ORDERS + "the_position_is_on_record_soon_after_the_last_group",),
        "damage at the end of the log is taken for a torn tail: an acked entry is denied",
        "S3",
    ),
    Mutant(
        "a stop does not record the position",
        "bookie_server/engine/committer.py",
        "            if not self._log.failed:\n                self._log.record_position()\n",
        "            pass\n",
        (ORDERS + "a_stop_commits_what_was_put_before_it_and_records_the_position",),
        "damage at the end of the log is taken for a torn tail: an acked entry is denied",
        "S3",
    ),
    Mutant(
        "a stop leaves queued frames",
        "bookie_server/engine/committer.py",
        "                work = None if self._held else self._next()\n",
        "                if self._stopping:\n                    return None\n"
        "                work = None if self._held else self._next()\n",
        (ORDERS + "a_stop_commits_what_was_put_before_it_and_records_the_position",),
        "appends that a clean stop should have confirmed end as unknown",
    ),
    Mutant(
        "copies never get their turn under load",
        "bookie_server/engine/committer.py",
        "            self._copies_turn = True\n",
        "",
        (ORDERS + "copies_take_turns_with_groups_of_which_there_is_always_one",),
        "compaction starves while there is always a group",
    ),
    Mutant(
        "a reserve group is tried once only",
        "bookie_server/engine/committer.py",
        "        except DataDirectoryError:\n            if not group.reserve:\n                raise\n"
        "            return self._log.append_group(group.frames, headers=group.headers, reserve=True)\n",
        "        except DataDirectoryError:\n            raise\n",
        ("tests/bookie_server/engine/test_committer.py",),
        "a full bookie cannot be fenced: no ledger on it can be recovered",
        "S7",
    ),
    Mutant(
        "an unforeseen error ends the commit thread in silence",
        "bookie_server/engine/committer.py",
        '        self._post(self._failed, StorageFailedError("the commit thread failed", value=repr(error)))\n',
        "",
        (ORDERS + "an_error_that_nobody_foresaw_is_told_and_ends_all_acks",),
        "a bookie that commits nothing any more stays in the list of writable ones",
        "S6",
    ),
    Mutant(
        "a failure of another writer during the sync is overlooked",
        "bookie_server/storage/log/segment_log.py",
        "        self._health.check()  # nothing is acked after another writer of this directory has failed\n",
        "",
        (ORDERS + "a_group_during_whose_sync_another_writer_of_the_directory_fails_is_not_told_durable",),
        "the bookie acks on a directory whose disk has failed",
        "S6",
    ),
    Mutant(
        "spares are made without the lock",
        "bookie_server/storage/log/segment_pool.py",
        "            with self._lock:\n                self._health.check()\n"
        "                if len(self._spares) < count:\n                    self._spares.append(self._make())\n",
        "            self._health.check()\n            self._spares.append(self._make())\n",
        (ORDERS + "two_threads_that_make_spares_make_different_ones_and_no_more_than_are_wanted",),
        "two threads make the same segment: one of them ends the bookie, or both write into it",
    ),
)

ENGINE = (
    Mutant(
        "a log is told of after another one failed for good",
        "bookie_server/engine/engine.py",
        "        if self._failed:\n            return\n        self.tells_a_commit",
        "        self.tells_a_commit",
        BOOKIE,
        "the machine fails on an answer to what it has given up",
        "S6",
    ),
    Mutant(
        "a burst is committed although others wait to be read",
        "bookie_server/engine/engine.py",
        "        alone = self._turn is not None and self._turn.found <= 1\n",
        "        alone = True\n",
        (ENGINES + "a_burst_is_one_group_at_its_end_or_in_the_next_turn_if_more_came_in_this_one",),
        "each of many clients waits for a sync of its own",
        "S10",
    ),
    Mutant(
        "a commit does not wait for the end of the burst",
        "bookie_server/engine/engine.py",
        "        if self._in_burst:\n            self._at_turn_end.append(call)\n",
        "        if self._in_burst:\n            call()\n",
        (ENGINES + "a_burst_is_one_group_at_its_end_or_in_the_next_turn_if_more_came_in_this_one",),
        "a burst costs a sync for each of its frames",
    ),
    Mutant(
        "a second thread tells of the same failure",
        "bookie_server/engine/engine.py",
        "        if self._failed:\n            return  # another thread has told it\n",
        "",
        BOOKIE,
        "the bookie ends twice, and the second reason hides the first",
        "S6",
    ),
    Mutant(
        "queued frames are dropped after the machine has heard",
        "bookie_server/engine/engine.py",
        "            self._logs[number].drop(resume=True)  # last: what the machine gives the log from here on is "
        "written\n"
        "        self.feed(events.CommitFailed(reason, error.what, final, number))\n",
        "        self.feed(events.CommitFailed(reason, error.what, final, number))\n"
        "        if not final:\n            self._logs[number].drop(resume=True)\n",
        ("tests/bookie_server/engine/test_engine.py", *BOOKIE),
        "frames that the machine gives the log as soon as it hears of the full disk vanish unanswered",
        "P1",
    ),
    Mutant(
        "the other logs go on after a failed sync",
        "bookie_server/engine/engine.py",
        "        if final:\n            self._end_commits()\n",
        "        if final:\n            self._logs[number].drop(resume=False)\n",
        (ENGINES + "what_waits_for_the_other_directory_is_not_written_after_a_failed_sync",),
        "a bookie that ends goes on writing what it has given up",
        "S6",
    ),
)

DRIVER = (
    Mutant(
        "reads go on in a segment that is given up",
        "bookie_server/engine/log_driver.py",
        'wait_for(self._reader.release(generation, for_good=True), DEADLINE_S, "the reader thread")',
        "self._reader.release(generation, for_good=True)",
        BOOKIE,
        "a segment is used again while a read has it open",
        "S5",
    ),
    Mutant(
        "the log is closed before maintenance has ended",
        "bookie_server/engine/log_driver.py",
        "        self._maintenance.stop()\n        try:\n            self._log.close()\n",
        "        try:\n            self._log.close()\n",
        BOOKIE,
        "a stop leaves a thread behind that writes to the next process's directory",
        "S10",
    ),
    Mutant(
        "the reader thread is not stopped",
        "bookie_server/engine/log_driver.py",
        "        self._reader.stop()\n",
        "",
        BOOKIE,
        "threads and open files outlive the bookie",
    ),
    Mutant(
        "full segments are not released at the stop",
        "bookie_server/engine/log_driver.py",
        "        self._committer.stop()\n        self._log.release_full()\n",
        "        self._committer.stop()\n",
        (ENGINES + "a_stop_seals_the_segments_that_copies_filled",),
        "the next start scans what could have had its index",
    ),
)

MAINTENANCE = (
    Mutant(
        "a stop is not told to the maintenance thread",
        "bookie_server/engine/maintenance_thread.py",
        "            self._stopping = True\n            self._wake.notify()\n",
        "            self._stopping = True\n",
        BOOKIE,
        "a stop takes as long as the maintenance sleeps",
    ),
    Mutant(
        "a failure of the maintenance is not told",
        "bookie_server/engine/maintenance_thread.py",
        "        except BookKeeperError as error:\n            self._post(self._failed, error)\n",
        '        except BookKeeperError as error:\n            logger.error("%s", error)\n',
        (
            "tests/bookie_server/engine/test_maintenance_thread.py::test_a_disk_that_fails_under_the_thread_is_told_once_though_nobody_appends",
        ),
        "a bookie whose disk failed stays writable until the next group",
        "S6",
    ),
)

HOP = (
    Mutant(
        "a question that came too late is asked all the same",
        "bookie_server/engine/index_hop.py",
        "            if not answer.set_running_or_notify_cancel():\n                return\n",
        "",
        ("tests/bookie_server/engine/test_maintenance_thread.py",),
        "the index changes behind the back of a thread that gave up waiting",
        "S10",
    ),
    Mutant(
        "an error of a question is swallowed",
        "bookie_server/engine/index_hop.py",
        "            except Exception as error:\n                answer.set_exception(error)\n",
        "            except Exception:\n                pass\n",
        ("tests/bookie_server/engine/test_maintenance_thread.py",),
        "the maintenance thread waits half a minute for what failed at once",
    ),
    Mutant(
        "a closed loop is waited for",
        "bookie_server/engine/index_hop.py",
        "        if is_over() and not done.done():\n            raise Stopping\n",
        "",
        ("tests/bookie_server/engine/test_maintenance_thread.py",),
        "a stop hangs for half a minute",
    ),
    Mutant(
        "a deadline begins anew with each look",
        "bookie_server/engine/index_hop.py",
        "        wait([done], min(_LOOK_S, left_s))\n",
        "        wait([done], min(_LOOK_S, left_s))\n        end += min(_LOOK_S, left_s)\n",
        ("tests/bookie_server/engine/test_maintenance_thread.py",),
        "the maintenance thread waits for ever for a loop that hangs",
    ),
)

MUTANTS: tuple[Mutant, ...] = COMMITTER + ENGINE + DRIVER + MAINTENANCE + HOP
