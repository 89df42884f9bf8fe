# SPDX-License-Identifier: Apache-2.0
"""Tokens at the bookie: which keys sign them, and what a token must say (docs/security.md §5).

A token is a JWT, signed with RS256, ES256 or EdDSA; the key decides which, never the token. Its claims are looked at
only behind its signature. Sockets are not touched here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bk_core.access.tokens import TOKEN_BYTES_MAX
from bk_core.errors import InvalidArgumentError
from bk_core.installing import how_to_install
from bookie_server.ports.access.key_files import read_key_file, stamp_of

logger = logging.getLogger(__name__)

LEEWAY_S = 30
"""The clocks of issuer and bookie may differ by so much."""

LIFE_S_MAX = 24 * 3600

SUBJECT_CHARACTERS_MAX = 256
_RSA_BITS_MIN = 2048

REFUSED = "the token is refused"
"""The answer to a client whose token is wrong in a way that helps only a forger to know."""


class Claims(NamedTuple):
    """The used part of a token: its subject, until when it holds, in seconds since 1970, leeway included, and the
    :attr:`Key.print` of the key that signed it."""

    subject: str
    until_s: float
    signer: str


class TokenRefusedError(Exception):
    """``told``: what the client may hear; the message is for the log. It names the token's subject where the signature
    holds. ``said`` is for the log, too, and is what anybody may write: the ``kid`` of a key that is not known. None has
    anything of the token's signature."""

    def __init__(self, why: str, told: str = REFUSED, subject: object = None, said: str = "") -> None:
        if isinstance(subject, str) and subject:
            why = f"{why} (subject {subject[:SUBJECT_CHARACTERS_MAX]!r})"
        super().__init__(why)
        self.told, self.said = told, said


@dataclass(frozen=True, slots=True)
class Key:
    """A public key, and the one algorithm that goes with it. ``print`` is its fingerprint, because another key may take
    its ``kid``."""

    algorithm: str
    public: Any
    print: str = ""


def load_jwt() -> Any:
    """PyJWT. Raises InvalidArgumentError where it is not installed."""
    try:
        import jwt

        if not jwt.algorithms.has_crypto:
            raise ImportError("cryptography is missing")
    except ImportError as error:
        raise InvalidArgumentError(
            "tokens need packages that are not installed",
            value=str(error),
            remedy=how_to_install("auth"),
        ) from error
    return jwt


# --- keys ---


def parse_keys(text: bytes) -> dict[str, Key]:
    """The keys of a JWKS by their ``kid``. Keys that are not for tokens of ours are left out. Raises ValueError, which
    says what is wrong with which key, for all else that cannot be used."""
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise ValueError('it is no set of keys: {"keys": […]} is wanted')
    keys: dict[str, Key] = {}
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise ValueError(f"key {number} is no object")
        kid = entry.get("kid", "")
        if not isinstance(kid, str) or kid in keys or not (kid or len(entries) == 1):
            raise ValueError(f"key {number}: each of several keys has a kid of its own")
        key = _key_of(entry, f"key {number}")
        if key is None:
            logger.info("key %d (kid %.64r) is not for tokens here, and is left out", number, kid)
        else:
            keys[kid] = key
    if not keys:
        raise ValueError("it has no key for RS256, ES256 or EdDSA")
    return keys


_ALGORITHMS: Mapping[tuple[object, object], str] = {
    ("RSA", None): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
}


