# SPDX-License-Identifier: Apache-2.0
"""Append, read, tail and take over, with the blocking client: ``python -m examples.append_and_read URI``."""

from __future__ import annotations

import sys

import pyarrow as pa

from bk_core.blocking import connect
from bk_core.entries.batch import EntryBatch
from bk_core.errors import LedgerFencedError


def main(uri: str) -> None:
    with connect(uri) as bookkeeper:
        ledger = bookkeeper.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, password=b"secret")
        ledger.append(b"first")  # returns when two bookies have it on disk
        column = pa.array([b"second", b"third"])  # an Arrow column is sent without conversion
        ledger.wait_confirmed(ledger.append_batch(EntryBatch.from_arrow(column)))

        tail = bookkeeper.open_ledger(ledger.ledger_id, recover=False, password=b"secret")  # never disturbs the writer
        tail.wait_lac(above=1, timeout_s=5)
        for batch in tail.read(0, tail.last_add_confirmed):
            print("read to the LAC:", batch.to_list())

        sealed = bookkeeper.open_ledger(
            ledger.ledger_id, recover=True, password=b"secret"
        )  # takes over: fences, closes
        try:
            ledger.append(b"too late")
        except LedgerFencedError as error:
            print("the old writer gets:", error)
        for batch in sealed.read(0, sealed.last_add_confirmed):
            print("the sealed ledger holds:", batch.to_list())


if __name__ == "__main__":
    main(*sys.argv[1:])
