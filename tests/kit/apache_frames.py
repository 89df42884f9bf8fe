# SPDX-License-Identifier: Apache-2.0
"""Frames of entries that came over Apache's wire, as a bookie will store them: no lane of ours sends any yet."""

from __future__ import annotations

import numpy as np

from bk_core.entries.batch import Bytes
from bk_core.entries.frame_layout import APACHE_BYTES, DIGEST_NONE, IDS, assemble, column_bytes
from bk_core.errors import InvalidArgumentError


def encode_apache(ledger_id: int, entries: list[Bytes], *, session: int = 0) -> bytearray:
    """A frame of whole entries in Apache's layout, verbatim (APACHE_BYTES): of a digest type the bookie does not know.

    InvalidArgumentError for no entries, an entry shorter than its header, of another ledger or with a negative id.
    """
    lengths = np.fromiter(map(len, entries), dtype=np.uint32, count=len(entries))
    if not entries or int(lengths.min()) < 32:
        raise InvalidArgumentError("an Apache entry has at least 32 bytes", value=f"ledger {ledger_id}")
    numbers = np.frombuffer(b"".join([entry[:32] for entry in entries]), dtype=">i8").reshape(-1, 4)
    ids = np.ascontiguousarray(numbers[:, 1], dtype="<i8")
    if bool((numbers[:, 0] != ledger_id).any()) or int(ids.min()) < 0:
        raise InvalidArgumentError("an Apache entry of another ledger, or with a negative id", value=f"{ledger_id}")
    flags, columns = APACHE_BYTES, [column_bytes(lengths, "<u4")]
    if bool((np.diff(ids) != 1).any()):
        flags |= IDS
        columns.append(column_bytes(ids, "<i8"))
    head = (1, flags, DIGEST_NONE, ledger_id, int(ids.min()), max(-1, int(numbers[:, 2].max())), -1, len(entries))
    return assemble(head, columns, b"".join(entries), session)
