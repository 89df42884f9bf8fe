# SPDX-License-Identifier: Apache-2.0
"""Mutants of the interplay of threads, and of glue that no other file of this folder has. Controlled schedules
(``tests/sim/threads``) find most of them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ENGINES = "tests/bookie_server/engine/test_engine.py::test_"
ORDERS = "tests/sim/threads/test_committer_orders.py::test_"
BOOKIE = ("tests/sim/threads/test_bookie_threads.py::test_many_orders_of_a_bookies_threads_keep_its_promises",)


COMMITTER = (
    Mutant(
        "frames are put and nobody is woken",
        "bookie_server/engine/commits/queue.py",
        "speed.took_s >= speed.fast_s:\n                self._wake.notify()\n                return False\n",
        "speed.took_s >= speed.fast_s:\n                return False\n",
        (ORDERS + "what_is_put_while_the_thread_falls_asleep_is_committed",),
        "an append waits until something else happens on the bookie",
    ),
    Mutant(
        "a commit on the loop overtakes a group that the loop has not heard of",
        "bookie_server/engine/commits/committer.py",
        "            if self._posted != self._told:\n",
        "            if False:\n",
        (
            "tests/bookie_server/engine/test_committer.py::"
            "test_groups_of_the_thread_and_of_the_loop_are_told_in_their_order",
        ),
        "frames are acknowledged that are not on disk, and the index names wrong places",
    ),
    Mutant(
        "the position is not recorded after commits on the loop",
        "bookie_server/engine/commits/committer.py",
        "        self._is_watched = False\n        self.queue.wake()\n",
        "        self._is_watched = False\n",
        (
            "tests/bookie_server/engine/test_committer.py::"
            "test_the_position_is_recorded_after_the_last_commit_on_the_loop",
        ),
        "damage at the end of the log is taken for a torn tail: an acked entry is denied",
    ),
    Mutant(
        "whether there is work is looked up before the lock",
        "bookie_server/engine/commits/queue.py",
        "        with self._wake:\n            while True:\n                work = None",
        "        if not (self.copies or self.frames or self._is_stopping or may_record()):\n"
        "            with self._wake:\n"
        "                self._wake.wait()\n"
        "        with self._wake:\n            while True:\n                work = None",
        (ORDERS + "what_is_put_while_the_thread_falls_asleep_is_committed",),
        "a wake-up is lost: an append waits for ever",
    ),
    Mutant(
        "a refused group does not halt the thread",
        "bookie_server/engine/commits/committer.py",
        "        except BookKeeperError as error:\n            self.queue.halt()\n            self._post",
        "        except BookKeeperError as error:\n            self._post",
        (ORDERS + "what_stands_behind_a_refused_group_is_not_written",),
        "a group behind a refused one is written although the machine gave it up: ids and answers shift",
    ),
    Mutant(
        "queued frames outlive the failure that ends them",
        "bookie_server/engine/commits/queue.py",
        "            self.frames.clear()\n            self._is_halted = not resume\n",
        "            self._is_halted = not resume\n",
        (ORDERS + "what_stands_behind_a_refused_group_is_not_written",),
        "a group that the machine has given up is written and taken for the next one",
    ),
    Mutant(
        "a final failure lets the thread go on",
        "bookie_server/engine/commits/queue.py",
        "            self._is_halted = not resume\n",
        "            self._is_halted = False\n",
        (ORDERS + "nothing_is_written_or_told_behind_a_failed_sync",),
        "a bookie whose disk failed reports failures again and again instead of one end",
    ),
    Mutant(
        "the answer is posted before the sync",
        "bookie_server/engine/commits/committer.py",
        "                places = self._writer.write(group)\n"
        "                self._posted += 1\n"
        "                self._post(self._tell, places)\n",
        "                planned = self._log.position\n"
        "                places, at = [], planned[1]\n"
        "                for frame in group.frames:\n"
        "                    places.append(Place(planned[0], at, len(frame)))\n"
        "                    at += len(frame)\n"
        "                self._posted += 1\n"
        "                self._post(self._tell, places)\n"
        "                self._writer.write(group)\n",
        BOOKIE,
        "what was acked is lost with the power",
    ),
    Mutant(
        "the position is not recorded when it gets quiet",
        "bookie_server/engine/commits/queue.py",
        "self._wake.wait(IDLE_S if unrecorded else None)",
        "self._wake.wait(None)",
        (ORDERS + "the_position_is_on_record_soon_after_the_last_group",),
        "damage at the end of the log is taken for a torn tail: an acked entry is denied",
    ),
    Mutant(
        "a stop does not record the position",
        "bookie_server/engine/commits/group_writer.py",
        "            if not self._log.failed:\n                self._log.record_position()\n",
        "            pass\n",
        (ORDERS + "a_stop_commits_what_was_put_before_it_and_records_the_position",),
        "damage at the end of the log is taken for a torn tail: an acked entry is denied",
    ),
    Mutant(
        "a reserve group is tried once only",
        "bookie_server/engine/commits/group_writer.py",
        "        except DataDirectoryError:\n            if not group.reserve:\n                raise\n"
        "            return self._log.append_group(group.frames, headers=group.headers, reserve=True)\n",
        "        except DataDirectoryError:\n            raise\n",
        ("tests/bookie_server/engine/test_committer.py",),
        "a full bookie cannot be fenced: no ledger on it can be recovered",
    ),
    Mutant(
        "an unforeseen error ends the commit thread in silence",
        "bookie_server/engine/commits/committer.py",
        '        self._post(self._failed, StorageFailedError("the commit thread failed", value=repr(error)))\n',
        "",
        (ORDERS + "an_error_that_nobody_foresaw_is_told_and_ends_all_acks",),
        "a bookie that commits nothing any more stays in the list of writable ones",
    ),
    Mutant(
        "a failure of another writer during the sync is overlooked",
        "bookie_server/storage/log/segment_log.py",
        "        self._health.check()  # no ack after another writer of this directory has failed\n",
        "",
        (ORDERS + "a_group_during_whose_sync_another_writer_of_the_directory_fails_is_not_told_durable",),
        "the bookie acks on a directory whose disk has failed",
    ),
)

ENGINE = (
    Mutant(
        "a log is told of after another one failed for good",
        "bookie_server/engine/engine.py",
        "        if self._failed:\n            return\n        self._answer(",
        "        self._answer(",
        BOOKIE,
        "the machine fails on an answer to what it has given up",
    ),
    Mutant(
        "a burst is committed although others wait to be read",
        "bookie_server/engine/engine.py",
        "        alone = self._turn is not None and self._turn.found <= 1\n",
        "        alone = True\n",
        (ENGINES + "a_burst_is_one_group_at_its_end_or_in_the_next_turn_if_more_came_in_this_one",),
        "each of many clients waits for a sync of its own",
    ),
    Mutant(
        "a second thread tells of the same failure",
        "bookie_server/engine/engine.py",
        "        if self._failed:\n            return  # another thread has reported it\n",
        "",
        BOOKIE,
        "the bookie ends twice, and the second reason hides the first",
    ),
    Mutant(
        "queued frames are dropped after the machine has heard",
        "bookie_server/engine/engine.py",
        "            self._logs[number].committer.drop(resume=True)  # last: frames that the machine adds after this "
        "are written\n"
        "        self.feed(events.CommitFailed(reason, error.what, final, number))\n",
        "        self.feed(events.CommitFailed(reason, error.what, final, number))\n"
        "        if not final:\n            self._logs[number].committer.drop(resume=True)\n",
        ("tests/bookie_server/engine/test_engine.py", *BOOKIE),
        "frames that the machine gives the log as soon as it hears of the full disk vanish unanswered",
    ),
    Mutant(
        "the other logs go on after a failed sync",
        "bookie_server/engine/engine.py",
        "        if final:\n            self._end_commits()\n",
        "        if final:\n            self._logs[number].committer.drop(resume=False)\n",
        (ENGINES + "what_waits_for_the_other_directory_is_not_written_after_a_failed_sync",),
        "a bookie that ends goes on writing what it has given up",
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
    ),
    Mutant(
        "the log is closed before maintenance has ended",
        "bookie_server/engine/log_driver.py",
        "        self._maintenance.stop()\n        try:\n            self._log.close()\n",
        "        try:\n            self._log.close()\n",
        BOOKIE,
        "a stop leaves a thread behind that writes to the next process's directory",
    ),
)

MAINTENANCE = (
    Mutant(
        "a failure of the maintenance is not told",
        "bookie_server/engine/maintenance_thread.py",
        "        except BookKeeperError as error:\n            self._post(self._failed, error)\n",
        '        except BookKeeperError as error:\n            logger.error("%s", error)\n',
        (
            "tests/bookie_server/engine/test_maintenance_thread.py::test_a_disk_that_fails_under_the_thread_is_told_once_though_nobody_appends",
        ),
        "a bookie whose disk failed stays writable until the next group",
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
    ),
)

MUTANTS: tuple[Mutant, ...] = COMMITTER + ENGINE + DRIVER + MAINTENANCE + HOP
