# SPDX-License-Identifier: Apache-2.0
"""Which values cannot be a ledger's metadata: each is named, none is written, and what remains serves its machines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError, MetadataCorruptError
from bk_core.metadata.codec import decode_ledger, encode_ledger
from bk_core.metadata.proto.ledger_pb2 import LedgerMetadataFormat
from bk_core.model import Fragment, LedgerMetadata, LedgerState

THREE = ("b1:3181", "b2:3181", "b3:3181")
GOOD = LedgerMetadata(
    ensemble_size=3,
    write_quorum_size=3,
    ack_quorum_size=2,
    fragments=(Fragment(0, THREE), Fragment(10, ("b1:3181", "b4:3181", "b3:3181"))),
)

BAD: dict[str, tuple[LedgerMetadata, str]] = {
    "no fragment": (replace(GOOD, fragments=()), "fragments start at"),
    "begins above 0": (replace(GOOD, fragments=(Fragment(1, THREE),)), "fragments start at"),
    "begins below 0": (replace(GOOD, fragments=(Fragment(-1, THREE), Fragment(5, THREE))), "fragments start at"),
    "out of order": (
        replace(GOOD, fragments=(Fragment(0, THREE), Fragment(9, THREE), Fragment(5, THREE))),
        "fragments start at",
    ),
    "twice the same first id": (
        replace(GOOD, fragments=(Fragment(0, THREE), Fragment(5, THREE), Fragment(5, THREE))),
        "fragments start at",
    ),
    "an ensemble too small": (replace(GOOD, fragments=(Fragment(0, THREE[:2]),)), "must be 3 distinct bookies"),
    "an ensemble too large": (
        replace(GOOD, fragments=(Fragment(0, (*THREE, "b4:3181")),)),
        "must be 3 distinct bookies",
    ),
    "a later ensemble too small": (
        replace(GOOD, fragments=(Fragment(0, THREE), Fragment(5, THREE[:1]))),
        "fragment 5 has ensemble",
    ),
    "a bookie twice": (
        replace(GOOD, fragments=(Fragment(0, ("b1:3181", "b1:3181", "b3:3181")),)),
        "must be 3 distinct bookies",
    ),
    "a bookie without a name": (replace(GOOD, fragments=(Fragment(0, ("", *THREE[1:])),)), "must be 3 distinct"),
    "more copies than bookies": (replace(GOOD, write_quorum_size=4), "E ≥ Qw ≥ Qa ≥ 1"),
    "more acks than copies": (replace(GOOD, write_quorum_size=2, ack_quorum_size=3), "E ≥ Qw ≥ Qa ≥ 1"),
    "no ack needed": (replace(GOOD, ack_quorum_size=0), "E ≥ Qw ≥ Qa ≥ 1"),
    "a negative length": (GOOD.closed_at(5, -1), "length -1"),
    "an end below -1": (GOOD.closed_at(-2, 0), "last entry -2"),
}


def unchecked(metadata: LedgerMetadata) -> bytes:
    """A record of version 3 as somebody else may have written it."""
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum_size,
        ensembleSize=metadata.ensemble_size,
        ackQuorumSize=metadata.ack_quorum_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=LedgerMetadataFormat.State.Name(metadata.state.value),
    )
    for fragment in metadata.fragments:
        message.segment.add(ensembleMember=fragment.ensemble, firstEntryId=fragment.first_entry_id)
    body = message.SerializeToString()
    size = bytes([len(body)]) if len(body) < 128 else bytes([len(body) & 0x7F | 0x80, len(body) >> 7])
    return b"BookieMetadataFormatVersion\t3\n" + size + body


def test_what_is_right_has_no_problem() -> None:
    assert GOOD.problem() is None
    assert decode_ledger(unchecked(GOOD)).fragments == GOOD.fragments
    for state in LedgerState:
        assert replace(GOOD, state=state).problem() is None
    assert GOOD.closed_at(-1, 0).problem() is None


@pytest.mark.rule("MUST7")
@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_named_and_neither_read_nor_written(name: str) -> None:
    metadata, why = BAD[name]
    problem = metadata.problem()
    assert problem is not None
    assert why in problem
    with pytest.raises(MetadataCorruptError) as read:
        decode_ledger(unchecked(metadata))
    assert why in str(read.value)
    with pytest.raises(InvalidArgumentError) as written:
        encode_ledger(metadata)
    assert why in str(written.value)


@pytest.mark.rule("MUST7")
@given(
    st.lists(st.integers(-2, 8), max_size=4),
    st.lists(st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=3), max_size=4),
    *[st.integers(-1, 4)] * 3,
)
def test_whatever_has_no_problem_is_a_ledger(
    firsts: list[int], ensembles: list[list[str]], e: int, qw: int, qa: int
) -> None:
    fragments = tuple(Fragment(first, tuple(ensemble)) for first, ensemble in zip(firsts, ensembles, strict=False))
    metadata = LedgerMetadata(ensemble_size=e, write_quorum_size=qw, ack_quorum_size=qa, fragments=fragments)
    right = (
        1 <= qa <= qw <= e
        and bool(fragments)
        and fragments[0].first_entry_id == 0
        and [f.first_entry_id for f in fragments] == sorted({0, *(f.first_entry_id for f in fragments)})
        and all(sorted(f.ensemble) == sorted(set(f.ensemble) - {""}) and len(f.ensemble) == e for f in fragments)
    )
    assert (metadata.problem() is None) == right
