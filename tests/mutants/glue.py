# SPDX-License-Identifier: Apache-2.0
"""Mutants of glue that no other file here has: streams, watches, drivers, registration."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LANE = "tests/transport/test_lane_streams.py::test_"
WATCHES = "tests/metadata/test_watches.py::test_"
AHEAD = "tests/client/test_ahead.py::test_"
ROOM = "tests/bookie_server/services/test_room.py::test_"
CLIENT_STREAMS, SERVER_CONTROL = "bk_core/transport/lane_streams.py", "bookie_server/services/control_stream.py"

STREAMS = (
    Mutant(
        "a session is detached before its last frame",
        CLIENT_STREAMS,
        "        if not (self._frames or self._attaches):  # a session is detached only behind its last frame\n"
        "            detaches, self._detaches = self._detaches, []\n",
        "        detaches, self._detaches = self._detaches, []\n",
        (LANE + "detach_leaves_behind_the_last_frame",),
        "frames that a closing writer has sent are refused",
        "L4",
    ),
    Mutant(
        "an ended session is not let go of",
        CLIENT_STREAMS,
        "                self.detach(end.session)\n",
        "",
        (LANE + "ended_session_is_told_once_and_its_frames_are_dropped",),
        "frames of a session that was refused go on to the bookie",
        "P1",
    ),
    Mutant(
        "more acks than frames are believed",
        CLIENT_STREAMS,
        "            if count > self._sent.get(session, count):\n",
        "            if False:\n",
        (LANE + "acks_of_frames_that_were_never_sent_end_the_stream",),
        "entries that no bookie has are confirmed",
        "P1",
    ),
    Mutant(
        "who waits for a read is not told that the stream broke",
        CLIENT_STREAMS,
        "            call.put(error)\n",
        "            pass\n",
        (LANE + "refused_and_cut_reads_raise",),
        "a read waits for its whole deadline instead of asking the next replica",
    ),
    Mutant(
        "the end of a stream is told again",
        CLIENT_STREAMS,
        "        if self.broken is None:\n            self.broken = error\n            self.lost(error)\n",
        "        self.broken = error\n        self.lost(error)\n",
        (LANE + "break_is_told_to_everybody_once",),
        "the first reason of a broken connection is hidden by the last",
    ),
    Mutant(
        "answers beyond what was asked for are kept",
        CLIENT_STREAMS,
        "            call.room -= len(frames)\n",
        "",
        (LANE + "a_bookie_that_answers_without_end_is_cut_off_and_keeps_nothing_in_memory",),
        "a bad bookie fills the client's memory",
    ),
    Mutant(
        "a read is cancelled before it is asked for",
        CLIENT_STREAMS,
        "        if not self._requests:  # a read is cancelled only after it was asked for\n"
        "            request.cancel.extend(self._cancelled)\n"
        "            self._cancelled.clear()\n",
        "        request.cancel.extend(self._cancelled)\n        self._cancelled.clear()\n",
        (LANE + "cancelled_read_says_so_after_it_was_asked",),
        "a bookie reads for nobody, and keeps a place in its turns for it",
    ),
    Mutant(
        "a call that is too late is not taken back",
        CLIENT_STREAMS,
        "            if self._calls.pop(number, None):\n                self._cancel(number)\n",
        "            self._calls.pop(number, None)\n",
        (LANE + "call_without_an_answer_ends_at_its_deadline_and_is_cancelled",),
        "watches that nobody waits for fill the bookie",
    ),
    Mutant(
        "a waiter that has gone is told of a broken stream",
        CLIENT_STREAMS,
        "            if not call.done():\n                call.set_exception(error)\n",
        "            call.set_exception(error)\n",
        (LANE + "a_call_that_was_cancelled_in_the_same_turn_keeps_nobody_from_hearing_of_the_break",),
        "one cancelled call keeps all others of the stream waiting",
    ),
    Mutant(
        "an answer for a waiter that has gone breaks the stream",
        CLIENT_STREAMS,
        "        if call and not call.done():\n            call.set_result(answer)\n",
        "        if call:\n            call.set_result(answer)\n",
        (LANE + "an_answer_for_a_call_that_was_cancelled_in_the_same_turn_is_dropped",),
        "one cancelled call breaks the stream of all others",
    ),
    Mutant(
        "a stream that ends keeps the room of its answers",
        SERVER_CONTROL,
        "        while self._answers:\n            self._next()\n",
        "",
        (ROOM + "stream_that_ends_gives_back_the_room_of_its_answers",),
        "the bookie refuses all evidence after enough clients have gone",
    ),
    Mutant(
        "answers of fences have no share of their own",
        SERVER_CONTROL,
        "self.facts.answers.refuses(fence=fence)",
        "self.facts.answers.refuses(fence=False)",
        (ROOM + "what_watches_are_told_meanwhile_is_refused_and_fences_have_a_share_of_their_own",),
        "a crowd of watches keeps ledgers from being recovered",
    ),
    Mutant(
        "answers that were taken still count",
        SERVER_CONTROL,
        "        self.waiting -= size\n        self.facts",
        "        self.facts",
        (ROOM + "control_stream_is_not_read_on_while_its_answers_wait",),
        "a stream is read no more after some megabytes of answers",
    ),
    Mutant(
        "deadlines outlive their stream",
        SERVER_CONTROL,
        "        for handle in self._deadlines.values():\n            handle.cancel()\n"
        "        self._deadlines.clear()\n",
        "",
        (ROOM + "a_stream_that_ends_takes_its_deadlines_along",),
        "timers of clients that have gone run on, and answer a stream that is no more",
    ),
    Mutant(
        "a part that was cancelled is never counted as sent",
        "bookie_server/services/lane_streams.py",
        "                self.engine.feed(events.PartSent(answer.request))\n",
        "                pass\n",
        (ROOM + "a_cancelled_read_gives_back_its_turn",),
        "each read that a client gives up keeps a turn: after some of them the bookie answers no read",
    ),
)

METADATA = (
    Mutant(
        "a job is put and the worker not woken",
        "bk_core/metadata/worker.py",
        "                self._thread = thread\n            self._changed.notify()\n",
        "                self._thread = thread\n",
        (WATCHES + "listener_that_comes_later_hears_only_of_what_is_new_to_it",),
        "changes of the metadata are heard of late or never",
    ),
    Mutant(
        "a callback that fails ends the worker",
        "bk_core/metadata/worker.py",
        '                logger.exception("a callback of the metadata store failed")\n',
        "                return\n",
        (WATCHES + "worker_runs_jobs_at_their_time_and_survives_a_failing_one",),
        "after one bad callback no watch of the process is told anything",
    ),
    Mutant(
        "the worker waits for itself",
        "bk_core/metadata/worker.py",
        "        if thread is not None and thread is not threading.current_thread():\n",
        "        if thread is not None:\n",
        (WATCHES + "worker_can_be_stopped_by_its_own_job",),
        "a store that is closed by a callback raises instead",
    ),
    Mutant(
        "who knows the state already is told again",
        "bk_core/metadata/tree/watches.py",
        " if entry[1] != node.snapshot]",
        "]",
        (WATCHES + "a_watch_has_one_read_in_the_queue_however_many_events_there_were",),
        "listeners act twice on one change",
    ),
    Mutant(
        "a watch counts as set only after reading",
        "bk_core/metadata/tree/watches.py",
        "        with self._lock:\n"
        "            node.armed = True  # before reading: an event from here on needs another read\n"
        "        try:\n            node.snapshot = node.read(self._tree, node.path, lambda: self._fired(node))\n",
        "        try:\n            node.snapshot = node.read(self._tree, node.path, lambda: self._fired(node))\n"
        "            with self._lock:\n                node.armed = True\n",
        (),
        "an event between is lost",
        equivalent="an event queues a read, and that reads whatever the flag says; the flag only saves others a read",
    ),
    Mutant(
        "snapshots are read side by side",
        "bk_core/metadata/tree/watches.py",
        "    def _reread(self, node: _Node) -> None:\n        with node.reading:\n",
        "    def _reread(self, node: _Node) -> None:\n        with threading.Lock():\n",
        ("tests/sim/threads/test_watch_threads.py::test_who_listens_is_told_the_last_state_whatever_the_order",),
        "an older state overwrites a newer one",
    ),
    Mutant(
        "an outage ends a watch",
        "bk_core/metadata/tree/watches.py",
        "                self._reread_later(node, _RETRY_S)\n                return\n",
        "                return\n",
        (WATCHES + "watch_that_cannot_be_set_again_is_tried_until_it_can",),
        "after a restart of ZooKeeper a client sees no change any more",
    ),
    Mutant(
        "each event queues a read of its own",
        "bk_core/metadata/tree/watches.py",
        "            if node.queued:\n                return\n            node.queued = True\n",
        "            node.queued = True\n",
        (WATCHES + "a_watch_has_one_read_in_the_queue_however_many_events_there_were",),
        "the queue of the worker has no bound",
    ),
)

CLIENT = (
    Mutant(
        "a driver that stops leaves its tasks",
        "bk_core/client/driver.py",
        "        for task in tuple(self._tasks):\n            task.cancel()\n",
        "",
        ("tests/client/test_driver.py::test_what_a_driver_began_ends_with_it",),
        "tasks of a closed handle go on asking bookies and the store",
    ),
    Mutant(
        "a driver that stops leaves its timers",
        "bk_core/client/driver.py",
        "        for timer in self._timers.values():\n            timer.drop()\n",
        "",
        ("tests/client/test_driver.py::test_what_a_driver_began_ends_with_it",),
        "a closed handle is kept in memory until its longest timer fires",
    ),
    Mutant(
        "a task that fails is not told",
        "bk_core/client/driver.py",
        "        if isinstance(error, Exception):\n            self._crash(error)\n",
        "",
        ("tests/client/test_driver.py::test_a_task_that_fails_ends_the_driver_and_is_told",),
        "who waits for what the task was to bring waits for ever",
    ),
    Mutant(
        "a bug in a machine ends nobody's wait",
        "bk_core/client/driver.py",
        "        except Exception as error:\n            self._crash(error)\n",
        "        except Exception:\n            pass\n",
        (
            "tests/client/test_write_and_read.py::test_a_machine_that_is_fed_the_impossible_ends_its_writer_and_its_sessions",
        ),
        "a writer whose machine broke hangs",
    ),
    Mutant(
        "a handle that stops leaves its sessions",
        "bk_core/client/driver.py",
        "        while self._last_acts:\n            self._last_acts.pop()()\n",
        "        self._last_acts.clear()\n",
        (
            "tests/client/test_write_and_read.py::test_a_writer_abandoned_inside_its_block_leaves_it_quietly_and_its_sessions_end",
        ),
        "frames of an abandoned writer are sent again after a reconnect",
    ),
    Mutant(
        "an event that arises meanwhile is not put off",
        "bk_core/client/driver.py",
        "        if self._running or self._events:\n",
        "        if False:\n",
        ("tests/client/test_driver.py::test_an_event_that_arises_while_effects_are_carried_out_waits_its_turn",),
        "a machine is entered again in the middle of a step",
    ),
    Mutant(
        "a timer that is brought forward fires when it was first to do so",
        "bk_core/client/agenda.py",
        "        if self._place is None or self._place > due:\n",
        "        if self._place is None:\n",
        ("tests/client/test_driver.py::test_a_timer_fires_when_it_was_last_told_to_and_not_once_it_is_cancelled",),
        "a deadline fires late",
    ),
    Mutant(
        "an interrupt drops what waits for the end of the turn",
        "bk_core/client/agenda.py",
        "            if acts:  # an interrupt\n",
        "            if False:\n",
        ("tests/client/test_agenda.py::test_an_interrupt_leaves_the_other_acts_and_timers_for_the_next_turn",),
        "writers that waited for the end of the turn send nothing more",
    ),
    Mutant(
        "a timer that was put off fires when it was first to do so",
        "bk_core/client/agenda.py",
        "        if due > place:\n",
        "        if False:\n",
        ("tests/client/test_driver.py::test_a_timer_fires_when_it_was_last_told_to_and_not_once_it_is_cancelled",),
        "a deadline fires early, and a bookie that answers is replaced",
    ),
    Mutant(
        "ranges under way are not counted",
        "bk_core/client/ahead.py",
        "            held += wanted.bytes\n",
        "",
        (AHEAD + "what_is_under_way_is_bounded_in_bytes",),
        "a task reads more ahead than it has memory for",
        "K5",
    ),
    Mutant(
        "an error comes before what stands before it",
        "bk_core/client/ahead.py",
        "                if not taken:\n                    raise item\n",
        "                raise item\n",
        (AHEAD + "an_error_comes_after_all_that_stands_before_it",),
        "entries that were read are thrown away",
    ),
    Mutant(
        "ranges that were begun go on after the consumer has gone",
        "bk_core/client/ahead.py",
        "        self._task.cancel()\n        await asyncio.gather(self._task, return_exceptions=True)\n",
        "        pass\n",
        (AHEAD + "a_consumer_that_stops_early_leaves_nothing_running",),
        "a limit(10) reads on in the background",
    ),
    Mutant(
        "batches wait without a bound",
        "bk_core/client/ahead.py",
        "asyncio.Queue(BATCHES_QUEUED_MAX)",
        "asyncio.Queue()",
        (AHEAD + "a_slow_consumer_holds_the_readers_back",),
        "a slow consumer fills the memory",
        "K5",
    ),
    Mutant(
        "a bookie with another address is not told of a deletion again",
        "bk_core/client/deletion.py",
        "                    await self._refresh()\n"
        "                    await self._tell_all({bookie: of_bookie[bookie] for bookie in untold}, untold)\n",
        "                    await self._refresh()\n",
        ("tests/client/test_deletion.py::test_a_bookie_that_has_moved_is_told_once_its_new_address_is_known",),
        "space comes back a day late where a bookie has moved",
    ),
    Mutant(
        "a bookie that did not hear is told at each deletion",
        "bk_core/client/deletion.py",
        "            self._silent.note(untold, self._pause_s)\n",
        "",
        ("tests/client/test_deletion.py",),
        "deleting a thousand ledgers waits a thousand times for one dead bookie",
    ),
    Mutant(
        "a store that opens for somebody who has gone stays open",
        "bk_core/client/bookkeeper.py",
        "        if given_up:\n            store.close()\n",
        "",
        ("tests/client/test_cancelled_connections.py",),
        "a session renews itself as long as the process lives",
    ),
)

SERVER = (
    Mutant(
        "a registration counts as made before it is",
        "bookie_server/identity/availability.py",
        "        await asyncio.to_thread(self._store.register_bookie, self._info, read_only=read_only)\n"
        "        self._registered = read_only\n",
        "        self._registered = read_only\n"
        "        await asyncio.to_thread(self._store.register_bookie, self._info, read_only=read_only)\n",
        ("tests/bookie_server/identity/test_availability.py::test_registration_follows_when_the_store_is_back",),
        "one registration that fails leaves a full bookie among the writable ones",
    ),
    Mutant(
        "a commit without space waits for the next look",
        "bookie_server/identity/availability.py",
        "        if self._watches[log_number].no_space():\n            self._apply()\n",
        "        self._watches[log_number].no_space()\n",
        (
            "tests/bookie_server/identity/test_availability.py::test_commit_without_space_makes_the_bookie_read_only_at_once",
        ),
        "a full bookie takes and refuses entries until the next interval",
    ),
    Mutant(
        "a bookie whose id was taken over goes on",
        "bookie_server/identity/availability.py",
        "                self._on_failed(error)\n                return\n",
        "                return\n",
        ("tests/bookie_server/identity/test_availability.py::test_bookie_ends_when_another_directory_took_its_id",),
        "two processes answer for one bookie",
        "S8",
    ),
)

MUTANTS: tuple[Mutant, ...] = STREAMS + METADATA + CLIENT + SERVER
