# SPDX-License-Identifier: Apache-2.0
"""Starts a bookie although data is lost: its data directory was wiped, or is older than the store's record (RULES S8).

The bookie may have acknowledged entries that such a directory does not hold. One false "no such entry" is enough for a
recovery to cut a ledger short, and a lost fence lets an old writer go on. So before the bookie serves, it durably
fences every ledger whose metadata names it, and puts the ledger in limbo: stored entries are served, all others are
UNKNOWN, and normal adds are refused. It also marks each ledger, so that auto-recovery writes the entries back from the
other copies. A closed ledger that has all its entries again answers normally, because none of its entries is UNKNOWN
then. If only some of several directories lack data (``suspects``), a ledger that is in another directory is whole
there.

Every other ledger that is closed or in recovery is fenced, too. A repair or a recovery may have replaced this bookie in
the ledger's record, and a hanging writer may still use the older record. An open ledger needs no fence here: its writer
makes every change of its last ensemble, and nobody has fenced it.

Ledgers made later lack nothing, because no bookie is registered under the id while the ledgers are listed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TypeAlias

from bk_core.entries.frame import FrameKind, encode_record
from bk_core.errors import MetadataCorruptError
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.scan import names, scan_ledgers
from bk_core.model import BookieId, LedgerId, LedgerState
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.log.segment_log import SegmentLog

logger = logging.getLogger(__name__)

_WRITERS = 16
_PART = 1024


Part: TypeAlias = tuple[LedgerIndex, SegmentLog]
"""The index and log of an open data directory."""


def distrust(store: MetadataStore, bookie_id: BookieId, parts: Sequence[Part], suspects: Collection[int] = (0,)) -> int:
    """Fence and put in limbo every ledger whose metadata names the bookie, or that a suspect directory has, unless
    another directory has it. Return their number. Fence every other ledger that may have been fenced here.

    ``suspects`` are numbers of ``parts``. If there are none, the lost data went with a directory that is not replaced.

    When this returns, all fences and limbo records are durable and in the indexes, and the ledgers are marked. Raises
    errors of the store, DataDirectoryError for a full disk, and StorageFailedError; then only some ledgers are done,
    and the call must be repeated.
    """
    naming, ended = _listed(store, bookie_id)
    homes = _homes(naming, parts, suspects)
    for number, ledger_ids in homes.items():
        mark_lacking(store, bookie_id, ledger_ids)  # first, so that no ledger is in limbo without a mark
        _note(*parts[number], ledger_ids, (FrameKind.FENCE, FrameKind.LIMBO))
    _note(*parts[min(suspects, default=0)], _unheard_of(ended, parts), (FrameKind.FENCE,))
    count = sum(map(len, homes.values()))
    logger.warning(
        "bookie %s starts with data lost: %d ledgers are fenced here and in limbo; entries of them that it does not "
        "hold are answered UNKNOWN until they are repaired from their other copies",
        bookie_id, count,
    )  # fmt: skip
    return count


def _homes(named: Iterable[LedgerId], parts: Sequence[Part], suspects: Collection[int]) -> dict[int, list[LedgerId]]:
    """Return the ledgers to put in limbo, by the number of the directory. A ledger that is in no directory goes to a
    suspect."""
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


def _unheard_of(ledger_ids: Iterable[LedgerId], parts: Sequence[Part]) -> list[LedgerId]:
    """Return those of the ledgers that no directory holds or held."""
    known = {one for index, _ in parts for one in index.ledger_ids()}
    return [one for one in ledger_ids if one not in known and not any(index.is_deleted(one) for index, _ in parts)]


def mark_lacking(store: MetadataStore, bookie_id: BookieId, ledger_ids: Sequence[LedgerId]) -> None:
    """Mark ledgers of which this bookie lacks entries, for auto-recovery. A mark that cannot be read stays as it is.
    The bookie marks such a ledger later, because it checks the ledgers that it has in limbo again and again."""

    def mark(ledger_id: LedgerId) -> None:
        with contextlib.suppress(MetadataCorruptError):  # the store has logged it (M6)
            store.mark_underreplicated(ledger_id, (bookie_id,))

    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="bookie-marks") as writers:
        for _ in writers.map(mark, ledger_ids):
            pass


def _note(
    index: LedgerIndex, segment_log: SegmentLog, ledger_ids: Sequence[LedgerId], kinds: Sequence[FrameKind]
) -> None:
    """Write a durable record of each kind for each ledger, and add it to the index."""
    for start in range(0, len(ledger_ids), _PART):
        records = list(product(ledger_ids[start : start + _PART], kinds))
        segment_log.append_group([encode_record(kind, ledger_id) for ledger_id, kind in records])
        for ledger_id, kind in records:
            index.add_record(kind, ledger_id, b"")


def ledgers_naming(store: MetadataStore, bookie_id: BookieId) -> list[LedgerId]:
    """Return every ledger that has this bookie in an ensemble, older fragments included. A ledger with unreadable
    metadata may name the bookie, so it is included. Blocks until all metadata is read; raises errors of the store."""
    return _listed(store, bookie_id)[0]


def _listed(store: MetadataStore, bookie_id: BookieId) -> tuple[list[LedgerId], list[LedgerId]]:
    """Return the ledgers that name the bookie, and those that do not and are closed or in recovery."""
    naming: list[LedgerId] = []
    ended: list[LedgerId] = []
    for number, (ledger_id, record) in enumerate(scan_ledgers(store), 1):
        if names(record, bookie_id):
            naming.append(ledger_id)
            if isinstance(record, MetadataCorruptError):
                logger.warning("ledger %d is treated as one of this bookie's: %s", ledger_id, record)
        elif not isinstance(record, MetadataCorruptError) and record.value.state is not LedgerState.OPEN:
            ended.append(ledger_id)
        if number % (64 * _PART) == 0:
            logger.info("looked at %d ledgers, %d name bookie %s", number, len(naming), bookie_id)
    return naming, ended
