# SPDX-License-Identifier: Apache-2.0
"""What counts as the same entry when a normal add comes over an id that is taken, in both forms (RULES P6)."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from bk_core.entries.apache import entry_headers_of
from bk_core.entries.apache_frame import check_apache, encode_apache
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import check_frame, encode_frame
from bk_core.errors import IntegrityError
from bk_core.model import DigestType
from bookie_server.machine.compare import differing_ids
from tests.kit.apache_frames import entry_bytes

ALL = list(DigestType)
CRCS = [each for each in DigestType if each.is_checksum]
PAYLOADS = [b"zero", b"", b"two and more than twenty bytes", b"three"]


def batch(payloads: list[bytes], *, lac: int = -1, first: int = 5, before: int = 100) -> EntryBatch:
    made = EntryBatch.from_list(payloads)
    return replace(made, ledger_id=7, first_entry_id=first, lac=lac, length_before=before)


def whole(entries: list[bytes]) -> bytes:
    """A frame of entries in Apache's form."""
    lengths = np.array(list(map(len, entries)), dtype=np.int64)
    joined = b"".join(entries)
    return bytes(encode_apache(7, entry_headers_of(memoryview(joined), lengths.cumsum() - lengths), lengths, joined))


def apache(made: EntryBatch, kind: DigestType) -> bytes:
    return whole(entry_bytes(made, Digester(kind, b"secret", 7)))


def ours(made: EntryBatch, kind: DigestType) -> bytes:
    return bytes(encode_frame(made, digester=Digester(kind, b"secret", 7)))


@pytest.mark.rule("P6")
@pytest.mark.parametrize("kind", ALL)
def test_the_same_entries_in_either_form_agree_and_another_payload_differs(kind: DigestType) -> None:
    changed = [*PAYLOADS[:2], b"two and more than twenty byteS", b"three"]
    for stored in (ours, apache):
        for offered in (ours, apache):
            assert differing_ids(stored(batch(PAYLOADS), kind), offered(batch(PAYLOADS), kind)) == []
            assert differing_ids(stored(batch(PAYLOADS), kind), offered(batch(changed), kind)) == [7]
            assert differing_ids(stored(batch([b"zer"]), kind), offered(batch([b"zero"]), kind)) == [5]
            part = offered(batch(PAYLOADS[2:], first=7, before=104), kind)
            assert differing_ids(stored(batch(PAYLOADS), kind), part) == []


@pytest.mark.rule("P6")
@pytest.mark.parametrize("kind", ALL)
def test_another_ledger_length_differs_where_a_form_says_it(kind: DigestType) -> None:
    moved = batch(PAYLOADS, before=101)
    for stored, offered in ((ours, apache), (apache, ours), (apache, apache)):
        assert differing_ids(stored(batch(PAYLOADS), kind), offered(moved, kind)) == [5, 6, 7, 8]


@pytest.mark.rule("P6")
@pytest.mark.parametrize("kind", ALL)
def test_another_lac_is_the_same_entry_unless_only_a_mac_could_say_so(kind: DigestType) -> None:
    later = batch(PAYLOADS, lac=4)
    expected = [5, 6, 7, 8] if kind is DigestType.MAC else []
    assert differing_ids(apache(batch(PAYLOADS), kind), apache(later, kind)) == expected
    assert differing_ids(ours(batch(PAYLOADS), kind), apache(later, kind)) == []


@pytest.mark.rule("P6")
@pytest.mark.parametrize("kind", CRCS)
@pytest.mark.parametrize("broken", [0, 1])
def test_a_digest_that_differs_without_reason_is_another_entry(kind: DigestType, broken: int) -> None:
    one = entry_bytes(batch([b"payload"]), Digester(kind, b"", 7))
    other = entry_bytes(batch([b"payload"], lac=3), Digester(kind, b"", 7))
    pair = [bytearray(one[0]), bytearray(other[0])]
    pair[broken][32] ^= 1
    assert differing_ids(whole([bytes(pair[0])]), whole([bytes(pair[1])])) == [5]


def test_entries_too_short_for_the_stored_digest_differ() -> None:
    short = struct.pack(">qqqq", 7, 5, -1, 100) + b"x"
    assert differing_ids(ours(batch([b""]), DigestType.MAC), whole([short])) == [5]
    assert differing_ids(whole([short]), whole([short])) == []
    assert differing_ids(whole([short]), whole([short[:-1] + b"y"])) == [5]


@pytest.mark.rule("P5")
@pytest.mark.parametrize(
    ("ledger", "ids", "lacs", "said"),
    [
        (8, (5, 6), (-1, -1), "ledger or entry ids"),
        (7, (5, 7), (-1, -1), "ledger or entry ids"),
        (7, (5, 6), (-1, 3), "LAC"),
    ],
)
def test_a_frame_must_say_what_its_entries_say(
    ledger: int, ids: tuple[int, int], lacs: tuple[int, int], said: str
) -> None:
    entries = [struct.pack(">qqqq", ledger, *each, 1) + b"x" for each in zip(ids, lacs, strict=True)]
    claimed = np.array([[7, 5, -1, 1], [7, 6, -1, 2]], dtype=np.int64)
    frame = bytes(encode_apache(7, claimed, np.array([33, 33]), b"".join(entries)))
    with pytest.raises(IntegrityError, match=said):
        check_apache(check_frame(frame), frame)


def test_a_frame_must_not_hold_an_id_twice() -> None:
    entries = [struct.pack(">qqqq", 7, 5, -1, 1) + b"x"] * 2
    with pytest.raises(IntegrityError, match="twice"):
        check_apache(check_frame(whole(entries)), whole(entries))
