# SPDX-License-Identifier: Apache-2.0
"""Group ``heal``: lost copies are put back beside a writer, and what an operator waits for."""

from __future__ import annotations

from benchmarks import operating
from benchmarks.healing import BUDGET, ENTRY_BYTES, LEDGER_BYTES, LEDGERS, Apaches, Ours, drained, heals, killed
from benchmarks.measurement import Measurement, Peer
from benchmarks.peers.apache import VERSION

NEEDED_BYTES, SMALL_BYTES = 30e9, 6e9
_HELD = (
    f"one of four bookies that holds {LEDGERS:,} ledgers, {LEDGERS * LEDGER_BYTES / 1e9:g} GB in entries of "
    f"{ENTRY_BYTES} B, 3/3/2"
)
_SHARE = (
    f"its copies per second of the {BUDGET / 1e6:g} MB/s given, from the first mark to the last record that names it, "
    "and appended entries per second of those before, by four writers that wait for each ack"
)

MEASUREMENTS = (
    Measurement(
        ("lost_healed", "lost_foreground"), "%", heals(Ours, killed), wanted=(70, 80), once=True,
        note=f"{_HELD} is killed: {_SHARE}",
        peers=(
            Peer("apache", heals(Apaches, killed), (3, None),
                 note=f"Apache's AutoRecovery {VERSION}, one Auditor and one worker, no bound of bytes, on four of its "
                 "bookies, filled and written by our client; per cent of the same rate"),
        ),
    ),
    Measurement(
        ("drained_healed", "drained_foreground"), "%", heals(Ours, drained), wanted=(70, 80), once=True,
        note=f"{_HELD} is drained: {_SHARE}",
    ),
    Measurement(
        ("explain_seconds",), "s", operating.explaining, wanted=(1,), less_is_better=True, disk_bytes=SMALL_BYTES,
        note="bk ledger explain, the whole command, of a ledger one of whose three bookies hangs (SIGSTOP)",
    ),
    Measurement(
        ("bookie_list_seconds",), "s", operating.listing, wanted=(2,), less_is_better=True,
        disk_bytes=SMALL_BYTES,
        note=f"bk bookie list, the whole command, of {operating.BOOKIES} registered bookies, of which "
        f"{operating.HUNG} hang",
    ),
    Measurement(
        ("audit_seconds", "audit_megabytes"), "s, MB", operating.auditing, wanted=(60, 500), less_is_better=True,
        once=True, disk_bytes=SMALL_BYTES,
        note=f"an auditor looks at {operating.LEDGERS:,} ledgers, of which some name a bookie that is lost; seconds "
        "and the most memory of its process",
    ),
    Measurement(
        ("metrics_median", "metrics_worst"), "ms", operating.scraping, wanted=(20, None), less_is_better=True,
        disk_bytes=SMALL_BYTES,
        note=f"GET /metrics of a bookie with {operating.LEDGERS:,} ledgers, {operating.SCRAPES} times",
    ),
    Measurement(
        ("metrics_cost",), "%", operating.counting, wanted=(1,), less_is_better=True, once=True,
        disk_bytes=SMALL_BYTES,
        note="the bytecodes that count something, of an append that waits for its ack, client and bookie, times what "
        "such a bytecode takes of a processor, of what an append takes of it",
    ),
)  # fmt: skip
