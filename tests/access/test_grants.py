# SPDX-License-Identifier: Apache-2.0
"""Grants: what is signed, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bk_core.access.grants import GRANT_BYTES_MAX, Grant, GrantRefused, Keys, parse_keys
from bk_core.access.roles import Right
from bk_core.errors import InvalidArgumentError

OLD, NEW = b"o" * 32, b"n" * 40
GRANT = Grant("4c0e-instance", "spiffe://example.org/bookkeeper/ingest", 7, Right.READ | Right.WRITE, 1_000, 601_000)


def verify(keys: Keys, grant: bytes, **other: Any) -> Grant:
    about = {"instance_id": GRANT.instance_id, "identity": GRANT.identity, "now_ms": 2_000, **other}
    return keys.verify(grant, **about)


def test_what_is_signed_is_what_is_read() -> None:
    keys = Keys([NEW])
    signed = keys.sign(GRANT)
    assert verify(keys, signed) == GRANT
    assert len(signed) == 12 + 2 + 13 + 2 + 38 + 26 + 32
    for grant in (GRANT._replace(ledger_id=-1, rights=Right.NONE), GRANT._replace(ledger_id=2**63 - 1)):
        assert verify(keys, keys.sign(grant)) == grant


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"instance_id": "another"}, "to another cluster"),
        ({"identity": "spiffe://example.org/bookkeeper/ingest2"}, "to another identity"),
        ({"identity": ""}, "to another identity"),
        ({"now_ms": 999}, "not valid yet"),
        ({"now_ms": 601_000}, "has ended"),
    ],
)
def test_a_grant_is_good_for_one_cluster_one_identity_and_a_time(other: dict[str, object], why: str) -> None:
    keys = Keys([NEW])
    with pytest.raises(GrantRefused, match=why):
        verify(keys, keys.sign(GRANT), **other)


def test_keys_are_changed_with_an_overlap() -> None:
    before, both, after = Keys([OLD]), Keys([NEW, OLD]), Keys([NEW])
    assert verify(both, before.sign(GRANT)) == GRANT, "one that was signed before"
    assert verify(after, both.sign(GRANT)) == GRANT, "the first key signs"
    for keys, signed in ((after, before.sign(GRANT)), (before, both.sign(GRANT))):
        with pytest.raises(GrantRefused, match="a key that this bookie does not have"):
            verify(keys, signed)


def test_every_changed_byte_and_every_cut_is_refused() -> None:
    keys = Keys([NEW])
    signed = keys.sign(GRANT)
    for at in range(len(signed)):
        changed = bytearray(signed)
        changed[at] ^= 1
        with pytest.raises(GrantRefused):
            verify(keys, bytes(changed))
        with pytest.raises(GrantRefused):
            verify(keys, signed[:at])
    with pytest.raises(GrantRefused):
        verify(keys, signed + b"\0")


def test_what_is_signed_but_of_another_shape_is_refused() -> None:
    """Only who has a key can make it, so this is a later version's."""
    import hmac

    for said in (signed_head() + b"", signed_head() + b"\xff\xff", signed_head() + b"\0\1\xff\0\0" + bytes(26)):
        with pytest.raises(GrantRefused):
            verify(Keys([NEW]), said + hmac.digest(NEW, said, "sha256"))


def signed_head() -> bytes:
    return Keys([NEW]).sign(GRANT)[:12]


def test_what_comes_from_a_wire_is_refused_and_never_raises_otherwise() -> None:
    keys, seeded = Keys([NEW]), random.Random(5)
    signed = keys.sign(GRANT)
    for _ in range(2_000):
        made = bytearray(signed[: seeded.randrange(len(signed) + 1)] + seeded.randbytes(seeded.randrange(64)))
        for _ in range(seeded.randrange(1, 4)):
            made[seeded.randrange(len(made) or 1) :] = seeded.randbytes(seeded.randrange(64))
        with pytest.raises(GrantRefused):
            verify(keys, bytes(made))
    with pytest.raises(GrantRefused, match="not a grant"):
        verify(keys, signed.ljust(GRANT_BYTES_MAX + 1, b"\0"))


def test_a_file_of_keys_has_one_a_line() -> None:
    keys = parse_keys(f"# new\n\n{NEW.hex()}\n  {OLD.hex().upper()}  \n")
    assert verify(Keys([NEW]), keys.sign(GRANT)) == GRANT
    assert verify(keys, Keys([OLD]).sign(GRANT)) == GRANT


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no key"),
        ("# nothing\n", "no key"),
        ("xyz\n", "line 1 is not hex"),
        ("#\n" + "ab" * 31, "line 2 has 31 bytes"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_is_refused_and_its_keys_are_not_shown(text: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why) as caught:
        parse_keys(text)
    assert "abab" not in str(caught.value)
    assert "xyz" not in str(caught.value)
