# SPDX-License-Identifier: Apache-2.0
"""What keeps a log in shape: retention, trim, compact, and the steps of vacuum, as intents of a change of the head.
Pure (RULES N6, N7). All but vacuum only unlink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bk_core.errors import InvalidArgumentError, LogRecreatedError
from bk_core.logs.machines import ask
from bk_core.logs.machines.change import Ask, Facts, Intent
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.head import CONDEMNED_MAX, Extent, LogHead, NewExtent
from bk_core.logs.model.paging import Change, Nonce, fit, ledgers_listed, sealed_extents
from bk_core.logs.model.unlinking import UnlinkedRecord, ledgers_kept, pages_kept
from bk_core.model import LedgerId

RETENTION_MAX = 2**62


@dataclass(frozen=True)
class SetRetention(Intent[LogHead]):
    """Keep entries not older than ``retention_ms``, and the newest ``retention_bytes``; 0: everything, None: as it is.
    The result is the head. Raises InvalidArgumentError for a negative number."""

    retention_ms: int | None
    retention_bytes: int | None
    nonce: Nonce

    def __post_init__(self) -> None:
        for name in ("retention_ms", "retention_bytes"):
            if (value := getattr(self, name)) is not None and not 0 <= value <= RETENTION_MAX:
                raise InvalidArgumentError(f"{name} is 0, for ever, or a positive number", value=f"{name}={value}")

    def settled(self, head: LogHead, facts: Facts) -> LogHead | None:
        """The head, if it says so."""
        return head if self._wanted(head) == head else None

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """Say so."""
        return fit(self._wanted(head), self.nonce, facts.pages)

    def _wanted(self, head: LogHead) -> LogHead:
        return replace(
            head,
            retention_ms=head.retention_ms if self.retention_ms is None else self.retention_ms,
            retention_bytes=head.retention_bytes if self.retention_bytes is None else self.retention_bytes,
        )


@dataclass(frozen=True)
class Trim(Intent[int]):
    """Forget what is below ``before_offset``. The result is the log's start offset."""

    before_offset: int
    nonce: Nonce

    def settled(self, head: LogHead, facts: Facts) -> int | None:
        """Its start, if that is as wanted."""
        start = head.start_offset
        return start if commit.trimmed_start(head, self.before_offset) == start else None

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """Unlink."""
        return commit.trim(head, self.before_offset, nonce=self.nonce, pages=facts.pages)

    def rules_out(self, made: LogHead, moved: int, head: LogHead, facts: Facts) -> bool:
        """The start never goes back. (It may be as wanted then, and not now: what is sealed has grown.)"""
        return head.start_offset < made.start_offset


@dataclass(frozen=True)
class Compact(Intent[Extent]):
    """List ``new``, which holds the same entries, in the place of ``run``. The result is its extent."""

    run: tuple[Extent, ...]
    new: NewExtent
    nonce: Nonce

    def settled(self, head: LogHead, facts: Facts) -> Extent | None:
        """The new extent, if it is listed."""
        start = self.run[0].base_offset
        found = sealed_extents(head, facts.pages, start, start + 1)
        return found[0] if found and found[0].ledger_id == self.new.ledger_id else None

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """Replace the run, if it is all there still."""
        change = commit.replace_extents(head, self.run, self.new, nonce=self.nonce, pages=facts.pages)
        return change if facts.is_checked else ask.CheckLedgers(head, (self.new,))

    def rules_out(self, made: LogHead, moved: int, head: LogHead, facts: Facts) -> bool:
        """The run is there: what was replaced never comes back. (The new extent may be trimmed or replaced itself.)"""
        return commit.has_run(head, self.run, facts.pages)


@dataclass(frozen=True)
class Condemn(Intent[tuple[LedgerId, ...]]):
    """Condemn as many of ``candidates`` as the head has room for, but none that it lists or that was unlinked at
    ``before_ms`` or later. The result is every condemned ledger, those of a vacuum that was interrupted too, and none
    that is listed."""

    candidates: tuple[LedgerId, ...]
    before_ms: int
    log_uuid: str
    nonce: Nonce

    def settled(self, head: LogHead, facts: Facts) -> tuple[LedgerId, ...] | None:
        """The condemned, if there is nobody to add. Raises LogRecreatedError: it is another log's head."""
        if head.uuid != self.log_uuid:
            raise LogRecreatedError("the log was deleted and made again", remedy="vacuum the new one")
        if self.candidates and facts.unlinked is None:
            return None
        if self._to_add(head, facts):
            return None
        listed = ledgers_listed(head, facts.pages) if head.condemned else set()
        return tuple(ledger for ledger in head.condemned if ledger not in listed)

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """Condemn. Nothing is unlinked between the head and the records that are asked for after it, or the head has
        another version then."""
        if facts.unlinked is None:
            return ask.ReadUnlinked()
        return commit.condemn(head, self._to_add(head, facts), nonce=self.nonce, pages=facts.pages)

    def _to_add(self, head: LogHead, facts: Facts) -> Sequence[LedgerId]:
        room = CONDEMNED_MAX - len(head.condemned)
        if room <= 0 or not self.candidates:
            return ()
        kept = ledgers_kept(head, young(facts, self.before_ms), facts.pages).union(head.condemned)
        return [ledger for ledger in self.candidates if ledger not in kept][:room]


@dataclass(frozen=True)
class Absolve(Intent[LogHead]):
    """Forget condemned ledgers that do not exist any more."""

    ledgers: tuple[LedgerId, ...]
    nonce: Nonce

    def settled(self, head: LogHead, facts: Facts) -> LogHead | None:
        """The head, if it does not name them."""
        return None if set(self.ledgers).intersection(head.condemned) else head

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """Forget them."""
        return commit.absolve(head, self.ledgers, nonce=self.nonce, pages=facts.pages)


def young(facts: Facts, before_ms: int) -> list[UnlinkedRecord]:
    """The records made at ``before_ms`` or later: what they name is kept."""
    assert facts.unlinked is not None
    return [record for record in facts.unlinked if record.made_ms >= before_ms]


@dataclass(frozen=True, slots=True)
class Unneeded:
    """``records`` that keep nothing any more, and ``pages`` that nothing names when those are gone."""

    records: tuple[str, ...]
    pages: tuple[str, ...]


@dataclass(frozen=True)
class FencePages(Intent[Unneeded]):
    """Find the pages among ``names`` that neither the head nor a record made at ``before_ms`` or later reaches, and see
    that no change which is under way can make the head reach one: each of those is compared with a version that this
    one leaves behind. ``names`` were listed before the head was read, so a change that begins afterwards makes pages of
    other names."""

    names: tuple[str, ...]
    before_ms: int

    def settled(self, head: LogHead, facts: Facts) -> Unneeded | None:
        """What is not needed, once the head was written, or if no page is."""
        if facts.unlinked is None:
            return None
        kept = pages_kept(head, young(facts, self.before_ms), facts.pages)
        unreached = tuple(name for name in self.names if name not in kept)
        old = tuple(record.name for record in facts.unlinked if record.made_ms < self.before_ms)
        return Unneeded(old, unreached) if facts.is_written or not unreached else None

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """The same head, as a new version."""
        return ask.ReadUnlinked() if facts.unlinked is None else Change(head)
