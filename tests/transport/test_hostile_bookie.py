# SPDX-License-Identifier: Apache-2.0
"""A bookie that answers what no bookie may: the client goes on with the others, and believes nothing that is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from bk_core.client import BookKeeper
from bk_core.entries.frame import encode_record
from bk_core.model import DIRECT
from bk_core.transport.lane import message_socket
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.lane.grpc_frames import pack, unpack
from bk_core.wire.lane.reasons import LaneMessage
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from bk_core.wire.proto import lane_pb2
from tests.kit.direct_client import HEAD
from tests.kit.lanes import frame
from tests.kit.liars import ApacheLiar, Liar, Lie, Raw, apache_cluster_with_a_liar, cluster_with_a_liar
from tests.kit.memory_cluster import FAST

ENTRIES = [b"entry %d" % n for n in range(40)]
DEADLINE_S = 40.0


def adds(change: Callable[[Any], Iterable[Any]]) -> dict[str, Lie]:
    def lie(message: bytes) -> Iterable[bytes]:
        return [said.SerializeToString() for said in change(lane_pb2.AddResponse.FromString(message))]

    return {"Add": lie}


def reads(change: Callable[[bytes, Any], Iterable[tuple[bytes, Any]]]) -> dict[str, Lie]:
    def lie(message: bytes) -> Iterable[bytes]:
        frames, rest = unpack(message)
        answer = lane_pb2.ReadResponse.FromString(bytes(rest))
        return [pack(LaneMessage(to.SerializeToString(), [said])) for said, to in change(bytes(frames or b""), answer)]

    return {"Read": lie}


def control(change: Callable[[Any], Iterable[Any]]) -> dict[str, Lie]:
    def lie(message: bytes) -> Iterable[bytes]:
        return [said.SerializeToString() for said in change(lane_pb2.ControlResponse.FromString(message))]

    return {"Control": lie}


def acks(sessions: Callable[[int], int], frames: Callable[[int], int]) -> dict[str, Lie]:
    return adds(
        lambda said: [
            lane_pb2.AddResponse(
                sessions=map(sessions, said.sessions), frames=map(frames, said.frames), ended=said.ended
            )
        ]
    )


def ends(frames: int, reason: int) -> dict[str, Lie]:
    return adds(
        lambda said: [
            lane_pb2.AddResponse(ended=[lane_pb2.SessionEnded(session=s, frames=frames, reason=reason)])
            for s in said.sessions
        ]
    )


def trailer(**fields: Any) -> dict[str, Lie]:
    return reads(lambda _, a: [(b"", lane_pb2.ReadResponse(id=a.id, trailer=lane_pb2.ReadTrailer(**fields)))])


def frames_are(other: Callable[[bytes], bytes], times: int = 1) -> dict[str, Lie]:
    def change(frames: bytes, answer: Any) -> Iterable[tuple[bytes, Any]]:
        return [*[(other(frames), lane_pb2.ReadResponse(id=answer.id))] * (times - 1), (other(frames), answer)]

    return reads(change)


def evidence(**fields: Any) -> dict[str, Lie]:
    return control(
        lambda said: [
            lane_pb2.ControlResponse(id=said.id, lac=lane_pb2.LacAnswer(known=True, last_entry_id=9, **fields))
        ]
    )


NOISE = bytes(range(256)) * 4
GAP = lane_pb2.EntryRange(first_entry_id=2**62, last_entry_id=-(2**62), reason=77)

LIES: dict[str, dict[str, Lie]] = {
    "acks frames never sent": acks(lambda s: s, lambda n: n + 1_000),
    "acks 2^64 - 1 frames": acks(lambda s: s, lambda n: 2**64 - 1),
    "acks go back": adds(
        lambda said: [said, lane_pb2.AddResponse(sessions=said.sessions, frames=[0] * len(said.frames))]
    ),
    "acks of another session": acks(lambda s: s + 7, lambda n: n),
    "acks of no length": adds(lambda said: [lane_pb2.AddResponse(sessions=said.sessions)]),
    "ends for no reason": ends(0, 0),
    "ends for a reason of the future": ends(0, 99),
    "ends with frames never sent": ends(10**9, 1),
    "says nothing to adds": adds(lambda said: []),
    "adds: noise": {"Add": lambda message: [NOISE]},
    "adds: nothing at all": {"Add": lambda message: [b""]},
    "answers beyond the end": trailer(answered_through=2**63 - 1),
    "answers through -2^63": trailer(answered_through=-(2**63)),
    "answers nothing": trailer(answered_through=-1),
    "absent and unknown in disorder": trailer(answered_through=39, absent=[GAP] * 99, unknown=[GAP]),
    "refuses for a reason of the future": trailer(reason=99),
    "answers to nobody": reads(lambda frames, a: [(frames, lane_pb2.ReadResponse(id=10**6, trailer=a.trailer))]),
    "no trailer": reads(lambda frames, a: [(frames, lane_pb2.ReadResponse(id=a.id))]),
    "frames: noise": frames_are(lambda _: NOISE),
    "frames: a record": frames_are(lambda _: encode_record(3, 0)),
    "frames of another ledger": frames_are(lambda _: frame(77, 0, ENTRIES)),
    "frames not asked for": frames_are(lambda _: frame(0, 10**9, ENTRIES)),
    "the same frames without end": frames_are(lambda true: true * 100, times=2_000),
    "frames cut short": frames_are(lambda true: true[:-1]),
    "reads: noise": {"Read": lambda message: [b"\xff" * 100]},
    "no answer in the answer": control(lambda said: [lane_pb2.ControlResponse(id=said.id)]),
    "another kind of answer": control(lambda said: [lane_pb2.ControlResponse(id=said.id, info=lane_pb2.BookieInfo())]),
    "control: a reason of the future": control(lambda said: [lane_pb2.ControlResponse(id=said.id, reason=99)]),
    "control: answers to nobody": control(lambda said: [lane_pb2.ControlResponse(id=10**6)]),
    "control: noise": {"Control": lambda message: [NOISE]},
    "evidence: noise": evidence(last_entry_frame=NOISE, lac_frame=NOISE, lac_body=NOISE),
    "evidence: a body with a bad digest": evidence(lac_body=bytes(20)),
    "evidence: a record": evidence(last_entry_frame=encode_record(3, 0)),
    "evidence: a record for the LAC": evidence(lac_frame=encode_record(2, 0, bytes(20))),
    "evidence: two entries": evidence(last_entry_frame=frame(0, 0, [b"a", b"b"])),
    "evidence of another ledger": evidence(last_entry_frame=frame(77, 38, [b"a"], lac=37)),
}
"""What both lanes carry in the same way."""

GRPC_LIES: dict[str, dict[str, Lie]] = {
    **LIES,
    "reads: a length that does not fit": {"Read": lambda message: [b"\x0a\xff\xff\xff\xff\x7f"]},
}


def half(of: bytes) -> Raw:
    return Raw(HEAD.pack(0, 2 * len(of)) + of)


def behind_frames(rest: bytes) -> Raw:
    return Raw(HEAD.pack(4 << 20, len(rest)) + bytes(4 << 20) + rest)


DIRECT_LIES: dict[str, dict[str, Lie]] = {
    **LIES,
    "lengths beyond the limit": {"Read": lambda message: [Raw(HEAD.pack(2**32 - 1, 2**32 - 1) + message)]},
    "adds: half a message": {"Add": lambda message: [half(message)]},
    "reads: half a message": {"Read": lambda message: [half(message)]},
    "reads: half of a long message": {"Read": lambda message: [half(message + bytes(2 << 20))]},
    "control: half a message": {"Control": lambda message: [half(message)]},
    "adds: acks behind frames": {"Add": lambda message: [behind_frames(message)]},
    "control: answers behind frames": {"Control": lambda message: [behind_frames(message)]},
}


def answered(change: Callable[[pb.Response], Iterable[pb.Response]], *, to: int = 0) -> Lie:
    """A lie on Apache's wire, about answers to operation ``to``, or about all."""

    def lie(frame: bytes) -> Iterable[bytes]:
        said = pb.Response.FromString(frame[4:])
        return [v3.framed(one) for one in change(said)] if to in (0, said.header.operation) else [frame]

    return lie


