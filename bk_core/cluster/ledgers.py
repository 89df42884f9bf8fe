# SPDX-License-Identifier: Apache-2.0
"""Returns the records of ledgers as JSON, lists ledgers in parts, and counts the copies of a ledger that are readable
now."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from bk_core.cluster.payloads import payload_json
from bk_core.errors import MetadataCorruptError, NoSuchLedgerError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, Fragment, LedgerId, LedgerMetadata, Versioned
from bk_core.quorum import write_set

LOOKED_AT_MAX = 5_000
"""The maximum number of records that are read for one part of the list, because wanted ledgers may be rare."""
ANSWERS = ("writable", "read-only", "draining")
"""The states in which a bookie answers reads."""


def as_object(ledger_id: LedgerId, found: Versioned[LedgerMetadata]) -> dict[str, object]:
    """Return the object that ``bk ledger show --json`` prints for a ledger."""
    value = found.value
    return {
        "ledgerId": ledger_id,
        "state": value.state.name,
        "ensembleSize": value.ensemble_size,
        "writeQuorumSize": value.write_quorum_size,
        "ackQuorumSize": value.ack_quorum_size,
        "digestType": value.digest_type.name if value.digest_type else None,
        "lastEntryId": value.last_entry_id if value.is_closed else None,
        "length": value.length if value.is_closed else None,
        "ctimeMs": value.ctime_ms,
        "fragments": [{"firstEntryId": f.first_entry_id, "ensemble": list(f.ensemble)} for f in value.fragments],
        "customMetadata": {name: payload_json(data) for name, data in sorted(value.custom_metadata.items())},
        "version": found.version,
    }


class LedgerPart(NamedTuple):
    """A part of the list of ledgers. ``after`` is the id after which the next part begins, or None at the end of the
    list. ``unreadable`` are ledgers whose records cannot be read."""

    ledgers: list[tuple[LedgerId, Versioned[LedgerMetadata]]]
    unreadable: list[LedgerId]
    after: LedgerId | None


def part_of_list(
    store: MetadataStore,
    after: LedgerId,
    limit: int,
    is_wanted: Callable[[LedgerMetadata], bool] = lambda _: True,
    timeout_s: float = 2.0,
) -> LedgerPart:
    """Return at most ``limit`` wanted ledgers with ids above ``after``, in order. The search ends after ``timeout_s``
    or LOOKED_AT_MAX records, so that the part may have fewer ledgers, or none, if wanted ledgers are rare. The caller
    continues with ``LedgerPart.after``."""
    until = time.monotonic() + timeout_s
    part = LedgerPart([], [], None)
    for count, ledger_id in enumerate(store.list_ledgers(after)):
        if len(part.ledgers) >= limit or count >= LOOKED_AT_MAX or time.monotonic() > until:
            return part._replace(after=after)
        after = ledger_id
        try:
            record = store.read_ledger(ledger_id)
        except NoSuchLedgerError:  # deleted since it was listed
            continue
        except MetadataCorruptError:
            part.unreadable.append(ledger_id)
            continue
        if is_wanted(record.value):
            part.ledgers.append((ledger_id, record))
    return part


def copies(value: LedgerMetadata, states: Mapping[BookieId, str]) -> list[dict[str, object]]:
    """Return, for each fragment, the least and the greatest number of copies of an entry that are readable now.
    ``states`` has the states of all bookies."""
    found = list[dict[str, object]]()
    for fragment in value.fragments:
        counts = _copies(fragment, value.write_quorum_size, states)
        found.append({"firstEntryId": fragment.first_entry_id, "least": min(counts), "most": max(counts)})
    return found


def _copies(fragment: Fragment, write_quorum: int, states: Mapping[BookieId, str]) -> list[int]:
    """Return, for each write set, the number of members that answer reads."""
    answers = [states.get(bookie) in ANSWERS for bookie in fragment.ensemble]
    size = len(answers)
    return [sum(answers[at] for at in write_set(first, size, write_quorum)) for first in range(size)]
