# SPDX-License-Identifier: Apache-2.0
"""What a client and a bookie of a release said to each other on our lanes: every kind of request, and its answer. It is
kept byte for byte, and later bookies must give the same answers to the same bytes.

The direct lane and gRPC carry the same messages; here it is the direct lane, whose framing is simple.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bk_core.entries.apache import lac_body
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester, ledger_key
from bk_core.entries.frame import encode_frame
from bk_core.model import DigestType
from bk_core.wire.lane.direct_messages import preamble
from bk_core.wire.proto import lane_pb2
from tests.kit.direct_client import ANSWERS, HEAD
from tests.release.contents import PASSWORD

ABOVE = 2000
"""Of the direct port above the bookie's."""
NEW, EXPLICIT, NOBODYS = 900_000_001, 900_000_002, 900_000_003
"""Ledgers that no client made."""
KEY = ledger_key(PASSWORD)
REQUESTS: Mapping[str, Any] = {
    "Add": lane_pb2.AddRequest,
    "Read": lane_pb2.ReadRequest,
    "Control": lane_pb2.ControlRequest,
}


@dataclass
class Exchange:
    """A message of the client, and the bookie's answer: one message, or all parts of a read. ``rest`` is the message
    without its frames."""

    stream: str
    begins: bool  # with a connection of its own
    frames: bytes
    rest: bytes
    answer_frames: bytes = b""
    answer_rest: bytes = b""


def requests(bookie_id: str, read: int) -> Iterator[Exchange]:
    """All of them. ``read``: a closed ledger of which the bookie has the entries."""
    hello = lane_pb2.Hello(
        version_min=1, version_max=1, bookie_id=bookie_id, frame_bytes_max=8 << 20, client="a client of this release"
    )
    yield from _strangers(hello)
    yield from _adds(hello)
    yield from _reads(hello, read)
    yield from _controls(hello, read)


def _strangers(hello: Any) -> Iterator[Exchange]:
    """Whom the bookie refuses."""
    for wrong in ({"version_min": 2, "version_max": 9}, {"bookie_id": "another:3181"}, {"instance_id": "another"}):
        said = lane_pb2.Hello()
        said.CopyFrom(hello)
        for name, value in wrong.items():
            setattr(said, name, value)
        yield _first("Control", hello=said)


def _adds(hello: Any) -> Iterator[Exchange]:
    attach = lane_pb2.Attach(session=7, ledger_id=NEW, ledger_key=KEY)
    yield _first("Add", hello=hello)
    yield _next("Add", frames=_frame(NEW, 0, 3, session=7), attach=[attach])
    yield _next("Add", frames=_frame(NEW, 3, 2, session=7))
    explicit = lane_pb2.Attach(session=8, ledger_id=EXPLICIT, ledger_key=KEY, explicit_ids=True)
    yield _next("Add", frames=_frame(EXPLICIT, 5, 2, session=8), attach=[explicit])
    recover = lane_pb2.Attach(session=9, ledger_id=NEW, ledger_key=KEY, mode=lane_pb2.RECOVER)
    yield _next("Add", frames=_frame(NEW, 5, 1, session=9), attach=[recover], detach=[7])
    stranger = lane_pb2.Attach(session=10, ledger_id=NEW, ledger_key=b"\1" * 20)
    yield _next("Add", frames=_frame(NEW, 6, 1, session=10), attach=[stranger])


def _reads(hello: Any, ledger: int) -> Iterator[Exchange]:
    yield _first("Read", hello=hello)
    whole = {"ledger_id": ledger, "first_entry_id": 10, "last_entry_id": 19, "bytes_max": 1 << 20}
    yield _next("Read", id=1, **whole)
    yield _next("Read", id=2, ids_only=True, **whole)
    yield _next("Read", id=3, head_bytes=8, **whole)
    yield _next("Read", id=4, range_counts=[1] * 10, range_offsets=[2] * 10, range_sizes=[4] * 10, **whole)
    yield _next("Read", id=5, cancel=[4], ledger_id=NOBODYS, first_entry_id=0, last_entry_id=3, bytes_max=1000)
    beyond = {"ledger_id": NEW, "first_entry_id": 4, "last_entry_id": 9, "bytes_max": 1000, "high_priority": True}
    yield _next("Read", id=6, fence=True, ledger_key=KEY, **beyond)
    yield _next("Read", id=7, fence=True, ledger_key=b"\2" * 20, **beyond)


