# SPDX-License-Identifier: Apache-2.0
"""Mutated tokens: to whoever verifies them, in AUTH on whole connections of a bookie, and in the head of a request to
an admin port. Nothing is done for who has not shown a token that was signed."""

from __future__ import annotations

import atexit
import base64
import functools
import json
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from bk_core.access.tls import Admission
from bk_core.access.tokens import PLUGIN
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from bookie_server.admin.http.server import HttpRefused, request_of
from bookie_server.ports.access.principal import Proof
from bookie_server.ports.access.tls import PortTls
from bookie_server.ports.access.tokens import TokenKeys, TokenRefusedError, parse_keys, verify
from bookie_server.ports.bookie_rpc.auth import TokenAuth
from tests.kit.bookie_requests import some_request
from tests.kit.certificates import Authority
from tests.kit.rpc_bookie import RpcBookie
from tests.kit.signed_tokens import Signer, keys_file
from tests.wire.bookie_rpc.fuzz import Tally, mutate, mutated_frames

TOKENS_A_ROUND = 60
CONNECTIONS_A_ROUND = 6
FRAMES_A_BURST = 20
AUDIENCE = "cluster-1"

_SIGNERS = tuple(Signer(each, each) for each in ("EdDSA", "ES256"))
_VALUES: tuple[Any, ...] = (None, "", 0, -1, 1e308, True, "x", [], {}, ["x"], "none", "HS256", AUDIENCE, 2**70, "\n")
_CLAIMS = ("sub", "aud", "iat", "exp", "nbf", "iss", "jti")
_HEADERS = ("alg", "kid", "typ", "crit", "b64", "zip", "jwk", "cty")


@functools.cache
def token_port() -> PortTls:
    """Of a bookie that wants tokens of these signers."""
    path = Path(tempfile.mkdtemp(prefix="fuzz-tokens"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    keys = TokenKeys(keys_file(path / "keys.json", *_SIGNERS))
    return PortTls(Authority(path).issue("server").tls(client_auth=False), Admission(), keys, AUDIENCE)


def token_round(number: int) -> Tally:
    """Tries one round."""
    tally, rng = Tally(), random.Random(f"tokens {number}")
    with tally.noting(f"tokens round {number}"):
        for _ in range(TOKENS_A_ROUND):
            _try_token(rng, tally)
        for _ in range(CONNECTIONS_A_ROUND):
            _try_connection(rng, tally)
        _try_keys(rng, tally)
    tally.tokens = tally.mutated
    return tally


def genuine(rng: random.Random) -> bytes:
    """A token that counts."""
    return rng.choice(_pool(int(time.time()) // 600))


@functools.lru_cache(maxsize=1)
def _pool(_: int) -> tuple[bytes, ...]:
    """Made anew every ten minutes, because they end; signing takes longer than most of what is tried."""
    return tuple(signer.token(audience=AUDIENCE, number=n) for n in range(16) for signer in _SIGNERS)


def mutated_token(rng: random.Random) -> bytes:
    """A token that nobody signed."""
    token, way = bytearray(genuine(rng)), rng.randrange(4)
    if way == 0:
        head, claims, signature = bytes(token).split(b".")
        part = rng.randrange(2)
        said = json.loads(base64.urlsafe_b64decode((head, claims)[part] + b"=="))
        for _ in range(rng.randrange(1, 4)):
            said[rng.choice((_HEADERS, _CLAIMS)[part])] = rng.choice(_VALUES)
        changed = base64.urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=")
        token = bytearray(b".".join((changed, claims, signature) if part == 0 else (head, changed, signature)))
    elif way == 1:
        token = bytearray(Signer(rng.choice(("EdDSA", "ES256")), "EdDSA").token(audience=AUDIENCE))
    else:
        for _ in range(rng.choice((1, 1, 2, 5))):
            mutate(rng, token, [b"...." + genuine(rng)])
    return bytes(token)


def _try_token(rng: random.Random, tally: Tally) -> None:
    token, port = mutated_token(rng), token_port()
    tally.mutated += 1
    tally.frames += 1
    assert port._keys is not None
    try:
        claims = verify(token, port._keys.now(), AUDIENCE)
        assert claims.subject == "ingest", token  # the last characters of a signature have bits that say nothing
    except TokenRefusedError as error:
        tally.faults += 1
        said = f"{error}{error.told}".encode()
        if len(token) >= 20 and token in said:
            raise AssertionError(f"the token is told: {token!r}") from error
    head = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
    try:
        shown = request_of(head)
        assert shown.token.encode() in token
    except HttpRefused:
        pass


def _auth(wire: int, token: bytes, plugin: str = PLUGIN) -> bytes:
    message = pb.AuthMessage(authPluginName=plugin, payload=token)
    if wire == 2:
        return v2.auth(message)
    request = v3.request(pb.AUTH, 7)
    request.authRequest.CopyFrom(message)
    return v3.framed(request)


def _try_connection(rng: random.Random, tally: Tally) -> None:
    bookie = RpcBookie(auth=TokenAuth(token_port()))
    client, wire = bookie.connect(), rng.choice((3, 2))
    clean = [some_request(rng, wire, txn, 3, 30) for txn in range(FRAMES_A_BURST)]
    stranger = Signer("EdDSA").token(audience=AUDIENCE)  # a mutation of a genuine one might be genuine
    for _ in range(3):
        clean.insert(rng.randrange(len(clean)), _auth(wire, stranger, rng.choice((PLUGIN, PLUGIN, "sasl", ""))))
    frames, mutated = mutated_frames(rng, clean)
    tally.mutated += mutated
    tally.frames += len(frames)
    for part in frames:
        if client.closed:
            tally.faults += 1
            break
        client.send(bytes(part))
    client.take()
    assert client.connection.principal.proof is Proof.NONE
    assert not bookie.store.ledgers, "entries of a client that showed no token"
    client.connection.end()
    friend = bookie.connect()
    friend.ask(_auth(3, genuine(rng)))
    assert friend.connection.principal.proof is Proof.TOKEN
    friend.connection.end()


def _try_keys(rng: random.Random, tally: Tally) -> None:
    """A file of keys is read or refused by its error."""
    content = bytearray(json.dumps({"keys": [each.jwk for each in _SIGNERS]}).encode())
    for _ in range(rng.choice((1, 2, 8))):
        mutate(rng, content, [b"....", b"...." + bytes(content)])
    tally.mutated += 1
    tally.frames += 1
    try:
        assert set(parse_keys(bytes(content)))
    except ValueError:
        tally.faults += 1
