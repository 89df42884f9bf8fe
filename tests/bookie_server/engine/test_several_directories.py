# SPDX-License-Identifier: Apache-2.0
"""Several data directories as one: where a ledger is, where a new one goes, and what damage in one of them means."""

from __future__ import annotations

from collections import Counter

import pytest

from bk_core.entries.frame import FrameKind, encode_record, parse_header, record_payload
from bk_core.errors import LocalProtocolError
from bk_core.model import BookieServiceInfo
from bk_core.wire.lane.reasons import EntryRange, Reason
from bookie_server.engine.holdings import IndexHoldings
from bookie_server.engine.several_directories import SpreadHoldings
from bookie_server.identity.availability import Availability
from bookie_server.machine.core import _NO_EXTENT
from bookie_server.machine.disk_places import Place
from bookie_server.machine.state import Ledger, LedgerFacts, LogQueue, Pending
from bookie_server.storage.disk.space import SpaceLimits, SpaceWatch, Usage, choose_directory
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.index.ledger_states import EVERY_LEDGER
from tests.kit.memory_store import MemoryCluster, MemoryStore
from tests.kit.segment_world import entries

IN_ZERO, IN_ONE, DELETED, NEW = 1, 2, 3, 4


class Spread:
    """Two indexes; a new ledger goes to ``choice``."""

    def __init__(self) -> None:
        self.indexes = (LedgerIndex(), LedgerIndex())
        self.choice = 0
        self.holdings = SpreadHoldings([IndexHoldings(index) for index in self.indexes], lambda _: self.choice)
        self.store(0, entries(IN_ZERO, range(3)))
        self.store(1, entries(IN_ONE, range(5)))
        self.store(1, encode_record(FrameKind.DELETED, DELETED))

    def store(self, number: int, frame: bytes) -> None:
        self.indexes[number].add(frame, Place(1, 4096, len(frame)))


def pending(frame: bytes, log: int) -> Pending:
    header = parse_header(frame)
    return Pending(header, _NO_EXTENT, frame, Ledger(header.ledger_id, LedgerFacts(), -1, LogQueue(log)), None)


@pytest.mark.parametrize("choice", [0, 1])
def test_a_known_ledger_is_where_it_is_whatever_would_be_chosen(choice: int) -> None:
    spread = Spread()
    spread.choice = choice
    logs = [spread.holdings.log_of(ledger_id) for ledger_id in (IN_ZERO, IN_ONE, DELETED, NEW)]
    assert logs == [0, 1, 1, choice]
    assert spread.holdings.facts(DELETED).deleted
    assert spread.holdings.last_entry_id(IN_ONE) == 4
    assert spread.holdings.plan(IN_ONE, 0, 9, 1 << 20, {}).absent == (EntryRange(5, 9),)
    assert spread.holdings.overlaps(IN_ZERO, 2, 9)
    assert not spread.holdings.overlaps(NEW, 0, 9)


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_ledger_stays_where_its_first_record_became_durable(asked_before: bool) -> None:
    spread = Spread()
    if asked_before:
        assert spread.holdings.log_of(NEW) == 0
    spread.choice = 1
    spread.holdings.add(pending(encode_record(FrameKind.FENCE, NEW), 1), Place(1, 8192, 64))
    spread.choice = 0
    assert spread.holdings.log_of(NEW) == 1
    assert spread.holdings.facts(NEW).fenced
    again = SpreadHoldings([IndexHoldings(index) for index in spread.indexes], lambda _: 0)
    assert again.log_of(NEW) == 1


def test_a_ledger_is_never_written_to_a_second_directory() -> None:
    spread = Spread()
    for ledger_id, log in ((IN_ONE, 0), (DELETED, 0), (IN_ZERO, 1)):
        with pytest.raises(LocalProtocolError):
            spread.holdings.add(pending(encode_record(FrameKind.FENCE, ledger_id), log), Place(1, 8192, 64))
        assert not spread.indexes[log].folded(ledger_id)[0]


