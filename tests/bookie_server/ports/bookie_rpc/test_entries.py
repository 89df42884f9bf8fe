# SPDX-License-Identifier: Apache-2.0
"""The entries of an answer reach a client of Apache's wire whole and in order, in whatever frames they are stored."""

from __future__ import annotations

import numpy as np
import pytest

from bk_core.entries.apache_frame import encode_apache, encode_apache_one
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import ENTRY_HEADER, Digester
from bk_core.entries.frame import encode_frame, encode_one
from bk_core.model import DigestType
from bookie_server.ports.bookie_rpc.entries import entries_of

LEDGER = 3
PAYLOADS = [b"", b"a", b"bb" * 40, b"c" * 300, b"dd", b"e" * 64]


def digester(kind: DigestType) -> Digester:
    return Digester(kind, b"secret", LEDGER)


def entry(entry_id: int, payload: bytes) -> bytes:
    return ENTRY_HEADER.pack(LEDGER, entry_id, entry_id - 1, 10 * entry_id) + payload


def single(entry_id: int) -> bytes:
    made = encode_apache_one(LEDGER, entry_id, entry(entry_id, PAYLOADS[entry_id]), 1)
    return bytes(made[1])


def several(first: int, last: int) -> bytes:
    entries = [entry(each, PAYLOADS[each]) for each in range(first, last + 1)]
    headers = np.array([ENTRY_HEADER.unpack_from(each) for each in entries])
    lengths = np.array(list(map(len, entries)), dtype=np.uint32)
    return bytes(encode_apache(LEDGER, headers, lengths, b"".join(entries), session=1))


def ours(first: int, last: int, kind: DigestType) -> bytes:
    batch = EntryBatch.from_list(PAYLOADS[first : last + 1])
    return bytes(
        encode_frame(
            batch, digester=digester(kind), ledger_id=LEDGER, first_entry_id=first, lac=first - 1, length_before=0
        )
    )


def payloads(frames: list[bytes]) -> dict[int, bytes]:
    """By entry id, what is behind the header and the digest."""
    found: dict[int, bytes] = {}
    for each in entries_of(frames):
        bodies = (bytes(each.bodies.slice(k, k + 1).joined()) for k in range(len(each.bodies)))
        for entry_id, body in zip(each.ids.tolist(), bodies, strict=True):
            assert ENTRY_HEADER.unpack_from(body)[:2] == (LEDGER, entry_id)
            found[entry_id] = body[ENTRY_HEADER.size :]
    return found


WANTED = dict(enumerate(PAYLOADS))


@pytest.mark.parametrize(
    "frames",
    [
        [b"".join(map(single, range(6)))],
        list(map(single, range(6))),
        [several(0, 1) + single(2) + several(3, 5)],
        [single(0) + several(1, 4), single(5)],
        [several(0, 5)],
    ],
    ids=["singles in one buffer", "a buffer each", "mixed", "two buffers", "one frame"],
)
def test_entries_of_apaches_form_come_out_as_they_went_in(frames: list[bytes]) -> None:
    assert payloads(frames) == WANTED


@pytest.mark.parametrize("kind", list(DigestType), ids=lambda kind: kind.name)
def test_entries_of_our_writers_get_header_and_digest_in_front_in_every_mixture(kind: DigestType) -> None:
    made = digester(kind)
    one = bytes(encode_one(PAYLOADS[3], digester=made, entry_id=3, lac=2, length_before=200))
    size = kind.digest_bytes
    found = payloads([ours(0, 2, kind) + one + ours(4, 5, kind)])
    assert {entry_id: body[size:] for entry_id, body in found.items()} == WANTED
    head = ENTRY_HEADER.pack(LEDGER, 3, 2, 200 + len(PAYLOADS[3]))
    assert found[3][:size] == made.digest(head, PAYLOADS[3])
