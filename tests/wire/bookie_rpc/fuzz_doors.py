# SPDX-License-Identifier: Apache-2.0
"""Mutated first messages of our lanes' streams and mutated requests to an admin port, where a bookie wants tokens.
Whoever has shown no token that was signed gets nothing done, and nothing but an answer that says so."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bk_core.access.tokens import MECHANISM
from bk_core.errors import RemoteProtocolError
from bk_core.wire.lane.reasons import Reason
from bk_core.wire.proto import lane_pb2
from bookie_server.admin.http.connection_places import ConnectionPlaces
from bookie_server.admin.http.server import HEAD_BYTES_MAX, NEEDS_TOKEN, HttpAnswer, HttpRequest, HttpServer
from bookie_server.ports.access.principal import Principal, Proof
from bookie_server.ports.lane.control_stream import STREAMS
from tests.kit.lanes import KEY, frame
from tests.kit.rpc_bookie import RpcBookie
from tests.wire.bookie_rpc.fuzz import Tally, mutate
from tests.wire.bookie_rpc.fuzz_tokens import genuine, mutated_token, token_port

HELLOS_A_ROUND = 60
REQUESTS_A_ROUND = 60
FREE = "/live"
STATUSES = (200, 400, 401, 403, 404, 405, 408, 421, 429, 431, 500, 503)
CLOSED = ("/metrics", "/config", "/log/level", "/api/v1/bookie/info")

_FRAME = frame(7, 0, [b"x"], session=1)
_REQUESTS: dict[str, Any] = {
    "Add": lane_pb2.AddRequest,
    "Read": lane_pb2.ReadRequest,
    "Control": lane_pb2.ControlRequest,
}


def hello_round(number: int) -> Tally:
    """Tries one round of first messages."""
    return _round(f"hello {number}", HELLOS_A_ROUND, _try_hello)


def admin_round(number: int) -> Tally:
    """Tries one round of requests to an admin port."""
    return _round(f"admin {number}", 1, lambda rng, tally: asyncio.run(_ask_admin_port(rng, tally)))


def _round(name: str, count: int, attempt: Callable[[random.Random, Tally], None]) -> Tally:
    tally, rng = Tally(), random.Random(name)
    with tally.noting(name):
        for _ in range(count):
            attempt(rng, tally)
    tally.doors = tally.mutated
    return tally


def _some_token(rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    return b"" if kind == 0 else genuine(rng) if kind == 1 else mutated_token(rng)


# --- hello ---


def _first_message(rng: random.Random, name: str, bookie: RpcBookie) -> tuple[bytes, bytes]:
    """A hello with a token of some kind and what comes with it, mutated, and the same without hello."""
    token = _some_token(rng)
    hello = lane_pb2.Hello(
        version_min=1,
        version_max=1,
        bookie_id=bookie.facts.bookie_id,
        instance_id=bookie.facts.instance_id,
        mechanism=rng.choice((MECHANISM, MECHANISM, MECHANISM, "", "sasl")),
        token=token,
    )
    kind = _REQUESTS[name]
    rest = kind()
    if name == "Add":
        rest.attach.add(session=1, ledger_id=7, ledger_key=KEY)
    elif name == "Control":
        rest.id = 3
        rest.bookie_info.SetInParent()
    content = bytearray(kind(hello=hello).SerializeToString() + rest.SerializeToString())
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        mutate(rng, content, [b"....", b"...." + bytes(content)])
    return bytes(content), rest.SerializeToString()


def _try_hello(rng: random.Random, tally: Tally) -> None:
    name, bookie = rng.choice(sorted(_REQUESTS)), RpcBookie()
    facts = replace(bookie.facts, port_tls=token_port())
    engine: Any = bookie
    stream = STREAMS[name](engine, facts, Principal("fuzz:1"))
    first, more = _first_message(rng, name, bookie)
    frames = memoryview(bytearray(_FRAME)) if name == "Add" else None
    tally.mutated += 1
    tally.frames += 1
    ended = False
    try:
        stream.receive(first, frames)
        if not stream.closing:
            stream.receive(more, frames)
    except RemoteProtocolError:
        ended = True
    proven = stream.principal.proof is Proof.TOKEN
    if proven:
        assert stream.principal.identity == "ingest"
    else:
        tally.faults += 1
        assert ended or stream.closing, "it goes on with a client that has shown nothing"
        assert not bookie.store.ledgers, "frames of a client that has shown nothing"
        while message := stream.next_message():
            answer = {"Add": lane_pb2.AddResponse, "Read": lane_pb2.ReadResponse}.get(name, lane_pb2.ControlResponse)
            said = answer.FromString(message.rest)
            assert {each.name for each, _ in said.ListFields()} == {"hello"}, said
            assert said.hello.reason != int(Reason.REASON_NONE), said
    stream.end()


# --- the admin port ---


def _head(rng: random.Random) -> bytes:
    token = _some_token(rng)
    shown = rng.choice((b"Bearer ", b"Bearer ", b"bearer  ", b"Basic ", b"Bearer\t", b"")) + token
    lines = [
        b"%b %b HTTP/1.%b"
        % (
            rng.choice((b"GET", b"GET", b"PUT", b"POST")),
            rng.choice((FREE, *CLOSED)).encode() + rng.choice((b"", b"?a=b", b"/", b"%2f", b"//..")),
            rng.choice((b"1", b"0")),
        ),
        b"Host: 127.0.0.1",
        *([b"Authorization: " + shown] if token else []),
        *([b"Authorization: Bearer " + mutated_token(rng)] if rng.random() < 0.05 else []),
    ]
    content = bytearray(b"\r\n".join(lines))
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        mutate(rng, content, [b"....", b"...." + bytes(content)])
    return bytes(content) + b"\r\n\r\n"


async def _ask_admin_port(rng: random.Random, tally: Tally) -> None:
    asked: list[HttpRequest] = []

    def answer(request: HttpRequest) -> HttpAnswer:
        asked.append(request)
        return HttpAnswer(200, "done\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(listener, answer, answer, lambda _: True, tls=token_port(), free=(FREE,))
        for _ in range(REQUESTS_A_ROUND):
            asked.clear()
            head = _head(rng)
            tally.mutated += 1
            tally.frames += 1
            reader = asyncio.StreamReader(HEAD_BYTES_MAX)
            reader.feed_data(head)
            reader.feed_eof()
            stranger = Principal("fuzz:1")
            place = ConnectionPlaces(1).enter("fuzz", asked.clear)
            assert place is not None
            said = await server._answer(reader, stranger, place, may_write=True, not_let_in=NEEDS_TOKEN)
            assert said is not None, head
            assert said.status in STATUSES, (head, said)
            for request in asked:
                assert not request.token
                known = request.principal.identity == "ingest" and request.principal.proof is Proof.TOKEN
                assert known or (request.path == FREE and request.method == "GET"), head
            tally.faults += said.status != 200
            assert (said.status == 200) is bool(asked), (head, said)