@pytest.mark.rule("S8")
@pytest.mark.parametrize("damaged", [0, 1])
def test_damage_in_one_directory_counts_for_ledgers_that_none_knows(damaged: int) -> None:
    """Also after something of such a ledger is written: it may have been in the damaged directory all the same."""
    spread = Spread()
    spread.choice = 1 - damaged
    spread.store(damaged, encode_record(FrameKind.LIMBO, EVERY_LEDGER))
    for _ in range(2):
        assert spread.holdings.facts(NEW).trouble is Reason.LIMBO
        plan = spread.holdings.plan(NEW, 0, 3, 1 << 20, {})
        assert (plan.absent, [(gap.first, gap.last) for gap in plan.unknown]) == ((), [(0, 3)])
        log = spread.holdings.log_of(NEW)
        spread.holdings.add(pending(encode_record(FrameKind.FENCE, NEW), log), Place(1, 8192, 64))
        assert spread.holdings.facts(NEW).fenced
    whole, other = (IN_ONE, IN_ZERO) if damaged == 0 else (IN_ZERO, IN_ONE)
    assert spread.holdings.facts(whole).trouble is Reason.REASON_NONE
    assert spread.holdings.facts(other).trouble is Reason.LIMBO


def test_records_of_a_ledger_are_folded_where_it_is() -> None:
    spread = Spread()
    body = b"\0" * 7 + b"\2" + b"\0" * 7 + b"\4"
    record = encode_record(FrameKind.LAC, IN_ONE, body)
    assert bytes(record_payload(record)) == body
    spread.holdings.add(pending(record, 1), Place(1, 8192, 80))
    assert spread.holdings.facts(IN_ONE).lac_body == body
    assert not spread.indexes[0].folded(IN_ONE)[0]


# --- where new ledgers go ---

GIB = 1 << 30


def usage(used: float, total: int = 100 * GIB) -> Usage:
    return Usage(total, int(total * (1 - used)))


LIMITS = SpaceLimits(threshold=0.95, low_water=0.9, segment_bytes=1 << 20)


def watching(usages: list[Usage], read_only: list[bool] | None = None) -> list[SpaceWatch]:
    watches = [SpaceWatch(LIMITS, each) for each in usages]
    for watch, refused in zip(watches, read_only or [False] * len(usages), strict=True):
        if refused:
            watch.no_space()
    return watches


def choices(usages: list[Usage], read_only: list[bool] | None = None) -> Counter[int]:
    watches = watching(usages, read_only)
    return Counter(choose_directory(ledger_id, watches) for ledger_id in range(900))


def test_new_ledgers_go_to_the_emptiest_directories() -> None:
    assert set(choices([usage(0.8), usage(0.5), usage(0.7)])) == {1}
    assert set(choices([usage(0.5), usage(0.51), usage(0.7)])) == {0, 1}
    assert set(choices([usage(0.5, GIB), usage(0.8, 100 * GIB)])) == {0}, "by share, not by bytes"


def test_directories_that_are_alike_get_new_ledgers_alike() -> None:
    for step in (1, 2, 3, 4, 8):
        watches = watching([usage(0.5), usage(0.5), usage(0.52)])
        counts = Counter(choose_directory(n * step, watches) for n in range(900))
        assert min(counts.values()) > 250, (step, counts)
    assert len(choices([usage(0.5)] * 2)) == 2


def test_a_read_only_directory_gets_new_ledgers_only_if_all_are_and_it_has_most_room() -> None:
    assert set(choices([usage(0.1), usage(0.9)], [True, False])) == {1}
    assert set(choices([usage(0.96, GIB), usage(0.97, 100 * GIB)], [True, True])) == {1}


def test_the_bookie_is_read_only_when_every_directory_is() -> None:
    watches, told = watching([usage(0.5), usage(0.5)]), dict[int, bool]()
    store, info = MemoryStore(MemoryCluster()), BookieServiceInfo("b1", (), {})
    availability = Availability(
        list, watches, store, info, paths=["/a", "/b"], interval_s=1.0, positions=dict,
        set_read_only=told.__setitem__, on_failed=lambda _: None,
    )  # fmt: skip
    assert watches[0].look(usage(0.96))
    assert [read_only for _, _, read_only in availability.usages] == [True, False]
    assert (availability.read_only, availability.why_read_only) == (False, "")
    assert {choose_directory(ledger_id, watches) for ledger_id in range(50)} == {1}
    availability.no_space(1)
    assert told == {0: True, 1: True}
    assert availability.read_only
    assert availability.why_read_only == "; ".join(watch.why for watch in watches)
    assert watches[0].look(usage(0.5))
    assert not availability.read_only