def _key_of(entry: Mapping[str, Any], name: str) -> Key | None:
    """None for a key that is for something else. Raises ValueError."""
    kind, curve = entry.get("kty"), entry.get("crv")
    if kind == "oct" or "k" in entry:
        raise ValueError(f"{name} is a shared secret: a bookie could sign with it, too; give a public key")
    if "d" in entry:
        raise ValueError(f"{name} is a private key: give the public one")
    hashable = isinstance(curve, str | None) and isinstance(kind, str)
    algorithm = _ALGORITHMS.get((kind, curve)) if hashable else None
    if algorithm is None or entry.get("alg", algorithm) != algorithm or entry.get("use", "sig") != "sig":
        return None
    jwt = load_jwt()
    from cryptography.hazmat.primitives import serialization

    try:
        public = jwt.PyJWK(dict(entry), algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from None
    if kind == "RSA" and public.key_size < _RSA_BITS_MIN:
        raise ValueError(f"{name} has {public.key_size} bits, and {_RSA_BITS_MIN} are the least")
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return Key(algorithm, public, hashlib.sha256(public.public_bytes(encoding, form)).hexdigest())


class TokenKeys:
    """The keys in a file, which is looked at for each token and read when it has changed. Any thread may call. Raises
    InvalidArgumentError, when it is made, for a file that cannot be used; later ones are not taken, with a warning, and
    the old keys serve."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._stamp = stamp_of(path)
        self._failed: object = self  # or the stamp of a file that could not be used
        self._keys = self._load()

    def now(self) -> Mapping[str, Key]:
        with self._lock:
            stamp = stamp_of(self._path)
            if stamp not in (self._stamp, self._failed):
                try:
                    self._keys = self._load()
                    self._stamp = stamp
                    logger.info("tokens: the file of keys has changed, and holds: %s", ", ".join(self._keys))
                except InvalidArgumentError as error:
                    self._failed = stamp
                    logger.warning(
                        "tokens: the file of keys has changed and is not taken, the old ones serve: %s", error
                    )
            return self._keys

    def _load(self) -> dict[str, Key]:
        load_jwt()
        try:
            return parse_keys(read_key_file(self._path))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise InvalidArgumentError(
                "the file of the keys of tokens cannot be used",
                value=f"{self._path}: {why}",
                remedy="public keys as a JWKS are wanted; bk token keys makes one",
            ) from error


# --- tokens ---


def verify(token: bytes, keys: Mapping[str, Key], audience: str, issuer: str = "") -> Claims:
    """What a token says that one of the keys has signed for this audience, and that holds now. Its issuer is looked at
    if one is given. Raises TokenRefusedError."""
    if len(token) > TOKEN_BYTES_MAX:
        raise TokenRefusedError("it is too long")
    jwt = load_jwt()
    try:
        text = token.decode("ascii")
        header = jwt.get_unverified_header(text)
    except (ValueError, RecursionError, jwt.PyJWTError) as error:
        raise TokenRefusedError(f"it is no token: {type(error).__name__}") from None
    key = _chosen(header, keys)
    try:
        claims = jwt.decode(
            text,
            key.public,
            algorithms=[key.algorithm],
            audience=audience,
            issuer=issuer or None,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iat", "sub", "aud"]},
        )
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _refusal(jwt, error, text) from None
    return _checked(claims, key)


def _chosen(header: Mapping[str, Any], keys: Mapping[str, Key]) -> Key:
    """The key that a token names. One that names none is taken where there is one key only."""
    kid = header.get("kid")
    key = next(iter(keys.values())) if kid is None and len(keys) == 1 else keys.get(kid or "")
    if key is None:
        why = "no key with its kid is known here" if kid else "it names no key, of several"
        raise TokenRefusedError(why, said=str(kid or ""))
    if header.get("alg") != key.algorithm:
        raise TokenRefusedError(f"its key is for {key.algorithm}, and it says another algorithm")
    return key


def _refusal(jwt: Any, error: Exception, text: str) -> TokenRefusedError:
    """Why PyJWT does not take it. A claim that is wrong was looked at behind the signature, which holds then."""
    if isinstance(error, jwt.InvalidSignatureError):
        return TokenRefusedError("its signature is wrong")
    wrong_claims = {
        jwt.ExpiredSignatureError: ("it has expired", "the token has expired"),
        jwt.ImmatureSignatureError: ("it is not valid yet", "the token is not valid yet: compare the clocks"),
        jwt.InvalidAudienceError: ("it is for another cluster", "the token is for another cluster"),
        jwt.InvalidIssuerError: ("it is of another issuer", "the token is of another issuer"),
        jwt.MissingRequiredClaimError: (f"it has no {getattr(error, 'claim', '')}", REFUSED),
    }
    found = wrong_claims.get(type(error))
    if found is None:
        return TokenRefusedError(f"it is no token of ours: {type(error).__name__}")
    return TokenRefusedError(*found, subject=jwt.decode(text, options={"verify_signature": False}).get("sub"))


def _checked(claims: Mapping[str, Any], key: Key) -> Claims:
    """What PyJWT does not look at."""
    begins, ends, subject = claims["iat"], claims["exp"], claims["sub"]
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in (begins, ends)):
        raise TokenRefusedError("its times are no numbers", subject=subject)
    if ends - begins > LIFE_S_MAX:
        raise TokenRefusedError("it lives longer than 24 hours", "the token lives longer than 24 hours", subject)
    if not 0 < len(subject) <= SUBJECT_CHARACTERS_MAX or not subject.isprintable():
        raise TokenRefusedError("its subject is empty, too long, or has characters that nobody sees", subject=subject)
    return Claims(subject, ends + LEEWAY_S, key.print)
