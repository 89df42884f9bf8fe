# SPDX-License-Identifier: Apache-2.0
"""Makes ``checkpoint.bin``: a checkpoint with a ledger of every kind of state, two blocks of ledgers, and the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bookie_server.storage.index.checkpoint import Checkpoint
from bookie_server.storage.index.ledger_table import FENCED, HAS_KEY, KEY_CONFLICT, LEDGER_ROW, NO_ABSENT, NO_ADDS
from tests.kit.whole_files import encode_checkpoint

HERE = Path(__file__).parent
INCARNATION = bytes(range(15, -1, -1))
EVERY_LEDGER = (1 << 63) - 1


def golden_checkpoint() -> Checkpoint:
    rows = np.zeros(54, LEDGER_ROW)
    rows["ledger"] = [*range(17, 17 + 50), 4294967313, 4294967314, 4294967315, EVERY_LEDGER]
    rows["flags"][:50] = HAS_KEY
    rows["key"][:50] = np.frombuffer(bytes(k for k in range(50) for _ in range(20)), "V20")
    rows["flags"][1] |= FENCED
    rows["flags"][2] |= KEY_CONFLICT
    lac_body = bytes(range(100, 120)).ljust(40, b"\0")
    rows["lac_bytes"][3] = 20
    rows["lac_body"][3] = np.void(lac_body)
    rows["flags"][50:] = [NO_ABSENT | NO_ADDS, FENCED | NO_ABSENT, NO_ABSENT | NO_ADDS, NO_ABSENT | NO_ADDS]
    rows["dropped"][51:53] = [0x4566, 7]
    deleted = np.array([[0, 16], [70, 70], [1000, 4294967312]], np.int64)
    return Checkpoint(0x1234, INCARNATION, 0x4567, rows, deleted, (2, 3, 0x4500, 0x4567))


def main() -> None:
    (HERE / "checkpoint.bin").write_bytes(encode_checkpoint(golden_checkpoint()))


if __name__ == "__main__":
    main()
