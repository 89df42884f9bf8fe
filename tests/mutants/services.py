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

MUTANTS: tuple[Mutant, ...] = (
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
