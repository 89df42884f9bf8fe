# SPDX-License-Identifier: Apache-2.0
"""The table of statuses, and lists of entries."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError, RemoteProtocolError
from bk_core.wire.bookie_rpc.availability import encode_availability
from bk_core.wire.bookie_rpc.status import (
    STATUSES,
    UNKNOWN_CODE,
    Status,
    from_v2,
    reason_of,
    refused_add,
    refused_read,
    to_v2,
)
from bk_core.wire.lane.reasons import Reason
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from tests.kit.availability import decode_availability


def test_statuses_are_those_of_the_messages() -> None:
    assert {status.name: status.value for status in Status} == dict(pb.StatusCode.items())
    assert set(STATUSES) == set(Status)


def test_each_status_has_its_code_in_version_2_and_back() -> None:
    for status in Status:
        assert from_v2(np.array([STATUSES[status].v2])).tolist() == [status]
        if status is not Status.EUNKNOWNLEDGERSTATE:
            assert to_v2(status) == STATUSES[status].v2
    assert to_v2(Status.EUNKNOWNLEDGERSTATE) == to_v2(Status.EIO), "Java's client closes the connection at 107"
    unknown = np.array([-1, 3, 99, 108, 500, 2**31 - 1, -(2**31)])
    assert set(from_v2(unknown).tolist()) == {UNKNOWN_CODE}


@pytest.mark.rule("MUST4")
def test_no_refusal_is_taken_for_an_absent_entry() -> None:
    for reason in Reason:
        if reason is not Reason.DELETED:
            assert refused_read(reason) not in (Status.EOK, Status.ENOENTRY, Status.ENOLEDGER), reason
        assert refused_add(reason) is not Status.EOK
    absent = {status for status in Status if reason_of(status) is Reason.REASON_NONE}
    assert absent == {Status.EOK, Status.ENOLEDGER, Status.ENOENTRY}


def test_a_fence_and_a_wrong_key_are_told_from_all_else() -> None:
    assert {reason for reason in Reason if refused_add(reason) is Status.EFENCED} == {Reason.FENCED, Reason.DELETED}
    assert {reason for reason in Reason if refused_add(reason) is Status.EUA} == {
        Reason.UNAUTHORIZED,
        Reason.UNAUTHENTICATED,
    }
    assert reason_of(Status.EFENCED) is Reason.FENCED


def i64(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def listed(*groups: tuple[int, int, int, int], version: int = 0, count: int | None = None) -> bytes:
    head = struct.pack(">ii56x", version, len(groups) if count is None else count)
    return head + b"".join(struct.pack(">qqii", *group) for group in groups)


@given(st.sets(st.integers(0, 300), max_size=120), st.integers(0, 2**62))
def test_ids_survive_as_ranges(ids: set[int], shift: int) -> None:
    kept = sorted(one + shift for one in ids)
    firsts = [one for one in kept if one - 1 not in set(kept)]
    lasts = [one for one in kept if one + 1 not in set(kept)]
    data = encode_availability(i64(firsts), i64(lasts))
    assert len(data) == 64 + 24 * len(firsts)
    begins, ends = decode_availability(data)
    assert (begins.tolist(), ends.tolist()) == (firsts, lasts)


def test_the_list_of_0_to_9_is_apaches() -> None:
    expected = bytes.fromhex("0000000000000001" + "00" * 56 + "0000000000000000" * 2 + "0000000a00000000")
    assert encode_availability(i64([0]), i64([9])) == expected


def test_a_range_of_more_than_31_bits_becomes_several_groups() -> None:
    data = encode_availability(i64([5, 2**40]), i64([2**33, 2**40]))
    begins, ends = decode_availability(data)
    assert (begins.tolist(), ends.tolist()) == ([5, 2**40], [2**33, 2**40])
    assert len(data) == 64 + 24 * 5


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9), st.integers(1, 7), st.integers(1, 9)), max_size=5))
def test_groups_with_a_period_in_any_order(groups: list[tuple[int, int, int, int]]) -> None:
    made = [(first, first + (runs - 1) * by, size, by if runs > 1 else 0) for first, runs, size, by in groups]
    expected = {first + k * by + j for first, runs, size, by in groups for k in range(runs) for j in range(size)}
    begins, ends = decode_availability(listed(*made))
    assert {one for b, e in zip(begins.tolist(), ends.tolist(), strict=True) for one in range(b, e + 1)} == expected
    assert bool((begins[1:] > ends[:-1] + 1).all())


@pytest.mark.rule("L5")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(63),
        listed(version=1),
        listed(version=-1),
        listed(count=-1),
        listed(count=2**31 - 1),
        listed((0, 0, 1, 0), count=2),
        listed((0, 0, 0, 0)),
        listed((0, 0, -1, 0)),
        listed((-1, 0, 1, 1)),
        listed((5, 4, 1, 1)),
        listed((0, 10, 1, 0)),
        listed((0, 10, 1, -1)),
        listed((0, 2**62, 1, 1)),
        listed((0, 2**20, 1, 2), (0, 2**20, 1, 2), (0, 2**20, 1, 2)),
        listed((2**63 - 1, 2**63 - 1, 1, 0)),
    ],
)
def test_lists_that_cannot_be_are_refused_before_memory_is_taken(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_availability(data)


@pytest.mark.parametrize("ranges", [([3], [2]), ([0, 5], [5, 9]), ([0, 6], [5, 9]), ([5, 0], [6, 1]), ([-1], [3])])
def test_ranges_out_of_order_are_refused(ranges: tuple[list[int], list[int]]) -> None:
    with pytest.raises(InvalidArgumentError):
        encode_availability(i64(ranges[0]), i64(ranges[1]))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_list_or_refused(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        decode_availability(bytes(8) + data)
