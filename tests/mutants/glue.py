# SPDX-License-Identifier: Apache-2.0
"""Mutants of glue that no other file of this folder has: streams, watches, drivers, registration."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LANE = "tests/transport/lane/test_streams.py::test_"
AHEAD = "tests/client/reading/test_read_ahead.py::test_"
ROOM = "tests/bookie_server/ports/bounds/test_memory_bounds.py::test_"
CLIENT_STREAMS = "bk_core/transport/lane/streams.py"

STREAMS = (
    Mutant(
        "a session is detached before its last frame",
        CLIENT_STREAMS,
        "        if not (self._frames or self._attaches):  # a session is detached only after its last frame\n"
        "            detaches, self._detaches = self._detaches, []\n",
        "        detaches, self._detaches = self._detaches, []\n",
        (LANE + "detach_leaves_behind_the_last_frame",),
        "frames that a closing writer has sent are refused",
    ),
    Mutant(
        "an ended session is not let go of",
        CLIENT_STREAMS,
        "                self.detach(end.session)\n",
        "",
        (LANE + "ended_session_is_told_once_and_its_frames_are_dropped",),
        "frames of a session that was refused go on to the bookie",
    ),
    Mutant(
        "more acks than frames are believed",
        CLIENT_STREAMS,
        "            if count > self._sent.get(session, count):\n",
        "            if False:\n",
        (LANE + "acks_of_frames_that_were_never_sent_end_the_stream",),
        "entries that no bookie has are confirmed",
    ),
)

CLIENT = (
    Mutant(
        "ranges under way are not counted",
        "bk_core/client/reading/read_ahead.py",
        "            held += wanted.bytes\n",
        "",
        (AHEAD + "what_is_under_way_is_bounded_in_bytes",),
        "a task reads more ahead than it has memory for",
    ),
    Mutant(
        "batches wait without a bound",
        "bk_core/client/reading/read_ahead.py",
        "asyncio.Queue(BATCHES_QUEUED_MAX)",
        "asyncio.Queue()",
        (AHEAD + "a_slow_consumer_holds_the_readers_back",),
        "a slow consumer fills the memory",
    ),
)

SERVER = (
    Mutant(
        "a bookie whose id was taken over goes on",
        "bookie_server/identity/availability.py",
        "                self._on_failed(error)\n                return\n",
        "                return\n",
        ("tests/bookie_server/identity/test_availability.py::test_bookie_ends_when_another_directory_took_its_id",),
        "two processes answer for one bookie",
    ),
)

MUTANTS: tuple[Mutant, ...] = STREAMS + CLIENT + SERVER
