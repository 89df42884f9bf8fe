# SPDX-License-Identifier: Apache-2.0
"""The vectorised digests are bit for bit the plain ones, and Apache's."""

from __future__ import annotations

import copy
import hmac
import pickle
import struct
import zlib
from dataclasses import replace
from typing import Any

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import CHECKSUMS, Digester, contradicts, ledger_key, mac_key
from bk_core.entries.gf2 import CRC32_TABLES, CRC32C_TABLES
from bk_core.errors import InvalidArgumentError
from bk_core.model import DIGEST_TYPE_NAMES, DigestType
from tests.kit.amount import examples

I64 = st.integers(0, 2**63 - 1)


def plain(digest_type: DigestType, data: bytes, password: bytes) -> bytes:
    if digest_type is DigestType.CRC32C:
        return crc32c.crc32c(data).to_bytes(4, "big")
    if digest_type is DigestType.CRC32:
        return zlib.crc32(data).to_bytes(8, "big")
    return hmac.digest(mac_key(password), data, "sha1") if digest_type is DigestType.MAC else b""


@st.composite
def entries(draw: st.DrawFn) -> list[bytes]:
    """Around the sizes where the way of computing changes: few or many, equal or not, none, wide rows."""
    count = draw(st.sampled_from([1, 2, 12, 13, 40, 300]))
    longest = draw(st.sampled_from([0, 1, 3, 255, 256, 1000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    equal = draw(st.booleans())
    sizes = np.full(count, longest) if equal else rng.integers(0, longest + 1, count)
    return [rng.bytes(int(size)) for size in sizes]


@examples(1.5)
@given(
    entries(),
    st.sampled_from(DigestType),
    st.binary(max_size=12),
    I64,
    st.integers(0, 2**62),
    st.integers(-1, 2**62),
    st.integers(0, 2**62),
)
def test_digests_of_a_run_equal_the_plain_ones(
    payloads: list[bytes], kind: DigestType, password: bytes, ledger_id: int, first: int, lac: int, before: int
) -> None:
    batch = EntryBatch.from_list(payloads)
    digests = Digester(kind, password, ledger_id).compute_run(first, lac, before, batch.lengths, batch.payload)
    expected, total = [], before
    for k, payload in enumerate(payloads):
        total += len(payload)
        expected.append(plain(kind, struct.pack(">qqqq", ledger_id, first + k, lac, total) + payload, password))
    assert [row.tobytes() for row in digests] == expected
    assert digests.shape == (len(payloads), kind.digest_bytes)


@examples(1.5)
@given(entries(), st.sampled_from(DigestType), st.integers(0, 2**32), st.booleans())
def test_digests_of_any_ids_lacs_and_lengths_equal_the_plain_ones(
    payloads: list[bytes], kind: DigestType, seed: int, one_lac: bool
) -> None:
    rng = np.random.default_rng(seed)
    count = len(payloads)
    ids, lacs, totals = (rng.integers(0, 2 ** int(rng.integers(1, 63)), count) for _ in range(3))
    batch = EntryBatch.from_list(payloads)
    digests = Digester(kind, b"secret", 77).compute(
        ids, int(lacs[0]) if one_lac else lacs, totals, batch.lengths, batch.payload
    )
    expected = [
        plain(kind, struct.pack(">qqqq", 77, ids[k], lacs[0 if one_lac else k], totals[k]) + payloads[k], b"secret")
        for k in range(count)
    ]
    assert [row.tobytes() for row in digests] == expected


@pytest.mark.parametrize(("tables", "crc"), [(CRC32C_TABLES, crc32c.crc32c), (CRC32_TABLES, zlib.crc32)])
@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 65535, 65536, 5 * 1024 * 1024 - 1024])
def test_shifted_crc_is_the_crc_of_what_is_appended(tables: object, crc: object, length: int) -> None:
    tail = b"\x5a" * length
    assert tables.shift_one(crc(b"header"), length) ^ crc(tail) == crc(b"header" + tail)


def test_sizes_whose_mean_is_the_first_are_not_taken_for_equal() -> None:
    payloads = [b"ab", b"c", b"def"] * 10
    batch = EntryBatch.from_list(payloads)
    digests = Digester(DigestType.CRC32C, b"", 1).compute_run(0, -1, 0, batch.lengths, batch.payload)
    totals = np.cumsum(batch.lengths)
    headers = [struct.pack(">qqqq", 1, k, -1, totals[k]) for k in range(30)]
    assert digests.tobytes() == b"".join(
        crc32c.crc32c(header + payload).to_bytes(4, "big") for header, payload in zip(headers, payloads, strict=True)
    )


def test_payload_of_the_greatest_size_among_small_ones_has_its_plain_digest() -> None:
    big = bytes(5 * 1024 * 1024 - 1024)
    batch = EntryBatch.from_list([b"x"] * 20 + [big])
    digests = Digester(DigestType.CRC32C, b"", 1).compute_run(0, -1, 0, batch.lengths, batch.payload)
    header = struct.pack(">qqqq", 1, 20, -1, 20 + len(big))
    assert digests[-1].tobytes() == crc32c.crc32c(header + big).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("password", "key"),
    [
        (b"", "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"),
        (b"passwd", "9596625852f7fafc2c9cf0f9f7f3e5995206452b"),
        (b"benchPasswd", "8ad051763f5480bb2581a4fcfdd82923cf6684a8"),
    ],
)
def test_ledger_key_is_apaches(password: bytes, key: str) -> None:
    assert ledger_key(password).hex() == key


