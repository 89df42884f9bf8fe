# SPDX-License-Identifier: Apache-2.0
"""Mutants of the direct lane: its bytes, its sockets, its server."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_WIRE = "bk_core/wire/direct.py"
_SOCKET = "bk_core/transport/message_socket.py"
_SLOTS = "bk_core/transport/slots.py"
_LINK = "bk_core/transport/direct.py"
_SERVER = "bookie_server/services/direct.py"
_WIRE_TEST = "tests/wire/test_direct.py"
_SOCKET_TEST = "tests/transport/test_message_socket.py"
_SERVER_TEST = "tests/bookie_server/services/test_direct.py"
_STREAMS_TEST = "tests/transport/test_lane_streams.py"
_CUTS = "bookie_server/storage/bytes/entry_cuts.py"
_CUTS_TEST = "tests/bookie_server/storage/log/test_entry_cuts.py"
_GUARD = "tests/repo/test_hot_path.py"
_UNIX_TEST = "tests/bookie_server/services/test_unix_socket.py"
_LINK_TEST = "tests/transport/test_direct.py"
_CONTRACT = "tests/contracts/test_transport_contract.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "the direct lane takes memory for a message before it looks at its length",
        _WIRE,
        "            if frames + rest > MESSAGE_BYTES_MAX:",
        "            if frames > 1 << 40:",
        (f"{_WIRE_TEST}::test_a_message_that_is_too_long_is_refused_before_there_is_memory_for_it",),
        "a client makes a bookie allocate 8 GiB",
        rule="L5",
    ),
    Mutant(
        "the part of a long message that came with its header is dropped",
        _WIRE,
        "                self._body, self._filled = self._take(size), have - _HEAD.size",
        "                self._body, self._filled = self._take(size), 0",
        (f"{_WIRE_TEST}::test_messages_come_as_they_went_in_whatever_pieces",),
        "frames are mixed up",
    ),
    Mutant(
        "a buffer that left in part is taken for gone",
        _WIRE,
        "                self._buffers[0] = first[count:]",
        "                self._buffers.popleft()",
        (f"{_WIRE_TEST}::test_messages_come_as_they_went_in_whatever_pieces",),
        "a message is cut where the system took a part of it",
    ),
    Mutant(
        "frames are copied before they are sent",
        _WIRE,
        '        frames = [memoryview(each).cast("B") for each in message.frames]',
        "        frames = [memoryview(bytes(each)) for each in message.frames]",
        (
            f"{_WIRE_TEST}::test_frames_are_sent_from_where_they_are_and_received_into_one_buffer",
            f"{_GUARD}::test_a_frame_is_copied_no_more_often",
        ),
        "a third of the client's time",
    ),
    Mutant(
        "a slot is lent again while somebody reads it",
        _SLOTS,
        "        weakref.finalize(lent, self._give_back, memory).atexit = False\n",
        "        self._back.append(memory)\n",
        (f"{_SOCKET_TEST}::test_a_slot_is_used_again_once_nobody_refers_to_any_part_of_it",),
        "entries change in the hands of their reader",
    ),
    Mutant(
        "free slots are kept without a bound",
        _SLOTS,
        "        if self._free_bytes + len(memory) <= self._free_bytes_max:",
        "        if True:",
        (f"{_SOCKET_TEST}::test_only_so_many_free_slots_are_kept",),
        "a burst of large messages takes the memory for good",
    ),
    Mutant(
        "what waits to be sent has no bound",
        _SOCKET,
        "        while queue.bytes < _QUEUED_BYTES:",
        "        while True:",
        (f"{_SOCKET_TEST}::test_no_more_messages_are_asked_for_while_much_waits",),
        "a slow bookie's frames are queued outside the writer's window",
    ),
    Mutant(
        "a message behind one that ended the connection is given",
        _SOCKET,
        "                if self._closed:\n                    return\n",
        "",
        (f"{_SOCKET_TEST}::test_a_receiver_may_close_the_connection",),
        "answers of a connection that was given up are believed",
    ),
    Mutant(
        "the end of the other side is not noticed",
        _SOCKET,
        "            if count == 0:\n                self._end(GONE)\n                return\n",
        "",
        (f"{_SOCKET_TEST}::test_the_end_of_the_other_side_is_told_once_behind_its_last_message",),
        "a client waits for a bookie that is gone until its deadline, and the loop spins",
    ),
    Mutant(
        "an error of the receiver is told as the end of the connection",
        _LINK,
        "                ended.set_result(error or reason)",
        "                ended.set_result(reason)",
        (
            "tests/bookie_server/services/test_lane_hello.py::test_frames_for_another_bookie_are_never_stored",
            "tests/transport/test_direct.py",
        ),
        "who reached the wrong bookie is told that it is unreachable",
    ),
    Mutant(
        "the direct lane reads on while its stream is paused",
        _SERVER,
        "        wanted = self.stream.flows and not self.stream.closing and not self._waits\n",
        "        wanted = not self.stream.closing and not self._waits\n",
        (f"{_SERVER_TEST}::test_a_stream_that_is_paused_is_not_read",),
        "a client fills the bookie's memory",
        rule="L5",
    ),
    Mutant(
        "a message that does not end is waited for",
        _SOCKET,
        "            self._end(LATE)\n",
        "            pass\n",
        (
            f"{_SERVER_TEST}::test_a_message_that_does_not_end_is_given_up",
            f"{_LINK_TEST}::test_a_bookie_that_ends_no_message_is_given_up",
        ),
        "half a message holds 8 MiB for as long as its client likes",
    ),
    Mutant(
        "a client that was paused in the middle of a message is taken for one that stands still",
        _SOCKET,
        "            self._received_at = self._loop.time()  # the other side could not go on\n",
        "",
        (f"{_SOCKET_TEST}::test_who_does_not_read_waits_for_no_message",),
        "a bookie whose disk is slow cuts off honest writers",
    ),
    Mutant(
        "frames in front of an answer that has none are stepped over",
        "bk_core/transport/lane_streams.py",
        "        if frames and not self.gets_frames:",
        "        if False:",
        (f"{_LINK_TEST}::test_what_breaks_the_protocol_ends_the_connection_and_says_so",),
        "a bookie makes its client receive 8 MiB with each ack",
    ),
    Mutant(
        "a long message is received whether or not there is room",
        _SERVER,
        "            self._waits = True\n            self._read()\n",
        "            pass\n",
        (f"{_SERVER_TEST}::test_long_messages_have_so_much_room_and_those_that_stand_still_make_place",),
        "clients fill the bookie's memory faster than anybody looks",
        rule="L5",
    ),
    Mutant(
        "who waits for room waits for those that stand still",
        _SERVER,
        '                each.cut("memory is short, and nothing came on this stream")\n',
        "                pass\n",
        (f"{_SERVER_TEST}::test_long_messages_have_so_much_room_and_those_that_stand_still_make_place",),
        "32 clients that begin a message hold up all others for ten seconds, again and again",
    ),
    Mutant(
        "a client that takes nothing is waited for",
        _SERVER,
        '        self._timers.start("stall", self._clients.read_stall_s, self.stream.stall)\n',
        "",
        (f"{_SERVER_TEST}::test_a_client_that_takes_nothing_is_cut_off_and_others_read_on",),
        "four lazy readers stop all others",
    ),
    Mutant(
        "a direct connection is made room for beyond the bound",
        _SERVER,
        "        return local or len(self.opened) + greeted >= bounds.connections_max",
        "        return local",
        (f"{_SERVER_TEST}::test_no_more_clients_are_taken_than_allowed",),
        "clients take the files that storage needs",
    ),
    Mutant(
        "a stream of the direct lane is not forgotten when its client goes",
        _SERVER,
        "            self.stream.on_cut = None\n            self.stream.end()\n",
        "            self.stream.on_cut = None\n",
        (
            f"{_SERVER_TEST}::test_what_is_no_preamble_ends_the_connection",
            f"{_SERVER_TEST}::test_a_message_that_is_no_message_ends_the_connection",
        ),
        "sessions of clients that are gone hold memory",
    ),
    Mutant(
        "parts that left are not told to the machine",
        _SERVER,
        "            self._leaving = 0\n            self.stream.message_left()\n",
        "            self._leaving = 0\n",
        (
            f"{_CONTRACT}::test_answer_ends_at_the_limit_and_says_how_far_it_went",
            f"{_SERVER_TEST}::test_a_client_that_takes_nothing_is_cut_off_and_others_read_on",
        ),
        "reads stand still after the first parts",
    ),
    Mutant(
        "frames that were asked for in vain are taken for an answer",
        "bk_core/client/ranges.py",
        "            if source is not None and not source.wanted:",
        "            if False:",
        ("tests/client/test_reads_ahead.py::test_what_was_asked_ahead_in_vain_is_dropped",),
        "an answer of one bookie is taken for that of another, which is cancelled",
    ),
    Mutant(
        "nothing is asked for ahead",
        "bk_core/client/ranges.py",
        "            self._ask_ahead(effect, event)\n",
        "            pass\n",
        (
            "tests/client/test_reads_ahead.py::test_the_next_answer_is_asked_for_while_this_one_is_consumed_and_no_range_twice",
        ),
        "a bookie waits while its reader verifies",
    ),
    Mutant(
        "long frames are read into new memory each time",
        "bookie_server/storage/log/segment_reader.py",
        "        handle = self._handle(place.generation)\n        if place.size < SLOT_BYTES_MIN:\n",
        "        handle = self._handle(place.generation)\n        if True:\n",
        (
            "tests/bookie_server/storage/log/test_segment_reader.py::test_a_long_frame_is_read_into_memory_that_is_used_again",
        ),
        "a bookie spends its time on page faults",
    ),
    Mutant(
        "an entry that was cut out of a long frame is not checked",
        _CUTS,
        "        if len(payload) != self._ends[high - 1] - start or self._digests(low, high, payload) != digests:\n",
        "        if len(payload) != self._ends[high - 1] - start:\n",
        (f"{_CUTS_TEST}::test_every_byte_that_is_used_is_checked",),
        "a bookie sends what its disk has made of an entry, and does not note the damage",
        "S5",
    ),
    Mutant(
        "the columns of a long frame are not checked",
        _CUTS,
        "    if crc32c(data[FRAME_HEADER_BYTES:], crc32c(data[:CHECKED_BYTES])) != header.header_crc:\n",
        "    if False:\n",
        (f"{_CUTS_TEST}::test_every_byte_that_is_used_is_checked",),
        "a damaged length gives an entry's bytes to its neighbour",
        "S5",
    ),
    Mutant(
        "a long frame of another place is cut",
        _CUTS,
        "    if frame_tag(data) != placement_stamp(incarnation, place.generation, place.offset, data[52:60]):\n",
        "    if False:\n",
        (f"{_CUTS_TEST}::test_a_frame_of_another_place_is_not_cut",),
        "a write that went astray is served",
        "S5",
    ),
    Mutant(
        "a long frame is read whole for each of its entries",
        "bookie_server/storage/log/segment_reader.py",
        "    return place.size >= SLOT_BYTES_MIN and last - first < ENTRIES_MAX\n",
        "    return False\n",
        (f"{_CUTS_TEST}::test_one_entry_costs_the_columns_once_and_then_its_own_bytes",),
        "single reads cost a thousand times their bytes",
    ),
    Mutant(
        "the thread is asked for what memory has",
        "bookie_server/engine/log_driver.py",
        "        if isinstance(effect, events.ReadFrames) and (answer := read_at_once(self._reader, effect)):\n",
        "        if isinstance(effect, events.ReadFrames) and (answer := None):\n",
        (
            "tests/bookie_server/engine/test_engine.py::test_what_memory_has_is_read_without_the_thread_and_all_else_by_it",
        ),
        "a way to a thread and back for each single read",
    ),
    Mutant(
        "a read that goes on is too late all the same",
        "bk_core/transport/lane_streams.py",
        "            self.due = asyncio.get_running_loop().time() + self.deadline_s\n",
        "",
        (f"{_STREAMS_TEST}::test_each_read_has_its_own_deadline_which_each_part_puts_off",),
        "a long answer over a slow network is given up in the middle",
    ),
    Mutant(
        "a read waits for the deadline of another",
        "bk_core/transport/lane_streams.py",
        "            if self._look_again is None or self._look_again.when() > call.due:\n",
        "            if self._look_again is None:\n",
        (f"{_STREAMS_TEST}::test_each_read_has_its_own_deadline_which_each_part_puts_off",),
        "a read with little time waits for half a minute",
    ),
    Mutant(
        "a unix socket's name is tried on any machine",
        "bk_core/transport/same_host.py",
        "            if there and there == place():",
        "            if there:",
        (f"{_UNIX_TEST}::test_a_name_of_another_machine_or_network_is_not_tried",),
        "who listens under the name of a bookie elsewhere gets its entries",
    ),
    Mutant(
        "a client has no other way where the unix socket is not there",
        _LINK,
        "            with contextlib.suppress(OSError):  # the bookie is gone, or began anew: its port will tell\n",
        "            if True:\n",
        (f"{_UNIX_TEST}::test_any_other_client_comes_by_the_port",),
        "a bookie that began anew is unreachable until its registration is read again",
    ),
    Mutant(
        "a unix socket with a full backlog is taken for connected",
        _LINK,
        "        sock.getpeername()  # with a full backlog it is not connected, and asyncio does not notice\n",
        "",
        (f"{_UNIX_TEST}::test_a_crowded_socket_is_not_taken_for_a_connection",),
        "a burst of clients fails instead of waiting",
    ),
    Mutant(
        "clients on the bookie's machine are not bounded",
        _SERVER,
        "        return local or len(self.opened) + greeted >= bounds.connections_max",
        "        return len(self.opened) + greeted >= bounds.connections_max",
        (f"{_UNIX_TEST}::test_clients_of_this_machine_have_the_share_of_one_address",),
        "one program on the bookie's machine takes all connections",
    ),
    Mutant(
        "the bookie copies frames that it received",
        "bookie_server/services/lane_streams.py",
        "        if not rest:\n            if frames:\n",
        "        if not rest:\n            if frames:\n                frames = memoryview(bytes(frames))\n",
        (f"{_GUARD}::test_a_frame_is_copied_no_more_often",),
        "a twentieth of the bookie's time",
    ),
    Mutant(
        "a frame that was made of a single add is parsed and checked again",
        "bookie_server/services/bookie_rpc/adds.py",
        "memoryview(frame), header))",
        "memoryview(frame), None))",
        (f"{_GUARD}::test_a_single_add_takes_no_more_calls",),
        "an eighth of the calls of an add",
    ),
    Mutant(
        "the bookie copies frames that it read",
        "bookie_server/storage/log/segment_reader.py",
        "        return memoryview(data)\n",
        "        return memoryview(bytes(data))\n",
        (f"{_GUARD}::test_a_frame_is_copied_no_more_often",),
        "a twentieth of the bookie's time",
    ),
    Mutant(
        "the client copies frames that it read",
        "bk_core/transport/lane_streams.py",
        "            call.put(ReadPart(frames))\n",
        "            call.put(ReadPart(memoryview(bytes(frames))))\n",
        (f"{_GUARD}::test_a_frame_is_copied_no_more_often",),
        "a twentieth of the reader's time",
    ),
)