def with_txn(said: pb.Response, txn: int) -> pb.Response:
    other = pb.Response.FromString(said.SerializeToString())
    other.header.txnId = txn
    return other


def entry_is(other: Callable[[bytes], bytes]) -> Lie:
    def change(said: pb.Response) -> Iterable[pb.Response]:
        said.readResponse.body = other(said.readResponse.body)
        yield said

    return answered(change, to=pb.READ_ENTRY)


def status_is(status: int, to: int) -> Lie:
    def change(said: pb.Response) -> Iterable[pb.Response]:
        said.status = status
        yield said

    return answered(change, to=to)


def ids_are(ledger: int, entry: int, to: int) -> Lie:
    def change(said: pb.Response) -> Iterable[pb.Response]:
        body = said.addResponse if to == pb.ADD_ENTRY else said.readResponse
        body.ledgerId += ledger
        body.entryId += entry
        yield said

    return answered(change, to=to)


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda body: body[:at] + bytes((body[at] ^ 1,)) + body[at + 1 :] if len(body) > at else body


APACHE_LIES: dict[str, Lie] = {
    "everything twice": lambda frame: [frame, frame],
    "everything of nobody": answered(lambda said: [with_txn(said, 2**63 + said.header.txnId)]),
    "everything for the next": answered(lambda said: [with_txn(said, said.header.txnId + 1)]),
    "nothing at all": lambda frame: [],
    "noise": lambda frame: [NOISE],
    "frames without end": lambda frame: [b"\x7f\xff\xff\xff"],
    "frames cut short": lambda frame: [frame[:-1]],
    "lengths of nothing": lambda frame: [bytes(4)],
    "adds of other entries": ids_are(0, 1, pb.ADD_ENTRY),
    "adds of other ledgers": ids_are(1, 0, pb.ADD_ENTRY),
    "adds: everybody is busy": status_is(506, pb.ADD_ENTRY),
    "adds: no such ledger": status_is(402, pb.ADD_ENTRY),
    "adds: limbo": status_is(507, pb.ADD_ENTRY),
    "adds: read only": status_is(505, pb.ADD_ENTRY),
    "reads of other entries": ids_are(0, 1, pb.READ_ENTRY),
    "reads: nothing is there": status_is(403, pb.READ_ENTRY),
    "reads: no such ledger": status_is(402, pb.READ_ENTRY),
    "reads: everybody is busy": status_is(506, pb.READ_ENTRY),
    "reads: limbo": status_is(507, pb.READ_ENTRY),
    "entries: noise": entry_is(lambda body: NOISE),
    "entries: nothing": entry_is(lambda body: b""),
    "entries cut short": entry_is(lambda body: body[:-1]),
    "entries: a header": entry_is(lambda body: body[:32]),
    "entries of another ledger": entry_is(flipped(7)),
    "entries with another id": entry_is(flipped(15)),
    "entries with another LAC": entry_is(flipped(23)),
    "entries with another length": entry_is(flipped(31)),
    "entries with another digest": entry_is(flipped(35)),
    "entries with another payload": entry_is(flipped(36)),
    "LAC of the end of the world": entry_is(lambda body: body[:16] + b"\x7f" * 8 + body[24:]),
}