def test_mac_key_is_apaches() -> None:
    assert mac_key(b"passwd").hex() == "6c5d50401aaaf61cb32a1f11f123999a845fb706"


def numbered(kind: DigestType, ledger_id: int = 5) -> EntryBatch:
    batch = EntryBatch.from_list([bytes([k]) * k for k in range(30)])
    digests = Digester(kind, b"pw", ledger_id).compute_run(10, 9, 100, batch.lengths, batch.payload)
    return EntryBatch(
        lengths=batch.lengths,
        payload=batch.payload,
        ledger_id=ledger_id,
        first_entry_id=10,
        lac=9,
        length_before=100,
        digests=digests,
        digest_type=kind,
    )


@pytest.mark.parametrize("kind", [kind for kind in DigestType if kind.digest_bytes])
@pytest.mark.parametrize("wrong", ["payload", "first_entry_id", "lac", "length_before", "digests"])
def test_a_change_of_anything_the_digest_covers_is_found(kind: DigestType, wrong: str) -> None:
    batch = numbered(kind)
    digester = Digester(kind, b"pw", 5)
    assert digester.verify(batch).all()
    change: object = getattr(batch, wrong)
    if wrong == "payload":
        changed = bytearray(batch.payload)
        changed[0] ^= 1
        change = memoryview(changed)
    elif wrong == "digests":
        change = batch.digests ^ np.eye(30, kind.digest_bytes, dtype=np.uint8)
    else:
        change += 1
    fields = {name: getattr(batch, name) for name in batch.__slots__ if name != "_offsets"}
    right = digester.verify(EntryBatch(**(fields | {wrong: change})))
    touched = {"payload": [1], "digests": list(range(kind.digest_bytes))}.get(wrong, list(range(30)))
    assert np.flatnonzero(~right).tolist() == touched


@pytest.mark.parametrize("kind", list(DigestType))
def test_one_entry_is_verified_as_many_are(kind: DigestType) -> None:
    digester = Digester(kind, b"pw", 7)
    for sizes in ([5], [0], [3, 4]):
        made = EntryBatch.from_list([bytes(size) for size in sizes], first_entry_id=9)
        digests = digester.compute_run(9, 4, 100, made.lengths, made.payload)
        batch = replace(made, ledger_id=7, lac=4, length_before=100, digests=digests, digest_type=kind)
        assert digester.is_right(batch)
        assert digester.verify(batch).all()
        wrongs: list[dict[str, Any]] = [{"lac": 5}, {"length_before": 0}, {"first_entry_id": 8}]
        for wrong in wrongs:
            assert digester.is_right(replace(batch, **wrong)) is (kind is DigestType.DUMMY)


def test_another_password_fails_every_mac() -> None:
    assert not Digester(DigestType.MAC, b"other", 5).verify(numbered(DigestType.MAC)).any()


def test_batch_of_another_ledger_or_digest_type_is_not_verified_at_all() -> None:
    for digester in (Digester(DigestType.CRC32C, b"pw", 6), Digester(DigestType.DUMMY, b"pw", 5)):
        with pytest.raises(InvalidArgumentError):
            digester.verify(numbered(DigestType.CRC32C))
    with pytest.raises(InvalidArgumentError):
        Digester(DigestType.CRC32C, b"pw", -1).verify(EntryBatch.from_list([b"x"]))


def test_what_is_known_about_each_type_of_digest() -> None:
    assert {kind.name: (int(kind), kind.digest_bytes) for kind in DigestType} == {
        "CRC32": (1, 8), "MAC": (2, 20), "CRC32C": (3, 4), "DUMMY": (4, 0)
    }  # fmt: skip
    assert [kind for kind in DigestType if kind.needs_key] == [DigestType.MAC]
    assert {kind for kind in DigestType if kind.is_checksum} == set(CHECKSUMS)
    assert DIGEST_TYPE_NAMES[0] == "CRC32C"
    assert DigestType(2) is pickle.loads(pickle.dumps(DigestType.MAC)) is copy.deepcopy(DigestType.MAC)
    with pytest.raises(ValueError, match="9 is not a valid DigestType"):
        DigestType(9)


@pytest.mark.parametrize("kind", list(DigestType), ids=lambda kind: kind.name)
def test_a_digest_is_contradicted_only_where_nobody_needs_a_key(kind: DigestType) -> None:
    right = Digester(kind, b"secret", 7).digest(b"the numbers of a LAC")
    assert not contradicts(right, b"the numbers of a LAC")
    assert contradicts(right, b"other numbers") == kind.is_checksum
    assert not contradicts(b"12345", b"a width that no type has")
