# SPDX-License-Identifier: Apache-2.0
"""One log's part in a publish into several (:mod:`.fan_out`): what is wanted, known and decided of it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bk_core.errors import BookKeeperError, TransactionReplayDiffersError
from bk_core.logs.codec import encode_head, encode_transactions, encode_unlinked
from bk_core.logs.head import LogHead, Published, PublishId
from bk_core.logs.machines import change as head_change
from bk_core.logs.machines import change_events as ev
from bk_core.logs.machines.change import Facts
from bk_core.logs.machines.publication import FORGOTTEN_OFFSET, Publish
from bk_core.logs.paging import Change, NewPage, PagesNeeded, merge_candidates
from bk_core.model import Versioned

LOG_OVERHEAD_BYTES = 300
"""Of a log in a multi: paths but for the name, versions, rights."""


def fan_out_id(publish_id: PublishId, rows: Mapping[str, int]) -> PublishId:
    """The id of a publish that puts so many rows into each of these logs: another one for other logs or counts."""
    parts = "".join(f"{log}\n{count}\n" for log, count in sorted(rows.items()))
    return PublishId(f"{publish_id.text}/logs/{hashlib.sha256(parts.encode()).hexdigest()}")


@dataclass(frozen=True)
class PublishAmong(Publish):
    """One log's part. Its ``publish_id`` is that of :func:`fan_out_id`."""

    def settled(self, head: LogHead, facts: Facts) -> Published | None:
        """As :meth:`Publish.settled`. Raises TransactionReplayDiffersError too where the version has other logs."""
        found = super().settled(head, facts)
        if found is not None and found.publish_id != self.publish_id.digest:
            assert self.transaction is not None
            raise TransactionReplayDiffersError(
                f"version {self.transaction.version} was published before to other logs or with other rows there",
                value=f"transaction {self.transaction.app_id}",
                remedy="an older checkpoint was restored or the input was cut differently: use a new query or version",
            )
        return found


@dataclass(frozen=True, slots=True)
class Part:
    """One log of a fan-out: what is wanted of it, what is known, and what was decided about the head ``found``."""

    intent: Publish
    found: Versioned[LogHead] | None = None
    facts: Facts = field(default_factory=Facts)
    change: Change | None = None

    @property
    def head(self) -> LogHead:
        """The head that was read last."""
        return self.read.value

    @property
    def read(self) -> Versioned[LogHead]:
        """The head that was read last, with its version."""
        assert self.found is not None
        return self.found

    @property
    def decided(self) -> Change:
        """The change that was decided on last."""
        assert self.change is not None
        return self.change

    @property
    def new_pages(self) -> tuple[NewPage, ...]:
        """Pages to create first."""
        return () if self.change is None else self.change.new_pages


@dataclass(frozen=True, slots=True)
class MultiDoubt:
    """A multi that got no answer: by log, the version it was compared with and the head it would have made."""

    made: Mapping[str, Versioned[LogHead]]
    error: BookKeeperError


def learned(part: Part, answer: ev.Event) -> Part:
    """The part with what an answer says. Whether ledgers are there counts only for the head it was asked about."""
    match answer:
        case ev.HeadRead(found, transactions):
            is_known = part.found is not None and part.found.version == found.version
            facts = replace(part.facts, transactions=transactions, is_checked=part.facts.is_checked and is_known)
            return replace(part, found=found, facts=facts)
    return replace(part, facts=part.facts.with_answer(answer))


def want_merged(part: Part, change: Change) -> None:
    """Pages are made anyway: read those that they can be merged with (RULES N3). Raises PagesNeeded."""
    if change.new_pages:
        missing = [ref.name for ref in merge_candidates(part.head) if ref.name not in part.facts.pages]
        if missing:
            raise PagesNeeded(missing)


def bytes_of(log: str, part: Part) -> int:
    """What a part takes of a multi."""
    write = write_of(part)
    size = len(encode_head(write.head)) + 3 * len(log) + LOG_OVERHEAD_BYTES
    if write.transactions is not None:
        size += len(encode_transactions(write.transactions))
    return size if write.unlinked.is_empty else size + len(encode_unlinked(write.unlinked))


def write_of(part: Part) -> ev.WriteHead:
    """The compare-and-set of a part."""
    return head_change.write_of(part.read, part.decided, part.facts)


def forgotten(part: Part) -> Published:
    """A publish that happened and that this log remembers nothing of any more."""
    intent = part.intent
    return Published(
        publish_id=intent.publish_id.digest, base_offset=FORGOTTEN_OFFSET, rows=intent.rows, time_ms=intent.now_ms
    )
