# SPDX-License-Identifier: Apache-2.0
"""Verifies tokens: which keys may sign them, and which claims a token must have (docs/security.md §5).

A token is a JWT, signed with RS256, ES256 or EdDSA; the key decides which, never the token. The claims are read only
after the signature is verified. This file uses no sockets.
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
"""The maximum difference between the clocks of the issuer and the bookie, in seconds."""

LIFE_S_MAX = 24 * 3600
"""The longest life of an accepted token, in seconds."""

SUBJECT_CHARACTERS_MAX = 256
"""The maximum number of characters of the subject that a token names."""
_RSA_BITS_MIN = 2048

REFUSED = "the token is refused"
"""The text for a client whose token is refused, if a more exact reason would help only a forger."""


class Claims(NamedTuple):
    """The part of a token that the bookie uses: its subject, the time until which it is valid, in seconds since 1970
    and with the leeway, and the :attr:`Key.print` of the key that signed it."""

    subject: str
    until_s: float
    signer: str


class TokenRefusedError(Exception):
    """A token was refused. The message is for the log; it names the token's subject if the signature is valid. ``told``
    is the text for the client. ``said`` is for the log, too, and is text that any client may choose: the ``kid`` of an
    unknown key. None of the three has any part of the token's signature."""

    def __init__(self, why: str, told: str = REFUSED, subject: object = None, said: str = "") -> None:
        if isinstance(subject, str) and subject:
            why = f"{why} (subject {subject[:SUBJECT_CHARACTERS_MAX]!r})"
        super().__init__(why)
        self.told, self.said = told, said


@dataclass(frozen=True, slots=True)
class Key:
    """A public key, and the one algorithm that goes with it. ``print`` is its fingerprint; it names the key, because
    another key may get the same ``kid`` later."""

    algorithm: str
    public: Any
    print: str = ""


def load_jwt() -> Any:
    """Return the module of PyJWT. Raises InvalidArgumentError if it is not installed."""
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
    """Return the keys of a JWKS by their ``kid``. Keys that are not for such tokens are left out. Raises ValueError for
    anything else that cannot be used; the text says which key is wrong, and why."""
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise ValueError('it is not a set of keys: {"keys": […]} is expected')
    keys: dict[str, Key] = {}
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise ValueError(f"key {number} is not an object")
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
    """Return the key of an entry, or None if it is for something else. Raises ValueError."""
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
        raise ValueError(f"{name} has {public.key_size} bits; at least {_RSA_BITS_MIN} are needed")
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return Key(algorithm, public, hashlib.sha256(public.public_bytes(encoding, form)).hexdigest())


class TokenKeys:
    """The keys in a file. For each token this checks whether the file has changed, and then reads it again. Any thread
    may call. The constructor raises InvalidArgumentError for a file that cannot be used. If a later version of the file
    cannot be used, this logs a warning and keeps the old keys."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._stamp = stamp_of(path)
        self._failed: object = self  # the stamp of the last file that could not be used
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
                        "tokens: the changed file of keys cannot be used, so the old keys stay in use: %s", error
                    )
            return self._keys

    def _load(self) -> dict[str, Key]:
        load_jwt()
        try:
            return parse_keys(read_key_file(self._path))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise InvalidArgumentError(
                "the file of token keys cannot be used",
                value=f"{self._path}: {why}",
                remedy="give public keys as a JWKS; bk token keys makes one",
            ) from error


# --- tokens ---


def verify(token: bytes, keys: Mapping[str, Key], audience: str, issuer: str = "") -> Claims:
    """Return the claims of a token that one of the keys has signed for this audience and that is valid now. If
    ``issuer`` is given, the token must be from it. Raises TokenRefusedError."""
    if len(token) > TOKEN_BYTES_MAX:
        raise TokenRefusedError("it is too long")
    jwt = load_jwt()
    try:
        text = token.decode("ascii")
        header = jwt.get_unverified_header(text)
    except (ValueError, RecursionError, jwt.PyJWTError) as error:
        raise TokenRefusedError(f"it is not a token: {type(error).__name__}") from None
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
    """Return the key that a token names. A token that names no key is accepted if there is only one key."""
    kid = header.get("kid")
    key = next(iter(keys.values())) if kid is None and len(keys) == 1 else keys.get(kid or "")
    if key is None:
        why = "no key with its kid is known here" if kid else "it names no key, and there are several"
        raise TokenRefusedError(why, said=str(kid or ""))
    if header.get("alg") != key.algorithm:
        raise TokenRefusedError(f"its key is for {key.algorithm}, and it says another algorithm")
    return key


def _refusal(jwt: Any, error: Exception, text: str) -> TokenRefusedError:
    """Return the reason why PyJWT refuses a token. If a claim is wrong, the signature is valid, because claims are
    checked after it."""
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
        return TokenRefusedError(f"it is not a valid token: {type(error).__name__}")
    return TokenRefusedError(*found, subject=jwt.decode(text, options={"verify_signature": False}).get("sub"))


def _checked(claims: Mapping[str, Any], key: Key) -> Claims:
    """Check what PyJWT does not check, and return the claims."""
    begins, ends, subject = claims["iat"], claims["exp"], claims["sub"]
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in (begins, ends)):
        raise TokenRefusedError("its times are not numbers", subject=subject)
    if ends - begins > LIFE_S_MAX:
        raise TokenRefusedError("it lives longer than 24 hours", "the token lives longer than 24 hours", subject)
    if not 0 < len(subject) <= SUBJECT_CHARACTERS_MAX or not subject.isprintable():
        raise TokenRefusedError("its subject is empty, too long, or has unprintable characters", subject=subject)
    return Claims(subject, ends + LEEWAY_S, key.print)
