# SPDX-License-Identifier: Apache-2.0
"""One ledger as planning sees it: its end, its size, and whether digest type and password fit. Never fences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bk_core.errors import BookKeeperError, WrongDigestTypeError
from bk_core.model import DigestType, EntryId
from bk_spark.options import BkOptions
from bk_spark.selection import Source

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper, LedgerReader

REESTIMATE_GROWTH = 2
"""The average entry of an open ledger is looked up anew when it has grown by this factor."""


class OpenLedger:
    """One ledger that may still grow: its LAC, and how large its entries are on average."""

    def __init__(self, bookkeeper: BookKeeper, options: BkOptions, ledger_id: int) -> None:
        self.reader: LedgerReader = bookkeeper.open_ledger(
            ledger_id,
            recover=False,
            password=options.ledger_password,
            digest_type=digest_type_of(options),
        )
        self._entries = self._bytes = 0

    @property
    def next_entry(self) -> int:
        return self.reader.last_add_confirmed + 1

    def bytes_of(self, entries: int) -> int:
        """Payload bytes of the first ``entries`` entries, estimated; looks it up as the ledger grows."""
        if entries and (self.reader.is_closed or entries >= self._entries * REESTIMATE_GROWTH):
            known = self.next_entry  # it may grow while its length is looked up
            self._bytes, self._entries = length_of(self.reader, known - 1), known
        return self._bytes * entries // self._entries if self._entries else 0

    def close(self) -> None:
        """Never raises."""
        try:
            self.reader.close()
        except BookKeeperError:
            return


def length_of(reader: LedgerReader, last: EntryId) -> int:
    """Payload bytes of the entries 0 to ``last``, which is confirmed. Of an open ledger that entry knows, not the
    record."""
    if last < 0:
        return 0
    if reader.is_closed and last == reader.last_add_confirmed:
        return int(reader.length)
    return sum(batch.length_before + batch.payload_bytes for batch in reader.read(last, last))


def digest_type_of(options: BkOptions) -> DigestType | None:
    """Option digestType, or None to take what is recorded."""
    return None if options.digest_type is None else DigestType[options.digest_type]


def check_digest(options: BkOptions, source: Source, found: DigestType | None) -> None:
    """Raises InvalidArgumentError where option digestType contradicts the log's."""
    wanted = digest_type_of(options)
    if wanted is not None and found is not None and wanted is not found:
        raise WrongDigestTypeError(
            f"{source} has another digest type",
            value=f"digestType={wanted.name}, it has {found.name}",
            remedy="leave digestType out",
        )
