# SPDX-License-Identifier: Apache-2.0
"""Makes tokens that are correct or wrong in one way, their signers, and the file of keys."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.kit import canaries

CANARY = canaries.OTHER[0].decode("ascii")

_MAKE = {
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
}


class Signer:
    """A key pair, whose public part is :attr:`jwk`."""

    def __init__(self, kid: str, algorithm: str = "EdDSA") -> None:
        self.kid, self.algorithm = kid, algorithm
        self.private: Any = _MAKE[algorithm]()
        public = self.private.public_key()
        self.jwk: dict[str, Any] = {
            **dict(jwt.get_algorithm_by_name(algorithm).to_jwk(public, as_dict=True)),
            "kid": kid,
            "alg": algorithm,
            "use": "sig",
        }
        self.jwk.pop("key_ops", None)

    def token(
        self,
        subject: str | None = "ingest",
        audience: object = "cluster-1",
        *,
        life_s: float = 3600,
        age_s: float = 0,
        header: dict[str, Any] | None = None,
        **claims: Any,
    ) -> bytes:
        """Make a token that was signed ``age_s`` ago and has a canary in it. A claim that is None is left out."""
        now = int(time.time() - age_s)
        said = {"sub": subject, "aud": audience, "iat": now, "exp": int(now + life_s), "jti": CANARY, **claims}
        said = {name: value for name, value in said.items() if value is not None}
        headers = {"kid": self.kid, **(header or {})}
        return jwt.encode(said, self.private, self.algorithm, headers).encode("ascii")


def keys_file(path: Path, *signers: Signer) -> Path:
    """Write the file of the signers' keys; an existing file is replaced atomically."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"keys": [each.jwk for each in signers]}))
    new.replace(path)
    return path
