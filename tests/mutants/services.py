# SPDX-License-Identifier: Apache-2.0
"""Mutants of ``bookie_server/ports``: the port, its streams, and the limits on what clients may hold."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ROOM = "tests/bookie_server/ports/bounds/test_memory_bounds.py"
_CONNECTIONS = "tests/bookie_server/ports/bounds/test_connections.py"
_STREAMS = "tests/bookie_server/ports/test_streams_end.py"
_GRPC = "bookie_server/ports/lane/grpc.py"
_CLIENTS = "bookie_server/ports/bounds/clients.py"
_CONTROL = "bookie_server/ports/lane/control_stream.py"
_HANG_UP = "bookie_server/ports/bounds/hang_up.py"

_RPC = "bookie_server/ports/bookie_rpc"
_RPC_TEST = "tests/bookie_server/ports/bookie_rpc/test_connection.py"
_RPC_SERVER = "tests/bookie_server/ports/bookie_rpc/test_server.py"

_LANES = "bookie_server/ports/lane/streams.py"
_MUCH = "tests/bookie_server/ports/lane/test_direct.py::test_a_message_that_is_much_work_ends_its_stream"
_MUCH += "_before_the_work_is_done"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "Apache's wire: adds that come together are not charged to their client",
        f"{_RPC}/connection.py",
        "if several is not None and client.pays(RequestKind.ADD, len(several[0])):",
        "if several is not None:",
        ("tests/bookie_server/ports/bounds/test_limits.py",),
        "a client sends more adds than its limit",
    ),
    Mutant(
        "Apache's wire: all adds of a large burst are a frame each",
        "bk_core/wire/bookie_rpc/connection.py",
        "        if of_ledger > LONE_ADDS_MAX:",
        "        if False:",
        ("tests/wire/bookie_rpc/test_lone_add.py", _RPC_TEST),
        "a hostile client makes a bookie offer a thousand frames again after each that is refused",
    ),
    Mutant(
        "Apache's wire: an add is acked with the frame before it",
        f"{_RPC}/adds.py",
        "            elif session.acked < frames:",
        "            elif session.acked <= frames:",
        (f"{_RPC_TEST}::test_adds_in_flight_are_refused_with_the_reason_and_durable_ones_are_acked",),
        "an acknowledged entry is not on disk",
    ),
    Mutant(
        "Apache's wire: the ack of a lone add is not counted",
        f"{_RPC}/adds.py",
        "        session.acked = frames\n",
        "",
        (f"{_RPC_TEST}::test_adds_one_at_a_time_are_acked_each_for_itself",),
        "the add behind it is acknowledged before it is on disk",
    ),
    Mutant(
        "Apache's wire: one entry that differs refuses all of its frame",
        f"{_RPC}/adds.py",
        "        rest = [] if bad.all() else [(first, np.flatnonzero(~bad))]",
        "        rest = []",
        (f"{_RPC_TEST}::test_only_entries_that_differ_from_what_stands_are_refused_and_those_behind_are_taken",),
        "adds are never answered",
    ),
    Mutant(
        "Apache's wire: an unknown entry is called absent",
        f"{_RPC}/reads.py",
        "            statuses[low:high] = int(refused_read(gap.reason) if unknown else absent)",
        "            statuses[low:high] = int(absent)",
        (f"{_RPC_TEST}::test_unknown_is_neither_absent_nor_there",),
        "a Java client's recovery closes a ledger below an acknowledged entry",
    ),
    Mutant(
        "Apache's wire: a bookie in limbo says what its last entry is",
        f"{_RPC}/reads.py",
        "    if effect.trouble:  # this bookie may have lost later entries",
        "    if False:",
        (f"{_RPC_TEST}::test_a_ledger_in_limbo_denies_nothing",),
        "a Java client's recovery trusts the end that a wiped bookie names",
    ),
    Mutant(
        "Apache's wire: a fence without a key is a plain read",
        f"{_RPC}/reads.py",
        "        if self.fences and len(read.masterKey) != LEDGER_KEY_BYTES:",
        "        if False:",
        (f"{_RPC_TEST}::test_a_fence_needs_a_key_and_the_right_one",),
        "another status than Apache's",
    ),
    Mutant(
        "Apache's wire: half a frame is not seen when memory is short",
        f"{_RPC}/server.py",
        "            connection.reading_since = self._loop.time()\n",
        "            connection.reading_since = math.inf\n",
        (f"{_RPC_SERVER}::test_a_frame_that_never_ends_costs_no_more_than_what_came",),
        "frames that never end take all memory",
    ),
)
