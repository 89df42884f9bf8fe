# SPDX-License-Identifier: Apache-2.0
"""Starts a bookie although data is lost: its data directory was wiped, or is older than the store knows (RULES S8).

The bookie may have acknowledged entries that such a directory does not hold. One false "no such entry" is enough for a
recovery to cut a ledger short, and a lost fence lets an old writer go on. So before the bookie serves, every ledger
whose metadata names it is fenced and put in limbo, durably: stored entries are served, all others are UNKNOWN, and no
writer adds. Each is marked, so that auto-recovery writes the entries back from the other copies; a closed ledger that
has all of them again answers as before. If only some of several directories lack
data (``suspects``), a ledger that is in one of the others is whole there.

Ledgers made later lack nothing, because no bookie is registered under the id while the ledgers are listed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TypeAlias

from bk_core.entries.frame import FrameKind, encode_record
from bk_core.errors import MetadataCorruptError
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.scan import names, scan_ledgers
from bk_core.model import BookieId, LedgerId
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.log.segment_log import SegmentLog

logger = logging.getLogger(__name__)

_WRITERS = 16
_PART = 1024


Part: TypeAlias = tuple[LedgerIndex, SegmentLog]
"""The index and log of an open data directory."""


def distrust(store: MetadataStore, bookie_id: BookieId, parts: Sequence[Part], suspects: Collection[int] = (0,)) -> int:
    """Fence and put in limbo every ledger that the store's metadata or a suspect directory names, unless another
    directory has it; returns how many there are.

    ``suspects`` are numbers of ``parts``. If there are none, the lost data went with its directory.

    All of this is durable, marked and in the indexes when this returns. Raises errors of the store, DataDirectoryError
    for a full disk, and StorageFailedError; then only some ledgers are done, and the whole must be repeated.
    """
    homes = _homes(ledgers_naming(store, bookie_id), parts, suspects)
    for number, ledger_ids in homes.items():
        mark_lacking(store, bookie_id, ledger_ids)  # first, because nobody would do it later
        _put_in_limbo(*parts[number], ledger_ids)
    count = sum(map(len, homes.values()))
    logger.warning(
        "bookie %s starts with data lost: %d ledgers are fenced here and in limbo; what this directory does not hold "
        "of them is answered UNKNOWN until they are repaired from their other copies",
        bookie_id, count,
    )  # fmt: skip
    return count


def _homes(named: Iterable[LedgerId], parts: Sequence[Part], suspects: Collection[int]) -> dict[int, list[LedgerId]]:
    """Which ledgers to put in limbo in which directory. A ledger that is in none goes to a suspect."""
    found: dict[LedgerId, int] = {}
    for number, (index, _) in enumerate(parts):
        found |= dict.fromkeys(index.ledger_ids(), number)
    homes: dict[int, list[LedgerId]] = {number: [] for number in range(len(parts))}
    for ledger_id in sorted({*named, *(one for one, number in found.items() if number in suspects)}):
        home = found.get(ledger_id)
        if home is None and any(index.is_deleted(ledger_id) for index, _ in parts):
            continue
        if home is None or home in suspects:
            homes[min(suspects, default=0) if home is None else home].append(ledger_id)
    return homes


def mark_lacking(store: MetadataStore, bookie_id: BookieId, ledger_ids: Sequence[LedgerId]) -> None:
    """Tells auto-recovery that this bookie lacks entries of these ledgers."""
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="bookie-marks") as writers:
        for _ in writers.map(lambda ledger_id: store.mark_underreplicated(ledger_id, (bookie_id,)), ledger_ids):
            pass


def _put_in_limbo(index: LedgerIndex, segment_log: SegmentLog, ledger_ids: Sequence[LedgerId]) -> None:
    for start in range(0, len(ledger_ids), _PART):
        records = list(product(ledger_ids[start : start + _PART], (FrameKind.FENCE, FrameKind.LIMBO)))
        segment_log.append_group([encode_record(kind, ledger_id) for ledger_id, kind in records])
        for ledger_id, kind in records:
            index.add_record(kind, ledger_id, b"")


def ledgers_naming(store: MetadataStore, bookie_id: BookieId) -> list[LedgerId]:
    """Every ledger that has this bookie in an ensemble, older fragments included. A ledger with unreadable metadata may
    name the bookie, so it is included. Blocks until all metadata is read; raises errors of the store."""

    found: list[LedgerId] = []
    for number, (ledger_id, record) in enumerate(scan_ledgers(store), 1):
        if names(record, bookie_id):
            found.append(ledger_id)
            if isinstance(record, MetadataCorruptError):
                logger.warning("ledger %d is taken for one of this bookie's: %s", ledger_id, record)
        if number % (64 * _PART) == 0:
            logger.info("looked at %d ledgers, %d name bookie %s", number, len(found), bookie_id)
    return found
