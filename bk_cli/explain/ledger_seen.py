# SPDX-License-Identifier: Apache-2.0
"""Gathers the facts for ``bk ledger explain``: the record, the bookies' states, and what each bookie says about its
copy. It fences no bookie, and reads no entries from bookies that can list ids.

All bookies are asked at the same time, and ``ANSWER_S`` is the deadline for all questions to a bookie. A bookie that
has not answered by then is reported as silent. So the command takes about a second, however many bookies hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from bk_cli.access import Access
from bk_cli.explain.ledger_findings import UP, CopyPart, CopySeen, LedgerSeen
from bk_core.client.running.refused import NOT_LET_IN
from bk_core.cluster.bookies import states_of
from bk_core.entries.digest import Digester
from bk_core.errors import BookKeeperError, IntegrityError, MetadataCorruptError, PermissionDeniedError
from bk_core.metadata.layout import mark_name
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import UnderreplicationMark
from bk_core.metadata.unreadable import NodeKind, UnreadableNode
from bk_core.model import (
    ENTRY_ID_MAX,
    BookieId,
    BookieServiceInfo,
    EntryId,
    LedgerId,
    LedgerMetadata,
)
from bk_core.protocol.ends.lac import verified_lac
from bk_core.protocol.events import LacAnswered
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.port import RefusedError
from bk_core.wire.lane.evidence import LacEvidence, ReadTrailer
from bk_core.wire.lane.reasons import EntryRange, Reason
from bookie_server.autorecovery.suspects import OwnPart, own_parts

ANSWER_S = 0.4
"""The seconds that a bookie has for all its answers. All bookies are asked at the same time, so the command takes about
a second."""
CLOSE_S = 0.05
"""The time, in seconds, that closing connections may take. It is short, because the process ends anyway."""
FRAGMENTS_MAX = 50
"""The maximum number of fragments that are examined; the newest ones are taken."""
ASKS_MAX = 16
"""The maximum number of requests to one bookie about one fragment. An answer covers about a thousand frames."""
TAIL = 64
"""The number of entries after the LAC that are requested where a wire cannot list ids."""


def see_ledger(access: Access, ledger_id: LedgerId) -> LedgerSeen:
    """Open the metadata store and gather the facts. Raises what :func:`look` raises."""
    with access.store() as store:
        return look(access, store, ledger_id)


def look(access: Access, store: MetadataStore, ledger_id: LedgerId) -> LedgerSeen:
    """Gather the facts about one ledger. Raises NoSuchLedgerError, and what the store raises. Do not call it on an
    event loop."""
    with ThreadPoolExecutor(4) as beside:
        writable, read_only = beside.submit(store.writable_bookies), beside.submit(store.read_only_bookies)
        known, times = beside.submit(store.known_bookies), beside.submit(store.ledger_times_ms, ledger_id)
        record = store.read_ledger(ledger_id, fresh=True).value
        registered = {**read_only.result(), **writable.result()}
        named = {bookie for fragment in record.fragments for bookie in fragment.ensemble}
        found = states_of(store, writable.result(), read_only.result(), known.result())
        states = dict.fromkeys(named, "gone") | {each: state for each, state in found.items() if each in named}
        repair = beside.submit(_repair, store, ledger_id)
        cut = replace(record, fragments=record.fragments[-FRAGMENTS_MAX:])
        asked = [registered[bookie] for bookie in sorted(named) if states[bookie] in UP]
        caller = replace(access.caller(store.instance_id(), "bk ledger explain"), connect_timeout_s=ANSWER_S)
        copies = asyncio.run(_ask_all(asked, caller, ledger_id, cut))
        created_ms, written_ms = times.result()
        mark, repaired_by, enabled, auditor = repair.result()
        unreadable = _unreadable(store, ledger_id)
    return LedgerSeen(
        ledger_id, record, created_ms, written_ms, int(time.time() * 1000), states, copies, mark, repaired_by, enabled,
        auditor, _log_of(record), len(record.fragments) - len(cut.fragments), unreadable,
    )  # fmt: skip


def _repair(
    store: MetadataStore, ledger_id: LedgerId
) -> tuple[UnderreplicationMark | None, str | None, bool, str | None]:
    """Return the mark, the worker that repairs the ledger, whether repair is enabled, and the auditor. The store
    records a mark that cannot be read in ``store.unreadable``."""
    mark = None
    with contextlib.suppress(MetadataCorruptError):
        mark = store.read_underreplicated(ledger_id)
    owner = store.underreplication_locks().get(ledger_id) if mark is not None else None
    return mark.value if mark is not None else None, owner, store.replication_enabled(), store.current_auditor()


def _unreadable(store: MetadataStore, ledger_id: LedgerId) -> tuple[UnreadableNode, ...]:
    """Return the mark and the lock of this ledger if they cannot be read."""
    name = mark_name(ledger_id)
    return tuple(node for node in store.unreadable.of(NodeKind.MARK, NodeKind.LOCK) if node.name == name)


def _log_of(record: LedgerMetadata) -> str:
    return record.custom_metadata.get("bk.log.uuid", b"").decode("utf-8", errors="replace")


# --- bookies ----------------------------------------------------------------------------------------------------------


async def _ask_all(
    infos: Sequence[BookieServiceInfo], caller: Caller, ledger_id: LedgerId, record: LedgerMetadata
) -> Mapping[BookieId, CopySeen]:
    transport = LaneTransport(caller)
    transport.update_bookies(infos)
    until = asyncio.get_running_loop().time() + ANSWER_S
    asking = [_Asking(transport, info.bookie_id, ledger_id, record, until) for info in infos]
    try:
        await asyncio.gather(*(each.ask() for each in asking))
        proven = [each.seen.lac for each in asking if each.seen.lac is not None]
        behind_lac = max([record.last_fragment.first_entry_id - 1, *proven]) + 1
        await asyncio.gather(*(each.tail(behind_lac) for each in asking))
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await transport.close()
    return {each.bookie_id: each.seen for each in asking}


@dataclass(slots=True)
class _Asking:
    """Asks one bookie about a ledger, until the time ``until`` of the loop's clock. ``seen`` has its answers so far."""

    transport: LaneTransport
    bookie_id: BookieId
    ledger_id: LedgerId
    record: LedgerMetadata
    until: float
    seen: CopySeen = field(default_factory=CopySeen)

    async def ask(self) -> None:
        """Ask everything that does not depend on the LAC. A bookie that cannot list ids is asked about its last entries
        by :meth:`tail`."""
        try:
            async with asyncio.timeout_at(self.until):
                said = await self._evidence()
                self.seen = CopySeen("", said.known, said.fenced, said.last_entry_id, self._proven(said))
                for own in reversed(own_parts(self.record, self.bookie_id)):
                    await self._note(own, self._part(own))
        except (BookKeeperError, TimeoutError) as error:
            if not self.seen.parts:
                self.seen = _troubled(self.seen, error)

    async def _evidence(self) -> LacEvidence:
        """Return the bookie's evidence of the LAC, and the writer's LAC if the bookie can read it. On Apache's wire the
        LAC and the last entry are two requests. If the bookie cannot read the LAC, ask for the last entry alone, as a
        recovery does."""
        link = self.transport.link(self.bookie_id)
        try:
            return await link.read_lac(self.ledger_id, deadline_s=ANSWER_S)
        except RefusedError as error:
            if error.reason is not Reason.IO_ERROR:
                raise
        return await link.watch_lac(self.ledger_id, ENTRY_ID_MAX, timeout_s=0.001)

    async def tail(self, behind_lac: EntryId) -> None:
        """Ask for the entries after the LAC one by one, if the bookie cannot list ids."""
        open_part = next((own for own in own_parts(self.record, self.bookie_id) if own.last is None), None)
        if self.seen.trouble or open_part is None or open_part.first in self.seen.parts:
            return
        first = max(open_part.first, behind_lac)
        with contextlib.suppress(BookKeeperError, TimeoutError):
            async with asyncio.timeout_at(self.until):
                await self._note(open_part, self._some([(first, first + TAIL - 1)]))

    async def _note(self, own: OwnPart, asking: Awaitable[CopyPart | None]) -> None:
        part = await asking
        if part is not None:
            self.seen = replace(self.seen, parts={**self.seen.parts, own.first: part})

    def _proven(self, said: LacEvidence) -> EntryId | None:
        digester = Digester(self.record.entry_digest_type, self.record.password or b"", self.ledger_id)
        try:
            return verified_lac(LacAnswered(0, said.last_entry_frame, said.lac_body, said.lac_frame), digester)[0]
        except IntegrityError:
            return None

    async def _part(self, own: OwnPart) -> CopyPart | None:
        try:
            return await self._listed(own)
        except RefusedError as error:
            if error.reason is not Reason.UNIMPLEMENTED:
                raise
        return None if own.last is None else await self._some(sorted({(own.first, own.first), (own.last, own.last)}))

    async def _listed(self, own: OwnPart) -> CopyPart:
        absent, unknown, first = list[EntryRange](), list[EntryRange](), own.first
        for _ in range(ASKS_MAX):
            trailer = await self._read(first, own.asked_last, ids_only=True)
            absent += trailer.absent
            unknown += trailer.unknown
            first = trailer.answered_through + 1
            if first > own.asked_last:
                break
        return CopyPart(((own.first, first - 1),), tuple(absent), tuple(unknown))

    async def _some(self, ranges: Sequence[tuple[EntryId, EntryId]]) -> CopyPart:
        """Read a few entries, and drop their content."""
        asked, absent, unknown = list[tuple[EntryId, EntryId]](), list[EntryRange](), list[EntryRange]()
        for first, last in ranges:
            trailer = await self._read(first, min(last, ENTRY_ID_MAX), ids_only=False)
            asked.append((first, trailer.answered_through))
            absent += trailer.absent
            unknown += trailer.unknown
        return CopyPart(tuple(asked), tuple(absent), tuple(unknown))

    async def _read(self, first: EntryId, last: EntryId, *, ids_only: bool) -> ReadTrailer:
        answers = self.transport.link(self.bookie_id).read(
            self.ledger_id, first, last, bytes_max=1 << 20, ids_only=ids_only, deadline_s=ANSWER_S
        )
        trailer = None
        async for answer in answers:
            if isinstance(answer, ReadTrailer):
                trailer = answer
        if trailer is None or trailer.answered_through < first:
            raise BookKeeperError("it answers nothing", value=f"entry {first}")
        return trailer


def _troubled(seen: CopySeen, error: BookKeeperError | TimeoutError) -> CopySeen:
    if isinstance(error, RefusedError) and error.reason is Reason.PERMISSION_DENIED:
        error = PermissionDeniedError.told(error.what)
    if isinstance(error, PermissionDeniedError):
        return replace(seen, trouble=f"{error.code}: {error.what}", remedy=error.remedy)
    if isinstance(error, NOT_LET_IN):
        said = f": {error.value}" if error.value else ""
        return replace(seen, trouble=f"{error.code}: {error.what}{said}", remedy=error.remedy)
    return replace(seen, trouble=_words(error), refuses=isinstance(error, RefusedError))


def _words(error: BaseException) -> str:
    if isinstance(error, RefusedError):
        return f"refuses: {error.reason.name}"
    return error.what if isinstance(error, BookKeeperError) else f"silent for {ANSWER_S} s"
