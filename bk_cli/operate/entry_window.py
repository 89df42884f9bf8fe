# SPDX-License-Identifier: Apache-2.0
"""Reads the entries that the web page of a cluster shows: a few of a log at a time, long ones cut, and the end of an
open ledger. It reads as any client does, and never fences."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from bk_cli.access import Access
from bk_core.cluster.payloads import payload_text
from bk_core.errors import BookKeeperError, TransportError
from bk_core.logs.model.schemas import fields_of
from bk_core.model import LedgerId

if TYPE_CHECKING:
    from bk_core import client
    from bk_core.blocking import BookKeeper
    from bk_core.logs.named_log import NamedLog

T = TypeVar("T")

TIMEOUT_S = 2.5
"""The maximum duration of a call, in seconds. Together with the wait for its turn it is below the deadline of the
page's answer."""
NEWEST = 20
"""The number of newest entries that are shown if no first offset is given."""
BYTES_MAX = 1 << 20
"""The maximum number of bytes of entries in one answer. A read ends after the entry that exceeds it."""
TEXT_MAX, HEX_MAX = 400, 96
ROWS_MAX, COLUMNS_MAX, VALUE_MAX = 5, 20, 60

Entry = dict[str, Any]


class EntryWindow:
    """A reader of entries that connects when it is first needed. As a context manager it closes its client."""

    def __init__(self, access: Access) -> None:
        self._access, self._open = access, contextlib.ExitStack()
        self._client: BookKeeper | None = None

    def __enter__(self) -> EntryWindow:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def lac(self, ledger_id: LedgerId) -> dict[str, object]:
        """Return where a ledger ends, as a quorum of its bookies answers. Raises NoSuchLedgerError,
        WrongPasswordError."""
        return self._call(lambda client: _lac(client, ledger_id, self._access.password))

    def window(self, log: str, first: int | None, limit: int) -> dict[str, object]:
        """Return the entries of a log from the offset ``first`` on, at most ``limit``; if ``first`` is None, the
        newest. Raises NoSuchLogError, WrongPasswordError, and what reading an entry raises."""
        return self._call(lambda client: _window(client, log, self._access.password, first, limit))

    def _call(self, work: Callable[[client.BookKeeper], Coroutine[Any, Any, T]]) -> T:
        """Run one call and return its result. The page makes one call at a time."""
        if self._client is None:
            self._client = self._open.enter_context(self._access.client())
        future = self._client.begin(work)
        try:
            return future.result(TIMEOUT_S)
        except FutureTimeoutError:
            future.cancel()
            raise TransportError(f"the bookies did not answer in {TIMEOUT_S:g} s", remedy="it is asked again") from None


async def _lac(bookkeeper: client.BookKeeper, ledger_id: LedgerId, password: bytes) -> dict[str, object]:
    async with await bookkeeper.open_ledger(ledger_id, recover=False, password=password) as reader:
        return {"ledgerId": ledger_id, "lac": reader.last_add_confirmed, "closed": reader.is_closed}


async def _window(
    bookkeeper: client.BookKeeper, name: str, password: bytes, first: int | None, limit: int
) -> dict[str, object]:
    from bk_core.logs.named_log import NamedLog

    log = NamedLog(bookkeeper, name, password=password)
    head = (await log.head(sync=False)).value
    end = await log.end_offset()
    start = min(end, max(head.start_offset, end - min(NEWEST, limit) if first is None else first))
    entries = await _entries(log, start, min(end, start + limit))
    with contextlib.suppress(BookKeeperError):  # entries of another codec are shown as bytes
        await _add_columns(log, entries)
    return {
        "log": name,
        "startOffset": head.start_offset,
        "endOffset": end,
        "next": start + len(entries),
        "live": bool(head.open_extents),
        "entries": entries,
    }


async def _entries(log: NamedLog, start: int, stop: int) -> list[Entry]:
    found, left = list[Entry](), BYTES_MAX
    if start >= stop:
        return found
    async with aclosing(log.read(start, stop)) as batches:
        async for offset, batch in batches:
            for number, payload in enumerate(batch.entry_views()):
                found.append(_shown(offset + number, payload))
                left -= len(payload)
                if left < 0:
                    return found
    return found


def _shown(offset: int, payload: memoryview) -> Entry:
    data = bytes(payload[:TEXT_MAX])
    return {
        "offset": offset,
        "bytes": len(payload),
        "text": payload_text(data),
        "cut": len(payload) > TEXT_MAX,
        "hex": data[:HEX_MAX].hex(" "),
        "rows": _json_rows(data) if len(payload) <= TEXT_MAX else None,
    }


def _json_rows(data: bytes) -> list[dict[str, str]] | None:
    """Return a JSON object as one row, or None."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return [_row(value)] if isinstance(value, dict) else None


def _row(values: dict[str, Any]) -> dict[str, str]:
    return {str(name)[:VALUE_MAX]: str(value)[:VALUE_MAX] for name, value in list(values.items())[:COLUMNS_MAX]}


async def _add_columns(log: NamedLog, entries: list[Entry]) -> None:
    """Add the first rows to entries of codec ``arrow``, and key, value and time to entries of codec ``envelope``."""
    if not entries:
        return
    start, stop = entries[0]["offset"], entries[-1]["offset"] + 1
    codecs = {extent.codec for extent in await log.extents(start, stop)}
    if codecs == {"arrow"}:
        schemas = await log.schemas()
        names = list(fields_of(schemas[max(schemas)]))[:COLUMNS_MAX]
    elif codecs == {"envelope"}:
        names = ["key", "value", "timestamp"]
    else:
        return
    table = await log.to_arrow(start, stop, ["offset", *names], where=[("row_index", "<", ROWS_MAX)])
    by_offset = {entry["offset"]: entry for entry in entries}
    for row in await asyncio.to_thread(table.to_pylist):
        entry = by_offset[row.pop("offset")]
        entry["rows"] = [*(entry["rows"] or []), _row(row)]
