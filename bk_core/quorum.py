# SPDX-License-Identifier: Apache-2.0
"""Quorum arithmetic: write sets, coverage, and the confirmed id from watermarks. Pure integers.

Sources: protocol document "Write quorums", "Ack quorums", "Closing a ledger as a reader"; P2.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bk_core.model import BookieId, EntryId, LedgerMetadata


def write_set(entry_id: EntryId, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Return the ensemble indices that hold ``entry_id``, in ring order from ``entry_id mod E``."""
    return tuple((entry_id + i) % ensemble_size for i in range(write_quorum))


def holders(entry_id: EntryId, metadata: LedgerMetadata) -> tuple[BookieId, ...]:
    """Return the bookies that hold ``entry_id``. The writer sends a LAC hint for it to these alone (P9).

    An Apache bookie that knows a LAC and has no entry of the ledger answers READ_LAC with an error. If other bookies
    got the hint, readers could not open an open ledger of few entries. A bookie that joined in an ensemble change needs
    no earlier LAC: the first entry id of the new fragment proves it.
    """
    ensemble = metadata.fragment_of(entry_id).ensemble
    return tuple(ensemble[at] for at in write_set(entry_id, len(ensemble), metadata.write_quorum_size))


def covers(known: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """Return whether every possible ack quorum has a member among the ``known`` indices.

    That is so if each of the E write sets has fewer than Qa unknown members, that is, at least (Qw − Qa) + 1 known
    ones.
    """
    for start in range(ensemble_size):
        unknown = sum(1 for i in range(write_quorum) if (start + i) % ensemble_size not in known)
        if unknown >= ack_quorum:
            return False
    return True


def negatives_needed(write_quorum: int, ack_quorum: int) -> int:
    """Return how many members of a write set must deny an entry to prove that it has no ack quorum."""
    return write_quorum - ack_quorum + 1


def confirmed_id(watermarks: Sequence[EntryId], write_quorum: int, ack_quorum: int, last_sent: EntryId) -> EntryId:
    """Return the highest id up to which every entry is on an ack quorum of its write set (P2), but at most
    ``last_sent``.

    Each bookie ``k`` has made durable all ids up to ``watermarks[k]`` that it has to hold. For each residue i of E let
    W_i be the Qa-th largest watermark of its write set, and f_i the smallest id ≡ i (mod E) above W_i. All ids below
    the least f_i are confirmed.
    """
    size = len(watermarks)
    if size == write_quorum:  # one write set: the general formula without its loop
        return min(sorted(watermarks)[size - ack_quorum], last_sent)
    least = last_sent + 1
    for residue in range(size):
        members = sorted(watermarks[(residue + i) % size] for i in range(write_quorum))
        above = members[write_quorum - ack_quorum] + 1
        least = min(least, above + (residue - above) % size)
    return least - 1
