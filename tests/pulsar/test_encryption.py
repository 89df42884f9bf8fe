# SPDX-License-Identifier: Apache-2.0
"""Encrypted messages, made as Pulsar's clients make them: AES-GCM, whose key RSA-OAEP wraps for each reader."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bk_core.errors import CorruptMessageError, InvalidArgumentError, MessageEncryptedError
from bk_core.pulsar.messages.decoder import DecodeOptions, MessageDecoder
from bk_core.pulsar.messages.encryption import Decryptor
from tests.kit import pulsar_entries as kit
from tests.pulsar.test_rows import values

OAEP = padding.OAEP(mgf=padding.MGF1(hashes.SHA1()), algorithm=hashes.SHA1(), label=None)


@cache
def key_of(name: str) -> rsa.RSAPrivateKey:
    """Return the key of a reader with this name, which is made when a test first wants it."""
    return rsa.generate_private_key(65537, 2048)


def pem(key: Any) -> bytes:
    found: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return found


def encrypted(body: bytes, readers: Mapping[str, Any], **fields: Any) -> bytes:
    """An entry that is encrypted for some readers."""
    data_key, nonce = os.urandom(32), os.urandom(12)
    head = kit.proto.MessageMetadata(producer_name=b"p", publish_time=1, encryption_param=nonce, **fields)
    for name, key in readers.items():
        head.encryption_keys.add(key=name.encode(), value=key.public_key().encrypt(data_key, OAEP))
    return kit.framed(head, AESGCM(data_key).encrypt(nonce, body, None))


def decoder(keys: Mapping[str, bytes]) -> MessageDecoder:
    return MessageDecoder(kit.TOPIC, DecodeOptions(decryptor=Decryptor(keys)))


def test_each_reader_decrypts_with_its_key() -> None:
    batch = kit.ledger([encrypted(b"secret", {"alice": key_of("alice"), "bob": key_of("bob")}), kit.entry(b"open")])
    assert values(batch, decoder({"alice": pem(key_of("alice"))})) == [b"secret", b"open"]
    assert values(batch, decoder({"bob": pem(key_of("bob"))})) == [b"secret", b"open"]
    assert values(batch, decoder({"*": pem(key_of("alice"))})) == [b"secret", b"open"]


def test_compressed_batches_are_encrypted_as_a_whole() -> None:
    messages = b"".join(kit.single(b"m%d" % n) for n in range(3))
    fields = {"compression": 3, "uncompressed_size": len(messages), "num_messages_in_batch": 3}
    entry = encrypted(kit.compressed(3, messages), {"alice": key_of("alice")}, **fields)
    assert values(kit.ledger([entry]), decoder({"alice": pem(key_of("alice"))})) == [b"m0", b"m1", b"m2"]


def test_chunks_are_encrypted_one_by_one() -> None:
    chunks = [
        encrypted(
            part,
            {"alice": key_of("alice")},
            uuid=b"u",
            chunk_id=number,
            num_chunks_from_msg=2,
            total_chunk_msg_size=6,
        )
        for number, part in enumerate((b"abc", b"def"))
    ]
    assert values(kit.ledger(chunks), decoder({"alice": pem(key_of("alice"))})) == [b"abcdef"]


def test_key_of_another_reader_is_told_from_a_wrong_key() -> None:
    batch = kit.ledger([encrypted(b"secret", {"alice": key_of("alice")})])
    with pytest.raises(MessageEncryptedError, match="alice"):
        values(batch, decoder({"bob": pem(key_of("bob"))}))
    with pytest.raises(CorruptMessageError, match="alice does not decrypt"):
        values(batch, decoder({"alice": pem(key_of("bob"))}))


def test_changed_bytes_do_not_decrypt() -> None:
    nonce, data_key = os.urandom(12), os.urandom(32)
    head = kit.proto.MessageMetadata(producer_name=b"p", publish_time=1, encryption_param=nonce)
    head.encryption_keys.add(key=b"alice", value=key_of("alice").public_key().encrypt(data_key, OAEP))
    body = bytearray(AESGCM(data_key).encrypt(nonce, b"secret", None))
    body[0] ^= 1
    with pytest.raises(CorruptMessageError, match="tag is wrong"):
        values(kit.ledger([kit.framed(head, bytes(body))]), decoder({"alice": pem(key_of("alice"))}))


def test_keys_that_cannot_be_used_are_refused_by_name() -> None:
    for wrong in (b"", b"rubbish", pem(ec.generate_private_key(ec.SECP256R1()))):
        with pytest.raises(InvalidArgumentError, match="key alice"):
            Decryptor({"alice": wrong})
