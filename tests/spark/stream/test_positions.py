# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint's positions mean in the sources of now: identity, epochs, trims, new and deleted ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import (
    BookKeeperError,
    ClusterMismatchError,
    InvalidArgumentError,
    LogOverwrittenError,
    LogRecreatedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from bk_core.logs.model.head import LogHead
from bk_core.logs.model.position import LogPosition, StreamOffset, decode_offset, encode_offset
from bk_spark.options.options import BkOptions, Use, parse_options
from bk_spark.options.selection import LedgerSource, LogSource
from bk_spark.stream.positions import (
    PositionPart,
    Seen,
    SourceSeen,
    Standing,
    ended_before,
    initial_ends,
    offset_at,
    parts,
    standings,
)

A, B = LogSource("a"), LogSource("b")


def stream(**given: str) -> BkOptions:
    return parse_options({"metadataserviceuri": "zk://h/ledgers", **given}, Use.STREAM)


def log(name: str, end: int, start: int = 0, epoch: int = 0) -> SourceSeen:
    head = LogHead(uuid=f"uuid-{name}", epoch=epoch, start_offset=start, next_offset=end)
    return SourceSeen(start, end, (), head)


def at(cluster: str = "c", epoch: int = 0, **nexts: int) -> StreamOffset:
    return StreamOffset(cluster, {name: LogPosition(f"uuid-{name}", epoch, n) for name, n in nexts.items()})


BOTH = Seen("c", {A: log("a", 10), B: log("b", 20)})
LOGS, PATTERN = stream(logs="a,b"), stream(logpattern="[a-z]")


def test_a_new_query_begins_where_the_options_say() -> None:
    assert initial_ends(stream(logs="a,b"), BOTH) == {A: 10, B: 20}
    assert initial_ends(stream(logs="a,b", startingoffsets="earliest"), BOTH) == {A: 0, B: 0}
    assert initial_ends(stream(logs="a,b", startingoffsets='{"a":3,"b":-1}'), BOTH) == {A: 3, B: 20}
    assert initial_ends(stream(logs="a,b"), BOTH, {A: 1, B: 2}) == {A: 1, B: 2}
    assert initial_ends(PATTERN, Seen("c", {})) == {}


def test_a_new_query_refuses_a_start_that_there_is_not() -> None:
    with pytest.raises(InvalidArgumentError, match="beyond the end; 11, log a ends at 10"):
        initial_ends(stream(logs="a,b", startingoffsets='{"a":11,"b":0}'), BOTH)
    with pytest.raises(InvalidArgumentError, match="missing: b"):
        initial_ends(stream(logpattern="[a-z]", startingoffsets='{"a":1}'), BOTH)
    trimmed = Seen("c", {A: log("a", 10, start=5)})
    with pytest.raises(NoSuchEntryError, match="log a begins at 5, the stream needs 4"):
        initial_ends(stream(log="a", startingoffsets='{"a":4}'), trimmed)
    lenient = stream(log="a", startingoffsets='{"a":4}', failondataloss="false")
    assert initial_ends(lenient, trimmed) == {A: 5}
    gone = Seen("c", {}, {A: NoSuchLogError("there is no log a")})
    with pytest.raises(NoSuchLogError, match="there is no log a"):
        initial_ends(lenient, gone)
    assert initial_ends(PATTERN, gone) == {}


def test_a_query_goes_on_where_its_checkpoint_says() -> None:
    assert standings(at(a=3, b=20), BOTH, LOGS) == {A: Standing(3), B: Standing(20)}
    ledgers = Seen("c", {LedgerSource(7): SourceSeen(0, 5)})
    offset = StreamOffset("c", ledgers={7: 4})
    assert standings(offset, ledgers, stream(ledgerid="7")) == {LedgerSource(7): Standing(4)}


def test_a_new_log_of_a_pattern_enters_the_offset_before_it_is_read() -> None:
    seen = Seen("c", {A: log("a", 10), B: log("b", 20, start=4)})
    found = standings(at(a=3), seen, PATTERN)
    assert found == {A: Standing(3), B: Standing(4, is_fresh=True)}
    assert parts(at(a=3), at(a=10, b=4), seen, PATTERN) == [PositionPart(A, 3, 10)]
    assert parts(at(a=3), at(a=3, b=9), seen, PATTERN) == []
    assert parts(at(a=10, b=4), at(a=10, b=20), seen, PATTERN) == [PositionPart(B, 4, 20)]


@pytest.mark.parametrize("offset", [at(a=1), at(a=1, b=1, c=1)])
def test_a_checkpoint_of_other_named_logs_is_refused_with_the_difference(offset: StreamOffset) -> None:
    for work in (lambda: standings(offset, BOTH, LOGS), lambda: parts(offset, offset, BOTH, LOGS)):
        with pytest.raises(InvalidArgumentError, match=r"in the checkpoint: log [bc].*checkpointLocation"):
            work()


def test_a_checkpoint_of_logs_outside_the_pattern_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="only in the checkpoint: log zz"):
        standings(at(zz=1), BOTH, PATTERN)


def test_a_checkpoint_of_another_cluster_is_refused() -> None:
    with pytest.raises(ClusterMismatchError):
        standings(at("other", a=1, b=1), BOTH, LOGS)
    with pytest.raises(ClusterMismatchError):
        parts(at(a=1, b=1), at("other", a=1, b=1), BOTH, LOGS)


