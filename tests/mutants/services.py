# SPDX-License-Identifier: Apache-2.0
"""Mutants of ``bookie_server/services``: the port, its streams, what clients may hold."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ROOM = "tests/bookie_server/services/test_room.py"
_CONNECTIONS = "tests/bookie_server/services/test_connections.py"
_STREAMS = "tests/bookie_server/services/test_streams_end.py"
_GRPC = "bookie_server/services/grpc.py"
_CLIENTS = "bookie_server/services/clients.py"
_CONTROL = "bookie_server/services/control_stream.py"
_HANG_UP = "bookie_server/services/hang_up.py"

_RPC = "bookie_server/services/bookie_rpc"
_RPC_TEST = "tests/bookie_server/services/bookie_rpc/test_connection.py"
_RPC_SERVER = "tests/bookie_server/services/bookie_rpc/test_server.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "Apache's wire: an add is acked with the frame before it",
        f"{_RPC}/adds.py",
        "            elif session.acked < frames:",
        "            elif session.acked <= frames:",
        (f"{_RPC_TEST}::test_adds_in_flight_are_refused_with_the_reason_and_durable_ones_are_acked",),
        "an acknowledged entry is not on disk",
        rule="P1",
    ),
    Mutant(
        "Apache's wire: the ids of a request are taken for those of its entry",
        f"{_RPC}/adds.py",
        "        bad = (headers[:, 0] != ledgers) | (headers[:, 1] != ids) | (ids < 0) | (ids > LEDGER_ID_MAX)",
        "        bad = (headers[:, 0] != ledgers) | (ids < 0) | (ids > LEDGER_ID_MAX)",
        (f"{_RPC_TEST}::test_an_add_that_cannot_be_is_refused_alone",),
        "a client hears that entry 3 is stored, and entry 4 is",
    ),
    Mutant(
        "Apache's wire: one entry that differs refuses all of its frame",
        f"{_RPC}/adds.py",
        "        rest = [] if bad.all() else [(first, np.flatnonzero(~bad))]",
        "        rest = []",
        (f"{_RPC_TEST}::test_only_entries_that_differ_from_what_stands_are_refused_and_those_behind_are_taken",),
        "adds are never answered",
        rule="P6",
    ),
    Mutant(
        "Apache's wire: a force does not wait for the adds before it",
        f"{_RPC}/adds.py",
        "        if not waited:",
        "        if True:",
        (f"{_RPC_TEST}::test_a_force_waits_for_the_adds_before_it_of_its_ledger_alone",),
        "a force is confirmed while entries before it are not on disk",
    ),
    Mutant(
        "Apache's wire: an unknown entry is called absent",
        f"{_RPC}/reads.py",
        "            statuses[low:high] = int(refused_read(gap.reason) if unknown else absent)",
        "            statuses[low:high] = int(absent)",
        (f"{_RPC_TEST}::test_unknown_is_neither_absent_nor_there",),
        "a Java client's recovery closes a ledger below an acknowledged entry",
        rule="MUST4",
    ),
    Mutant(
        "Apache's wire: a bookie in limbo says what its last entry is",
        f"{_RPC}/reads.py",
        "    if effect.trouble:  # what is the last entry here may not have been the last one",
        "    if False:",
        (f"{_RPC_TEST}::test_a_ledger_in_limbo_denies_nothing",),
        "a Java client's recovery trusts the end that a wiped bookie names",
        rule="S8",
    ),
    Mutant(
        "Apache's wire: a fence without a key is a plain read",
        f"{_RPC}/reads.py",
        "        if self.fences and len(read.masterKey) != LEDGER_KEY_BYTES:",
        "        if False:",
        (f"{_RPC_TEST}::test_a_fence_needs_a_key_and_the_right_one",),
        "another status than Apache's",
        rule="L2",
    ),
    Mutant(
        "Apache's wire: a batch read goes beyond what its client takes",
        f"{_RPC}/reads.py",
        '        fits = int(sizes.cumsum().searchsorted(self._room, side="right"))',
        "        fits = int(at.size)",
        (f"{_RPC_TEST}::test_batch_reads_are_bounded_by_count_and_size_and_have_at_least_one_entry",),
        "an answer larger than a frame may be breaks the connection",
    ),
    Mutant(
        "Apache's wire: a client that takes nothing is read on",
        f"{_RPC}/server.py",
        "        wanted = self._writable and self.connection.flows",
        "        wanted = self.connection.flows",
        (f"{_RPC_SERVER}::test_a_client_that_takes_nothing_is_not_read_and_is_cut_off_when_others_wait",),
        "one client fills the memory of the bookie with answers",
    ),
    Mutant(
        "Apache's wire: half a frame is not seen when memory is short",
        f"{_RPC}/server.py",
        "        connection.reading_since = self._loop.time() if self._have else math.inf",
        "        connection.reading_since = math.inf",
        (f"{_RPC_SERVER}::test_a_frame_that_never_ends_costs_no_more_than_what_came",),
        "frames that never end take all memory",
        rule="L5",
    ),
    Mutant(
        "Apache's wire: who says nothing keeps its connection",
        f"{_RPC}/server.py",
        "        if not self.connection.taken:",
        "        if False:",
        (f"{_RPC_SERVER}::test_who_says_nothing_is_cut_off_and_who_has_spoken_is_not",),
        "connections are taken by clients that never speak",
    ),
    Mutant(
        "an exception that ends a stream is swallowed",
        _GRPC,
        "        for error in bugs:\n",
        "        for error in bugs[:0]:\n",
        (f"{_CONNECTIONS}::test_an_exception_that_ends_a_stream_is_in_the_log_and_told_to_the_client",),
        "writers break again and again, and nothing says why",
    ),
    Mutant(
        "a client is not told that the bookie failed",
        _GRPC,
        "        if bugs:\n            await context.abort(",
        "        if bugs and late:\n            await context.abort(",
        (f"{_CONNECTIONS}::test_an_exception_that_ends_a_stream_is_in_the_log_and_told_to_the_client",),
        "the client takes it for a bookie that stops",
    ),
    Mutant(
        "connections beyond an address's share are counted and kept",
        _CLIENTS,
        "                    shut_down(set(excess))",
        "                    pass",
        (f"{_CONNECTIONS}::test_one_address_does_not_keep_others_out",),
        "one host takes all connections of a bookie",
    ),
    Mutant(
        "a service that never served keeps its port",
        _GRPC,
        "        if not self._started:",
        "        if False:",
        ("tests/bookie_server/test_wiring.py::test_a_service_without_its_port_leaves_nothing_of_the_others_behind",),
        "a start that tries again because the metadata store was away finds its own port in use",
    ),
    Mutant(
        "each service has the bound of all for itself",
        "bookie_server/services/connections.py",
        "        return excess + beyond",
        "        return excess",
        (f"{_CONNECTIONS}::test_the_newest_of_several_services_beyond_the_bound_of_all_together_end",),
        "two services take twice the connections, and the files that storage needs",
    ),
    Mutant(
        "two bookies share a port",
        _GRPC,
        '    ("grpc.so_reuseport", 0),',
        '    ("grpc.so_reuseport", 1),',
        (f"{_CONNECTIONS}::test_two_bookies_do_not_share_a_port",),
        "half of a bookie's clients reach another one",
    ),
    Mutant(
        "a client that opens a stream and says nothing is kept",
        _GRPC,
        "        async with asyncio.timeout(HELLO_TIMEOUT_S):",
        "        async with asyncio.timeout(None):",
        (f"{_STREAMS}::test_a_client_that_opens_a_stream_and_says_nothing_is_cut_off",),
        "streams are taken by clients that never speak",
    ),
    Mutant(
        "a stream that is gone is still known to the engine",
        "bookie_server/services/lane_streams.py",
        '        self.engine.close_stream(self.stream)\n        self.close("the stream ended")',
        '        self.close("the stream ended")',
        (f"{_STREAMS}::test_a_stream_that_ended_is_forgotten",),
        "each client that comes and goes leaves memory behind",
    ),
    Mutant(
        "silent streams are remembered when they are gone",
        _GRPC,
        "            self._clients.streams.discard(stream)\n",
        "",
        (f"{_STREAMS}::test_a_stream_that_ended_is_forgotten",),
        "each client that comes and goes leaves memory behind",
    ),
    Mutant(
        "a call that was given up is carried out to its end",
        _CONTROL,
        "            self._finish(request)\n"
        "            self.engine.feed(events.RequestCancelled((self.stream, request)))\n",
        "            self._finish(request)\n",
        (f"{_STREAMS}::test_a_call_whose_deadline_passed_is_answered_and_given_up",),
        "calls that nobody waits for pile up in the bookie",
    ),
    Mutant(
        "an answered call is answered again at its deadline",
        _CONTROL,
        "        handle = self._deadlines.pop(request, None)\n",
        "        handle = None\n",
        (f"{_STREAMS}::test_a_call_that_was_answered_is_not_answered_again_at_its_deadline",),
        "answers that nobody waits for, and timers until each deadline",
    ),
    Mutant(
        "a fence keeps its share of the answers after it was answered",
        _CONTROL,
        "        self._fences.discard(request)\n",
        "",
        (f"{_STREAMS}::test_a_number_that_was_a_fences_is_no_fence_when_it_comes_again",),
        "ids of fences are kept for the life of a stream",
    ),
    Mutant(
        "a connection to another port is ended",
        _HANG_UP,
        "        if address in addresses:",
        "        if address[:2] in {each[:2] for each in addresses}:",
        (f"{_ROOM}::test_hang_up_knows_connections_from_one_port_to_several",),
        "a slow reader of one bookie loses its connection to another",
    ),
    Mutant(
        "connections to other ports are counted",
        _HANG_UP,
        " for _, address in _connections() if address[2] in ports]",
        " for _, address in _connections()]",
        (f"{_ROOM}::test_only_connections_to_the_ports_that_are_asked_for_are_counted",),
        "a bookie ends its own session with the metadata store",
    ),
    Mutant(
        "a client on a dual-stack socket is not recognised",
        _HANG_UP,
        '    return host.removeprefix("::ffff:").partition("%")[0]',
        '    return host.partition("%")[0]',
        (f"{_ROOM}::test_hang_up_finds_an_ipv4_client_of_a_port_that_listens_on_ipv6",),
        "a client that takes nothing keeps its connection, and the memory of what is on its way",
    ),
    Mutant(
        "memory that was shed is asked for again at once",
        "bookie_server/services/room.py",
        "        self._threshold = max(self._bytes_max, resident_bytes + _GROWTH)",
        "        self._threshold = self._bytes_max",
        (f"{_ROOM}::test_memory_watch_sheds_above_its_bound_and_not_for_what_stays_taken",),
        "idle clients of a busy bookie are cut off four times a second",
    ),
)
