# SPDX-License-Identifier: Apache-2.0
"""Which tokens count, and which keys: every way in which one can be wrong."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import logging
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from bk_core.access.tokens import TOKEN_BYTES_MAX
from bk_core.errors import InvalidArgumentError
from bookie_server.ports.access.tokens import LEEWAY_S, REFUSED, TokenKeys, TokenRefusedError, parse_keys, verify
from tests.kit.signed_tokens import Signer, keys_file

SIGNERS = {each: Signer(each, each) for each in ("EdDSA", "ES256", "RS256")}
SIGNER = SIGNERS["EdDSA"]
KEYS = parse_keys(json.dumps({"keys": [each.jwk for each in SIGNERS.values()]}).encode())
ONE_KEY = parse_keys(json.dumps({"keys": [SIGNER.jwk]}).encode())


def refusal(token: bytes, keys: Any = KEYS, audience: str = "cluster-1") -> TokenRefusedError:
    with pytest.raises(TokenRefusedError) as raised:
        verify(token, keys, audience)
    return raised.value


def _part(value: object) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=")


def forged(header: object, claims: object, signature: bytes = b"") -> bytes:
    return b".".join((_part(header), _part(claims), _part(signature)))


def good_claims() -> dict[str, Any]:
    now = int(time.time())
    return {"sub": "ingest", "aud": "cluster-1", "iat": now, "exp": now + 60}


# --- what counts ---


@pytest.mark.parametrize("algorithm", SIGNERS)
def test_a_token_of_each_algorithm_names_its_subject_until_it_ends(algorithm: str) -> None:
    before = time.time()
    claims = verify(SIGNERS[algorithm].token(life_s=600), KEYS, "cluster-1")
    assert claims.subject == "ingest"
    assert before + 598 + LEEWAY_S <= claims.until_s <= time.time() + 600 + LEEWAY_S


def test_one_of_several_audiences_will_do_and_a_single_key_needs_no_name() -> None:
    assert verify(SIGNER.token(audience=["other", "cluster-1"]), KEYS, "cluster-1").subject == "ingest"
    unnamed = jwt.encode(good_claims(), SIGNER.private, "EdDSA").encode()
    assert verify(unnamed, ONE_KEY, "cluster-1").subject == "ingest"
    assert "names no key" in str(refusal(unnamed))


def test_clocks_may_differ_a_little_and_no_more() -> None:
    verify(SIGNER.token(life_s=100, age_s=100 + LEEWAY_S - 5), KEYS, "cluster-1")
    assert refusal(SIGNER.token(life_s=100, age_s=100 + LEEWAY_S + 5)).told == "the token has expired"
    verify(SIGNER.token(age_s=5 - LEEWAY_S), KEYS, "cluster-1")
    assert "not valid yet" in refusal(SIGNER.token(age_s=-LEEWAY_S - 5)).told
    assert "not valid yet" in refusal(SIGNER.token(nbf=int(time.time()) + LEEWAY_S + 5)).told


# --- what does not ---


@pytest.mark.parametrize(
    ("why", "told", "change"),
    [
        ("has expired", "the token has expired", {"age_s": 7200}),
        ("another cluster", "the token is for another cluster", {"audience": "cluster-2"}),
        ("another cluster", "the token is for another cluster", {"audience": ["cluster-2", "cluster-11"]}),
        ("24 hours", "the token lives longer than 24 hours", {"life_s": 24 * 3600 + 1}),
        ("no exp", REFUSED, {"exp": None}),
        ("no iat", REFUSED, {"iat": None}),
        ("no aud", REFUSED, {"audience": None}),
        ("no sub", REFUSED, {"subject": None}),
        ("subject", REFUSED, {"subject": ""}),
        ("subject", REFUSED, {"subject": "x" * 257}),
        ("subject", REFUSED, {"subject": "ingest\nWARNING all is well"}),
        ("subject", REFUSED, {"subject": "ingest\u202enimda"}),
        ("subject", REFUSED, {"subject": "\ud800"}),
        ("not a valid token", REFUSED, {"subject": 7}),
        ("another cluster", "the token is for another cluster", {"audience": 7}),
        ("times are not numbers", REFUSED, {"exp": str(int(time.time()) + 3000)}),
        ("not a valid token", REFUSED, {"exp": "tomorrow"}),
        ("not a valid token", REFUSED, {"exp": float("inf")}),
        ("not a valid token", REFUSED, {"exp": float("nan")}),
        ("24 hours", "the token lives longer than 24 hours", {"exp": 10**400}),
        ("not a token", REFUSED, {"header": {"crit": ["exp2"], "exp2": 1}}),
        ("is known here", REFUSED, {"header": {"kid": "another"}}),
    ],
)
def test_a_token_that_says_something_else_is_refused(why: str, told: str, change: dict[str, Any]) -> None:
    error = refusal(SIGNER.token(**change))
    assert why in str(error)
    assert error.told == told


@pytest.mark.parametrize(
    "change", [{"age_s": 7200}, {"audience": "x"}, {"exp": None}, {"life_s": 10**6}, {"age_s": -900}, {"exp": "3"}]
)
def test_a_refusal_names_the_subject_where_the_signature_holds_and_nowhere_else(change: dict[str, Any]) -> None:
    """On one short line, whatever it is: nobody forges lines of the log."""
    assert str(refusal(SIGNER.token("spiffe://example/ingest", **change))).endswith(
        "(subject 'spiffe://example/ingest')"
    )
    for subject in ("a\nWARNING all is well", "a\u202e\x1b[2J", "x" * 2000, "\ud800"):
        said = str(refusal(SIGNER.token(subject, **change)))
        assert "(subject '" in said
        assert said.isprintable()
        assert len(said) < 400
    for token in (
        Signer("EdDSA").token("forged", **change),
        forged({"alg": "EdDSA", "kid": "EdDSA"}, {"sub": "forged"}),
    ):
        assert "forged" not in str(refusal(token))
    unknown = refusal(Signer("another").token("forged", **change))
    assert ("forged" not in str(unknown), unknown.said) == (True, "another")


def test_a_token_that_nobody_signed_is_refused() -> None:
    for name in ("none", "None", "NONE", ""):
        for kid in ({"kid": "EdDSA"}, {}):
            for keys in (KEYS, ONE_KEY):
                assert refusal(forged({"alg": name, **kid}, good_claims()), keys).told == REFUSED


def test_a_public_key_is_no_shared_secret() -> None:
    """The oldest trick: HS256 with the text of the public key."""
    signer = SIGNERS["RS256"]
    public = signer.private.public_key()
    head, claims = _part({"alg": "HS256", "kid": "RS256"}), _part(good_claims())
    for encoding in (
        public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
        json.dumps(signer.jwk).encode(),
    ):
        signature = hmac.new(encoding, head + b"." + claims, hashlib.sha256).digest()
        assert refusal(head + b"." + claims + b"." + _part(signature)).told == REFUSED


def test_the_key_says_which_algorithm_it_is_for() -> None:
    """Of the algorithms that count, and of others that its kind could do."""
    rsa_signed = jwt.encode(good_claims(), SIGNERS["RS256"].private, "RS512", {"kid": "RS256"}).encode()
    assert "another algorithm" in str(refusal(rsa_signed))
    crossed = jwt.encode(good_claims(), SIGNERS["ES256"].private, "ES256", {"kid": "EdDSA"}).encode()
    assert refusal(crossed).told == REFUSED
    lying = forged({"alg": "EdDSA", "kid": "ES256"}, good_claims(), b"x" * 64)
    assert "another algorithm" in str(refusal(lying))


def test_where_an_issuer_is_wanted_a_token_names_it() -> None:
    for issuer in ("https://idp.example", "x"):
        assert verify(SIGNER.token(iss=issuer), KEYS, "cluster-1", issuer).subject == "ingest"
        assert verify(SIGNER.token(iss=issuer), KEYS, "cluster-1").subject == "ingest"
    for wrong in ("https://idp.example/other", "https://IDP.example", "https://idp.example ", ""):
        with pytest.raises(TokenRefusedError) as raised:
            verify(SIGNER.token(iss=wrong), KEYS, "cluster-1", "https://idp.example")
        assert raised.value.told in ("the token is of another issuer", REFUSED)
    with pytest.raises(TokenRefusedError, match="no iss"):
        verify(SIGNER.token(), KEYS, "cluster-1", "https://idp.example")


def test_a_token_remembers_the_key_itself_and_not_its_name() -> None:
    again = Signer("EdDSA")
    keys = parse_keys(json.dumps({"keys": [again.jwk]}).encode())
    mine, other = verify(SIGNER.token(), KEYS, "cluster-1"), verify(again.token(), keys, "cluster-1")
    assert len({mine.signer, other.signer, ""}) == 3
    assert verify(SIGNER.token(life_s=60), ONE_KEY, "cluster-1").signer == mine.signer


def test_another_keys_signature_and_a_changed_token_are_refused() -> None:
    assert "signature is wrong" in str(refusal(Signer("EdDSA").token()))
    head, claims, signature = SIGNER.token().split(b".")
    changed = _part({**good_claims(), "sub": "admin"})
    assert "signature is wrong" in str(refusal(b".".join((head, changed, signature))))
    assert refusal(b".".join((head, claims, signature[:-8]))).told == REFUSED


def test_what_is_wrong_with_a_forged_tokens_claims_is_not_told() -> None:
    """Claims are looked at behind the signature only."""
    stranger = Signer("EdDSA")
    for change in ({"age_s": 7200}, {"audience": "x"}, {"life_s": 10**6}):
        assert refusal(stranger.token(**change)).told == REFUSED


def test_a_key_inside_the_token_is_not_looked_at() -> None:
    stranger = Signer("EdDSA")
    for name in ("jwk", "x5c", "jku"):
        assert refusal(stranger.token(header={name: stranger.jwk})).told == REFUSED


def test_a_long_token_is_refused_before_anything_is_looked_at() -> None:
    assert "too long" in str(refusal(SIGNER.token(note="x" * TOKEN_BYTES_MAX)))
    verify(SIGNER.token(note="x" * (TOKEN_BYTES_MAX // 2)), KEYS, "cluster-1")


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 2**16))
def test_no_bytes_are_a_token_and_none_raise_anything_else(noise: bytes, at: int, seed: int) -> None:
    good = bytearray(SIGNER.token())
    pieces = noise + b"." + noise + b"." + noise, forged(noise, noise, noise), forged({"alg": "EdDSA"}, noise)
    for token in (noise, *pieces):
        assert refusal(token)
    good[at % len(good)] ^= 1 + seed % 127
    with contextlib.suppress(TokenRefusedError):  # the last character has bits that say nothing
        assert verify(bytes(good), KEYS, "cluster-1").subject == "ingest"


@pytest.mark.parametrize("deep", [b"[" * 3000, b'{"a":' * 3000, b"9" * 3900])
def test_deep_and_long_json_is_no_token(deep: bytes) -> None:
    raw = base64.urlsafe_b64encode(deep).rstrip(b"=")[:3800]
    for token in (raw + b".e30.e30", _part({"alg": "EdDSA", "kid": "EdDSA"}) + b"." + raw + b".e30"):
        assert refusal(token[:TOKEN_BYTES_MAX]).told == REFUSED


# --- keys ---


def _weak() -> dict[str, Any]:
    public = rsa.generate_private_key(65537, 1024).public_key()
    return {**dict(jwt.get_algorithm_by_name("RS256").to_jwk(public, as_dict=True)), "kid": "weak"}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (b"", "Expecting value"),
        (b"[]", "not a set of keys"),
        (b'{"keys": {}}', "not a set of keys"),
        (b'{"keys": []}', "no key for"),
        (b'{"keys": [7]}', "is not an object"),
        (b"[" * 100_000, "nested too deeply"),
        ([{"kty": "oct", "k": "c2VjcmV0", "kid": "s"}], "shared secret"),
        ([SIGNER.jwk, SIGNER.jwk], "a kid of its own"),
        ([SIGNER.jwk, {**SIGNERS["ES256"].jwk, "kid": ""}], "a kid of its own"),
        ([{**SIGNER.jwk, "kid": 7}], "a kid of its own"),
        ([{**SIGNER.jwk, "d": "AAAA"}], "private key"),
        ([{**SIGNER.jwk, "x": "!"}], "cannot be read"),
        ([{**SIGNERS["ES256"].jwk, "x": SIGNERS["ES256"].jwk["y"]}], "cannot be read"),
        ([_weak()], "1024 bits"),
        ([{**SIGNER.jwk, "use": "enc"}], "no key for"),
        ([{**SIGNERS["RS256"].jwk, "alg": "HS256"}], "no key for"),
        ([{**SIGNER.jwk, "crv": ["Ed25519"]}], "no key for"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_stops_the_start(keys: Any, why: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(keys if isinstance(keys, bytes) else json.dumps({"keys": keys}).encode())
    with pytest.raises(InvalidArgumentError, match=why) as raised:
        TokenKeys(path)
    assert str(path) in raised.value.value
    assert raised.value.remedy


def test_keys_for_something_else_are_left_out() -> None:
    """As the files of identity providers have them."""
    p384 = ec.generate_private_key(ec.SECP384R1()).public_key()
    other = dict(jwt.get_algorithm_by_name("ES384").to_jwk(p384, as_dict=True))
    entries = [SIGNER.jwk, {**other, "kid": "p384"}, {**SIGNERS["RS256"].jwk, "use": "enc", "alg": "RSA-OAEP"}]
    assert list(parse_keys(json.dumps({"keys": entries}).encode())) == ["EdDSA"]


def test_a_missing_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="No such file"):
        TokenKeys(tmp_path / "none.json")


def test_keys_are_changed_with_an_overlap_and_without_a_restart(tmp_path: Path) -> None:
    old, new = Signer("old"), Signer("new")
    path = keys_file(tmp_path / "keys.json", old)
    keys = TokenKeys(path)
    assert "no key with its kid" in str(refusal(new.token(), keys.now()))
    keys_file(path, old, new)
    for each in (old, new):
        assert verify(each.token(), keys.now(), "cluster-1")
    keys_file(path, new)
    assert "no key with its kid" in str(refusal(old.token(), keys.now()))
    assert verify(new.token(), keys.now(), "cluster-1")


def test_a_file_that_is_half_written_keeps_the_old_keys_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signer = Signer("k")
    path = keys_file(tmp_path / "keys.json", signer)
    keys, whole = TokenKeys(path), path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", None):
        caplog.clear()
        if broken is None:
            path.unlink()
        else:
            path.write_bytes(broken)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert verify(signer.token(), keys.now(), "cluster-1")
        assert caplog.text.count("the old keys stay in use") == 1
    keys_file(path, Signer("k"))
    assert "signature is wrong" in str(refusal(signer.token(), keys.now()))
