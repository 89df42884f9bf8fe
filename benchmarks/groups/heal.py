# SPDX-License-Identifier: Apache-2.0
"""Group ``heal``: auto-recovery restores lost copies while writers append."""

from __future__ import annotations

from benchmarks.groups.healing import BUDGET, ENTRY_BYTES, LEDGER_BYTES, LEDGERS, Apaches, Ours, drained, heals, killed
from benchmarks.measurement import Measurement, Peer
from benchmarks.peers.apache import VERSION

NEEDED_BYTES = 30e9
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
)  # fmt: skip
