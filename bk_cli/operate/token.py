# SPDX-License-Identifier: Apache-2.0
"""``bk token``: makes the file of keys with which bookies verify tokens, and signs tokens. It asks no bookie and no
metadata store."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bk_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST = {"RSA": ("e", "kty", "n"), "EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x")}
"""The members of a key that its thumbprint is made of (RFC 7638)."""


@click.group()
def token() -> None:
    """Tokens: sign them, and make the file of keys that verify them (docs/security.md)."""


@token.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY…", type=click.Path(path_type=Path))
def keys(keys: Sequence[Path]) -> None:
    """Print the file of keys for a bookie's token_keys_path.

    It is made from private or public keys in PEM, and has only their public parts. To replace a key, give the old and
    the new one until the last token of the old key has expired.
    """
    made = [_jwk(_load(path)) for path in keys]
    if len({each["kid"] for each in made}) < len(made):
        raise InvalidArgumentError("the same key is given twice", value=", ".join(map(str, keys)))
    click.echo(json.dumps({"keys": made}, indent=1))


@token.command()
@click.option("--key", "path", metavar="FILE", type=click.Path(path_type=Path), required=True,
              help="The private key that signs, in PEM, not encrypted.")  # fmt: skip
@click.option("--subject", metavar="IDENTITY", required=True, help="The identity that the token names.")
@click.option("--audience", metavar="ID", required=True, help="The cluster's instance id (bk cluster init prints it).")
@click.option("--hours", type=click.FloatRange(min=0, max=24, min_open=True), default=1.0, help="How long it lives.")
@click.option("--issuer", default="", show_default=False, help="The issuer, if bookies require one (token_issuer).")
@click.option("--output", metavar="FILE", type=click.Path(path_type=Path),
              help="Write it to this file, which only its owner may read; an older file is replaced.")  # fmt: skip
def create(path: Path, subject: str, audience: str, hours: float, issuer: str, output: Path | None) -> None:
    """Sign a token, and print it.

    The key can sign a token for any identity: keep it away from bookies and clients.
    """
    from bookie_server.ports.access.tokens import SUBJECT_CHARACTERS_MAX, load_jwt

    if not 0 < len(subject) <= SUBJECT_CHARACTERS_MAX or not subject.isprintable():
        raise InvalidArgumentError(
            f"a subject has 1 to {SUBJECT_CHARACTERS_MAX} characters that can be seen", value=f"{subject[:80]!r}"
        )
    private = _load(path)
    if not hasattr(private, "sign"):
        raise InvalidArgumentError("a public key signs nothing", value=str(path), remedy="give the private key")
    _guard(path)
    public, now = _jwk(private), int(time.time())
    claims: dict[str, Any] = {"sub": subject, "aud": audience, "iat": now, "exp": now + int(hours * 3600)}
    if issuer:
        claims["iss"] = issuer
    made = load_jwt().encode(claims, private, algorithm=public["alg"], headers={"kid": public["kid"]})
    if output is None:
        click.echo(made)
    else:
        _write(output, made)


def _write(path: Path, text: str) -> None:
    """Write the file whole: a process that reads it meanwhile gets the old or the new one. The name of the temporary
    file is random, so nobody else can have made it, or a link in its place."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    try:
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(file, "w", encoding="ascii") as opened:
                opened.write(f"{text}\n")
            os.replace(new, path)
        except BaseException:
            os.unlink(new)
            raise
    except OSError as error:
        raise InvalidArgumentError("the token cannot be written", value=f"{path}: {error.strerror}") from error


def _guard(path: Path) -> None:
    """Check that not every user of this host may read or change the key. Raises InvalidArgumentError."""
    if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        raise InvalidArgumentError(
            "every user of this host may read or change the key, and so sign tokens for any identity",
            value=str(path),
            remedy=f"chmod o-rw {path}; if other people use this host, make a new key",
        )


def _load(path: Path) -> Any:
    """Read a private or a public key. Raises InvalidArgumentError, whose message has no part of the key."""
    from bookie_server.ports.access.tokens import load_jwt

    load_jwt()
    from cryptography.hazmat.primitives import serialization

    try:
        pem = path.read_bytes()
        private = b"PRIVATE KEY" in pem
        return serialization.load_pem_private_key(pem, None) if private else serialization.load_pem_public_key(pem)
    except (OSError, ValueError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no key in PEM, or it is encrypted"
        raise InvalidArgumentError(
            "a key cannot be read",
            value=f"{path}: {why}",
            remedy="make one: openssl genpkey -algorithm ed25519 -out FILE",
        ) from None


def _jwk(key: Any) -> dict[str, Any]:
    """Return the public part of a key, as bookies read it. Its ``kid`` is its thumbprint."""
    from bookie_server.ports.access.tokens import load_jwt, parse_keys

    jwt = load_jwt()
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    public = key.public_key() if hasattr(key, "public_key") else key
    algorithm = "EdDSA"
    if isinstance(public, rsa.RSAPublicKey):
        algorithm = "RS256"
    elif isinstance(public, ec.EllipticCurvePublicKey):
        algorithm = "ES256"
    try:
        made = dict(jwt.get_algorithm_by_name(algorithm).to_jwk(public, as_dict=True))
        least = {each: made[each] for each in _LEAST[made["kty"]]}
        print_ = hashlib.sha256(json.dumps(least, sort_keys=True, separators=(",", ":")).encode()).digest()
        kid = base64.urlsafe_b64encode(print_).rstrip(b"=").decode()
        made = {**least, "kid": kid, "alg": algorithm, "use": "sig"}
        parse_keys(json.dumps({"keys": [made]}).encode())
    except (ValueError, TypeError, KeyError, jwt.PyJWTError) as error:
        raise InvalidArgumentError(
            "a key of this kind signs no tokens",
            value=str(error),
            remedy="Ed25519, ECDSA with P-256 or RSA of 2048 bits or more",
        ) from None
    return made