BATCH_LIES: dict[str, Lie] = {
    "nothing at all": lambda frame: [],
    "noise": lambda frame: [NOISE],
    "entries with another payload": lambda frame: [frame[:-1] + bytes((frame[-1] ^ 1,))],
}


async def one_story(cluster: AbstractAsyncContextManager[tuple[BookKeeper, Liar | ApacheLiar]]) -> None:
    """Writing, recovering and reading with a liar in every ensemble."""
    async with asyncio.timeout(DEADLINE_S), cluster as (client, liar):

        def choose(writable: Sequence[str], size: int, *_: object) -> tuple[str, ...]:
            return (liar.bookie_id, *(each for each in writable if each != liar.bookie_id))[:size]

        client._choose = choose
        await write_recover_and_read(client)
        assert liar.told


async def write_recover_and_read(client: BookKeeper) -> None:
    writer, dead = await client.create_ledger(password=b"secret"), await client.create_ledger(password=b"secret")
    for one in (writer, dead):
        for entry in ENTRIES:
            one.append_nowait(entry)
        await one.flush()
    async with await client.open_ledger(dead.ledger_id, recover=False, password=b"secret") as reader:
        assert reader.last_add_confirmed <= 39
    await writer.close()
    await dead.abandon()
    for ledger_id, recover in ((writer.ledger_id, False), (dead.ledger_id, True)):
        async with await client.open_ledger(ledger_id, recover=recover, password=b"secret") as reader:
            for _ in range(3):  # each time another bookie may be asked first
                reader._prefer += 1
                found = [entry async for batch in reader.read(0, 39) for entry in batch.to_list()]
                assert found == ENTRIES


@pytest.mark.long
@pytest.mark.parametrize(
    ("lane", "name"), [*((DIRECT, name) for name in DIRECT_LIES), *(("grpc", name) for name in GRPC_LIES)]
)
async def test_a_bookie_that_lies_keeps_nobody_from_writing_recovering_and_reading(
    lane: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_socket, "MESSAGE_TIMEOUT_S", 0.5)
    lies = DIRECT_LIES[name] if lane == DIRECT else GRPC_LIES[name]
    await one_story(cluster_with_a_liar(lane, tmp_path, lies, FAST))


@pytest.mark.long
@pytest.mark.rule("MUST4")
@pytest.mark.parametrize("name", APACHE_LIES)
async def test_a_bookie_that_lies_on_apaches_wire_keeps_nobody_either(name: str) -> None:
    await one_story(apache_cluster_with_a_liar(APACHE_LIES[name], FAST))


@pytest.mark.long
@pytest.mark.rule("MUST4")
@pytest.mark.parametrize("name", BATCH_LIES)
async def test_a_bookie_that_lies_in_batches_keeps_nobody_either(name: str) -> None:
    await one_story(apache_cluster_with_a_liar(BATCH_LIES[name], FAST, batches=True))
