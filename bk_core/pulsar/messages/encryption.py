# SPDX-License-Identifier: Apache-2.0
"""Decrypts messages with the package ``cryptography``.

A message is encrypted with AES-GCM and a data key. The data key is wrapped with RSA-OAEP for each public key of the
producer. Elliptic-curve keys (ECIES) are not supported, because ``cryptography`` has no ECIES.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bk_core.errors import InvalidArgumentError
from bk_core.installing import how_to_install

_KEYS_KEPT_MAX = 1000
"""The maximum number of unwrapped data keys in the cache. Producers use one data key for many messages."""


class DecryptionError(ValueError):
    """The error for a message that cannot be decrypted. ``no_key`` is True if no given key fits the message."""

    no_key = False


def no_key(what: str) -> DecryptionError:
    """Return the error for a message that no given private key can decrypt."""
    error = DecryptionError(what)
    error.no_key = True
    return error


class Decryptor:
    """Decrypts messages with RSA private keys. ``private_keys`` maps the names that producers gave their keys to PEM.
    The key with the name ``*`` is used for every other name. Raises InvalidArgumentError for a key that cannot be
    used, or if ``cryptography`` is not installed."""

    def __init__(self, private_keys: Mapping[str, bytes]) -> None:
        self._keys = {name.encode(): _private_key(name, pem) for name, pem in private_keys.items()}
        self._data_keys: dict[bytes, bytes] = {}

    def decrypted(self, body: bytes | memoryview, keys: Mapping[bytes, bytes], param: bytes) -> bytes:
        """Return ``body`` decrypted. ``keys`` has the wrapped data keys by the names of the keys that wrap them.
        ``param`` is the nonce of AES-GCM. Raises DecryptionError if no private key fits, or if the decryption fails."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for name, wrapped in keys.items():
            private = self._keys.get(name) or self._keys.get(b"*")
            if private is None:
                continue
            try:
                return AESGCM(self._data_key(private, wrapped)).decrypt(param, bytes(body), None)
            except (ValueError, InvalidTag) as error:
                raise DecryptionError(
                    f"the private key {_text(name)} does not decrypt it: {str(error) or 'its tag is wrong'}"
                ) from error
        raise no_key("none of the given private keys fits it")

    def _data_key(self, private: Any, wrapped: bytes) -> bytes:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        found = self._data_keys.get(wrapped)
        if found is None:
            scheme = padding.OAEP(mgf=padding.MGF1(hashes.SHA1()), algorithm=hashes.SHA1(), label=None)
            found = bytes(private.decrypt(wrapped, scheme))
            if len(self._data_keys) >= _KEYS_KEPT_MAX:
                self._data_keys.clear()
            self._data_keys[wrapped] = found
        return found


def _private_key(name: str, pem: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise InvalidArgumentError(
            "encrypted messages need the package cryptography", remedy=how_to_install("auth")
        ) from error
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError("this is not a private key in PEM", value=f"key {name}: {error}") from error
    if not isinstance(key, RSAPrivateKey):
        raise InvalidArgumentError(
            "only RSA keys are supported for encrypted messages", value=f"key {name} is of type {type(key).__name__}"
        )
    return key


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