@pytest.mark.rule("N7")
def test_a_log_made_again_is_noticed_whatever_data_loss_may_be() -> None:
    seen = Seen("c", {A: replace(log("a", 10), head=LogHead(uuid="another", next_offset=10)), B: log("b", 20)})
    for options in (LOGS, stream(logs="a,b", failondataloss="false", onoverwrite="skip"), PATTERN):
        with pytest.raises(LogRecreatedError, match="log a"):
            standings(at(a=1, b=1), seen, options)
        with pytest.raises(LogRecreatedError, match="log a"):
            parts(at(a=1, b=1), at(a=2, b=1), seen, options)


@pytest.mark.rule("N7")
def test_an_overwritten_log_stops_the_stream_or_is_skipped_to_what_replaced_it() -> None:
    seen = Seen("c", {A: log("a", 30, start=20, epoch=1), B: log("b", 20)})
    with pytest.raises(LogOverwrittenError, match="onOverwrite=skip"):
        standings(at(a=7, b=20), seen, LOGS)
    with pytest.raises(LogOverwrittenError):
        parts(at(a=7, b=20), at(a=9, b=20), seen, LOGS)
    skip = stream(logs="a,b", onoverwrite="skip")
    assert standings(at(a=7, b=20), seen, skip)[A] == Standing(20, is_fresh=True)
    moved = offset_at(seen, {A: 20, B: 20})
    assert parts(at(a=7, b=20), moved, seen, skip) == []
    assert parts(moved, offset_at(seen, {A: 30, B: 20}), seen, skip) == [PositionPart(A, 20, 30)]
    assert parts(at(a=7, b=2), at(a=9, b=5), seen, skip) == [PositionPart(B, 2, 5)]


def test_what_was_trimmed_is_data_loss() -> None:
    seen = Seen("c", {A: log("a", 10, start=5), B: log("b", 20)})
    for work in (
        lambda options: standings(at(a=4, b=1), seen, options),
        lambda options: parts(at(a=4, b=1), at(a=9, b=1), seen, options),
    ):
        with pytest.raises(NoSuchEntryError, match="failOnDataLoss=false"):
            work(LOGS)
    lenient = stream(logs="a,b", failondataloss="false")
    assert standings(at(a=4, b=1), seen, lenient)[A] == Standing(5)
    assert parts(at(a=4, b=1), at(a=9, b=1), seen, lenient) == [PositionPart(A, 5, 9)]
    assert parts(at(a=2, b=1), at(a=4, b=1), seen, lenient) == []
    assert standings(at(a=5, b=1), seen, LOGS)[A] == Standing(5)  # all of it was read before


@pytest.mark.parametrize(
    ("options", "offset", "kind"),
    [
        (LOGS, at(a=4, b=1), NoSuchLogError),
        (PATTERN, at(a=4, b=1), NoSuchLogError),
        (stream(ledgerids="3,4"), StreamOffset("c", ledgers={3: 1, 4: 1}), NoSuchLedgerError),
    ],
)
def test_what_was_deleted_is_data_loss(options: BkOptions, offset: StreamOffset, kind: type[BookKeeperError]) -> None:
    nothing = Seen("c", {})
    with pytest.raises(kind, match="was deleted"):
        standings(offset, nothing, options)
    more = StreamOffset("c", {n: replace(p, next=9) for n, p in offset.logs.items()}, dict.fromkeys(offset.ledgers, 9))
    with pytest.raises(kind, match="was deleted"):
        parts(offset, more, nothing, options)
    lenient = replace(options, fail_on_data_loss=False)
    assert parts(offset, more, nothing, lenient) == []


def test_a_log_deleted_since_batch_0_was_planned_is_data_loss_though_the_new_start_does_not_know_it() -> None:
    with pytest.raises(NoSuchLogError, match="log b was deleted"):
        parts(at(a=0), at(a=10, b=5), Seen("c", {A: log("a", 10)}), PATTERN)


def test_a_deleted_log_leaves_the_offsets_of_a_pattern_and_keeps_its_place_among_named_ones() -> None:
    seen, offset = Seen("c", {A: log("a", 10)}), at(a=4, b=1)
    pattern, named = (replace(options, fail_on_data_loss=False) for options in (PATTERN, LOGS))
    found = standings(offset, seen, pattern)
    assert found == {A: Standing(4)}
    found = standings(offset, seen, named)
    assert found == {A: Standing(4), B: Standing(1)}
    end = offset_at(seen, {A: 10, B: 1}, offset)
    assert end == at(a=10, b=1)
    assert parts(offset, end, seen, named) == [PositionPart(A, 4, 10)]


def test_a_source_that_ended_before_the_streams_position_is_found_unless_it_may_still_grow() -> None:
    closed, growing = replace(log("a", 10), is_open=False), log("b", 20)
    seen = Seen("c", {A: closed, B: growing})
    assert ended_before(standings(at(a=11, b=21), seen, LOGS), seen) == [A]
    assert ended_before(standings(at(a=10, b=21), seen, LOGS), seen) == []


def test_a_start_behind_its_end_reads_nothing_and_asks_nothing() -> None:
    """Batch 0 from latest, replayed: its start is looked up anew."""
    assert parts(at(a=9, b=20), at(a=4, b=20), BOTH, LOGS) == []
    assert parts(at(a=9, b=20), at(a=4), BOTH, PATTERN) == []
    trimmed = Seen("c", {A: log("a", 10, start=9), B: log("b", 20)})
    assert parts(at(a=8, b=20), at(a=4, b=20), trimmed, LOGS) == []


def test_offsets_are_canonical_whatever_the_order_of_the_sources() -> None:
    text = encode_offset(offset_at(BOTH, {B: 2, A: 1}))
    assert text == encode_offset(offset_at(BOTH, {A: 1, B: 2}))
    assert decode_offset(text) == at(a=1, b=2)