def _controls(hello: Any, ledger: int) -> Iterator[Exchange]:
    body = lac_body(4, Digester(DigestType.CRC32C, PASSWORD, EXPLICIT))
    yield _first("Control", hello=hello)
    calls: list[dict[str, Any]] = [
        {"read_lac": lane_pb2.ReadLacRequest(ledger_id=ledger)},
        {"write_lac": lane_pb2.WriteLacRequest(ledger_id=EXPLICIT, ledger_key=KEY, lac_body=body)},
        {"read_lac": lane_pb2.ReadLacRequest(ledger_id=EXPLICIT)},
        {"watch_lac": lane_pb2.WatchLacRequest(ledger_id=ledger, previous_lac=3, timeout_ms=1000)},
        {"force": lane_pb2.ForceRequest(ledger_id=EXPLICIT)},
        {"list_entries": lane_pb2.ListEntriesRequest(ledger_id=ledger)},
        {"fence": lane_pb2.FenceRequest(ledger_id=NOBODYS, ledger_key=KEY)},
        {"read_lac": lane_pb2.ReadLacRequest(ledger_id=NOBODYS)},
        {"delete_hint": lane_pb2.DeleteHintRequest(ledger_ids=[NOBODYS])},
        {"bookie_info": lane_pb2.BookieInfoRequest()},
    ]
    for number, call in enumerate(calls, 1):
        yield _next("Control", id=number, deadline_ms=5000, **call)


def _first(stream: str, **fields: Any) -> Exchange:
    return Exchange(stream, True, b"", REQUESTS[stream](**fields).SerializeToString(deterministic=True))


def _next(stream: str, *, frames: bytes = b"", **fields: Any) -> Exchange:
    return Exchange(stream, False, frames, REQUESTS[stream](**fields).SerializeToString(deterministic=True))


def _frame(ledger_id: int, first: int, count: int, *, session: int) -> bytes:
    before = sum(len(f"entry {k}") for k in range(first))
    batch = EntryBatch.from_list([f"entry {first + k}".encode() for k in range(count)])
    made = encode_frame(
        batch,
        ledger_id=ledger_id,
        first_entry_id=first,
        lac=first - 1,
        length_before=before,
        digester=Digester(DigestType.CRC32C, PASSWORD, ledger_id),
        session=session,
    )
    return bytes(made)


def hold(port: int, asked: list[Exchange]) -> list[Exchange]:
    """Say all of it to the bookie at ``port``; what was said, with the answers."""
    said: list[Exchange] = []
    connection: socket.socket | None = None
    for each in asked:
        if each.begins:
            if connection is not None:
                connection.close()
            connection = socket.create_connection(("127.0.0.1", port + ABOVE), timeout=10)
            connection.sendall(preamble(each.stream))
        assert connection is not None
        connection.sendall(HEAD.pack(len(each.frames), len(each.rest)) + each.frames + each.rest)
        frames, rest = _answer(connection, each)
        said.append(Exchange(each.stream, each.begins, each.frames, each.rest, frames, rest))
    if connection is not None:
        connection.close()
    return said


def _answer(connection: socket.socket, asked: Exchange) -> tuple[bytes, bytes]:
    """The frames of all parts together, and the last message."""
    frames = b""
    while True:
        sizes = HEAD.unpack(_exactly(connection, HEAD.size))
        frames += _exactly(connection, sizes[0])
        rest = _exactly(connection, sizes[1])
        if asked.stream != "Read" or asked.begins or ANSWERS["Read"].FromString(rest).HasField("trailer"):
            return frames, rest


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the bookie ended the connection"
        data += part
    return data


def lasting(stream: str, rest: bytes) -> Any:
    """Return an answer without what differs from version to version and from disk to disk, such as texts for people."""
    answer = ANSWERS[stream].FromString(rest)
    _clear_texts(answer)
    if answer.HasField("hello"):
        answer.hello.ClearField("server")
    if stream == "Control" and answer.HasField("info"):
        for name in ("total_bytes", "free_bytes", "version", "ledgers"):
            answer.info.ClearField(name)
    return answer


def _clear_texts(message: Any) -> None:
    for field, value in message.ListFields():
        if field.name == "message":
            message.ClearField(field.name)
        elif field.message_type is not None:
            for each in value if isinstance(value, Iterable) else (value,):
                _clear_texts(each)


def save(said: list[Exchange], folder: Path) -> None:
    lines = [
        {**vars(each), **{name: value.hex() for name, value in vars(each).items() if isinstance(value, bytes)}}
        for each in said
    ]
    text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
    (folder / "conversation.jsonl").write_text(text, encoding="utf-8")


def load(folder: Path) -> list[Exchange]:
    found = []
    for line in (folder / "conversation.jsonl").read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        texts = {name: bytes.fromhex(value) for name, value in fields.items() if name not in ("stream", "begins")}
        found.append(Exchange(stream=fields["stream"], begins=fields["begins"], **texts))
    return found
