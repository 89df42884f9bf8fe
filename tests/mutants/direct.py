# SPDX-License-Identifier: Apache-2.0
"""Mutants of the direct lane: its bytes, its sockets, its server."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_WIRE = "bk_core/wire/lane/direct_messages.py"
_SOCKET = "bk_core/transport/lane/message_socket.py"
_SLOTS = "bk_core/memory/slots.py"
_LINK = "bk_core/transport/lane/direct.py"
_SERVER = "bookie_server/ports/lane/direct.py"
_WIRE_TEST = "tests/wire/lane/test_direct_messages.py"
_SOCKET_TEST = "tests/transport/lane/test_message_socket.py"
_SERVER_TEST = "tests/bookie_server/ports/lane/test_direct.py"
_STREAMS_TEST = "tests/transport/lane/test_streams.py"
_CUTS = "bookie_server/storage/bytes/entry_cuts.py"
_PARTS_TEST = "tests/bookie_server/storage/log/test_part_reads.py"
_CUTS_TEST = "tests/bookie_server/storage/log/test_entry_cuts.py"
_GUARD = "tests/repo/test_hot_path.py"
_UNIX_TEST = "tests/bookie_server/ports/test_unix_socket.py"
_LINK_TEST = "tests/transport/lane/test_direct.py"
_CONTRACT = "tests/contracts/test_transport_contract.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "the direct lane takes memory for a message before it looks at its length",
        _WIRE,
        "            if frames + rest > MESSAGE_BYTES_MAX:",
        "            if frames > 1 << 40:",
        (f"{_WIRE_TEST}::test_a_message_that_is_too_long_is_refused_before_there_is_memory_for_it",),
        "a client makes a bookie allocate 8 GiB",
    ),
    Mutant(
        "the direct lane reads on while its stream is paused",
        _SERVER,
        "        wanted = self.stream.flows and not self.stream.closing and not self._waits\n",
        "        wanted = not self.stream.closing and not self._waits\n",
        (f"{_SERVER_TEST}::test_a_stream_that_is_paused_is_not_read",),
        "a client fills the bookie's memory",
    ),
    Mutant(
        "a long message is received whether or not there is room",
        _SERVER,
        "            self._waits = True\n            self._read()\n",
        "            pass\n",
        (f"{_SERVER_TEST}::test_long_messages_have_so_much_room_and_those_that_stand_still_make_place",),
        "clients fill the bookie's memory faster than anybody looks",
    ),
    Mutant(
        "an entry that was cut out of a long frame is not checked",
        _CUTS,
        "self._begin(low) or self._digests(low, high, payload) != columns[1]:\n",
        "self._begin(low):\n",
        (f"{_CUTS_TEST}::test_every_byte_that_is_used_is_checked",),
        "a bookie sends what its disk has made of an entry, and does not note the damage",
    ),
    Mutant(
        "a part of an entry that the file ends in is sent",
        _CUTS,
        "        if len(payload) != size:\n",
        "        if False:\n",
        (f"{_PARTS_TEST}::test_no_part_is_read_beyond_the_end_of_a_file",),
        "a reader takes the bytes of one column for those of another",
    ),
    Mutant(
        "parts are read from a segment that was given back",
        "bookie_server/engine/holdings.py",
        "piece.place.generation):\n        return None\n    try:\n        return reader.read_parts",
        "-1):\n        return None\n    try:\n        return reader.read_parts",
        (f"{_PARTS_TEST}::test_an_answer_has_parts_and_whole_frames_in_the_order_of_its_pieces",),
        "a reader gets bytes of another ledger",
    ),
    Mutant(
        "the columns of a long frame are not checked",
        _CUTS,
        "    if crc32c(data[FRAME_HEADER_BYTES:], crc32c(data[:CHECKED_BYTES])) != header.header_crc:\n",
        "    if False:\n",
        (f"{_CUTS_TEST}::test_every_byte_that_is_used_is_checked",),
        "a damaged length gives an entry's bytes to its neighbour",
    ),
    Mutant(
        "a long frame of another place is cut",
        _CUTS,
        "    if frame_tag(data) != placement_stamp(incarnation, place.generation, place.offset, data[52:60]):\n",
        "    if False:\n",
        (f"{_CUTS_TEST}::test_a_frame_of_another_place_is_not_cut",),
        "a write that went astray is served",
    ),
    Mutant(
        "frames of ended sessions are counted",
        "bk_core/transport/lane/streams.py",
        "            if session in self._listeners:  # otherwise the session has ended: the frame is dropped\n",
        "            if looked == MESSAGE_FRAMES_MAX:\n                break\n"
        "            if session in self._listeners:\n",
        ("tests/transport/lane/test_streams.py::test_frames_of_ended_sessions_hold_up_nobody",),
        "256 frames that nobody wants any more stop all ledgers on the way to a bookie",
    ),
)
