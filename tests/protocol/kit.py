# SPDX-License-Identifier: Apache-2.0
"""Small makers for tests of the machines: a metadata record, batches, a machine with its first effects done."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any, TypeVar

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import encode_frame
from bk_core.model import DigestType, Fragment, LedgerMetadata, LedgerState, Versioned
from bk_core.protocol.config import RecoveryConfig, WriterConfig
from bk_core.protocol.events import Append, FramesAcked, SendFrame
from bk_core.protocol.recovery import LedgerRecovery
from bk_core.protocol.writer import LedgerWrite

LEDGER = 7
E = TypeVar("E")


def digester() -> Digester:
    return Digester(DigestType.CRC32C, b"", LEDGER)


def metadata(e: int = 3, qw: int = 3, qa: int = 2, *, version: int = 0, **changes: object) -> Versioned[LedgerMetadata]:
    ensemble = tuple(f"b{i}" for i in range(e))
    values: dict[str, object] = {"fragments": (Fragment(0, ensemble),), "state": LedgerState.OPEN, **changes}
    return Versioned(LedgerMetadata(ensemble_size=e, write_quorum_size=qw, ack_quorum_size=qa, **values), version)


def batch(*payloads: bytes) -> EntryBatch:
    return EntryBatch.from_list(list(payloads))


def frame(first: int, *payloads: bytes, lac: int = -1, length_before: int = 0, session: int = 0) -> memoryview:
    """Encode a frame of the ledger's entries."""
    ids = {"ledger_id": LEDGER, "first_entry_id": first, "session": session}
    made = encode_frame(batch(*payloads), digester=digester(), lac=lac, length_before=length_before, **ids)
    return memoryview(bytes(made))


def values_frame(first: int, last: int, lac: int = -1) -> memoryview:
    """Encode a frame of entries whose payloads name their ids."""
    values = [b"value %d" % entry for entry in range(first, last + 1)]
    return frame(first, *values, lac=lac, length_before=7 * first, session=1)


def of(effects: Iterable[object], kind: type[E]) -> list[E]:
    """Return the effects of this kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def writer(*shape: int, **options: Any) -> LedgerWrite:
    made = LedgerWrite(
        LEDGER,
        metadata(*(shape or (3, 3, 2))),
        digester(),
        config=WriterConfig(**options),
        new_session=itertools.count(1).__next__,
        random=random.Random(1),
    )
    made.start()
    return made


def append(machine: LedgerWrite, *payloads: bytes) -> list[SendFrame]:
    """Append one batch; the frames it sends."""
    return of(machine.step(Append(batch(*payloads))), SendFrame)


def acked(machine: LedgerWrite, index: int, frames: int) -> list[Any]:
    """Ack frames on the lane of a bookie; the effects of that."""
    return list(machine.step(FramesAcked(index, machine.delivery.lanes[index].session, frames)))


def recovery() -> LedgerRecovery:
    return LedgerRecovery(
        digester(), config=RecoveryConfig(), new_session=itertools.count(1).__next__, random=random.Random(1)
    )
