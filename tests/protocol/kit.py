# SPDX-License-Identifier: Apache-2.0
"""Small makers for tests of the machines: a metadata record, batches, a machine with its first effects done."""

from __future__ import annotations

import itertools
import random

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.model import DigestType, Fragment, LedgerMetadata, LedgerState, Versioned
from bk_core.protocol.config import RecoveryConfig, WriterConfig
from bk_core.protocol.events import Append, SendFrame
from bk_core.protocol.recovery import LedgerRecovery
from bk_core.protocol.writer import LedgerWrite

LEDGER = 7


def digester() -> Digester:
    return Digester(DigestType.CRC32C, b"", LEDGER)


def metadata(e: int = 3, qw: int = 3, qa: int = 2, *, version: int = 0, **changes: object) -> Versioned[LedgerMetadata]:
    ensemble = tuple(f"b{i}" for i in range(e))
    values: dict[str, object] = {"fragments": (Fragment(0, ensemble),), "state": LedgerState.OPEN, **changes}
    return Versioned(
        LedgerMetadata(ensemble_size=e, write_quorum_size=qw, ack_quorum_size=qa, **values),
        version,
    )


def batch(*payloads: bytes) -> EntryBatch:
    return EntryBatch.from_list(list(payloads))


def writer(e: int = 3, qw: int = 3, qa: int = 2) -> LedgerWrite:
    made = LedgerWrite(
        LEDGER,
        metadata(e, qw, qa),
        digester(),
        config=WriterConfig(),
        new_session=itertools.count(1).__next__,
        random=random.Random(1),
    )
    made.start()
    return made


def append(machine: LedgerWrite, *payloads: bytes) -> list[SendFrame]:
    """Append one batch; the frames it sends."""
    return [effect for effect in machine.step(Append(batch(*payloads))) if isinstance(effect, SendFrame)]


def recovery() -> LedgerRecovery:
    return LedgerRecovery(
        digester(), config=RecoveryConfig(), new_session=itertools.count(1).__next__, random=random.Random(1)
    )
