# SPDX-License-Identifier: Apache-2.0
"""Computes write sets, the coverage of ack quorums, and the confirmed id from watermarks. It uses only integers.

Sources: protocol document "Write quorums", "Ack quorums", "Closing a ledger as a reader"; P2.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bk_core.model import BookieId, EntryId, LedgerMetadata


def write_set(entry_id: EntryId, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Return the indices in the ensemble of the bookies that store ``entry_id``, in ring order from ``entry_id mod
    E``."""
    return tuple((entry_id + i) % ensemble_size for i in range(write_quorum))


def holders(entry_id: EntryId, metadata: LedgerMetadata) -> tuple[BookieId, ...]:
    """Return the bookies that store ``entry_id``. The writer sends a LAC hint for this entry only to them (P9).

    An Apache bookie that has a LAC hint and no entry of the ledger answers READ_LAC with an error. If other bookies got
    the hint, readers could not open an open ledger of few entries. A bookie that joined in an ensemble change needs no
    earlier LAC, because the first entry id of the new fragment proves it.
    """
    ensemble = metadata.fragment_of(entry_id).ensemble
    return tuple(ensemble[at] for at in write_set(entry_id, len(ensemble), metadata.write_quorum_size))


def covers(known: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """Return whether every possible ack quorum has a member among the ``known`` indices.

    This is true if each of the E write sets has fewer than Qa unknown members, which means at least (Qw − Qa) + 1 known
    members.
    """
    for start in range(ensemble_size):
        unknown = sum(1 for i in range(write_quorum) if (start + i) % ensemble_size not in known)
        if unknown >= ack_quorum:
            return False
    return True


def negatives_needed(write_quorum: int, ack_quorum: int) -> int:
    """Return the number of members of a write set that must report an entry as absent to prove that no ack quorum has
    it."""
    return write_quorum - ack_quorum + 1


def confirmed_id(watermarks: Sequence[EntryId], write_quorum: int, ack_quorum: int, last_sent: EntryId) -> EntryId:
    """Return the highest id up to which every entry is on an ack quorum of its write set (P2), but at most
    ``last_sent``.

    Bookie ``k`` has made durable all ids up to ``watermarks[k]`` that belong to it. For each residue i modulo E let W_i
    be the Qa-th largest watermark of the write set that begins at i, and f_i the smallest id ≡ i (mod E) above W_i. All
    ids below the least f_i are confirmed.
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
